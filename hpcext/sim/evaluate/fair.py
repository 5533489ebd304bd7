"""The time that a job would have taken alone on an equal share of the machine.

Its share is the machine divided by the mean number of jobs, including itself, during its stay. This
is the reference of finish-time fairness (Mahajan et al., *Themis*, NSDI 2020, section 3.1; Qiao et
al., *Pollux*, section 5.3.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hpcext.core.values import Job, Node
from hpcext.policies.common import ONE_NODE
from hpcext.scaling.curve import interpolate
from hpcext.sim.replay.physics import Physics


class FairShares:
    """The equal shares of a machine whose nodes stay, as jobs come and go.

    The mean number of jobs during the stay of one is the difference of two integrals, so the cost
    of a job does not grow with the number of jobs.

    Parameters
    ----------
    nodes : iterable of Node
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        widths = [node.gpus for node in nodes]
        self._gpus, self._widest = sum(widths), max(widths)
        self._now_s = 0.0
        self._job_s = 0.0  # integral of the number of jobs over time
        self._came: dict[str, tuple[float, float]] = {}

    def come(self, now_s: float, job: str) -> None:
        """Record that a job has come."""
        self._advance(now_s)
        self._came.setdefault(job, (now_s, self._job_s))

    def go(self, now_s: float, job: str) -> float | None:
        """Record that a job has gone; return its share in GPUs, or None if that is unknown."""
        self._advance(now_s)
        came_s, job_s = self._came.pop(job, (now_s, 0.0))
        if now_s <= came_s:
            return None
        return self._gpus * (now_s - came_s) / (self._job_s - job_s)

    def alone_s(self, job: Job, physics: Physics, gpus: float) -> float:
        """Return the seconds of a job on GPUs of this machine; see :func:`alone_s`."""
        return alone_s(job, physics, gpus, self._widest)

    def _advance(self, now_s: float) -> None:
        self._job_s += len(self._came) * (now_s - self._now_s)
        self._now_s = now_s


def alone_s(job: Job, physics: Physics, gpus: float, per_node: int) -> float:
    """Return the seconds that a job takes alone, as fast as possible and without restarts.

    Parameters
    ----------
    job : Job
    physics : Physics
    gpus : float
        Largest number of GPUs, > 0. Speed is linear between those of its curve. Below the fewest on
        which it can run it is proportional, as if it had these for a part of the time.
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
