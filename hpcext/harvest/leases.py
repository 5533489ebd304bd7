"""The choice of idle nodes to lease. No I/O.

A lease is a preemptible job on one node, whose time limit ends before the hole does: a job that
would reach into what the batch system has planned does not start there.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import msgspec

from hpcext.core.band import Band
from hpcext.core.history.fragments import Fragments
from hpcext.core.values import Job
from hpcext.harvest.shares import drawn

MINUTE_S = 60.0
"""Slurm and LSF count time limits in minutes; sbatch(1), bsub(1)."""

RARELY = 0.05
"""The probability that a hole without a planned end lasts longer than its lease."""


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """The terms on which a harvester takes nodes.

    Attributes
    ----------
    partition : str
        Whose jobs all others preempt.
    system : str
        Whose nodes they are. A partition of LSF is a queue.
    options : tuple of str
        For sbatch or bsub: account, QOS, reservation.
    gpus : int
        On each node. Nodes with fewer are left alone.
    logical : bool
        Whether they are slots, on nodes without GPUs.
    max_nodes : int
        The most nodes at a time.
    share : float
        Of the nodes that are idle or leased, by anybody, so large a part at most, but one.
    least_s : float
        Shorter holes are left alone: a job needs some seconds to start and to end.
    parallel : int or None
        How many trainers run at once at most.
    longest_s : float
        Of a lease.
    before_s : float
        Seconds before the end of a hole or of a lease at which its node is given back.
    idle_s : float
        A lease on which nothing runs for so long ends.
    cycle_s : float
        Seconds between two queries of the batch system.
    autoscale : Band or None
        Take and keep only as many nodes as are worth it; None: as many as can be used.
    broker : str
        Where the broker of the site is asked: ``auto``, ``none``, or an address.
    whole : bool
        Whether nodes are left alone of which another job uses a part.
    """

    partition: str
    system: str = "slurm"
    options: tuple[str, ...] = ()
    gpus: int = 1
    logical: bool = False
    max_nodes: int = 64
    share: float = 1.0
    parallel: int | None = None
    least_s: float = 180.0
    longest_s: float = 14_400.0
    before_s: float = 30.0
    idle_s: float = 60.0
    cycle_s: float = 15.0
    autoscale: Band | None = None
    broker: str = "none"
    whole: bool = False

    def most(self, nodes: int) -> int:
        """Return the most leases to have, of nodes that are idle or leased by anybody."""
        return min(self.max_nodes, max(1, math.floor(self.share * nodes)))

    def minutes(self, hole: Hole, now_s: float) -> int:
        """Return the time limit of a lease for a hole, in minutes; 0: the hole is not used."""
        left_s = min(hole.ends_s - now_s - self.before_s, hole.limit_s)
        if left_s < self.least_s:
            return 0
        fits_s = max(hole.fits_s, self.least_s + self.before_s, MINUTE_S)
        return math.floor(min(left_s, self.longest_s, fits_s) / MINUTE_S)


class Hole(NamedTuple):
    """An idle node until `ends_s` (epoch), which is infinite if no end is known.

    `limit_s`: so long a job of its partition may last. A longer one would never begin. `fits_s`: it
    will hardly stay idle for longer than that.
    """

    node: str
    ends_s: float
    limit_s: float = math.inf
    fits_s: float = math.inf


class LeaseRequest(NamedTuple):
    """A lease to ask for; `planned`: it ends when somebody needs the node."""

    node: str
    minutes: int
    planned: bool = False


def wanted(jobs: Sequence[Job], terms: Terms) -> int:
    """Count the nodes that trainers could use together; the first ones, of those that wait or run.

    Parameters
    ----------
    jobs : sequence of Job
        Unfinished, in the order of the queue.
    terms : Terms
    """
    asking = first(jobs, terms)
    nodes = [job.nodes[1] if job.nodes else 1 for job in asking]
    gpus = sum(job.sizes[-1] * most for job, most in zip(asking, nodes, strict=True))
    # A training's own nodes are different ones, though it may leave GPUs of each to others.
    return max([math.ceil(gpus / terms.gpus), *nodes])


def first(jobs: Sequence[Job], terms: Terms) -> Sequence[Job]:
    """Return those unfinished jobs, in the order of the queue, that may have something."""
    return [job for job in jobs if job.ready or job.state.active][: terms.parallel]


def requests(
    holes: Iterable[Hole],
    *,
    idle: int,
    have: int,
    want: int,
    terms: Terms,
    now_s: float,
    seed: str = "",
    homes: Collection[str] = (),
) -> list[LeaseRequest]:
    """Choose which holes to take: those that trainers wait for, then those that last longest.

    Parameters
    ----------
    holes : iterable of Hole
    idle : int
        The number of nodes that are idle or leased by others, among the holes or not.
    have : int
        The number of leases, including requested ones.
    want : int
        Nodes that trainers can use.
    terms : Terms
    now_s : float
        Epoch.
    seed : str
        The seed for the order of holes that last equally long, so that two harvesters do not
        request the same ones. Empty: they are ordered by name.
    homes : collection of str
        The nodes for which trainers wait.
    """
    room = min(terms.most(idle + have), want) - have

    def place(hole: Hole) -> tuple[bool, float, str]:
        drawn_as = drawn(seed, hole.node) if seed else hole.node
        return hole.node not in homes, -hole.ends_s, drawn_as

    long = sorted(holes, key=place)
    found = []
    for hole in long:
        if minutes := terms.minutes(hole, now_s):
            until_s = now_s + (minutes + 1) * MINUTE_S + terms.before_s
            found.append(LeaseRequest(hole.node, minutes, until_s > hole.ends_s))
    return found[: max(0, room)]


def fits_s(seen: Fragments, age_s: float, longest_s: float) -> float:
    """Return the seconds beyond which an idle node will hardly stay, by those that have left.

    Parameters
    ----------
    seen : Fragments
    age_s : float
        Seconds for which it has been idle.
    longest_s : float
        Seconds beyond which the time does not matter.
    """
    import numpy as np  # noqa: PLC0415  (slow, and every start of a suspendable job waits for it)

    from hpcext.scaling.survival import Survival  # noqa: PLC0415

    later_s = np.linspace(0.0, longest_s, math.ceil(longest_s / MINUTE_S) + 1)
    none = np.zeros(0)
    stays = Survival(seen, none, none).stays(np.array([age_s]), later_s)[0]
    return float(later_s[np.searchsorted(-stays, -RARELY).clip(max=len(later_s) - 1)])


class Steady:
    """A filter for nodes that were idle at two looks in a row, not just between two jobs.

    BFTrainer, section 4.1, drops what is idle in one record only.
    """

    def __init__(self) -> None:
        self._last: frozenset[str] = frozenset()

    def __call__(self, idle: Collection[str]) -> frozenset[str]:
        """Return the nodes that were also idle at the last look."""
        both = self._last & frozenset(idle)
        self._last = frozenset(idle)
        return both
