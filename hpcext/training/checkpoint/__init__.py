"""A directory of checkpoints that survives crashes, full disks and late writers.

Layout of the directory::

    step-000000123.attempt-0004/      a committed checkpoint: its files and manifest.json
    .draft-step-...                   being written, or left by an attempt that died
    attempt-0004.opened               the newest attempt: older ones may not commit any more
    run-id                            one id for the job, for experiment trackers

Everything of a checkpoint is flushed before one rename makes it visible: that rename is the
commit. Of two checkpoints, the one of the later attempt is newer, then the one of the later step;
so what a fenced-off attempt might still slip in is never taken for the newest.

Standard library only; no locks, because not every shared file system has them.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from hpcext import private
from hpcext.documents import (
    decoded,
    not_of,
    open_regular,
    read_untrusted,
    sync_directory,
    write_file,
)
from hpcext.training.checkpoint.hashing import HashingFile, adopted, checksum, checksum_of_file

SCHEMA = "hpcext.checkpoint/1"
MANIFEST = "manifest.json"

MOST_MANIFEST_BYTES = 64 << 20
"""A larger manifest is neither read nor written; one of a hundred thousand files has a quarter of
this size."""

MOST_COUNT = 10**18
"""Steps, attempts and bytes are below this: it has more digits than a checkpoint's name."""

_NAME = re.compile(r"step-([0-9]{9,18})\.attempt-([0-9]{4,18})(?:\.([0-9]{1,18}))?")
_DRAFT = re.compile(r"\.draft-step-[0-9]+\.attempt-([0-9]{1,18})\.")
_RUN_ID = re.compile(r"[0-9a-f]{32}")
_RUN_ID_FILE = "run-id"
_FENCE = re.compile(r"attempt-([0-9]{4,18})\.opened")


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or read; the message is one line and says what to do."""

    def __init__(self, what: str, *, where: object = "", do: str = "") -> None:
        head = f"{where}: {what}" if where else what
        super().__init__(f"{head}; {do}" if do else head)


class FencedError(CheckpointError):
    """A newer attempt of this job has begun, so this one must stop."""


def warn(text: str) -> None:
    """Print one line on standard error, if possible: the log may be on the disk that is full."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"hpcext: warning: {' '.join(text.split())}\n")
        sys.stderr.flush()


_REASONS = {
    errno.ENOSPC: "disk full",
    errno.EDQUOT: "quota exceeded",
    errno.EROFS: "read-only file system",
    errno.EIO: "input/output error",
    errno.EFBIG: "file too large",
    errno.EACCES: "permission denied",
    errno.ENOENT: "its directory is gone",
    errno.ENOTDIR: "its directory is gone",
    errno.ESTALE: "its directory is gone",
}


def reason(error: BaseException) -> str:
    """Return in a few words why something could not be written."""
    each: BaseException | None = error
    while each is not None:
        standard = isinstance(each, OSError) and each.errno is not None
        if isinstance(each, OSError) and standard and each.errno in _REASONS:
            own = each.strerror == os.strerror(each.errno)
            if own or each.errno in {errno.ENOSPC, errno.EDQUOT}:
                return _REASONS[each.errno]
        each = each.__cause__
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that verified when it was looked at.

    Attributes
    ----------
    path : pathlib.Path
    manifest : Mapping[str, Any]
    """

    path: Path
    manifest: Mapping[str, Any]

    def part(self, name: object) -> Path:
        """Return the path of a file or directory of the checkpoint that its manifest names.

        Raises
        ------
        CheckpointError
            The manifest names none like this.
        """
        if name not in _parts(self.manifest):
            raise CheckpointError("its manifest names no such file", where=self.path / str(name))
        return self.path / str(name)


class Draft:
    """A checkpoint that one process is writing.

    Parameters
    ----------
    path : pathlib.Path
        The draft's directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files: list[dict[str, Any]] = []

    def write(self, name: str, writer: Callable[[HashingFile], None]) -> None:
        """Write one file of the checkpoint, and flush it to the disk.

        Raises
        ------
        OSError
            The disk is full, or fails.
        """
        file = HashingFile(self.path / name)
        try:
            writer(file)
        except BaseException:
            file.close()
            raise
        self.files.append(file.finish())

    def adopt(self) -> None:
        """Flush to the disk, and take into the draft, the files that something else wrote there.

        Raises
        ------
        OSError
            A file cannot be read back, or is a link or something else than a regular file.
        """
        known = {entry["name"] for entry in self.files}
        for directory, _, names in os.walk(self.path):
            for name in sorted(names):
                path = Path(directory, name)
                short = path.relative_to(self.path).as_posix()
                if short not in known:
                    self.files.append(adopted(path, short))
            sync_directory(Path(directory))


