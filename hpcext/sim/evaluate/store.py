"""A folder of simulated runs, one file each, so that a comparison can be continued.

::

    runs/NAME.json    one run and its key, schema hpcext.simulate/1
    timings.json      the duration of each, kept apart so that results are the same bytes

A file is renamed into place when it is complete. An incomplete file, or one of another kind, is an
error that names it: no such file is ever replaced or silently ignored.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import msgspec

from hpcext import __version__
from hpcext.core.errors import UNREADABLE, InputError, refused
from hpcext.documents import write_file
from hpcext.sim.evaluate.outcome import SimulatedRun
from hpcext.text import shown

SCHEMA = "hpcext.simulate/1"
TIMINGS = "hpcext.timings/1"

_CHUNK_BYTES = 1 << 20


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The identity of a run: runs with the same key have the same result.

    Attributes
    ----------
    label, workload, source, policy : str
    seed : int
    workload_digest, source_digest : str
        Digests of the files behind them (:func:`digest`); empty where there is none.
    options : dict of str to str
        Everything else that the result depends on.
    version : str
        Version of hpcext.
    """

    label: str
    workload: str
    source: str
    policy: str
    seed: int
    workload_digest: str = ""
    source_digest: str = ""
    options: dict[str, str] = {}
    version: str = __version__

    @property
    def name(self) -> str:
        """Name of its file without the suffix: readable, and then a unique part."""
        text = json.dumps(msgspec.to_builtins(self), sort_keys=True)
        words = re.sub(r"[^A-Za-z0-9.]+", "-", self.label).strip("-.")[:60]
        return f"{words or 'run'}_{self.seed}_{hashlib.sha256(text.encode()).hexdigest()[:12]}"


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema: str
    key: Key
    run: SimulatedRun


class _Timings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema: str
    wall_s: dict[str, float]


def digest(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal; the file is read in pieces.

    Raises
    ------
    InputError
        The file cannot be read.
    """
    found = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while piece := file.read(_CHUNK_BYTES):
                found.update(piece)
    except OSError as error:
        raise refused(error, str(path)) from None
    return found.hexdigest()


class RunStore:
    """The folder of runs.

    Parameters
    ----------
    folder : Path
        Created if missing.

    Raises
    ------
    InputError
        It cannot be created, or contains other files than runs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._timings = folder / "timings.json"
        try:
            if not (self._timings.exists() or _empty(folder)):
                raise InputError(
                    "is not empty, and was not made by hpcext simulate",
                    where=str(folder),
                    do="give a new folder, so that none of your files is replaced",
                )
            (folder / "runs").mkdir(parents=True, exist_ok=True)
            if not self._timings.exists():
                self._write_timings({})
        except OSError as error:
            raise refused(error, str(folder)) from None

    def path(self, key: Key) -> Path:
        """Return the path of a run, whether or not it exists."""
        return self.folder / "runs" / f"{key.name}.json"

    def load(self, key: Key) -> SimulatedRun | None:
        """Return an earlier run; None if there is none.

        Raises
        ------
        InputError
            Its file is incomplete, or not what it should be.
        """
        path = self.path(key)
        try:
            file = msgspec.json.decode(path.read_bytes(), type=_File)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise refused(error, str(path)) from None
        except UNREADABLE as error:
            raise _foreign(path, f"is not a complete run: {error}") from None
        if file.schema != SCHEMA:
            raise _foreign(path, f"has schema {shown(file.schema)}")
        if file.key != key or (file.run.label, file.run.seed) != (key.label, key.seed):
            raise _foreign(path, "holds another run than its name says")
        return file.run

    def save(self, key: Key, run: SimulatedRun, wall_s: float | None = None) -> Path:
        """Write a run, and the seconds that it took.

        Parameters
        ----------
        key : Key
        run : SimulatedRun
        wall_s : float, optional
            Seconds that the simulation took.

        Raises
        ------
        HpcextError
            It cannot be written.
        InputError
            A name in it is not UTF-8.
        """
        path = self.path(key)
        try:
            data = msgspec.json.encode(_File(SCHEMA, key, run))
        except UnicodeEncodeError:
            raise InputError("a name in it is not UTF-8", where=f"run {shown(key.label)}") from None
        try:
            write_file(path, data + b"\n", mode=0o644)
            if wall_s is not None:
                self._write_timings({**self.timings(), key.name: wall_s})
        except OSError as error:
            raise refused(error, str(path)) from None
        return path

    def timings(self) -> dict[str, float]:
        """Return the seconds that each run took, by its name.

        Raises
        ------
        InputError
            The file is incomplete, or of another kind.
        """
        try:
            file = msgspec.json.decode(self._timings.read_bytes(), type=_Timings)
        except UNREADABLE as error:
            raise _foreign(self._timings, f"is not complete: {error}") from None
        if file.schema != TIMINGS:
            raise _foreign(self._timings, f"has schema {shown(file.schema)}")
        return file.wall_s

    def _write_timings(self, wall_s: dict[str, float]) -> None:
        # Sorted, so that the file does not depend on the order in which workers finished.
        file = _Timings(TIMINGS, dict(sorted(wall_s.items())))
        write_file(self._timings, msgspec.json.encode(file) + b"\n", mode=0o644)


def _empty(folder: Path) -> bool:
    return not folder.exists() or not any(folder.iterdir())


def _foreign(path: Path, what: str) -> InputError:
    return InputError(
        what, where=str(path), valid=f"a file of schema {SCHEMA}", do="move it away and begin again"
    )
