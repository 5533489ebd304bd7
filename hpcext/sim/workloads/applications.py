"""Jobs that train measured applications (:mod:`hpcext.sim.replay.measured`), as users request them.

A job may be changed only as the authors of its policy would change it (Pollux, section 5.1). Under
`pollux` the training has an agent that chooses its batch; under the policies of :data:`AS_ASKED` it
has the GPUs and the batch that its user requests; under all others it has that batch, on as many
GPUs as the policy grants.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from hpcext.core.errors import InputError
from hpcext.core.estimate import Estimate
from hpcext.core.values import Job
from hpcext.sim.replay.measured import Application, read_application
from hpcext.sim.replay.physics import Physics
from hpcext.sim.replay.profiled import Adaptive, Fixed, packed
from hpcext.sim.workloads.philly import PhillyJob
from hpcext.text import clean

DELAY_S = 30.0
"""Seconds that a re-allocation, or a start, costs a job (Pollux, section 5.3)."""

REPORT_S = 30.0
"""Seconds between an agent's reports (section 5.1)."""

ROOM = {"yolov3": 8}
"""Largest number of samples on a GPU for applications measured with more than the authors use."""

ALONE = "ncf"
"""The application that the authors' simulator always runs on one GPU with its tuned batch, because
it takes only a minute."""

WITH_AGENT = frozenset({"pollux"})
AS_ASKED = frozenset({"exclusive", "fixed", "easy", "conservative", "marble", "tiresias"})
"""Policies under which jobs keep the GPUs that their users request."""

PLACEMENTS = "placements.csv"
"""File in the folder of each measured application."""


class ClusterSize(NamedTuple):
    """Largest number of nodes, and of GPUs of each, that a job can have."""

    nodes: int
    gpus: int

    @property
    def total(self) -> int:
        """The number of GPUs on all nodes."""
        return self.nodes * self.gpus


class WorkloadOptions(NamedTuple):
    """The setting for which jobs are made.

    Attributes
    ----------
    machine : ClusterSize
    policy : str
        Name of the policy, with its options.
    oracle : bool
        Whether policies know the true speeds and work; otherwise they know only reported ones.
    adapt : bool or None
        Whether trainings choose their batch; None: as the authors of the policy have it.
    """

    machine: ClusterSize
    policy: str = ""
    oracle: bool = False
    adapt: bool | None = None

    @property
    def name(self) -> str:
        """The name of the policy, without its options."""
        return self.policy.partition(":")[0]

    @property
    def searches(self) -> bool:
        """Whether the policy is Pollux's genetic search."""
        return self.name == "pollux" and "search=genetic" in self.policy


def names(folder: Path) -> tuple[str, ...]:
    """Return the measured applications, each of which has a folder in this one.

    Raises
    ------
    InputError
        There are none.
    """
    found = tuple(sorted(path.parent.name for path in folder.glob(f"*/{PLACEMENTS}")))
    if not found:
        raise InputError(
            "it has no measurements",
            where=clean(str(folder)),
            valid=f"a folder for each application that contains {PLACEMENTS}",
            do="give the right one with --data DIR",
        )
    return found


def measurements(folder: Path, only: Collection[str] = ()) -> tuple[Path, ...]:
    """Return the files of the measured applications, or of some of them.

    Parameters
    ----------
    folder : Path
    only : collection of str
        Names of applications; empty for all.
    """
    return tuple(
        path for name in only or names(folder) for path in sorted((folder / name).glob("*.csv"))
    )


def application(folder: Path, name: str) -> Application:
    """Return a measured application; it is cached while its files stay the same.

    Parameters
    ----------
    folder : Path
        The folder that has a folder for each application.
    name : str

    Raises
    ------
    InputError
        The measurements are missing, or not valid.
    """
    own = (folder / name).absolute()
    stats = [(path.name, path.stat()) for path in sorted(own.glob("*.csv"))]
    return _application(
        folder / name,
        own,
        tuple((file, each.st_mtime_ns, each.st_size, each.st_ino) for file, each in stats),
    )


@functools.lru_cache(maxsize=64)
def _application(folder: Path, *_: object) -> Application:
    return read_application(folder, most_per_gpu=ROOM.get(folder.name))


def _trained(jobs: Iterable[PhillyJob], folder: Path) -> dict[str, Application]:
    names_ = dict.fromkeys(each.application for each in jobs)
    return {name: application(folder, name) for name in names_}