class Store:
    """The checkpoints of one job, as one attempt of it sees them.

    Parameters
    ----------
    directory : pathlib.Path
        Created if it is not there.
    attempt : int or None
        Number of the attempt; None if no manager counts attempts: then one more than the last.
    keep : int
        Number of checkpoints to keep, at least 2: one that verifies and one before it.
    """

    def __init__(self, directory: Path, *, attempt: int | None = None, keep: int = 2) -> None:
        if keep < 2:
            raise ValueError(f"keep={keep}: at least 2, so that a broken checkpoint has one before")
        self.directory = directory
        self._given = attempt
        self.attempt = attempt or 0
        self._keep = keep
        self._broken: set[Path] = set()

    def open(self) -> None:
        """Begin an attempt: fence off the older ones and clear what they left half-written.

        Raises
        ------
        FencedError
            A newer attempt has opened this store.
        CheckpointError
            The directory cannot be made or read.
        """
        try:
            private.make_missing(self.directory)
            newest = self._newest_attempt()
        except OSError as error:
            raise CheckpointError(
                f"cannot be used ({error.strerror})",
                where=self.directory,
                do="give a directory that this user may write to",
            ) from None
        self.attempt = newest + 1 if self._given is None else self._given
        self._refuse_if_fenced(newest)
        try:
            self._fence()
        except OSError as error:
            # A full disk, most likely: reading still works, and so does the order of attempts.
            warn(f"{self.directory}: cannot mark attempt {self.attempt} ({error.strerror})")
        self._clear_drafts()

    def commit(
        self, step: int, facts: Mapping[str, Any], fill: Callable[[Draft], None]
    ) -> Checkpoint:
        """Write a checkpoint; it exists completely or not at all.

        Parameters
        ----------
        step : int
        facts : Mapping[str, Any]
            JSON values to go into the manifest.
        fill : Callable[[Draft], None]
            Writes the files.

        Raises
        ------
        FencedError
            A newer attempt has opened this store; nothing was committed.
        OSError
            The disk is full, or fails; nothing was committed, older checkpoints are untouched.
        """
        name = self._free_name(step)
        draft = Draft(Path(tempfile.mkdtemp(prefix=f".draft-{name}.", dir=self.directory)))
        try:
            fill(draft)
            manifest = self._write_manifest(draft, step, facts)
            sync_directory(draft.path)
            self._refuse_if_fenced(self._newest_attempt())
            target = self.directory / name
            draft.path.rename(target)
        except BaseException as error:
            shutil.rmtree(draft.path, ignore_errors=True)
            if isinstance(error, FileNotFoundError):
                # The draft has disappeared: perhaps a newer attempt cleared it.
                self._refuse_if_fenced(self._newest_attempt())
            raise
        sync_directory(self.directory)
        return Checkpoint(target, manifest)

    def warn_not_written(self, step: int, error: OSError) -> None:
        """Warn that a checkpoint was not written; the caller decides what follows."""
        warn(
            f"{self.directory}: checkpoint at step {step} not written "
            f"({error.strerror or error}); the one before is kept"
        )

    def prune(self) -> None:
        """Remove all but the newest checkpoints; call it after a commit."""
        ours = [path for key, path in self._committed() if key[0] <= self.attempt]
        # Broken checkpoints do not count: else the one that was resumed from might be removed.
        whole = [path for path in ours if path not in self._broken]
        for path in (*self._broken.intersection(ours), *whole[self._keep :]):
            # Renamed first: a half-removed checkpoint must not look like a broken one.
            grave = self.directory / f".draft-{path.name}.pruned"
            with contextlib.suppress(OSError):
                path.rename(grave)
            shutil.rmtree(grave, ignore_errors=True)

    def newest(self, needs: Mapping[str, str] | None = None) -> Checkpoint | None:
        """Return the newest checkpoint that verifies; warn about each newer one that does not.

        Parameters
        ----------
        needs : Mapping[str, str], optional
            For a format, the file that a checkpoint of it must have.

        Returns
        -------
        Checkpoint or None
            None where no checkpoint was ever committed.

        Raises
        ------
        CheckpointError
            There are checkpoints, and none of them verifies.
        """
        entries = self._committed()
        for _, path in entries:
            try:
                return Checkpoint(path, verify(path, needs))
            except CheckpointError as error:
                self._broken.add(path)
                warn(f"checkpoint not usable: {error}")
        if not entries:
            return None
        raise CheckpointError(
            f"none of its {len(entries)} checkpoints verifies",
            where=self.directory,
            do="restore one from a backup, or remove the directory to begin again at step 0",
        )

    def run_id(self, resumed: Checkpoint | None) -> str:
        """Return the id of this job's run; make one when the job first begins.

        Parameters
        ----------
        resumed : Checkpoint or None
            The checkpoint that the job goes on from; its manifest has the id too.

        Returns
        -------
        str
            32 hexadecimal digits, which experiment trackers accept as a run id.
        """
        path = self.directory / _RUN_ID_FILE
        with contextlib.suppress(OSError, ValueError):
            text = read_untrusted(path, of_anybody=True).decode("ascii").strip()
            if _RUN_ID.fullmatch(text):
                return text
        known = str(resumed.manifest.get("run_id", "")) if resumed else ""
        name = known if _RUN_ID.fullmatch(known) else uuid.uuid4().hex
        try:
            write_file(path, f"{name}\n".encode())
        except OSError as error:
            warn(f"{path}: cannot be written ({error.strerror}); the next attempt gets another one")
        return name

    def _committed(self) -> list[tuple[tuple[int, int, int], Path]]:
        return committed(self.directory)

    def _free_name(self, step: int) -> str:
        """Return a name for a checkpoint at this step, with a serial number if it is taken."""
        name = f"step-{step:09d}.attempt-{self.attempt:04d}"
        serials = [key[2] for key, _ in self._committed() if key[:2] == (self.attempt, step)]
        return f"{name}.{max(serials) + 1}" if serials else name

    def _write_manifest(self, draft: Draft, step: int, facts: Mapping[str, Any]) -> dict[str, Any]:
        manifest: dict[str, Any] = {
            "schema": SCHEMA,
            "step": step,
            "attempt": self.attempt,
            "created_at": time.time(),
            **facts,
            "files": draft.files,
        }
        manifest["sha256"] = _digest(manifest)
        data = json.dumps(manifest).encode() + b"\n"
        if len(data) > MOST_MANIFEST_BYTES:
            what = f"its manifest would have {len(data)} bytes, and is read up to"
            raise OSError(errno.EFBIG, f"{what} {MOST_MANIFEST_BYTES}", str(draft.path))
        with (draft.path / MANIFEST).open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return manifest

    def _newest_attempt(self) -> int:
        matches = (_FENCE.fullmatch(name) for name in os.listdir(self.directory))
        return max((int(match[1]) for match in matches if match), default=0)

    def _refuse_if_fenced(self, newest: int) -> None:
        if newest > self.attempt:
            raise FencedError(
                f"attempt {newest} of this job has begun",
                where=self.directory,
                do=f"attempt {self.attempt} may not write there any more",
            )

    def _fence(self) -> None:
        path = self.directory / f"attempt-{self.attempt:04d}.opened"
        path.touch()
        sync_directory(self.directory)
        for name in os.listdir(self.directory):
            match = _FENCE.fullmatch(name)
            if match and int(match[1]) < self.attempt:
                (self.directory / name).unlink(missing_ok=True)

    def _clear_drafts(self) -> None:
        for name in os.listdir(self.directory):
            match = _DRAFT.match(name)
            if match and int(match[1]) <= self.attempt:
                shutil.rmtree(self.directory / name, ignore_errors=True)


