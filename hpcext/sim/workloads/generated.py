"""Generated workloads, by name: those of the papers, and jobs with random arrivals."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec.structs import replace

from hpcext.checks import read_options
from hpcext.core.errors import InputError
from hpcext.core.values import Job
from hpcext.sim.replay.physics import Physics
from hpcext.sim.workloads import capes, marble
from hpcext.sim.workloads.applications import (
    REPORT_S,
    ClusterSize,
    WorkloadOptions,
    application_jobs,
    measurements,
)
from hpcext.sim.workloads.jobfiles import read_job_file
from hpcext.sim.workloads.philly import SHARES, make_philly
from hpcext.sim.workloads.workload import Jobs, Setting, Workload
from hpcext.text import clean, shown

WHERE = "WORKLOAD"

MOST_NODES = 1_000_000

FOLDER = "pollux"
"""The subfolder of the recorded data that has the measurements."""

CAPES = "capes"
"""Defaults for the jobs of ``poisson``."""


class MeasuredOptions(msgspec.Struct, frozen=True):
    """The options of measured trainings.

    Attributes
    ----------
    data : str
        The folder of the measurements.
    adapt : {"", "true", "false"}
        Whether trainings choose their batch; empty: as the authors of the policy have it.
    """

    data: str = ""
    adapt: str = ""

    def __post_init__(self) -> None:
        if self.adapt not in {"", "true", "false"}:
            raise ValueError(f"adapt={self.adapt}: must be true or false")


class Philly(MeasuredOptions, frozen=True):
    """The options of a generated workload; `load` is a factor on the rate of jobs in Pollux."""

    load: Annotated[float, msgspec.Meta(gt=0, le=1000)] = 1.0


class Poisson(msgspec.Struct, frozen=True):
    """The options of random arrivals: number of jobs, mean seconds between two, and models.

    `of` is a job file, or ``capes``.
    """

    jobs: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 100
    mean_s: Annotated[float, msgspec.Meta(gt=0, le=1e9)] = 250.0
    of: str = CAPES


def folder_of(given: str, data: Path | None, beside: Path | None = None) -> Path:
    """Return the folder of the measurements: the given one, that of all data, or `beside`.

    Parameters
    ----------
    given : str
        The option of the workload; may be empty.
    data : Path or None
        The folder of all data.
    beside : Path, optional
        The folder of the file that names measured trainings.

    Raises
    ------
    InputError
        No folder is given.
    """
    base = Path(given) if given else data or beside
    if base is None:
        do = "give --data DIR, with the measurements of Pollux in DIR or DIR/pollux"
        raise InputError("it needs measurements of trainings", where=f"{WHERE} philly", do=do)
    return base / FOLDER if (base / FOLDER).is_dir() else base


def way_of(options: MeasuredOptions, setting: Setting) -> WorkloadOptions:
    """Return the options for measured trainings in a setting."""
    machine = ClusterSize(setting.nodes or MOST_NODES, setting.gpus)
    adapt = options.adapt == "true" if options.adapt else None
    return WorkloadOptions(machine, setting.policy, setting.oracle, adapt)


def _philly(text: str, given: str, setting: Setting) -> Workload:
    options = read_options(Philly, given, f"{WHERE} philly")
    folder, way = folder_of(options.data, setting.data), way_of(options, setting)

    def jobs(seed: int) -> Jobs:
        return application_jobs(make_philly(seed, load=options.load), folder, way)

    files = measurements(folder, SHARES)
    return Workload(text, jobs, files, REPORT_S, measured=True)


def _capes(text: str, given: str, setting: Setting) -> Workload:
    level = _one_of(given, capes.JOBS, f"{WHERE} capes", "contention")
    return Workload(text, lambda seed: capes.capes_jobs(capes.arrivals_s(level, seed)))


def _marble(text: str, given: str, setting: Setting) -> Workload:
    number = int(_one_of(given, map(str, marble.SETS), f"{WHERE} marble", "set"))
    return Workload(text, lambda _: marble.set_jobs(number))


def _poisson(text: str, given: str, setting: Setting) -> Workload:
    options = read_options(Poisson, given, f"{WHERE} poisson")
    path = model_file(text)
    if path is None:
        models = list(capes.capes_jobs([0.0]))
    else:
        models = read_job_file(path, elastic=setting.elastic, profiles=setting.profiles)
    for job, _ in models:
        if job.after:
            what = f"job {shown(job.name)} waits for another job"
            do = "leave `after` out, because this workload draws jobs at random"
            raise InputError(what, where=clean(options.of), do=do)
    make = functools.partial(poisson_jobs, models, options.jobs, options.mean_s)
    return Workload(text, make, (path,) if path else ())


def poisson_jobs(
    models: Sequence[tuple[Job, Physics]], count: int, mean_s: float, seed: int
) -> Iterator[tuple[Job, Physics]]:
    """Yield jobs with random arrivals, each like one of equally likely models.

    Parameters
    ----------
    models : sequence of (Job, Physics)
        Jobs that depend on no other job.
    count : int
    mean_s : float
        Mean seconds between two jobs, and before the first one; exponentially distributed.
    seed : int
    """
    source = random.Random(f"poisson/{seed}")
    when_s = 0.0
    for number in range(1, count + 1):
        when_s += source.expovariate(1 / mean_s)
        job, physics = source.choice(models)
        name = f"{job.name}-{number}"
        yield replace(job, id=str(number), name=name, order=number, submitted_s=when_s), physics


def _one_of(given: str, words: Iterable[str], where: str, what: str) -> str:
    known = list(words)
    if given not in known:
        missing = f"unknown {what} {shown(given)}" if given else f"it names no {what}"
        raise InputError(missing, where=where, valid=", ".join(known))
    return given


GENERATORS: Mapping[str, Callable[[str, str, Setting], Workload]] = {
    "philly": _philly,
    "capes": _capes,
    "marble": _marble,
    "poisson": _poisson,
}


def generated(text: str, setting: Setting) -> Workload | None:
    """Return the generated workload of this name; None if there is none.

    Parameters
    ----------
    text : str
        A name, with options after a colon.
    setting : Setting

    Raises
    ------
    InputError
        It has no such option, or a value is not valid.
    """
    name, _, given = text.partition(":")
    make = GENERATORS.get(name)
    return None if make is None else make(text, given, setting)


def model_file(text: str) -> Path | None:
    """Return the job file from which a generated workload is made, if any."""
    name, _, given = text.partition(":")
    if name != "poisson":
        return None
    options = read_options(Poisson, given, f"{WHERE} poisson")
    return None if options.of == CAPES else Path(options.of)