def check(jobs: Sequence[PhillyJob], folder: Path, places: Sequence[str]) -> None:
    """Refuse jobs beyond the measurements.

    Parameters
    ----------
    jobs : sequence of PhillyJob
    folder : Path
        Folder of the measurements.
    places : sequence of str
        The place of each job in the input.

    Raises
    ------
    InputError
        A batch is smaller or larger than any measured one, or too small for the number of GPUs.
    """
    every = _trained(jobs, folder)
    for each, where in zip(jobs, places, strict=True):
        known = every[each.application]
        least = max(known.initial_batch, known.least_per_gpu * each.gpus)
        if not least <= each.batch <= known.most_batch:
            raise InputError(
                f"batch_size {each.batch} on {each.gpus} GPUs",
                where=where,
                valid=f"{least} to {known.most_batch}, the measured range of "
                f"{clean(each.application)}",
            )


def application_jobs(
    jobs: Sequence[PhillyJob], folder: Path, way: WorkloadOptions
) -> Iterator[tuple[Job, Physics]]:
    """Yield the jobs of a workload, each with its physics.

    Parameters
    ----------
    jobs : sequence of PhillyJob
    folder : Path
        Folder of the measurements.
    way : WorkloadOptions

    Raises
    ------
    InputError
        The measurements are missing or not valid, or the nodes are larger than measured ones.
    """
    every = _trained(jobs, folder)
    for order, each in enumerate(jobs):
        known = every[each.application]
        if way.machine.gpus > known.widest:
            raise InputError(
                f"nodes with {way.machine.gpus} GPUs",
                where=clean(str(folder / each.application)),
                valid=f"at most {known.widest}: larger ones were not measured",
            )
        # Its speed on more nodes than measured is unknown.
        machine = way.machine._replace(nodes=min(way.machine.nodes, known.most_nodes))
        job = Job(each.name, each.name, order, (1,), 1, submitted_s=each.submitted_s)
        speed = _speed(each, known, way)
        job = _shaped(job, each, min(speed.most, machine.total), way._replace(machine=machine))
        if way.oracle:
            curve = _true(known, speed, min(speed.most, machine.total), machine.gpus)
            job = replace(job, estimate=Estimate(work=speed.work, stated=curve))
        yield job, Physics(speed, speed.work, resume_s=DELAY_S, checkpoint_s=None)


def _speed(each: PhillyJob, known: Application, way: WorkloadOptions) -> Adaptive | Fixed:
    alone = each.application == ALONE
    most = 1 if alone else None
    if way.name in WITH_AGENT if way.adapt is None else way.adapt:
        return Adaptive(known, each.batch if alone else None, most)
    return Fixed(known, each.batch, most)


def _shaped(job: Job, each: PhillyJob, most: int, way: WorkloadOptions) -> Job:
    """Return a job with the sizes that it may have."""
    if way.name == "tiresias":
        return replace(job, sizes=(each.gpus,), optimal=each.gpus)
    if way.name in AS_ASKED:
        per_node = _evenly(each.gpus, way.machine.gpus)
        nodes = each.gpus // per_node
        least = 1 if way.name == "marble" else per_node
        sizes = tuple(range(least, per_node + 1))
        return replace(job, sizes=sizes, optimal=per_node, nodes=(nodes, nodes))
    if way.searches:
        # The paper's search spreads GPUs in any way; exact divisions have equal numbers on nodes.
        return replace(job, sizes=tuple(range(1, most + 1)), optimal=most)
    per_node = min(way.machine.gpus, most)
    nodes = max(1, most // way.machine.gpus)
    return replace(job, sizes=tuple(range(1, per_node + 1)), optimal=per_node, nodes=(1, nodes))


def _evenly(gpus: int, per_node: int) -> int:
    """Return the GPUs on each of the fewest nodes that have equal numbers."""
    return max(each for each in range(1, min(gpus, per_node) + 1) if gpus % each == 0)


def _true(
    known: Application, speed: Adaptive | Fixed, most: int, per_node: int
) -> Mapping[int, float]:
    """Return true speeds on as few nodes as possible.

    For a training that chooses its batch it is the mean over all epochs, for powers of two.
    """
    if isinstance(speed, Fixed):
        return {gpus: speed.rate(packed(gpus, per_node)) for gpus in range(1, most + 1)}
    sizes = {most, *(1 << power for power in range(most.bit_length()))}
    return {gpus: _mean_rate(known, speed.total, gpus, per_node) for gpus in sorted(sizes)}


@functools.lru_cache(maxsize=256)
def _mean_rate(known: Application, total: int | None, gpus: int, per_node: int) -> float:
    speed = Adaptive(known, total)
    return speed.work / speed.alone_s(gpus, per_node)
