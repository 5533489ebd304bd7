"""The site as its broker knows it: an engine whose jobs are the trainers of all users.

Whatever harvesters say is kept until the next look at the partition, at which all of it is decided
together, once: a flood of words leads to no further decision. What was decided is in a journal like
a pilot's before anybody is told.
"""

from __future__ import annotations

import logging
import math
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from msgspec.structs import replace

from hpcext.batch.leasing import Idle, Other
from hpcext.broker import paper
from hpcext.broker.account import Account
from hpcext.broker.decision import SOON_S, Party, Standing, decide, granted, key_of
from hpcext.broker.division import Share, divide
from hpcext.broker.identity import Peer, name_of
from hpcext.broker.settings import Settings
from hpcext.core.engine import Engine, answer_of
from hpcext.core.errors import JournalError
from hpcext.core.facts import Cancel, Ended, Fact, NodeJoined, NodeLost, Outcome, Submitted
from hpcext.core.saved import Saved
from hpcext.core.values import Job, Node, Target
from hpcext.harvest import leave
from hpcext.harvest.leases import Steady
from hpcext.manager.journal import Journal

log = logging.getLogger(__name__)

SETTLE = 3.0
"""Of a cycle: after a start nothing is decided for so long, until harvesters have asked again."""

LOOKS = 2
"""Looks at the partition that are needed for a decision."""

SILENT = 10.0
"""Of a cycle, and at least :data:`SILENT_S`: then a harvester that does not ask is forgotten."""
SILENT_S = 120.0

STUCK = 8.0
"""Of a cycle, and at least :data:`STUCK_S`: so long a grant may stay unused beside idle nodes."""
STUCK_S = 120.0

AGAIN_S = 600.0
"""Seconds for which others then have what a harvester did not use."""

MOST_HARVESTERS = 8
"""The most harvesters of a user."""

MOST_OF_USER = 1024
"""The most trainers of a user."""

MOST_ENDED = 4096
"""Trainers that have ended, after which they are forgotten."""

ROUNDS = 50
"""The most steps for one decision; a policy whose target changes in each is not followed on."""

