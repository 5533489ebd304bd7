"""A directory of checkpoints that survives crashes, full disks and late writers.

Layout of the directory::

    step-000000123.attempt-0004/      a committed checkpoint: its files and manifest.json
    .draft-step-...                   being written, or left by an attempt that died
    attempt-0004.opened               the newest attempt: older ones may not commit any more
    run-id                            one name for the job, for those who keep its results

Everything of a checkpoint is flushed before one rename makes it visible: that rename is the
commit. Of two checkpoints, the one of the later attempt is newer, then the one of the later step;
so what a fenced-off attempt might still slip in is never taken for the newest.

Standard library only; no locks, because not every shared file system has them.
"""

from __future__ import annotations

import contextlib
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
from pathlib import Path
from typing import Any

from hpcext.documents import decoded, not_of, sync_directory, write_file
from hpcext.training.hashing import HashingFile, adopted, checksum, checksum_of_file

SCHEMA = "hpcext.checkpoint/1"
MANIFEST = "manifest.json"
_NAME = re.compile(r"step-([0-9]{9,18})\.attempt-([0-9]{4,18})(?:\.([0-9]{1,18}))?")
_DRAFT = re.compile(r"\.draft-step-[0-9]+\.attempt-([0-9]{1,18})\.")
_RUN_ID = re.compile(r"[0-9a-f]{32}")
_RUN_ID_FILE = "run-id"
_FENCE = re.compile(r"attempt-([0-9]{4,18})\.opened")


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written or read; the message is one line and says what to do."""

    def __init__(self, what: str, *, where: object = "", do: str = "") -> None:
        head = f"{where}: {what}" if where else what
        super().__init__(f"{head}; {do}" if do else head)


class FencedError(CheckpointError):
    """A newer attempt of this job has begun: this one must stop."""


def warn(text: str) -> None:
    """One line on standard error, if it can be written: the log may be on the disk that is full."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"hpcext: warning: {' '.join(text.split())}\n")
        sys.stderr.flush()


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


class Draft:
    """A checkpoint being written by one process.

    Parameters
    ----------
    path : pathlib.Path
        The draft's directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files: list[dict[str, Any]] = []

    def write(self, name: str, writer: Callable[[HashingFile], None]) -> None:
        """Write one file of the checkpoint, flushed to the disk.

        Raises
        ------
        OSError
            The disk is full, or worse.
        """
        file = HashingFile(self.path / name)
        try:
            writer(file)
        except BaseException:
            file.close()
            raise
        self.files.append(file.finish())

    def adopt(self) -> None:
        """Take in, flushed to the disk, the files that something else wrote into the draft.

        Raises
        ------
        OSError
            One cannot be read back, or is a link or something else that is no file.
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
        None: this run has no manager that counts; it is one more than the last.
    keep : int
        How many checkpoints to keep, at least 2: one that verifies and one before it.
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
            self.directory.mkdir(parents=True, exist_ok=True)
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
            The disk is full, or worse; nothing was committed, older checkpoints are untouched.
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
                # The draft went away under our hands: did a newer attempt clear it?
                self._refuse_if_fenced(self._newest_attempt())
            raise
        sync_directory(self.directory)
        return Checkpoint(target, manifest)

    def warn_not_written(self, step: int, error: OSError) -> None:
        """Say that a checkpoint was not written; what follows, the caller decides."""
        warn(
            f"{self.directory}: checkpoint at step {step} not written "
            f"({error.strerror or error}); the one before is kept"
        )

    def prune(self) -> None:
        """Remove all but the newest checkpoints; call it when one has been committed."""
        ours = [path for key, path in self._committed() if key[0] <= self.attempt]
        # A broken one does not count: the one that was resumed from would go in its place.
        whole = [path for path in ours if path not in self._broken]
        for path in (*self._broken.intersection(ours), *whole[self._keep :]):
            # Renamed first: a half-removed checkpoint must not look like a broken one.
            grave = self.directory / f".draft-{path.name}.pruned"
            with contextlib.suppress(OSError):
                path.rename(grave)
            shutil.rmtree(grave, ignore_errors=True)

    def newest(self) -> Checkpoint | None:
        """The newest checkpoint that verifies, with a warning for each newer one that does not.

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
                return Checkpoint(path, verify(path))
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
        """The name of this job's run, made up when it first begins.

        Parameters
        ----------
        resumed : Checkpoint or None
            What the job goes on from: its manifest has the name too.

        Returns
        -------
        str
            32 hexadecimal digits, which experiment trackers take for a run id as they are.
        """
        path = self.directory / _RUN_ID_FILE
        with contextlib.suppress(OSError, ValueError):
            text = path.read_text(encoding="ascii").strip()
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
        """Committed checkpoints, newest first."""
        found = []
        for path in self.directory.iterdir():
            match = _NAME.fullmatch(path.name)
            if match:
                step, attempt, serial = (int(part or 0) for part in match.groups())
                found.append(((attempt, step, serial), path))
        return sorted(found, reverse=True)

    def _free_name(self, step: int) -> str:
        """The name for a checkpoint at this step; a serial number where one is there already."""
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
        with (draft.path / MANIFEST).open("xb") as file:
            file.write(json.dumps(manifest).encode() + b"\n")
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


def verify(path: Path) -> dict[str, Any]:
    """Read the manifest of a checkpoint and compare every file with it.

    Raises
    ------
    CheckpointError
        Names the file and says what is wrong with it.
    """
    manifest = _read_manifest(path / MANIFEST)
    for entry in manifest["files"]:
        file = path / entry["name"]
        if not file.resolve().is_relative_to(path.resolve()):
            raise CheckpointError("not a file of this checkpoint", where=file)
        try:
            size = file.stat().st_size
            if size != entry["size"]:
                raise CheckpointError(f"{size} bytes, not {entry['size']}", where=file)
            if checksum_of_file(file) != entry["sha256"]:
                raise CheckpointError("its content has changed (checksum differs)", where=file)
        except OSError as error:
            raise CheckpointError(f"cannot be read ({error.strerror})", where=file) from None
    return manifest


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = decoded(path.read_bytes())
        if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
            raise CheckpointError(not_of(manifest, SCHEMA), where=path)
        stated = manifest.pop("sha256", None)
        if stated != _digest(manifest):
            raise CheckpointError("its content has changed (checksum differs)", where=path)
    except OSError as error:
        raise CheckpointError(f"cannot be read ({error.strerror})", where=path) from None
    except (ValueError, RecursionError):
        raise CheckpointError("not JSON", where=path) from None
    return manifest


def _digest(manifest: Mapping[str, Any]) -> str:
    return checksum(json.dumps(manifest, sort_keys=True).encode())
