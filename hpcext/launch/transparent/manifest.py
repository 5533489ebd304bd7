"""What is noted beside the images of a suspended process tree, and whether it still holds."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from hpcext import documents, private
from hpcext.launch.transparent import images as format_
from hpcext.launch.transparent import links
from hpcext.launch.transparent.put_off import wait_until_free
from hpcext.process import Process

SCHEMA = "hpcext.images/1"
FILE = "images.json"

IMAGES, NEW = "images", "images.new"
"""In the directory of a job: the images of its suspended processes; those being written."""

RESIDENT = "resident"
"""The key of who keeps the processes, where they stay in memory and there are no images."""

RESUME_S, BYTES_PER_S = 60.0, 20e6
"""A return may take that long, and as much longer as its images are large."""

LOST = "images.lost"
"""The file there that says why its processes were lost when they were to be suspended."""


class Images:
    """The images of one job.

    Parameters
    ----------
    home : pathlib.Path
        The directory of the job.
    log : pathlib.Path
        Where it prints; supervisors write into it too, so it may change.
    """

    def __init__(self, home: Path, log: Path) -> None:
        self.path = home / IMAGES
        self.new = home / NEW
        self._log = log

    def prepare(self) -> Path:
        """Make an empty private directory for new images.

        Raises
        ------
        OSError
            It cannot be made.
        """
        shutil.rmtree(self.new, ignore_errors=True)
        private.make(self.new)
        return self.new

    def commit(self, facts: Mapping[str, Any]) -> None:
        """Put the new images, which are complete, on the disk, and have them count from now on.

        Of processes that stay in memory there are none, and what is noted counts.

        Parameters
        ----------
        facts : Mapping
            To be noted beside them.

        Raises
        ------
        OSError, ValueError
            They do not count.
        """
        for path in self.new.iterdir():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
        stay = RESIDENT in facts
        named = {} if stay else links.named(self.new)
        document = {
            "schema": SCHEMA,
            **facts,
            **_here(),
            "at": time.time(),
            "images": {path.name: path.stat().st_size for path in self.new.iterdir()},
            "files": {} if stay else self._files(but=named),
            "links": named,
        }
        documents.write_json(self.new / FILE, document)
        documents.sync_directory(self.new)
        shutil.rmtree(self.path, ignore_errors=True)
        os.rename(self.new, self.path)
        documents.sync_directory(self.path.parent)
        # They count already: a link that keeps its old name is found by that, too.
        with contextlib.suppress(OSError):
            links.keep(named)

    def discard(self, processes: Iterable[Process]) -> None:
        """Remove images that do not count.

        Parameters
        ----------
        processes : iterable of Process
            Those of the tree, which are not suspended.
        """
        links.sweep(processes)
        shutil.rmtree(self.new, ignore_errors=True)

    def prepare_return(self, document: Mapping[str, Any]) -> None:
        """Put everything in place that images need besides themselves.

        Parameters
        ----------
        document : Mapping
            What is noted beside them.

        Raises
        ------
        PutOffError
            That is not possible at this moment.
        """
        wait_until_free(lambda: links.put_back(_links(document)))

    def put_off(self, document: Mapping[str, Any]) -> None:
        """Undo :meth:`prepare_return`, as the images are to be used later."""
        with contextlib.suppress(OSError):
            links.keep(_links(document))

    def remove(self) -> None:
        """Remove the images, which are used once: what they were of goes on, or has ended."""
        links.remove(_links(self.read()))
        # First by a name that does not count, so that no half of them is ever used.
        shutil.rmtree(self.new, ignore_errors=True)
        try:
            os.rename(self.path, self.new)
        except OSError:
            return
        shutil.rmtree(self.new, ignore_errors=True)

    def forbid(self, why: str) -> None:
        """Note that processes were lost because of images, so that it is not tried once more.

        Parameters
        ----------
        why : str
        """
        with contextlib.suppress(OSError):
            documents.write_file(self.path.parent / LOST, why.encode(errors="replace"))

    def forbidden(self) -> str:
        """Return why images must not be made; empty if they may."""
        try:
            return documents.read_own(self.path.parent / LOST).decode(errors="replace")
        except (OSError, ValueError):
            return ""

    def read(self) -> dict[str, Any] | None:
        """Return what is noted beside the images; None if there are none.

        What cannot be read is no reason to say nothing: then the document has ``unreadable``, why.
        """
        try:
            return documents.read_json(self.path / FILE, SCHEMA)
        except (OSError, ValueError) as error:
            return {"unreadable": str(error)} if os.path.lexists(self.path) else None

    def changed(self, document: Mapping[str, Any]) -> str:
        """Return what is not as it was when the processes were suspended; empty if nothing is."""
        for key, value in _here().items():
            if document.get(key) != value:
                return f"they were suspended on another machine ({key} {document.get(key)})"
        try:
            os.close(private.open_directory(self.path, without=0o077))
        except OSError as error:
            return f"the images are not private: {error.strerror}"
        for name, size in _items(document.get("images")):
            if not _is_ours(self.path / name, size):
                return f"the image {name} is missing, or not as it was written"
        for path, was in _items(document.get("files")):
            if _facts(path) != was:
                return f"{path}, which they had open, has changed"
        return ""

    def _files(self, but: Collection[str]) -> dict[str, list[int]]:
        """Return the size and time of each other file that the processes have open."""
        own = os.path.realpath(self._log)
        paths = {each.path for each in format_.open_files(self.new)}.difference(but)
        found = {path: _facts(path) for path in paths if os.path.realpath(path) != own}
        return {path: facts for path, facts in found.items() if facts is not None}


def resume_s(document: Mapping[str, Any]) -> float:
    """Return the seconds that a return may take.

    Parameters
    ----------
    document : Mapping
        What is noted beside the images.
    """
    sizes = [size for _, size in _items(document.get("images"))]
    return RESUME_S + sum(each for each in sizes if type(each) is int) / BYTES_PER_S


def _here() -> dict[str, str]:
    """Return what tells this machine from others, as far as a process can notice it."""
    system = os.uname()
    return {"node": system.nodename, "kernel": system.release}


def _is_ours(path: Path, size: object) -> bool:
    """Return whether an image has its size, and nobody else has written it."""
    try:
        facts = path.lstat()
    except OSError:
        return False
    ours = stat.S_ISREG(facts.st_mode) and facts.st_uid == os.geteuid()
    return ours and facts.st_size == size


def _facts(path: str) -> list[int] | None:
    """Return size and time of a regular file; None if there is none, as of one that was deleted."""
    try:
        facts = os.stat(path)
    except OSError:
        return None
    return [facts.st_size, facts.st_mtime_ns] if stat.S_ISREG(facts.st_mode) else None


def _links(document: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the links of images; those of an earlier release have none."""
    found = document.get("links") if document else None
    return found if isinstance(found, dict) else {}


def _items(value: Any) -> Iterable[tuple[str, Any]]:
    return value.items() if isinstance(value, dict) else ()