MOST_CLAIMS = 64
"""The most nodes that a harvester is told to claim."""


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
    short_s : float or None
        Since when it has had less than it may have, while nodes were idle.
    stuck_s : float
        Until when it is granted no more than it has.
    """

    peer: Peer
    name: str
    heard_s: float
    want: int = 0
    gpus: int = leave.MOST_GPUS
    said: tuple[leave.Trainer, ...] = ()
    known: dict[int, tuple[leave.Trainer, str]] = field(default_factory=dict)
    held: int = 0
    short_s: float | None = None
    stuck_s: float = -math.inf

    @property
    def key(self) -> str:
        """What the ids of its trainers begin with."""
        return f"{self.peer.uid}:{self.name}"


class Site:
    """What a broker knows and has decided.

    Parameters
    ----------
    settings : Settings
    journal : Journal
        Open, with what was decided before.
    account : Account
    now_s : float
        Seconds of a clock that never goes back, as in all methods.
    name_of : callable
        The name of a user, by uid.
    """

    def __init__(
        self,
        settings: Settings,
        journal: Journal,
        account: Account,
        now_s: float,
        name_of: Callable[[int], str] = name_of,
    ) -> None:
        self.settings = settings
        self._name_of = name_of
        self.account = account
        self._journal = journal
        past = journal.past()
        self._engine = past.replay()
        self._zero_s = now_s - past.now_s
        self._began_s = now_s
        self._looked_s: float | None = None
        self._policy = settings.decider()
        self._steady = Steady()
        self._harvesters: dict[str, Harvester] = {}
        self._standing = Standing({}, {}, {}, {})
        self._next: frozenset[str] = frozenset()
        self._beyond: tuple[str, ...] = ()
        self._users_held: Counter[str] = Counter()
        self._refused = ""
        self._generation = 0
        self._looks = 0
        # Nodes that were neither idle nor leased at the last look.
        self._missed: set[str] = set()
        # What was not done yet when the last broker died.
        self._left = tuple(
            fact for action in self._engine.outstanding() for fact in paper.answers(action)
        )
        self._recover(now_s)

    def _recover(self, now_s: float) -> None:
        """Know the harvesters again whose trainers are in the journal."""
        for job in self._engine.world.jobs.values():
            made, _, number = job.id.rpartition("/")[2].partition("-")
            self._generation = max(self._generation, int(made))
            if job.state.final:
                continue
            uid, _, name = key_of(job.id).partition(":")
            peer = Peer(int(uid), self._name_of(int(uid)))
            one = self._harvesters.setdefault(key_of(job.id), Harvester(peer, name, now_s))
            said = leave.Trainer(int(number), job.sizes, job.nodes, job.weight, job.priority)
            one.known[said.number] = said, job.id
            one.said += (said,)
        self._grants = self._granted()
        for key, one in self._harvesters.items():
            one.want = self._grants.get(key, 0)

    # Harvesters.

    def hear(self, peer: Peer, ask: leave.Ask, now_s: float) -> leave.Answer:
        """Take a harvester's word, and answer by what is decided.

        Parameters
        ----------
        peer : Peer
        ask : leave.Ask
        now_s : float
        """
        if ask.partition != self.settings.partition:
            return leave.Answer(elsewhere=True)
        key = f"{peer.uid}:{ask.harvester}"
        if wrong := self._too_many(peer, key, ask):
            return leave.Answer(refused=wrong)
        fresh = key not in self._harvesters
        one = self._harvesters.setdefault(key, Harvester(peer, ask.harvester, now_s))
        one.heard_s, one.want, one.gpus, one.said = now_s, ask.want, ask.gpus, ask.trainers
        if self._settles(now_s):
            return leave.Answer(keep="it has begun a moment ago")
        if self._journal.behind:
            return leave.Answer(keep="its journal cannot be written")
        if fresh or key not in self._standing.parties:
            return leave.Answer(keep="it has not looked since it heard of this harvester")
        return leave.Answer(self._grants.get(key, 0), key in self._next, self._beyond)

    def _too_many(self, peer: Peer, key: str, ask: leave.Ask) -> str:
        """Return what a harvester has too many of; empty if nothing."""
        numbers = {trainer.number for trainer in ask.trainers}
        if len(numbers) < len(ask.trainers):
            return "two trainers have one number"
        if any(list(each.sizes) != sorted(set(each.sizes)) for each in ask.trainers):
            return "sizes are not ascending"
        if any(each.nodes and each.nodes[0] > each.nodes[1] for each in ask.trainers):
            return "fewest nodes are more than most"
        others = [one for name, one in self._harvesters.items() if one.peer == peer and name != key]
        if key not in self._harvesters and len(others) >= MOST_HARVESTERS:
            return f"a user has {MOST_HARVESTERS} harvesters at most"
        if sum(len(one.said) for one in others) + len(ask.trainers) > MOST_OF_USER:
            return f"a user has {MOST_OF_USER} trainers at most"
        return ""

    def _settles(self, now_s: float) -> bool:
        # A node counts as idle only at the second look.
        return self._looks < LOOKS or now_s < self._began_s + SETTLE * self.settings.cycle_s

    # Looks.

    def look(self, nodes: Mapping[str, Idle], others: Iterable[Other], now_s: float) -> None:
        """Take up what the batch system shows, and decide.

        Parameters
        ----------
        nodes : Mapping[str, Idle]
            Of the partition.
        others : iterable of Other
            The leases of all harvesters there.
        now_s : float
        """
        self._looks += 1
        holds = {each.node: each for each in others if each.begun and each.until_s is None}
        free = self._free(nodes)
        keys = {(one.peer.user, one.name): key for key, one in self._harvesters.items()}
        held, without = {}, Counter[str]()
        for node, each in holds.items():
            if (key := keys.get((each.user, each.harvester))) is not None and node in nodes:
                held[node] = key
            else:
                without[each.user] += 1
        self._users_held = Counter(each.user for each in holds.values())
        self._count(without, held, now_s)
        counts = Counter(held.values())
        for key, one in self._harvesters.items():
            self._watch(one, counts[key], self._grants.get(key, 0), bool(free), now_s)
        if self._settles(now_s):
            return
        facts = [*self._left, *self._trainers(now_s)]
        held = {
            node: key
            for node, key in held.items()
            if key in self._harvesters and self._gpus(nodes[node])
        }
        facts += self._nodes(nodes, self._kept(nodes, {*free, *held}))
        self._left = ()
        standing = Standing(self._parties(now_s), self._shares(), held, without)
        self._standing = standing
        self._settle(tuple(facts), now_s)
        self._grants = self._granted()
        self._see_ahead()

    def _free(self, nodes: Mapping[str, Idle]) -> frozenset[str]:
        """Return the idle nodes that could be leased, once they were so twice in a row."""
        return self._steady(
            [name for name, each in nodes.items() if each.idle and self._gpus(each)]
        )

    def _kept(self, nodes: Mapping[str, Idle], there: set[str]) -> set[str]:
        """Return the nodes that are divided: one is gone once it was missed twice in a row.

        On its way from one harvester to another it is neither leased nor idle for a moment, and
        nobody should give up a node because of that.
        """
        missed = (self._engine.world.nodes.keys() & nodes.keys()) - there
        found = there | (missed - self._missed)
        self._missed = missed
        return found

    def _gpus(self, node: Idle) -> int:
        """Return how many GPUs or slots of a node harvesters may use; 0: it is left alone."""
        if not node.gpus:
            return self.settings.slots
        return min(node.gpus, self.settings.gpus or node.gpus) * (node.gpus >= self.settings.gpus)

    def _watch(self, one: Harvester, held: int, may: int, idle: bool, now_s: float) -> None:
        """See whether a harvester uses what it may have; others have the rest for a while."""
        if held > one.held or held >= may or not idle:
            one.short_s = None
        elif one.short_s is None:
            one.short_s = now_s
        elif now_s - one.short_s > max(STUCK_S, STUCK * self.settings.cycle_s):
            one.stuck_s, one.short_s = now_s + AGAIN_S, None
        one.held = held

    def _trainers(self, now_s: float) -> Iterable[Fact]:
        """Return what has become of trainers since the last look, as harvesters say."""
        silent_s = max(SILENT_S, SILENT * self.settings.cycle_s)
        for key, one in list(self._harvesters.items()):
            if now_s - one.heard_s > silent_s:
                del self._harvesters[key]
                one.said = ()
            said = {trainer.number: trainer for trainer in one.said}
            for number, (before, job_id) in list(one.known.items()):
                if said.get(number) != before:
                    del one.known[number]
                    yield self._ended(job_id)
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

    def _ended(self, job_id: str) -> Fact:
        job = self._engine.world.jobs[job_id]
        return Ended(job_id, job.op, Outcome.COMPLETED, 0) if job.state.active else Cancel(job_id)

    def _nodes(self, nodes: Mapping[str, Idle], there: set[str]) -> Iterable[Fact]:
        """Return which nodes have come and gone; what a trainer had on those is over."""
        world = self._engine.world
        gone = world.nodes.keys() - there
        for job in world.queue.busy():
            if job.state.active and not gone.isdisjoint(job.held):
                yield Ended(job.id, job.op, Outcome.SUSPENDED)
        for name in sorted(gone):
            yield NodeLost(name)
        for name in sorted(there):
            gpus, before = self._gpus(nodes[name]), world.nodes.get(name)
            if before is None or (before.gpus, before.kind) != (gpus, nodes[name].kind):
                yield NodeJoined(Node(name, gpus, nodes[name].kind))

    def _parties(self, now_s: float) -> dict[str, Party]:
        return {
            key: Party(
                one.peer.user,
                min(one.want, one.held) if now_s < one.stuck_s else one.want,
                one.gpus,
            )
            for key, one in self._harvesters.items()
        }

    def _shares(self) -> dict[str, Share]:
        users = {one.peer.user for one in self._harvesters.values()}
        return {user: self.settings.share(user) for user in users}

    # The engine.

    def _settle(self, facts: tuple[Fact, ...], now_s: float) -> None:
        """Apply facts, decide once, and have all of it done on paper."""
        at_s = now_s - self._zero_s
        target: Target | str | None = None
        for _ in range(ROUNDS):
            actions, _ = self._engine.step(at_s, facts)
            self._journal.note(at_s, facts)
            decided: tuple[Fact, ...] = ()
            if (question := self._engine.wants) is not None:
                if target is None:
                    answer = partial(decide, standing=self._standing, policy=self._policy)
                    target = answer_of(answer, question.now)
                fact = self._engine.answer(target, terse=True)
                self._refuse(fact.failed)
                if fact.failed:
                    fact = replace(fact, wake_s=at_s + SOON_S)
                decided = (fact,)
            facts = (*decided, *(fact for action in actions for fact in paper.answers(action)))
            if not facts:
                break
        self._write(at_s)

    def _refuse(self, failed: str) -> None:
        if failed and failed != self._refused:
            log.warning("the policy %s; all keep what they have", failed)
        self._refused = failed

    def _write(self, at_s: float) -> None:
        """Write down what was decided; until that succeeds nobody is told."""
        try:
            self._journal.commit()
            ended = len(self._engine.world.jobs) - len(self._engine.world.queue)
            if self._journal.long or ended > MOST_ENDED:
                self._forget(at_s)
        except (JournalError, OSError) as error:
            log.warning("%s", error)

    def _forget(self, at_s: float) -> None:
        """Compact the journal, without trainers that have ended and what others did before."""
        saved = short(self._engine.world.save())
        self._journal.compact(at_s, saved)
        self._engine = Engine(saved=saved)

    def _granted(self) -> dict[str, int]:
        found = granted(self._engine.world.unfinished())
        return {key: len(nodes) for key, nodes in found.items()}

    def _see_ahead(self) -> None:
        """Find who is next when a node becomes free, and which nodes are to be given back."""
        standing, grants = self._standing, self._grants
        have = Counter(standing.held.values())
        self._beyond = tuple(
            sorted(node for node, key in standing.held.items() if have[key] > grants.get(key, 0))
        )[:MOST_CLAIMS]
        self._next = frozenset()
        # Not while somebody waits for what he may have: the node is his.
        if any(have[key] < grants.get(key, 0) for key in standing.parties):
            return
        nodes, wishes = len(self._engine.world.offered), standing.wishes()
        now, then = (
            divide(number, wishes, standing.shares, standing.without)
            for number in (nodes, nodes + 1)
        )
        self._next = frozenset(key for key in then if then[key] > now[key])

    # What it shows.

    def _count(self, without: Mapping[str, int], held: Mapping[str, str], now_s: float) -> None:
        """Add to the account what users had since the last look, with leave and without."""
        last_s, self._looked_s = self._looked_s, now_s
        if last_s is None:
            return
        seconds = min(now_s - last_s, 3 * self.settings.cycle_s)
        beyond: dict[str, int] = defaultdict(int, without)
        for key, have in Counter(held.values()).items():
            if key in self._standing.parties:
                more = max(0, have - self._grants.get(key, 0))
                beyond[self._harvesters[key].peer.user] += more
        for user, have in self._users_held.items():
            self.account.passed(user, seconds, held=have, without=beyond[user])

    def status(self, peer: Peer, now_s: float) -> dict[str, Any]:
        """Return what an administrator sees of all users, and any user of himself.

        Parameters
        ----------
        peer : Peer
        now_s : float
        """
        users: dict[str, list[Harvester]] = defaultdict(list)
        for one in self._harvesters.values():
            users[one.peer.user].append(one)
        known = users.keys() | self._users_held.keys() | self.account.users.keys()
        if not self.sees_all(peer):
            known = {peer.user}
        return {
            "schema": "hpcext.broker-status/1",
            "partition": self.settings.partition,
            "decides": not self._settles(now_s) and not self._journal.behind,
            "failed": self._refused,
            "nodes": len(self._engine.world.offered),
            "users": [self._row(user, users.get(user, [])) for user in sorted(known)],
        }

    def sees_all(self, peer: Peer) -> bool:
        """Return whether somebody may see all users."""
        return peer.uid in {0, os.geteuid()} or peer.user in self.settings.administrators

    def _row(self, user: str, own: list[Harvester]) -> dict[str, Any]:
        share, had = self.settings.share(user), self.account.of(user)
        return {
            "user": user,
            "weight": share.weight,
            "priority": share.priority,
            "limit": share.limit,
            "harvesters": len(own),
            "trainers": sum(len(one.said) for one in own),
            "want": sum(one.want for one in own),
            "granted": sum(self._grants.get(one.key, 0) for one in own),
            "held": self._users_held[user],
            "held_node_s": round(had.held_node_s, 1),
            "without_leave_node_s": round(had.without_node_s, 1),
        }

    def reload(self, settings: Settings) -> None:
        """Go on with other weights, limits, administrators and policy."""
        self.settings = self.settings._replace(
            policy=settings.policy,
            everybody=settings.everybody,
            users=settings.users,
            groups=settings.groups,
            administrators=settings.administrators,
        )
        self._policy = settings.decider()


def short(saved: Saved) -> Saved:
    """Return a world without jobs that have ended, and with the last stretch of the others."""
    jobs = tuple(job for job in saved.jobs if not job.state.final)
    records = {
        job.id: replace(saved.records[job.id], segments=saved.records[job.id].segments[-1:])
        for job in jobs
    }
    return replace(saved, jobs=jobs, records=records)
