"""The jobs of a batch system's log, each on as many nodes as it had, for as long as it ran."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hpcext.core.errors import InputError
from hpcext.core.estimate import Estimate
from hpcext.core.values import Job
from hpcext.sim.replay.physics import Physics
from hpcext.sim.traces.swf import read_swf
from hpcext.sim.workloads.workload import of_user
from hpcext.text import clean


def read_logged(
    path: Path, *, gpus: int, per_node: int | None = None, users: bool = False
) -> Iterator[tuple[Job, Physics]]:
    """Read the jobs of a log in the Standard Workload Format, one at a time.

    They are rigid: a job has all GPUs of its nodes, and cannot be suspended. It states the time
    limit that it requested, if the log has it. Jobs with other missing values are left out.

    Parameters
    ----------
    path : Path
    gpus : int
        GPUs of a node.
    per_node : int or None
        Processors of a node, if the log counts processors; None: the log counts nodes.
    users : bool
        Whether each belongs to its user, by the number that the log has. Such jobs share nodes that
        can be taken from them, so each of them can be suspended.

    Raises
    ------
    InputError
        A job has no user, and each should have one.
    """
    first_s = None
    for order, logged in enumerate(read_swf(path)):
        first_s = logged.submit_s if first_s is None else first_s
        if logged.wanted < 1 or logged.run_s <= 0:
            continue
        nodes = -(-logged.wanted // (per_node or 1))
        if users and logged.user < 0:
            do = f"say whose jobs these are: USER={clean(str(path))}"
            raise InputError(f"job {logged.number} has no user", where=clean(str(path)), do=do)
        number = str(logged.number)
        job = Job(
            of_user(str(logged.user), number) if users else number,
            f"job{logged.number}",
            order,
            (gpus,),
            gpus,
            nodes=(nodes, nodes),
            walltime_s=logged.walltime_s if logged.walltime_s > 0 else None,
            suspendable=users,
            submitted_s=logged.submit_s - first_s,
            estimate=Estimate(stated={gpus * nodes: 1.0}, work=logged.run_s),
        )
        yield job, Physics({gpus * nodes: 1.0}, logged.run_s)
