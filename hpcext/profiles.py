"""Profiles: measured scaling curves, stored by name, which several managers may refine at once.

``STATE_DIR/profiles/NAME.json`` (schema ``hpcext.profile/1``) contains measurements, not a curve.
The curve is computed from them, and their age is known. The newest `KEEP` of each size (GPUs per
node, nodes, kind of GPU) are kept.

The curve averages the last `LAST` measurements of each size, weighted by their duration, without
the one that is farthest from their median. Neither kinds of GPU nor units are mixed: a measurement
has steps per second, and also samples per second if the training reports the number of samples.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from hpcext import documents, jobfields, private
from hpcext.core.errors import UNREADABLE, HpcextError, InputError
from hpcext.scaling.curve import robust_mean, shape
from hpcext.text import clean, did_you_mean, listed, shown

KEEP = 20
"""Number of measurements of each size that are kept."""

LAST = 5
"""Number of measurements of each size from which the curve is computed."""

MOST = 2000
"""Largest number of measurements in a file; its size then stays far below the limit."""

LOCK_S = 10.0

UNITS = ("steps", "samples")

_Rate = Annotated[float, Meta(gt=0, le=jobfields.MAX_WORK)]


class Measurement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The speed of a training on one number of GPUs.

    Attributes
    ----------
    at : float
        Time of the measurement, in seconds since the epoch.
    gpus : int
        GPUs per node.
    nodes : int
    steps_per_s : float
    samples_per_s : float or None
        None if the training does not count samples.
    seconds : float
        Duration of the observation.
    source : {"profile", "job"}
        The measuring program: ``hpcext profile``, or a job of a pilot.
    gpu : str
        Kind of GPU as the driver names it; ``slot`` on a machine without GPUs.
    """

    at: Annotated[float, Meta(ge=0, le=1e11)]
    gpus: Annotated[int, Meta(ge=1, le=jobfields.MAX_GPUS)]
    nodes: Annotated[int, Meta(ge=1, le=jobfields.MAX_NODES)] = 1
    steps_per_s: _Rate
    samples_per_s: _Rate | None = None
    seconds: Annotated[float, Meta(gt=0, le=1e9)]
    source: Literal["profile", "job"]
    gpu: Annotated[str, Meta(max_length=100)] = "slot"

    def rate(self, unit: str) -> float | None:
        """Return the work per second in a unit of :data:`UNITS`, or None if it was not measured."""
        return self.samples_per_s if unit == "samples" else self.steps_per_s


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All measurements of one training: the content of ``NAME.json``.

    Attributes
    ----------
    measurements : tuple of Measurement
        The oldest first.
    """

    schema: Literal["hpcext.profile/1"] = "hpcext.profile/1"
    measurements: tuple[Measurement, ...] = ()

    def of_kind(self, gpu: str) -> tuple[Measurement, ...]:
        """Return the measurements on a kind of GPU; without a kind, on the one measured last."""
        kinds = [each.gpu for each in self.measurements]
        wanted = gpu if gpu in kinds else (kinds[-1] if kinds else gpu)
        return tuple(each for each in self.measurements if each.gpu == wanted)

    def curve(self, unit: str, gpu: str = "", nodes: int = 1) -> dict[int, float]:
        """Return work per second by GPUs per node; empty if it was not measured in this unit.

        Parameters
        ----------
        unit : {"steps", "samples"}
        gpu : str
            Kind of GPU; see :meth:`of_kind`.
        nodes : int
        """
        found: dict[int, list[tuple[float, float]]] = defaultdict(list)
        for each in self.of_kind(gpu):
            rate = each.rate(unit)
            if each.nodes == nodes and rate is not None:
                found[each.gpus].append((rate, each.seconds))
        return {
            gpus: robust_mean(*zip(*found[gpus][-LAST:], strict=True)) for gpus in sorted(found)
        }

    def kinds(self) -> tuple[str, ...]:
        """List the kinds of GPU, in the order in which they were first measured."""
        return tuple(dict.fromkeys(each.gpu for each in self.measurements))

    def unit(self, gpu: str = "") -> str:
        """Return the more meaningful unit: samples if they were counted, else steps.

        A step may have more samples on more GPUs, so that steps per second understate the speed.
        """
        return "samples" if self.curve("samples", gpu) else "steps"

    def added(self, more: Iterable[Measurement]) -> Profile:
        """Return a profile with further measurements, less the oldest beyond `KEEP` and `MOST`."""
        every = sorted((*self.measurements, *more), key=lambda each: each.at)
        count: dict[tuple[int, int, str], int] = defaultdict(int)
        kept = []
        for each in reversed(every):
            size = (each.gpus, each.nodes, each.gpu)
            count[size] += 1
            if count[size] <= KEEP:
                kept.append(each)
        return Profile(measurements=tuple(reversed(kept[:MOST])))


class Profiles:
    """The store of all profiles of a user.

    Parameters
    ----------
    directory : pathlib.Path
        ``STATE_DIR/profiles``; made when a profile is stored.
    gpu : str
        Kind of GPU for which curves are computed.
    lock_s : float
        Longest wait, in seconds, for other writers.
    """

    def __init__(self, directory: Path, gpu: str = "", *, lock_s: float = LOCK_S) -> None:
        self.directory = directory
        self.gpu = gpu
        self._lock_s = lock_s

    def names(self) -> list[str]:
        """List the names of all profiles, sorted, whether or not they can be read."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            with os.scandir(self.directory) as entries:
                found = [Path(entry.name) for entry in entries]
            # Names that begin with a dot are the lock, or files that are being written.
            return sorted(
                path.stem for path in found if path.suffix == ".json" and path.stem[:1] != "."
            )
        return []

    def load(self, name: str) -> Profile:
        """Read one profile.

        Raises
        ------
        InputError
            There is no such profile, or hpcext did not write its file.
        """
        path = self._path(name)
        try:
            data = documents.read_untrusted(path)
            return msgspec.json.decode(data, type=Profile)
        except FileNotFoundError:
            raise self._unknown(name) from None
        except UNREADABLE as error:
            raise InputError(
                f"is not a profile: {clean(str(error))[:200]}",
                where=clean(str(path)),
                valid="what hpcext profile wrote",
                do=f"correct it, or hpcext profile --remove {name}",
            ) from None

    def curve(self, name: str, unit: str | None) -> tuple[dict[int, float], bool]:
        """Return the curve of a job that names a profile.

        Parameters
        ----------
        name : str
        unit : {"steps", "samples"} or None
            Unit of the job's work; None if the job does not state any.

        Returns
        -------
        curve : dict of int to float
            Speed by GPUs per node; not empty.
        relative : bool
            Whether it was measured in another unit, so that only its shape is meaningful.

        Raises
        ------
        InputError
            As :meth:`load`, or it was not measured on one node.
        """
        profile = self.load(name)
        wanted = unit or profile.unit(self.gpu)
        if found := profile.curve(wanted, self.gpu):
            return found, False
        other = next(each for each in UNITS if each != wanted)
        if found := profile.curve(other, self.gpu):
            return shape(found), True
        raise InputError(
            f"nothing in {shown(name)} was measured on one node",
            do=f"hpcext profile --name {name} -- COMMAND measures it",
        )

    def by_kind(self, name: str, unit: str | None) -> dict[str, dict[int, float]]:
        """Return the curves of all kinds of GPU on which a profile was measured, in one unit.

        Parameters
        ----------
        name, unit
            As for :meth:`curve`, which raises the same errors and chooses the same unit.

        Returns
        -------
        dict of str to dict of int to float
            Speed by kind and GPUs per node; empty unless there are several kinds.
        """
        profile = self.load(name)
        wanted = unit or profile.unit(self.gpu)
        if not profile.curve(wanted, self.gpu):
            wanted = next(each for each in UNITS if each != wanted)
        curves = {kind: profile.curve(wanted, kind) for kind in profile.kinds()}
        known = {kind: curve for kind, curve in curves.items() if curve}
        return known if len(known) > 1 else {}

    def add(self, name: str, measured: Iterable[Measurement], *, new: bool = True) -> Profile:
        """Add measurements to a stored profile, safely beside other writers.

        Parameters
        ----------
        name : str
        measured : iterable of Measurement
        new : bool
            Whether to create a profile that does not exist; otherwise a missing one is an error.

        Raises
        ------
        InputError
            The name is invalid, or the stored profile is damaged; nothing was changed.
        HpcextError
            It could not be written.
        """
        path = self._path(name)
        with self._writing(path):
            old = Profile() if new and not os.path.lexists(path) else self.load(name)
            profile = old.added(measured)
            data = msgspec.json.encode(profile)
            try:
                msgspec.json.decode(data, type=Profile)  # what could not be read is not written
            except msgspec.ValidationError as error:
                raise InputError(f"cannot be stored: {error}", where=shown(name)) from None
            text = msgspec.json.format(data, indent=1)
            documents.write_file(path, text + b"\n")
        return profile

    def remove(self, name: str) -> None:
        """Remove a profile, damaged or not.

        Raises
        ------
        InputError
            There is no such profile.
        HpcextError
            It cannot be removed.
        """
        path = self._path(name)
        if not os.path.lexists(path):
            raise self._unknown(name)
        with self._writing(path):
            path.unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self.directory / f"{jobfields.plain_name(name)}.json"

    def _unknown(self, name: str) -> InputError:
        names = self.names()
        near = did_you_mean(name, names)
        return InputError(
            f"no profile {shown(name)}",
            where=clean(str(self.directory)),
            valid=listed(names) or "none is stored",
            do=near or f"hpcext profile --name {clean(name)} -- COMMAND measures one",
        )

    @contextlib.contextmanager
    def _writing(self, path: Path) -> Iterator[None]:
        """Hold the lock of the profiles; errors of the disk become one line."""
        import filelock  # noqa: PLC0415  (every start of a suspendable job waits for our imports)

        where = clean(str(path))
        try:
            private.make(self.directory)
            with warnings.catch_warnings():
                # Without flock, filelock warns and falls back to a marker file. That suffices here,
                # since a manager that finds it locked goes on without writing.
                warnings.simplefilter("ignore")
                lock = filelock.FileLock(self.directory / ".lock", timeout=self._lock_s)
                with lock:
                    yield
        except filelock.Timeout:
            what = f"locked for {self._lock_s:g} s by another process"
            raise HpcextError(what, where=where, do="try again") from None
        except NotImplementedError:
            raise HpcextError("this file system has no locks", where=where) from None
        except OSError as error:
            raise HpcextError(f"cannot be written: {error.strerror}", where=where) from None
