"""Links of files that processes have open by a name that is gone, while the file has others.

Semaphores of Python's multiprocessing are such files. While their processes are images, CRIU keeps
a hard link of each, ``link_remap.N`` beside it, and uses it once. Its N begin anew in each dump, so
two suspended jobs of one machine would have the same names: ours are kept by names of their own.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hpcext.launch.transparent.images import open_files
from hpcext.process import Process

_LINK = re.compile(r"link_remap\.[0-9]+")
_DELETED = " (deleted)"
_OCTAL = re.compile(r"\\([0-7]{3})")


class _File(NamedTuple):
    """What tells a file from all others of a machine."""

    device: int
    inode: int


def named(images: Path) -> dict[str, list[Any]]:
    """Choose a name for each link that new images have.

    Parameters
    ----------
    images : pathlib.Path

    Returns
    -------
    dict of str to list
        Path → the path by which it is to be kept, device and inode.

    Raises
    ------
    OSError, ValueError
        There are no such images, or they make no sense.
    """
    mark, found = uuid.uuid4().hex, {}
    for path in {each.path for each in open_files(images)}:
        name = os.path.basename(path)
        file = _ours(path) if _LINK.fullmatch(name) else None
        if file is not None:
            kept = os.path.join(os.path.dirname(path), f"hpcext-{mark}-{name}")
            found[path] = [kept, *file]
    return found


def keep(links: Mapping[str, Any]) -> None:
    """Give links the names by which they are kept.

    Parameters
    ----------
    links : Mapping
        As from :func:`named`.

    Raises
    ------
    OSError
        One cannot be renamed.
    """
    for path, kept, file in _each(links):
        if _ours(path) == file:
            os.rename(path, kept)


def put_back(links: Mapping[str, Any]) -> str:
    """Give links the names by which CRIU looks for them.

    Parameters
    ----------
    links : Mapping
        As from :func:`named`.

    Returns
    -------
    str
        Why that is not possible at this moment; empty if all are there that still exist.
    """
    for path, kept, file in _each(links):
        if _ours(path) != file and _ours(kept) == file:
            try:
                # In contrast to rename(2) this replaces nothing.
                os.link(kept, path)
            except FileExistsError:
                # So that nobody else waits for ours meanwhile.
                keep(links)
                return f"{path}, which it needs for a moment, is another file"
        if _ours(path) == file:
            _remove(kept, file)
    return ""


def remove(links: Mapping[str, Any]) -> None:
    """Remove links, by whatever name.

    Parameters
    ----------
    links : Mapping
        As from :func:`named`.
    """
    for path, kept, file in _each(links):
        _remove(path, file)
        _remove(kept, file)


def sweep(processes: Iterable[Process]) -> None:
    """Remove the links that CRIU has left of files that these processes have open.

    Parameters
    ----------
    processes : iterable of Process
        Those of a dump that has failed; they go on.
    """
    wanted: dict[str, set[_File]] = {}
    for process in processes:
        for path, file in _deleted(process.pid):
            wanted.setdefault(os.path.dirname(path), set()).add(file)
    for directory, files in wanted.items():
        with contextlib.suppress(OSError):
            for name in filter(_LINK.fullmatch, os.listdir(directory)):
                path = os.path.join(directory, name)
                found = _ours(path)
                if found is not None and found in files:
                    _remove(path, found)


def _each(links: Mapping[str, Any]) -> Iterable[tuple[str, str, _File]]:
    for path, said in links.items():
        match said:
            case [str(kept), int(device), int(inode)]:
                yield path, kept, _File(device, inode)


def _ours(path: str) -> _File | None:
    """Return which regular file of ours is at a path; None if there is none."""
    try:
        facts = os.lstat(path)
    except OSError:
        return None
    if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid():
        return None
    return _File(facts.st_dev, facts.st_ino)


def _remove(path: str, file: _File) -> None:
    if _ours(path) == file:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _deleted(pid: int) -> Iterable[tuple[str, _File]]:
    """Yield what a process has mapped or open by a name that is gone; proc_pid_maps(5)."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_bytes().splitlines():
            words = line.decode(errors="surrogateescape").split(maxsplit=5)
            if len(words) == 6 and words[5].endswith(_DELETED):
                major, minor = (int(part, 16) for part in words[3].split(":"))
                path = _OCTAL.sub(lambda found: chr(int(found[1], 8)), words[5])
                file = _File(os.makedev(major, minor), int(words[4]))
                yield path.removesuffix(_DELETED), file
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                path = os.readlink(descriptor)
                if path.startswith("/") and path.endswith(_DELETED):
                    facts = os.stat(descriptor)
                    yield path.removesuffix(_DELETED), _File(facts.st_dev, facts.st_ino)
