"""Checks whether jobs can ever run on the given nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from hpcext.core.errors import InputError
from hpcext.core.values import Job, Node
from hpcext.jobspec import JobSpec
from hpcext.manager.submissions import check_fits
from hpcext.sim.replay.sources import MOST_GPUS
from hpcext.text import counted


def check_specs(specs: Sequence[JobSpec], nodes: Sequence[Node], where: str) -> None:
    """Refuse jobs of a file that can run on no kind of these nodes.

    Raises
    ------
    InputError
        Names the first such job, measured against the kind with the most room.
    """
    for spec in specs:
        widest = max(nodes, key=lambda node: node.gpus)
        able = [node for node in nodes if node.gpus >= spec.gpus.min] or [widest]
        kind, count = Counter(node.kind for node in able).most_common(1)[0]
        node = next(node for node in able if node.kind == kind)
        check_fits([spec], [node], where, count)


def check_jobs(jobs: Iterable[Job], nodes: Sequence[Node], most: int, where: str) -> int:
    """Refuse jobs that can never run; there may be very many of them.

    Parameters
    ----------
    jobs : iterable of Job
    nodes : sequence of Node
        Nodes that are always there; if there are none, only `most` limits the jobs.
    most : int
        The largest possible number of nodes.
    where : str
        Where the jobs come from, for the message.

    Returns
    -------
    int
        The number of jobs.

    Raises
    ------
    InputError
        Names the first job that cannot run.
    """
    known: dict[tuple[int, int], bool] = {}
    count = 0
    for job in jobs:
        count += 1
        if job.nodes is None:
            _check_spread(job, nodes, where)
            continue
        need = job.nodes[0]
        least = min(job.sizes)
        if (need, least) not in known:
            known[need, least] = need <= _room(nodes, least, most)
        if not known[need, least]:
            each = f" with {least} GPUs each" if nodes and least > 1 else ""
            room = _room(nodes, least, most)
            what = f"needs {counted(need, 'node')}{each}, and {room} can be had"
            do = "give a larger machine, or leave the job out"
            raise InputError(what, where=f"{where}: job {job.name}", do=do)
    return count


def _check_spread(job: Job, nodes: Sequence[Node], where: str) -> None:
    """Refuse such a job that says nothing of nodes: its GPUs may be spread over them in any way."""
    gpus: Counter[str] = Counter()
    for node in nodes:
        gpus[node.kind] += node.gpus
    least, there = min(job.sizes), max(gpus.values(), default=MOST_GPUS)
    if least > there:
        what = f"needs {counted(least, 'GPU')}, and {there} can be had"
        do = "give a larger machine, or leave the job out"
        raise InputError(what, where=f"{where}: job {job.name}", do=do)


def _room(nodes: Sequence[Node], gpus: int, most: int) -> int:
    """Return on how many nodes of one kind this number of GPUs can be had."""
    if not nodes:
        return most
    kinds = Counter(node.kind for node in nodes if node.gpus >= gpus)
    return max(kinds.values(), default=0)
