"""The directory of the checkpoints of a job, for one of its attempts."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hpcext import private
from hpcext.documents import read_untrusted, sync_directory, write_file
from hpcext.training.checkpoint.errors import CheckpointError, FencedError, warn
from hpcext.training.checkpoint.hashing import HashingFile, adopted
from hpcext.training.checkpoint.manifest import MANIFEST, SCHEMA, Checkpoint, encoded, verify

FURTHER = "training-"
"""The beginning of the name of a further training's directory; its number, from 2, follows."""

_NAME = re.compile(r"step-([0-9]{9,18})\.attempt-([0-9]{4,18})(?:\.([0-9]{1,18}))?")
_DRAFT = re.compile(r"\.draft-step-[0-9]+\.attempt-([0-9]{1,18})\.")
_RUN_ID = re.compile(r"[0-9a-f]{32}")
_RUN_ID_FILE = "run-id"
_FENCE = re.compile(r"attempt-([0-9]{4,18})\.opened")


class Draft:
    """A checkpoint that a process is writing.

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

        Parameters
        ----------
        name : str
            Name of the file.
        writer : callable
            Writes the content into the file that it is given.

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
        """Flush files of other origin in the draft to the disk, and include them in it.

        Raises
        ------
        OSError
            A file cannot be read back, or is not a regular file.
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
    """The checkpoints of a job, for one of its attempts.

    Parameters
    ----------
    directory : pathlib.Path
        Created if it does not exist.
    attempt : int or None
        Number of the attempt; None if no manager counts attempts: then one more than the last.
    keep : int
        Number of checkpoints to keep, at least 2: one that verifies and the one before it.
    run_id : str
        The id of the job's run, if a manager has made one.
    """

    def __init__(
        self, directory: Path, *, attempt: int | None = None, keep: int = 2, run_id: str = ""
    ) -> None:
        if keep < 2:
            raise ValueError(
                f"keep={keep}: must be at least 2, so that an older checkpoint can replace a "
                "broken one"
            )
        self.directory = directory
        self._given = attempt
        self.attempt = attempt or 0
        self._keep = keep
        self._given_run_id = run_id
        self._broken: set[Path] = set()
        self._fenced = False

    def open(self) -> None:
        """Begin an attempt: fence off the older ones and remove their drafts.

        Raises
        ------
        FencedError
            A newer attempt has opened this store.
        CheckpointError
            The directory cannot be created or read.
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
            # Probably a full disk: reading still works, and so does the order of attempts. The next
            # checkpoint marks it.
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
            JSON values for the manifest.
        fill : Callable[[Draft], None]
            Writes the files.

        Raises
        ------
        FencedError
            A newer attempt has opened this store; nothing was committed.
        OSError
            The disk is full, or fails; nothing was committed, and older checkpoints are untouched.
        """
        if not self._fenced:
            self._fence()
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
                # The draft has disappeared; a newer attempt may have removed it.
                self._refuse_if_fenced(self._newest_attempt())
            raise
        sync_directory(self.directory)
        return Checkpoint(target, manifest)

    def warn_not_written(self, step: int, error: OSError) -> None:
        """Warn that a checkpoint was not written; the caller decides how to go on.

        Parameters
        ----------
        step : int
        error : OSError
        """
        warn(
            f"{self.directory}: checkpoint at step {step} not written "
            f"({error.strerror or error}); the previous one is kept"
        )

    def prune(self) -> None:
        """Remove all but the newest checkpoints; call it after a commit."""
        ours = [path for key, path in self._committed() if key[0] <= self.attempt]
        # Broken checkpoints do not count, or the one that was resumed from might be removed.
        whole = [path for path in ours if path not in self._broken]
        for path in (*self._broken.intersection(ours), *whole[self._keep :]):
            # Renamed first, since a half-removed checkpoint must not look like a broken one.
            grave = self.directory / f".draft-{path.name}.pruned"
            with contextlib.suppress(OSError):
                path.rename(grave)
            shutil.rmtree(grave, ignore_errors=True)

    def newest(self, needs: Mapping[str, str] | None = None) -> Checkpoint | None:
        """Return the newest checkpoint that verifies, and warn about each newer one.

        Parameters
        ----------
        needs : Mapping[str, str], optional
            By format, the file that a checkpoint of it must have.

        Returns
        -------
        Checkpoint or None
            None if no checkpoint was ever committed.

        Raises
        ------
        CheckpointError
            There are checkpoints, but none of them verifies.
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
            f"none of its {len(entries)} checkpoints is intact",
            where=self.directory,
            do="restore one from a backup, or remove the directory to begin again at step 0",
        )

    def run_id(self, resumed: Checkpoint | None) -> str:
        """Return the id of this job's run; make one when the job first begins.

        Parameters
        ----------
        resumed : Checkpoint or None
            The checkpoint from which the job goes on; its manifest has the id too.

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
        valid = [each for each in (known, self._given_run_id) if _RUN_ID.fullmatch(each)]
        name = valid[0] if valid else uuid.uuid4().hex
        try:
            write_file(path, f"{name}\n".encode())
        except OSError as error:
            warn(
                f"{path}: cannot be written ({error.strerror}); the next attempt uses another name"
            )
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
        data = encoded(manifest, draft.path)
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
        self._fenced = True
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

    Parameters
    ----------
    directory : pathlib.Path

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
