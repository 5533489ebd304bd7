"""Jobs that can go on only where they were suspended, since their processes are there as they are.

Elsewhere such a job begins anew. So it is placed there before all other nodes, and when it could
have others it waits for its own as long as it had worked: if it has to begin anew after all, it is
done at most twice as late as if it had done so at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from hpcext.core.values import Job, Node, Snapshot, Target


class Homes:
    """The jobs that can go on only where they were suspended.

    Attributes
    ----------
    jobs : set of str
        Whether they are ready depends on what others hold.
    kept_back : set of str
        Those of them that are not ready for that reason.
    """

    def __init__(self) -> None:
        self.jobs: set[str] = set()
        self.kept_back: set[str] = set()

    def note(self, job: Job) -> None:
        """Learn what a job is like now."""
        if job.home and not job.state.final:
            self.jobs.add(job.id)
        elif self.jobs:
            self.jobs.discard(job.id)
            self.kept_back.discard(job.id)

    def keep_back(
        self, job: Job, now_s: float, nodes: Mapping[str, Node], busy: Iterable[Job]
    ) -> bool:
        """Return whether a job must not begin, as :func:`kept_back` says, and remember it."""
        back = kept_back(job, now_s, nodes, busy)
        if back:
            self.kept_back.add(job.id)
        return back


def waits(job: Job, now_s: float) -> bool:
    """Return whether a job that holds nothing waits for the node where it can go on."""
    over = job.home_until_s and now_s >= job.home_until_s
    return bool(job.home) and not job.state.active and not over


def kept_back(job: Job, now_s: float, nodes: Mapping[str, Node], busy: Iterable[Job]) -> bool:
    """Return whether a job must not begin, as that would be elsewhere.

    Where no node has room for it a policy may make some for it at home.

    Parameters
    ----------
    job : Job
    now_s : float
        The clock of the engine, in seconds.
    nodes : Mapping[str, Node]
        The nodes that offer something, by name.
    busy : iterable of Job
        Those that hold something, or are to.
    """
    if not waits(job, now_s):
        return False
    if job.home not in nodes:
        return True
    if len(nodes) == 1:
        return False
    free = {name: node.gpus for name, node in nodes.items()}
    for other in busy:
        if other.id == job.id:
            continue
        goal = other.goal or {}
        for name in {*other.held, *goal} & free.keys():
            free[name] -= max(other.held.get(name, 0), goal.get(name, 0))
    room = {name for name, gpus in free.items() if gpus >= job.sizes[0]}
    return bool(room) and job.home not in room


def avoiding(now: Snapshot) -> Snapshot:
    """Return a snapshot in which jobs that wait for a node avoid all others.

    Parameters
    ----------
    now : Snapshot
        What is true now.
    """

    def seen(job: Job) -> Job:
        if job.state.active or job.home not in now.nodes:
            return job
        others = (name for name in now.nodes if name != job.home)
        return replace(job, failed_on=(*job.failed_on, *others))

    busy = None if now.busy is None else tuple(map(seen, now.busy))
    return replace(now, jobs=tuple(map(seen, now.jobs)), busy=busy)


def without_strays(target: Target, jobs: Mapping[str, Job], now_s: float) -> Target:
    """Leave out of a target what would have a job begin elsewhere that still waits for its node.

    Parameters
    ----------
    target : Target
    jobs : Mapping[str, Job]
        All jobs, by id.
    now_s : float
        The clock of the engine, in seconds.
    """
    strays = {
        name
        for name, grant in target.grants.items()
        if (job := jobs.get(name)) and waits(job, now_s) and set(grant.alloc) != {job.home}
    }
    if not strays:
        return target
    grants = {name: grant for name, grant in target.grants.items() if name not in strays}
    return replace(target, grants=grants)


def why(job: Job) -> str:
    """Return what a job waits for that is kept back."""
    return (
        f"waits for room on {job.home}, where its processes were suspended as they are; elsewhere "
        "it would begin anew"
    )
