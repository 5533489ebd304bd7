"""The harvesters that a broker has heard of: what they say, and what they make of their leave."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from hpcext.broker.decision import Party, key_of
from hpcext.broker.identity import Peer
from hpcext.core.facts import Cancel, Ended, Fact, Outcome, Submitted
from hpcext.core.values import Job
from hpcext.core.world import World
from hpcext.harvest import leave

SILENT = 10.0
"""Of a cycle, and at least :data:`SILENT_S`: then a harvester that does not ask is forgotten."""
SILENT_S = 120.0

STUCK = 8.0
"""Of a cycle, and at least :data:`STUCK_S`: so long a grant may stay unused beside idle nodes."""
STUCK_S = 120.0

AGAIN_S, MOST_TIMES = 600.0, 6
"""Seconds for which others then have what a user did not use: twice as long each time that this
happens again, so many times at most, until the user takes a node."""

MOST_HARVESTERS = 8
"""The most harvesters of a user."""

MOST_OF_USER = 1024
"""The most trainers of a user."""


@dataclass
class Harvester:
    """A harvester that has asked.

    Attributes
    ----------
    peer : Peer
        Its user.
    name : str
        Of the jobs of its leases.
    heard_s : float
        When it last asked.
    want, gpus : int
        As it said.
    said : tuple of leave.Trainer
        Its trainers, as it said.
    known : dict of int to (leave.Trainer, str)
        By number, as they were at the last decision, and the ids of their jobs.
    held : int
        Nodes that it has, as the batch system shows.
    """

    peer: Peer
    name: str
    heard_s: float
    want: int = 0
    gpus: int = leave.MOST_GPUS
    said: tuple[leave.Trainer, ...] = ()
    known: dict[int, tuple[leave.Trainer, str]] = field(default_factory=dict)
    held: int = 0

    @property
    def key(self) -> str:
        """What the ids of its trainers begin with."""
        return f"{self.peer.uid}:{self.name}"


@dataclass
class Use:
    """What a user makes of leave; of the user, since a harvester can call itself anything.

    Attributes
    ----------
    held : int
        Nodes that his harvesters had at the last look.
    short_s : float or None
        Since when they have had less than they may have, while nodes were idle.
    stuck_s : float
        Until when they are granted no more than they have.
    times : int
        How often that happened in a row.
    """

    held: int = 0
    short_s: float | None = None
    stuck_s: float = -math.inf
    times: int = 0

    def watch(self, has: int, may: int, *, idle: bool, patience_s: float, now_s: float) -> None:
        """Take up what a look shows.

        Parameters
        ----------
        has, may : int
            Nodes.
        idle : bool
            Whether nodes are idle.
        patience_s : float
            So long leave may stay unused.
        now_s : float
        """
        if has > self.held:
            self.times = 0
        if has > self.held or has >= may or not idle:
            self.short_s = None
        elif self.short_s is None:
            self.short_s = now_s
        elif now_s - self.short_s > patience_s:
            self.stuck_s = now_s + AGAIN_S * 2**self.times
            self.times = min(self.times + 1, MOST_TIMES)
            self.short_s = None
        self.held = has


class Harvesters(dict[str, Harvester]):
    """The harvesters by key.

    Parameters
    ----------
    world : World
        Of the journal: those whose trainers are in it are known again.
    name_of : callable
        The name of a user, by uid.
    now_s : float
        Seconds of a clock that never goes back, as in all methods.
    """

    def __init__(self, world: World, name_of: Callable[[int], str], now_s: float) -> None:
        super().__init__()
        self._generation = 0
        self._use: dict[str, Use] = {}
        for job in world.jobs.values():
            made, _, number = job.id.rpartition("/")[2].partition("-")
            self._generation = max(self._generation, int(made))
            if job.state.final:
                continue
            uid, _, name = key_of(job.id).partition(":")
            peer = Peer(int(uid), name_of(int(uid)))
            one = self.setdefault(key_of(job.id), Harvester(peer, name, now_s))
            said = leave.Trainer(int(number), job.sizes, job.nodes, job.weight, job.priority)
            one.known[said.number] = said, job.id
            one.said += (said,)

    def hear(self, peer: Peer, ask: leave.Ask, now_s: float) -> str:
        """Keep what a harvester says until the next look; return why not, if so.

        Parameters
        ----------
        peer : Peer
        ask : leave.Ask
        now_s : float
        """
        key = f"{peer.uid}:{ask.harvester}"
        if wrong := self._too_many(peer, key, ask):
            return wrong
        one = self.setdefault(key, Harvester(peer, ask.harvester, now_s))
        # The system may not have known the name when the journal was read.
        one.peer = peer
        one.heard_s, one.want, one.gpus, one.said = now_s, ask.want, ask.gpus, ask.trainers
        return ""

    def _too_many(self, peer: Peer, key: str, ask: leave.Ask) -> str:
        """Return what a harvester has too many of; empty if nothing."""
        numbers = {trainer.number for trainer in ask.trainers}
        if len(numbers) < len(ask.trainers):
            return "two trainers have one number"
        if any(list(each.sizes) != sorted(set(each.sizes)) for each in ask.trainers):
            return "sizes are not ascending"
        if any(each.nodes and each.nodes[0] > each.nodes[1] for each in ask.trainers):
            return "fewest nodes are more than most"
        others = [one for name, one in self.items() if one.peer.uid == peer.uid and name != key]
        if key not in self and len(others) >= MOST_HARVESTERS:
            return f"a user has {MOST_HARVESTERS} harvesters at most"
        if sum(len(one.said) for one in others) + len(ask.trainers) > MOST_OF_USER:
            return f"a user has {MOST_OF_USER} trainers at most"
        return ""

    def users(self) -> dict[str, list[Harvester]]:
        """Return the harvesters of each user."""
        found: dict[str, list[Harvester]] = {}
        for one in self.values():
            found.setdefault(one.peer.user, []).append(one)
        return found

    def parties(self, now_s: float) -> dict[str, Party]:
        """Return what each wants; of a user who does not use leave, no more than it has."""
        return {key: self._party(one, now_s) for key, one in self.items()}

    def _party(self, one: Harvester, now_s: float) -> Party:
        keeps = now_s < self._use[one.peer.user].stuck_s
        want = min(one.want, one.held) if keeps else one.want
        return Party(one.peer.user, want, one.gpus, keeps)

    def watch(
        self, held: Mapping[str, int], grants: Mapping[str, int], *, idle: Collection[str],
        cycle_s: float, now_s: float,
    ) -> None:  # fmt: skip
        """See whether harvesters use what they may have; others have the rest for a while.

        Parameters
        ----------
        held, grants : Mapping[str, int]
            Nodes that a harvester has, and that it may have.
        idle : collection of str
            Users for whom nodes are idle.
        cycle_s : float
            Seconds between two looks.
        now_s : float
        """
        patience_s, users = max(STUCK_S, STUCK * cycle_s), self.users()
        # Who is gone for longer than that has nothing to be remembered for.
        self._use = {
            user: use
            for user, use in self._use.items()
            if user in users or now_s < use.stuck_s + AGAIN_S * 2**use.times
        }
        for user, own in users.items():
            for one in own:
                one.held = held.get(one.key, 0)
            has, may = (sum(each.get(one.key, 0) for one in own) for each in (held, grants))
            use = self._use.setdefault(user, Use())
            use.watch(has, may, idle=user in idle, patience_s=patience_s, now_s=now_s)

    def news(self, world: World, cycle_s: float, now_s: float) -> Iterable[Fact]:
        """Yield what has become of trainers since the last look, as harvesters say.

        Parameters
        ----------
        world : World
        cycle_s : float
            Seconds between two looks.
        now_s : float
        """
        silent_s = max(SILENT_S, SILENT * cycle_s)
        for key, one in list(self.items()):
            if now_s - one.heard_s > silent_s:
                del self[key]
                one.said = ()
            said = {trainer.number: trainer for trainer in one.said}
            for number, (before, job_id) in list(one.known.items()):
                if said.get(number) != before:
                    del one.known[number]
                    yield _ended(world.jobs[job_id])
            for number, trainer in said.items():
                if number not in one.known:
                    job = self._job(one, trainer)
                    one.known[number] = trainer, job.id
                    yield Submitted(job)

    def _job(self, one: Harvester, trainer: leave.Trainer) -> Job:
        self._generation += 1
        return Job(
            id=f"{one.key}/{self._generation}-{trainer.number}",
            name=f"trainer {trainer.number}",
            order=self._generation,
            sizes=trainer.sizes,
            optimal=trainer.sizes[-1],
            nodes=trainer.nodes,
            weight=trainer.weight,
            priority=trainer.priority,
        )


def _ended(job: Job) -> Fact:
    return Ended(job.id, job.op, Outcome.COMPLETED, 0) if job.state.active else Cancel(job.id)
