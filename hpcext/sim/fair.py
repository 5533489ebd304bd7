"""How long a job would have taken alone on an equal part of the machine.

Its part is the machine by the jobs that were there in the mean while it was, itself among them:
what finish-time fairness compares with (Mahajan et al., *Themis*, NSDI 2020, section 3.1; Qiao et
al., *Pollux*, section 5.3.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hpcext.core.values import Job, Node
from hpcext.policies.common import ONE_NODE
from hpcext.scaling.curve import interpolate
from hpcext.sim.physics import Physics


class Shares:
    """The equal parts of a machine that stays as it is; told who comes and goes, as time goes on.

    The mean number of jobs over the time of one is kept as the difference of two integrals, so that
    the cost of a job does not grow with the jobs.

    Parameters
    ----------
    nodes : iterable of Node
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        widths = [node.gpus for node in nodes]
        self._gpus, self._widest = sum(widths), max(widths)
        self._now_s = 0.0
        self._job_s = 0.0  # jobs that there are, over time
        self._came: dict[str, tuple[float, float]] = {}

    def come(self, now_s: float, job: str) -> None:
        """A job is there that was not."""
        self._advance(now_s)
        self._came.setdefault(job, (now_s, self._job_s))

    def go(self, now_s: float, job: str) -> float | None:
        """A job is there no more: its part, GPUs; None if that is not known."""
        self._advance(now_s)
        came_s, job_s = self._came.pop(job, (now_s, 0.0))
        if now_s <= came_s:
            return None
        return self._gpus * (now_s - came_s) / (self._job_s - job_s)

    def alone_s(self, job: Job, physics: Physics, gpus: float) -> float:
        """Seconds of a job on so many GPUs of this machine; see :func:`alone_s`."""
        return alone_s(job, physics, gpus, self._widest)

    def _advance(self, now_s: float) -> None:
        self._job_s += len(self._came) * (now_s - self._now_s)
        self._now_s = now_s


def alone_s(job: Job, physics: Physics, gpus: float, per_node: int) -> float:
    """Seconds that a job takes alone, as fast as it can, without any start or restart.

    Parameters
    ----------
    job : Job
    physics : Physics
    gpus : float
        So many at most, > 0. Between those of its curve it is on straight lines, on fewer than it
        can run on as much slower: as if it had these a part of the time.
    per_node : int
        GPUs of a node.
    """
    curve = physics.speed
    if not isinstance(curve, Mapping):
        return curve.alone_s(gpus, per_node)
    fewest, most = ONE_NODE if job.nodes is None else job.nodes
    least = min(job.sizes) * fewest
    share = min(gpus, max(job.sizes) * most)
    there = max(share, least)
    sizes = [there, *(size for size in curve if least <= size < there)]
    best = max(interpolate(curve, size) for size in sizes)
    return physics.work / (best * min(1.0, share / least))
