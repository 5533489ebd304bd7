"""Pollux's auto-scaling: how many nodes are worth having (Qiao et al., section 5.4.1).

The *utility* of some nodes is the sum of the jobs' speed-ups on them, each relative to one GPU,
over the number of their GPUs: 1 if every GPU does as much as one alone. The paper adds nodes to one
training when its utility is above U = 2/3, until it is about L = 1/2. Here it is that of all jobs,
by the division that is worth most: while it is within a band, the number of nodes stays, else the
one is asked for whose utility is nearest to the middle of the band. With the band 1/3 to 2/3 that
is the paper's rule, and its mirror image, by which nodes are given back.

Goodput, which is what the speed of a job is that reports it, makes more nodes worth having as the
gradient's noise grows, and fewer when it falls. Of other jobs it is their throughput. Nobody is
believed to be good for more than twice the GPUs that it ever had, as in
:mod:`hpcext.policies.pollux`, unless its speeds are stated.

It says how many, and no policy: who gets which of them is the policy's answer as ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from hpcext.core.band import Band
from hpcext.core.values import Cause, Job, Node, Snapshot
from hpcext.policies.apportion import Table, apportion
from hpcext.policies.common import fixed
from hpcext.policies.divide import asks_of, speeds
from hpcext.policies.fitness import allowed

TRIED = 128
"""Numbers of nodes that are compared: all of them up to this one, else so many, evenly spaced by
their logarithms."""

NOTHING = 1e-9
"""A sum of speed-ups that is larger by less than this share is no larger."""


class Nodes(NamedTuple):
    """Nodes that there could be.

    Attributes
    ----------
    most : int
    gpus : int
        Of each.
    kind : str
        Of these.
    """

    most: int
    gpus: int
    kind: str = ""


def gains(
    jobs: Sequence[Job], nodes: Nodes, counts: Iterable[int] | None = None
) -> dict[int, float]:
    """Number of nodes → the largest sum of speed-ups that jobs can have on so many.

    Parameters
    ----------
    jobs : sequence of Job
        In the order of the queue. Those that are not ready have nothing.
    nodes : Nodes
    counts : iterable of int, optional
        Numbers of nodes, ascending; those that :func:`tried` gives unless they are said.
    """
    machine = {
        str(number): Node(str(number), nodes.gpus, nodes.kind) for number in range(nodes.most)
    }
    # Whatever they have now, on nodes of another name.
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
            tables.append(Table(each.gpus[fits], value[fits]))
        found[count] = apportion(tables, count * nodes.gpus).value
    return found


def tried(most: int, also: int = 0) -> list[int]:
    """Numbers of nodes to compare, ascending, and one that is to be among them."""
    if most <= TRIED:
        return list(range(1, most + 1))
    spaced = np.rint(np.geomspace(1, most, TRIED)).astype(int).tolist()
    return sorted({*spaced, *({also} if 1 <= also <= most else ())})


def utilities(found: Mapping[int, float], gpus: int) -> dict[int, float]:
    """Number of nodes → utility, for those numbers of which no node is for nothing."""
    most, left = 0.0, {}
    for count, gain in found.items():
        if gain > most * (1 + NOTHING):
            left[count], most = gain / (count * gpus), gain
    return left


def choose(
    utility: Mapping[int, float], band: Band, had: int | None = None, *, grows: bool = False
) -> int:
    """The number of nodes to have.

    It moves only out of the band, only to where the utility is nearer to the middle, and above the
    band to more nodes, below it to fewer: while utilities stay as they are it comes to rest.

    Parameters
    ----------
    utility : Mapping[int, float]
        By the number of nodes, ascending; not empty.
    band : Band
    had : int, optional
        What it was before.
    grows : bool
        The middle was not reached before, since nobody could use so many yet: it may be now.
    """
    counts = list(utility)

    def key(count: int) -> tuple[float, int]:
        """Of several that are as near, the most of those that are above, else the fewest."""
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
    """Asked again and again, how many nodes are worth having.

    Parameters
    ----------
    band : Band
    had : int
        Nodes that there are already, from before.
    """

    def __init__(self, band: Band, had: int = 0) -> None:
        self._band = band
        self._last = had or None
        self._grows = False
        self._about: tuple[str, ...] | None = None
        self._until_s = 0.0

    def wanted(self, now_s: float, jobs: Iterable[Job], nodes: Nodes) -> int:
        """How many of some nodes.

        Parameters
        ----------
        now_s : float
            By any clock that does not go back.
        jobs : iterable of Job
            Those that may have something, in the order of the queue.
        nodes : Nodes
            That could be used at most.
        """
        ready = tuple(job for job in jobs if job.ready)
        about = tuple(job.id for job in ready)
        if not about or not nodes.most:
            # What was worth it to those before says nothing of those that come.
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


class Loss(NamedTuple):
    """What it costs to give up a node: jobs that must be suspended, and that change in place."""

    suspended: int = 0
    changed: int = 0


def loss(jobs: Iterable[Job], node: str) -> Loss | None:
    """What it costs jobs if a node goes; None if one could not be suspended now.

    Parameters
    ----------
    jobs : iterable of Job
        All that hold anything, or are to have it.
    node : str
    """
    suspended = changed = 0
    for job in jobs:
        if node not in job.held and node not in (job.goal or {}):
            continue
        if fixed(job):
            return None
        if job.elastic and job.gpus and job.gpus[0].rpartition(":")[0] != node:
            changed += 1
        elif job.held:
            suspended += 1
    return Loss(suspended, changed)


class Outlook(NamedTuple):
    """How well used nodes are, and could be.

    Attributes
    ----------
    utility : float
        Of as many nodes as there are, by the division that is worth most.
    gain : float
        By what share one node more would have all jobs together get on faster.
    """

    utility: float
    gain: float


def outlook(jobs: Sequence[Job], nodes: Sequence[Node]) -> Outlook | None:
    """What is predicted of nodes that are alike; None if they are not, or nothing runs."""
    alike = {(node.gpus, node.kind) for node in nodes}
    if len(alike) != 1:
        return None
    gpus, kind = alike.pop()
    count = len(nodes)
    found = gains(jobs, Nodes(count + 1, gpus, kind), (count, count + 1))
    if not found[count] > 0:
        return None
    return Outlook(found[count] / (count * gpus), found[count + 1] / found[count] - 1)
