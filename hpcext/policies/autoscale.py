"""Pollux's auto-scaling: how many nodes are worth having (Qiao et al., section 5.4.1).

The *utility* of some nodes is the sum of the jobs' speed-ups on them, each relative to one GPU,
divided by the number of their GPUs: 1 if every GPU does as much as one alone. The paper adds nodes
to one training when its utility is above U = 2/3, until it is about L = 1/2. Here it is the utility
of all jobs under the best division: while it is within a band, the number of nodes stays; else the
number is wanted whose utility is nearest to the middle of the band. With the band 1/3 to 2/3 that
is the paper's rule, and its mirror image, by which nodes are given back.

The speed of a job that reports goodput is its goodput, so that more nodes are worth having as the
gradient noise grows, and fewer when it falls. The speed of other jobs is their throughput. No job
is believed to use more than twice the GPUs that it ever had, as in :mod:`hpcext.policies.pollux`,
unless its speeds are stated.

This module decides the number of nodes only: which job gets which of them is the policy's answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from hpcext.core.band import Band
from hpcext.core.values import Cause, Job, Node, Snapshot
from hpcext.policies.common import fixed
from hpcext.policies.placement.candidates import asks_of, speeds
from hpcext.policies.pollux.fitness import allowed
from hpcext.policies.solve.apportion import apportion
from hpcext.policies.solve.tables import ValueTable

TRIED = 128
"""Largest number of node counts to compare: all of a small range, else this many, evenly spaced on
a logarithmic scale."""

NOTHING = 1e-9
"""Relative gain in the sum of speed-ups below which nodes are useless."""


class AvailableNodes(NamedTuple):
    """The nodes that are available.

    Attributes
    ----------
    most : int
        Largest number of nodes.
    gpus : int
        GPUs of each node.
    kind : str
        Kind of these GPUs.
    """

    most: int
    gpus: int
    kind: str = ""


def gains(
    jobs: Sequence[Job], nodes: AvailableNodes, counts: Iterable[int] | None = None
) -> dict[int, float]:
    """Return the largest sum of the jobs' speed-ups for each number of nodes.

    Parameters
    ----------
    jobs : sequence of Job
        In the order of the queue. Jobs that are not ready get nothing.
    nodes : AvailableNodes
    counts : iterable of int, optional
        Numbers of nodes, ascending; by default those of :func:`tried`.

    Returns
    -------
    dict of int to float
    """
    machine = {
        str(number): Node(str(number), nodes.gpus, nodes.kind) for number in range(nodes.most)
    }
    # Ignore their present GPUs, which are on other nodes.
    free = tuple(replace(job, goal=None) for job in jobs)
    asks = asks_of(Snapshot(0.0, machine, free, Cause.TIME))
    asks = allowed([ask for ask in asks if ask.shapes])
    sizes = [ask.sizes for ask in asks]
    values = [speeds(ask.job, each, nodes.kind) for ask, each in zip(asks, sizes, strict=True)]
    found = {}
    for count in tried(nodes.most) if counts is None else counts:
        tables = []
        for each, value in zip(sizes, values, strict=True):
            fits = each.nodes <= count
            tables.append(ValueTable(each.gpus[fits], value[fits]))
        found[count] = apportion(tables, count * nodes.gpus).value
    return found


def tried(most: int, also: int = 0) -> list[int]:
    """Return the numbers of nodes to compare, ascending, including `also` if it is valid.

    Parameters
    ----------
    most : int
        The largest number.
    also : int
        A further number; 0 for none.
    """
    if most <= TRIED:
        return list(range(1, most + 1))
    spaced = np.rint(np.geomspace(1, most, TRIED)).astype(int).tolist()
    return sorted({*spaced, *({also} if 1 <= also <= most else ())})


def utilities(found: Mapping[int, float], gpus: int) -> dict[int, float]:
    """Return the utility of each number of nodes, except numbers that include useless nodes.

    Parameters
    ----------
    found : Mapping[int, float]
        Sum of speed-ups by number of nodes, as from :func:`gains`.
    gpus : int
        GPUs of each node.
    """
    most, left = 0.0, {}
    for count, gain in found.items():
        if gain > most * (1 + NOTHING):
            left[count], most = gain / (count * gpus), gain
    return left


def choose(
    utility: Mapping[int, float], band: Band, had: int | None = None, *, grows: bool = False
) -> int:
    """Choose the number of nodes to have.

    The number changes only when its utility is outside the band, and only to one whose utility is
    nearer to the middle: to more nodes above the band, to fewer below it. So it settles while the
    utilities stay the same.

    Parameters
    ----------
    utility : Mapping[int, float]
        Utility by the number of nodes, ascending; not empty.
    band : Band
    had : int, optional
        The present number; None: none was chosen yet.
    grows : bool
        Whether the middle was out of reach before, because the jobs could not use enough nodes, and
        may be within reach now.
    """
    counts = list(utility)

    def key(count: int) -> tuple[float, int]:
        """Rank by distance from the middle; of equal ones the most nodes above, else the fewest."""
        above = utility[count] - band.aim
        return abs(above), -count if above > 0 else count

    if had is None:
        return min(counts, key=key)
    now = max((count for count in counts if count <= had), default=counts[0])
    if band.low <= utility[now] <= band.high and not grows:
        return now
    more = grows or utility[now] > band.high
    beyond = [count for count in counts if (count >= now if more else count <= now)]
    return min(beyond, key=key)


class Autoscaler:
    """The number of nodes worth having, followed over time.

    Parameters
    ----------
    band : Band
    had : int
        Nodes that the caller has already.
    """

    def __init__(self, band: Band, had: int = 0) -> None:
        self._band = band
        self._last = had or None
        self._grows = False
        self._about: tuple[str, ...] | None = None
        self._until_s = 0.0

    def wanted(self, now_s: float, jobs: Iterable[Job], nodes: AvailableNodes) -> int:
        """Return how many nodes are worth having now.

        Parameters
        ----------
        now_s : float
            Seconds by any monotonic clock.
        jobs : iterable of Job
            Jobs that may run, in the order of the queue.
        nodes : AvailableNodes
            The nodes that are available.
        """
        ready = tuple(job for job in jobs if job.ready)
        about = tuple(job.id for job in ready)
        if not about or not nodes.most:
            # The number for these jobs says nothing about later ones.
            self._last = None
            return nodes.most
        if about != self._about or now_s >= self._until_s or self._last is None:
            self._about, self._until_s = about, now_s + self._band.every_s
            counts = tried(nodes.most, self._last or 0)
            found = utilities(gains(ready, nodes, counts), nodes.gpus)
            if not found:
                return nodes.most
            self._last = choose(found, self._band, self._last, grows=self._grows)
            self._grows = self._last == max(found) and found[self._last] > self._band.aim
        return min(self._last, nodes.most)


class ReleaseCost(NamedTuple):
    """The cost of giving up a node: jobs that must be suspended, and jobs that change in place."""

    suspended: int = 0
    changed: int = 0


def loss(jobs: Iterable[Job], node: str) -> ReleaseCost | None:
    """Return what the loss of a node would cost; None if a job could not be suspended now.

    Parameters
    ----------
    jobs : iterable of Job
        All that hold GPUs, or are granted some.
    node : str
    """
    suspended = changed = 0
    for job in jobs:
        if node not in job.held and node not in (job.goal or {}):
            continue
        if fixed(job):
            return None
        if job.run.elastic and job.gpus and job.gpus[0].rpartition(":")[0] != node:
            changed += 1
        elif job.held:
            suspended += 1
    return ReleaseCost(suspended, changed)


class Outlook(NamedTuple):
    """The utility of the nodes, and the gain of one more.

    Attributes
    ----------
    utility : float
        Utility of the present number of nodes under the best division.
    gain : float
        Relative gain in the sum of all jobs' speeds with one more node.
    """

    utility: float
    gain: float


def outlook(jobs: Sequence[Job], nodes: Sequence[Node]) -> Outlook | None:
    """Predict the utility of nodes; None if they are not alike, or no job runs.

    Parameters
    ----------
    jobs : sequence of Job
        In the order of the queue.
    nodes : sequence of Node
        The present nodes.
    """
    alike = {(node.gpus, node.kind) for node in nodes}
    if len(alike) != 1:
        return None
    gpus, kind = alike.pop()
    count = len(nodes)
    found = gains(jobs, AvailableNodes(count + 1, gpus, kind), (count, count + 1))
    if not found[count] > 0:
        return None
    return Outlook(found[count] / (count * gpus), found[count + 1] / found[count] - 1)
