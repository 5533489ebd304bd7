"""Checks that jobs can run on given nodes at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from hpcext.core.errors import InputError
from hpcext.core.values import Job, Node
from hpcext.jobspec import JobSpec
from hpcext.manager.submissions import check_fits
from hpcext.sim.replay.sources import MOST_GPUS
from hpcext.text import are, counted


def check_specs(specs: Sequence[JobSpec], nodes: Sequence[Node], where: str) -> None:
    """Refuse jobs of a file that can run on no kind of these nodes.

    Parameters
    ----------
    specs : sequence of JobSpec
    nodes : sequence of Node
        At least one.
    where : str
        The file, for the message.

    Raises
    ------
    InputError
        A job needs more than the kind with the most suitable nodes has; it names the first.
    """
    for spec in specs:
        widest = max(nodes, key=lambda node: node.gpus)
        able = [node for node in nodes if node.gpus >= spec.gpus.min] or [widest]
        kind, count = Counter(node.kind for node in able).most_common(1)[0]
        node = next(node for node in able if node.kind == kind)
        check_fits([spec], [node], where, count)


def check_jobs(jobs: Iterable[Job], nodes: Sequence[Node], most: int, where: str) -> int:
    """Refuse jobs that can never run.

    Parameters
    ----------
    jobs : iterable of Job
        Read once, one by one: there may be millions.
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
        A job cannot run; it names the first.
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
            what = f"needs {counted(need, 'node')}{each}, but only {room} {are(room)} available"
            do = "give a larger machine, or leave the job out"
            raise InputError(what, where=f"{where}: job {job.name}", do=do)
    return count


def _check_spread(job: Job, nodes: Sequence[Node], where: str) -> None:
    """Refuse a job that can never run, if it states no nodes: any of them may give its GPUs."""
    gpus: Counter[str] = Counter()
    for node in nodes:
        gpus[node.kind] += node.gpus
    least, there = min(job.sizes), max(gpus.values(), default=MOST_GPUS)
    if least > there:
        what = f"needs {counted(least, 'GPU')}, but only {there} {are(there)} available"
        do = "give a larger machine, or leave the job out"
        raise InputError(what, where=f"{where}: job {job.name}", do=do)


def _room(nodes: Sequence[Node], gpus: int, most: int) -> int:
    """Return the largest number of nodes of one kind that have this number of GPUs each."""
    if not nodes:
        return most
    kinds = Counter(node.kind for node in nodes if node.gpus >= gpus)
    return max(kinds.values(), default=0)
