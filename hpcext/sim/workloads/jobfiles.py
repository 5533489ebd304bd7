"""The jobs of a job file, all of which are there from the beginning."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from hpcext.admission import admit
from hpcext.checks import placed
from hpcext.core.errors import InputError
from hpcext.core.values import Job
from hpcext.jobfile import read_jobs
from hpcext.jobspec import JobSpec
from hpcext.profiles import Profiles
from hpcext.sim.evaluate.expected import physics_of
from hpcext.sim.replay.physics import Physics
from hpcext.text import clean, counted, listed, shown


def read_job_file(
    path: Path, *, elastic: bool = False, profiles: Profiles | None = None
) -> list[tuple[Job, Physics]]:
    """Read jobs that state their speed and their work.

    Parameters
    ----------
    path : Path
    elastic : bool
        Whether jobs that state their number of nodes can change it while they train.
    profiles : Profiles, optional
        The store in which ``scaling = "NAME"`` is looked up.

    Raises
    ------
    InputError
        The file is not a job file, or a job in it does not state its speed and its work.
    """
    specs = read_jobs(path, profiles=profiles)
    for spec in specs:
        if spec.relative:
            what = f"job {shown(spec.name)}: {spec.profile} was measured in another unit"
            do = "state its work in the unit of the profile"
            raise InputError(what, where=str(path), do=do)
    if error := unstated(specs):
        raise placed(error, str(path))
    physics = (physics_of(spec, elastic=elastic) for spec in specs)
    return list(zip(admit(specs, 1, {}), physics, strict=True))


def unstated(
    specs: Sequence[JobSpec], among: Collection[str] | None = None, *, work: bool = True
) -> InputError | None:
    """Return an error about jobs that do not state their speed, or their work.

    Parameters
    ----------
    specs : sequence of JobSpec
    among : collection of str, optional
        Check only the jobs of these names.
    work : bool
        Whether the work must be known.

    Returns
    -------
    InputError or None
        It names all such jobs, and has lines to paste into the job file; None if there are none.
    """
    lacking: dict[str, tuple[JobSpec, list[str]]] = {}
    for spec in specs:
        if among is None or spec.name in among:
            keys = [] if spec.scaling else ["scaling"]
            keys += ["work"] if work and not spec.work else []
            lacking |= {spec.name: (spec, keys)} if keys else {}
    if not lacking:
        return None
    said = listed(f"{clean(name)} ({', '.join(keys)})" for name, (_, keys) in lacking.items())
    wanted = {key for _, keys in lacking.values() for key in keys}
    lines = []
    if "scaling" in wanted:
        first = next(spec for spec, keys in lacking.values() if "scaling" in keys)
        lines.append(f"{_example(first)} (steps per second on so many GPUs)")
    if "work" in wanted:
        lines.append("work = {steps = 10000} (steps until it is done)")
    number, does = counted(len(lacking), "job"), "does" if len(lacking) == 1 else "do"
    what = f"{number} {does} not state what is needed here: {said}"
    return InputError(what, do=f"add what each lacks, for example {' and '.join(lines)}")


def _example(spec: JobSpec) -> str:
    """Return a line that is valid in a job file for this job."""
    sizes = sorted({spec.gpus.min, spec.gpus.max})
    speeds = (f"{size} = {1.0 + 0.9 * (size - sizes[0]):.3g}" for size in sizes)
    return f"scaling = {{{', '.join(speeds)}}}"
