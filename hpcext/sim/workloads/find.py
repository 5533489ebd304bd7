"""The jobs that a command line names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from hpcext.admission import admit
from hpcext.core.errors import InputError
from hpcext.core.values import Job
from hpcext.jobfile import read_jobs
from hpcext.profiles import Profiles
from hpcext.sim.expected import physics_of
from hpcext.sim.physics import Physics
from hpcext.sim.workloads.logged import read_logged
from hpcext.sim.workloads.trainers import read_trainers
from hpcext.text import shown

Jobs = Iterable[tuple[Job, Physics]]

VALID = "a job file (.toml), a log (.swf, .swf.gz), or trainers (.csv)"


class Workload(NamedTuple):
    """Jobs to simulate.

    Attributes
    ----------
    text : str
        How a report names them.
    jobs : callable
        By a seed: each job, and how it truly behaves, by the time of its submission; anew at each
        call.
    files : tuple of Path
        What they are read from.
    """

    text: str
    jobs: Callable[[int], Jobs]
    files: tuple[Path, ...] = ()


class Costs(NamedTuple):
    """What is so of all jobs, beside what a workload says of each; None: as that has it.

    Attributes
    ----------
    launch_s : float or None
        From the order to start until an attempt runs.
    checkpoint_s : float or None
        Training time between periodic checkpoints.
    interference : float or None
        Share of its speed that a job on several nodes loses where another one is on one of them.
    rescale : float
        What changes of size cost, as a multiple.
    """

    launch_s: float | None = None
    checkpoint_s: float | None = None
    interference: float | None = None
    rescale: float = 1.0


def find_workload(
    text: str,
    *,
    gpus: int,
    per_node: int | None = None,
    learn: bool = False,
    elastic: bool = False,
    costs: Costs | None = None,
    profiles: Profiles | None = None,
) -> Workload:
    """The workload of this name.

    Parameters
    ----------
    text : str
    gpus : int
        Of a node.
    per_node : int or None
        Processors of a node, where a log counts processors.
    learn : bool
        Policies do not know the speeds that jobs state, and learn them from what these report.
    elastic : bool
        Jobs of a job file that say on how many nodes they run can change these while they train.
    costs : Costs, optional
    profiles : Profiles, optional
        Where a job file's ``scaling = "NAME"`` is looked up.

    Raises
    ------
    InputError
        It is none, or a job in it does not say how fast it is and how much it has to do.
    """
    path = Path(text)
    suffixes = "".join(path.suffixes[-2:]) if path.suffix == ".gz" else path.suffix
    if is_job_file(text):
        jobs: Jobs = _from_file(path, elastic=elastic, profiles=profiles)

        def read() -> Jobs:
            return jobs

    elif suffixes in {".swf", ".swf.gz"}:

        def read() -> Jobs:
            return read_logged(path, gpus=gpus, per_node=per_node)

    elif suffixes in {".csv", ".csv.gz"}:

        def read() -> Jobs:
            return read_trainers(path, gpus=gpus)

    else:
        raise InputError(f"unknown workload {shown(text)}", where="WORKLOAD", valid=VALID)
    given = costs or Costs()
    return Workload(text, lambda _: _changed(read(), given, learn), (path,))


def is_job_file(text: str) -> bool:
    """Whether a workload is a job file."""
    return Path(text).suffix == ".toml"


def _from_file(
    path: Path, *, elastic: bool, profiles: Profiles | None
) -> list[tuple[Job, Physics]]:
    """The jobs of a job file, all of them there from the beginning."""
    specs = read_jobs(path, profiles=profiles)
    for spec in specs:
        if spec.relative:
            what = f"job {shown(spec.name)}: {spec.profile} was measured in another unit"
            do = "say its work in the unit of the profile"
            raise InputError(what, where=str(path), do=do)
        if not spec.scaling or not spec.work:
            what = "scaling" if not spec.scaling else "work"
            do = "say how fast it is on how many GPUs, and how much it has to do"
            raise InputError(f"job {shown(spec.name)} states no {what}", where=str(path), do=do)
    physics = (physics_of(spec, elastic=elastic) for spec in specs)
    return list(zip(admit(specs, 1, {}), physics, strict=True))


def _changed(jobs: Jobs, costs: Costs, learn: bool) -> Iterator[tuple[Job, Physics]]:
    for job, physics in jobs:
        changes: dict[str, float] = {
            name: value
            for name in ("launch_s", "checkpoint_s", "interference")
            if (value := getattr(costs, name)) is not None
        }
        if costs.rescale != 1.0:
            for name in ("resume_s", "suspend_s", "rescale_up_s", "rescale_down_s"):
                changes[name] = costs.rescale * getattr(physics, name)
        known = job.estimate
        if costs.rescale != 1.0 and not learn:
            ways = {"up_s": known.up_s, "down_s": known.down_s}
            told = {key: each * costs.rescale for key, each in ways.items() if each is not None}
            known = replace(known, **told)
        if learn:
            known = replace(known, stated={}, by_kind={}, up_s=None, down_s=None)
        yield replace(job, estimate=known), replace(physics, **changes) if changes else physics