def committed(directory: Path) -> list[tuple[tuple[int, int, int], Path]]:
    """List the committed checkpoints of a directory, newest first.

    Returns
    -------
    list of ((attempt, step, serial), path)

    Raises
    ------
    OSError
        The directory cannot be read.
    """
    found = []
    for path in directory.iterdir():
        match = _NAME.fullmatch(path.name)
        if match:
            step, attempt, serial = (int(part or 0) for part in match.groups())
            found.append(((attempt, step, serial), path))
    return sorted(found, reverse=True)


def verify(path: Path, needs: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Read the manifest of a checkpoint, and compare every file with it.

    It is safe on a checkpoint that anybody made: only regular files inside it are opened, and no
    more of each is read than its size in the manifest.

    Parameters
    ----------
    path : pathlib.Path
    needs : Mapping[str, str], optional
        For a format, the file that a checkpoint of it must have.

    Returns
    -------
    dict
        The manifest.

    Raises
    ------
    CheckpointError
        The message names the file and says what is wrong with it.
    """
    manifest = _read_manifest(path / MANIFEST)
    for entry in manifest["files"]:
        file = Path(f"{path}/{entry['name']}")
        try:
            _compare(path, entry)
        except FileNotFoundError:
            raise CheckpointError("is missing", where=file) from None
        except ValueError as error:
            raise CheckpointError(str(error).removeprefix(f"{file.name}: "), where=file) from None
        except OSError as error:
            raise CheckpointError(f"cannot be read ({error.strerror})", where=file) from None
    name = (needs or {}).get(manifest.get("format", ""))
    if name is not None and name not in _parts(manifest):
        raise CheckpointError("its manifest names no such file", where=path / name)
    return manifest


def _parts(manifest: Mapping[str, Any]) -> set[str]:
    """Return the files that a manifest names, and the directories that they are in."""
    names = [PurePosixPath(entry["name"]) for entry in manifest["files"]]
    return {str(part) for name in names for part in (name, *name.parents)} - {"."}


def _compare(path: Path, entry: Mapping[str, Any]) -> None:
    """Compare a file with its entry in the manifest; raise OSError or ValueError."""
    with open(open_inside(path, entry["name"]), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size != entry["size"]:
            raise ValueError(f"{size} bytes, not {entry['size']}")
        if checksum_of_file(file, size) != entry["sha256"]:
            raise ValueError("its content has changed (checksum differs)")


def open_inside(path: Path, name: str) -> int:
    """Open a regular file inside a checkpoint without following links; the caller closes it.

    Returns
    -------
    int
        A file descriptor.

    Raises
    ------
    OSError, ValueError
        It is not a regular file, or lies elsewhere.
    """
    parts = name.split("/")
    if {"", ".", ".."} & set(parts):
        raise ValueError("not a file of this checkpoint")
    # Directories above are the user's: a link there may lead to the checkpoints.
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            below = os.open(part, flags, dir_fd=fd)
            os.close(fd)
            fd = below
        return open_regular(parts[-1], dir_fd=fd)
    finally:
        os.close(fd)


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        data = read_untrusted(path, most_bytes=MOST_MANIFEST_BYTES, of_anybody=True)
        manifest = decoded(data)
        if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
            raise CheckpointError(not_of(manifest, SCHEMA), where=path)
        stated = manifest.pop("sha256", None)
        if stated != _digest(manifest):
            raise CheckpointError("its content has changed (checksum differs)", where=path)
    except OSError as error:
        raise CheckpointError(f"cannot be read ({error.strerror})", where=path) from None
    except (ValueError, RecursionError) as error:
        what = str(error).removeprefix(f"{path.name}: ")
        raise CheckpointError(what, where=path) from None
    if wrong := _wrong(manifest):
        raise CheckpointError(f"its {wrong} is missing, or is none", where=path)
    return manifest


def _wrong(manifest: Mapping[str, Any]) -> str:
    """Return the key of a manifest that makes no sense; empty if none."""
    for key in ("step", "attempt"):
        if not _is_count(manifest.get(key)):
            return key
    files = manifest.get("files")
    if not isinstance(files, list) or not all(map(_is_entry, files)):
        return "list of files"
    for key, kind in (("format", str), ("run_id", str)):
        if key in manifest and not isinstance(manifest[key], kind):
            return key
    return ""


def _is_entry(entry: object) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("name"), str)
        and "\0" not in entry["name"]
        and isinstance(entry.get("sha256"), str)
        and _is_count(entry.get("size"))
    )


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < MOST_COUNT


def _digest(manifest: Mapping[str, Any]) -> str:
    return checksum(json.dumps(manifest, sort_keys=True).encode())
