"""The leave of a harvester: what the broker of its site grants, and what holds without it.

A broker that is away costs no training: the harvester keeps what it has, takes nothing new for a
while, and then divides idle nodes with others by what the queue shows, as where there is none.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from hpcext.core.values import Job
from hpcext.harvest import leave, ways
from hpcext.harvest.leases import Terms
from hpcext.harvest.ways.local import Local
from hpcext.text import clean, counted

log = logging.getLogger(__name__)

PATIENCE_S = 300.0
"""Seconds without an answer after which a harvester divides nodes by the queue again."""

_SAID_CHARS = 200


class Leave(NamedTuple):
    """What a harvester may have at this look.

    Attributes
    ----------
    nodes : int or None
        The most nodes; None: as many as it has, for nobody says.
    next : bool
        Whether the next node that becomes free should be its.
    claim : tuple of str
        Nodes to claim first.
    why : str
        One sentence for users who wait.
    only : frozenset of str or None
        The nodes that may be taken, and no others; None: any.
    """

    nodes: int | None
    next: bool = False
    claim: tuple[str, ...] = ()
    why: str = ""
    only: frozenset[str] | None = None


class SiteLeave:
    """The side of a harvester that asks the broker of its site, once in each look.

    Parameters
    ----------
    name : str
        Of the jobs of all leases.
    terms : Terms
    trainers : callable
        The unfinished trainers that may have something, in the order of the queue.
    """

    def __init__(self, name: str, terms: Terms, trainers: Callable[[], Sequence[Job]]) -> None:
        self._name = name
        self._terms = terms
        self._trainers = trainers
        # When it last answered, or was first missed; None: there was none so far.
        self._heard_s: float | None = None
        self._said = ""

    def message(self, want: int) -> leave.Ask:
        """Return what the broker is told, in the thread that owns the trainers."""
        said = filter(None, map(_trainer, self._trainers()))
        return leave.Ask(
            harvester=self._name,
            partition=self._terms.partition,
            gpus=self._terms.gpus,
            want=min(want, leave.MOST_NODES),
            trainers=tuple(itertools.islice(said, leave.MOST_TRAINERS)),
        )

    def ask(self, message: leave.Ask, now_s: float) -> Leave | None:
        """Ask the broker; None: there is none, or it has been away for too long.

        Parameters
        ----------
        message : Ask
        now_s : float
            Seconds, which never go back.
        """
        way = ways.find(self._terms.broker)
        if way is None and self._heard_s is None:
            return None
        try:
            found = ways.ask(way or Local(leave.SOCKET), message)
        except leave.BrokerError as error:
            return self._without("is away", f"{error}", now_s)
        if found.elsewhere:
            self._heard_s = None
            self._say("the site's broker has nothing to do with this partition")
            return None
        if found.refused:
            return self._without("refuses this harvester", _short(found.refused), now_s)
        if found.keep:
            return self._without("decides nothing now", _short(found.keep), now_s)
        self._heard_s = now_s
        self._say("the site's broker says how many nodes it may have")
        only = None if found.only is None else frozenset(found.only)
        return Leave(found.nodes, found.next, found.claim, _part(found), only)

    def _without(self, what: str, why: str, now_s: float) -> Leave | None:
        if self._heard_s is None:
            self._heard_s = now_s
        if now_s - self._heard_s >= PATIENCE_S:
            self._say(f"without the site's broker, nodes are divided by the queue ({why})")
            return None
        said = f"the site's broker {what}, so no node is taken for {PATIENCE_S:.0f} s"
        self._say(f"{said} ({why})")
        return Leave(None, why=said)

    def _say(self, what: str) -> None:
        """Log a change, once."""
        if what != self._said:
            log.info("%s", what)
            self._said = what


def _part(found: leave.Answer) -> str:
    """Say what part of the nodes a harvester may have, and why no more."""
    may = (
        f"{found.nodes} of {counted(found.of, 'node')}"
        if found.of
        else counted(found.nodes, "node")
    )
    why = f": {_short(found.less)}" if found.less else ""
    return f"the site's broker grants it {may} now{why}"


def _short(said: str) -> str:
    return clean(said)[:_SAID_CHARS]


def _trainer(job: Job) -> leave.Trainer | None:
    """Return what a broker hears of a trainer, within its bounds; None: nothing."""
    nodes = job.nodes
    if nodes is not None:
        fewest, most = nodes
        if fewest > leave.MOST_NODES:
            # It needs more than any broker divides.
            return None
        nodes = fewest, min(most, leave.MOST_NODES)
    weight = min(job.weight, leave.MOST_FACTOR)
    priority = max(-leave.MOST_FACTOR, min(job.priority, leave.MOST_FACTOR))
    return leave.Trainer(job.order, _few(job.sizes), nodes, weight, priority)


def _few(sizes: tuple[int, ...]) -> tuple[int, ...]:
    if len(sizes) <= leave.MOST_SIZES:
        return sizes
    return (*sizes[: leave.MOST_SIZES - 1], sizes[-1])
