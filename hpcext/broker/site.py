"""The site as its broker knows it: an engine whose jobs are the trainers of all users.

Whatever harvesters say is kept until the next look at the partition, at which all of it is decided
together, once: a flood of words leads to no further decision. What was decided is in a journal like
a pilot's before anybody is told.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from hpcext.batch.leasing import Idle, Other
from hpcext.broker import classes, paper, reasons, view
from hpcext.broker.account import Account
from hpcext.broker.by_class import Layout, Parts
from hpcext.broker.decision import Standing, decide, granted
from hpcext.broker.division import Pools, Share
from hpcext.broker.fair_share import Reading
from hpcext.broker.handover import Told, excess, over_limits, told
from hpcext.broker.harvesters import Harvesters
from hpcext.broker.identity import Peer, name_of
from hpcext.broker.nodes import Nodes
from hpcext.broker.rounding import Rounding
from hpcext.broker.saved import short
from hpcext.broker.settings import Settings, names_of
from hpcext.core.engine import Engine, answer_of
from hpcext.core.errors import JournalError
from hpcext.core.facts import Fact
from hpcext.core.values import Node, Snapshot, Target
from hpcext.harvest import leave
from hpcext.manager.journal import Journal

log = logging.getLogger(__name__)

SETTLE = 3.0
"""Of a cycle: after a start nothing is decided for so long, until harvesters have asked again."""

SOON_S = 1e-3
"""Seconds after a decision from which the next look leads to one: wishes are no facts."""

LOOKS = 2
"""Looks at the partition that are needed for a decision."""

MOST_ENDED = 4096
"""Trainers that have ended, after which they are forgotten."""

ROUNDS = 50
"""The most steps for one decision; a policy whose target changes in each is not followed on."""

MOST_CLAIMS = 64
"""The most nodes that a harvester is told to claim."""


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
    clock : callable
        Seconds since the epoch, by which reservations hold; it may be set.

    Attributes
    ----------
    fair_share : Reading
        What the batch system has said of users; whoever asks it sets this.
    """

    def __init__(
        self,
        settings: Settings,
        journal: Journal,
        account: Account,
        now_s: float,
        name_of: Callable[[int], str] = name_of,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings
        self.account = account
        self._journal = journal
        past = journal.past()
        self._engine = past.replay()
        self._zero_s = now_s - past.now_s
        self._began_s = now_s
        self._looked_s: float | None = None
        self._policy = settings.decider()
        self._nodes = Nodes(settings)
        self._harvesters = Harvesters(self._engine.world, name_of, now_s)
        self._standing = Standing({}, {}, {}, {})
        self._clock = clock
        self._rounding = Rounding(account.due)
        self._parts: Parts = {}
        self.fair_share = Reading()
        self._next: frozenset[str] = frozenset()
        self._beyond: tuple[str, ...] = ()
        self._holders: Mapping[str, str] = {}
        self._refused = ""
        self._looks = 0
        # What was not done yet when the last broker died.
        self._left = tuple(
            fact for action in self._engine.outstanding() for fact in paper.answers(action)
        )
        self._granted = granted(self._engine.world.unfinished())
        self._told = Told(self._grants)
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
        if wrong := self._harvesters.hear(peer, ask, now_s):
            return leave.Answer(refused=wrong)
        if self._settles(now_s):
            return leave.Answer(keep="it has begun a moment ago")
        if self._journal.behind:
            return leave.Answer(keep="its journal cannot be written")
        key = f"{peer.uid}:{ask.harvester}"
        if key not in self._standing.parties:
            return leave.Answer(keep="it has not looked since it heard of this harvester")
        less = reasons.less(key, self._standing, self._granted, self._offered, said=ask.want)
        return leave.Answer(
            self._told.nodes.get(key, 0),
            key in self._next,
            self._beyond,
            of=len(self._offered),
            less=less,
            only=self._told.only_of(key),
        )

    @property
    def _offered(self) -> Mapping[str, Node]:
        """The nodes that the last decision has divided."""
        return self._engine.world.offered

    @property
    def _grants(self) -> dict[str, int]:
        """How many nodes each harvester was granted."""
        return {key: len(nodes) for key, nodes in self._granted.items()}

    def _settles(self, now_s: float) -> bool:
        # A node counts as idle only at the second look.
        return self._looks < LOOKS or now_s < self._began_s + SETTLE * self.settings.cycle_s

    # Looks.

    def look(self, nodes: Mapping[str, Idle], others: Sequence[Other], now_s: float) -> None:
        """Take up what the batch system shows, and decide.

        Parameters
        ----------
        nodes : Mapping[str, Idle]
            Of the partition.
        others : sequence of Other
            The leases of all harvesters there.
        now_s : float
        """
        self._looks += 1
        holds = {each.node: each for each in others if each.begun and each.until_s is None}
        free = self._nodes.free(nodes)
        keys = {(one.peer.user, one.name): key for key, one in self._harvesters.items()}
        held, without = {}, {}
        for node, each in holds.items():
            if (key := keys.get((each.user, each.harvester))) is not None and node in nodes:
                held[node] = key
            else:
                without[node] = each.user
        self._holders = {node: each.user for node, each in holds.items()}
        kinds = {node: nodes[node].kind if node in nodes else "" for node in (*nodes, *holds)}
        layout = classes.layout(self.settings.classes, kinds, without)
        self._count(without, held, layout, now_s)
        cycle_s, counts = self.settings.cycle_s, Counter(held.values())
        able = self._told.users_of(free, self._harvesters.users())
        self._harvesters.watch(counts, self._grants, idle=able, cycle_s=cycle_s, now_s=now_s)
        if self._settles(now_s):
            return
        world = self._engine.world
        facts = [*self._left, *self._harvesters.news(world, cycle_s, now_s)]
        held = {
            node: key
            for node, key in held.items()
            if key in self._harvesters and self._nodes.gpus(nodes[node])
        }
        facts += self._nodes.news(world, nodes, {*free, *held})
        self._left = ()
        have = Counter(self._harvesters[key].peer.user for key in held.values())
        self._rounding.pass_to(now_s, have)
        self.account.due = self._rounding.due
        self._standing = self._standing_of(held, Counter(without.values()), layout, now_s)
        self._settle(tuple(facts), now_s)
        self._granted = granted(self._engine.world.unfinished())
        self._rounding.decided(
            self._standing.entitled(self._offered), self._standing.of_users(self._parts)
        )
        waits = [
            (keys.get((each.user, each.harvester), ""), each.node)
            for each in others
            if not each.begun and each.until_s is None
        ]
        self._told = told(self._granted, held, waits, self._offered, layout)
        self._see_ahead()

    def _standing_of(
        self, held: Mapping[str, str], without: Mapping[str, int], layout: Layout, now_s: float
    ) -> Standing:
        users = {*self._harvesters.users(), *without}
        shares, pools = self._shares(users)
        return Standing(
            self._harvesters.parties(now_s),
            shares,
            held,
            without,
            pools,
            self.settings.reserved(users, self.fair_share, self._clock()),
            self._rounding.behind,
            layout,
        )

    def _shares(self, users: Iterable[str]) -> tuple[dict[str, Share], Pools]:
        """Return what users have now, and what several of them have together."""
        parts = {user: self.settings.part(user, self.fair_share) for user in users}
        shares = {user: share for user, (share, _) in parts.items()}
        return shares, Pools(self.settings.pools, {user: of for user, (_, of) in parts.items()})

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
                    target = answer_of(self._decided, question.now)
                fact = self._engine.answer(target, terse=True)
                self._refuse(fact.failed)
                if fact.failed:
                    fact = replace(fact, wake_s=at_s + SOON_S)
                decided = (fact,)
            facts = (*decided, *(fact for action in actions for fact in paper.answers(action)))
            if not facts:
                break
        self._write(at_s)

    def _decided(self, now: Snapshot) -> Target:
        self._parts = self._standing.parts(now.nodes)
        target = decide(now, self._standing, self._policy, self._parts)
        return replace(target, wake_s=now.now_s + SOON_S)

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

    def _see_ahead(self) -> None:
        """Find who is next when a node becomes free, and which nodes are to be given back."""
        standing, grants = self._standing, self._grants
        have = Counter(standing.held.values())
        self._beyond = tuple(sorted(self._told.beyond))[:MOST_CLAIMS]
        self._next = frozenset()
        # Not while somebody waits for what he may have: the node is his. And where nodes have
        # classes, nobody knows whose the next one would be before it is there.
        if standing.layout.names or any(have[key] < grants.get(key, 0) for key in standing.parties):
            return
        count = len(self._offered)
        now, then = standing.divided(count), standing.divided(count + 1)
        self._next = frozenset(key for key in then if then[key] > now[key])

    # What it shows.

    def _count(
        self, without: Mapping[str, str], held: Mapping[str, str], layout: Layout, now_s: float
    ) -> None:
        """Add to the account what users had since the last look, with leave and without."""
        last_s, self._looked_s = self._looked_s, now_s
        if last_s is None:
            return
        seconds = min(now_s - last_s, 3 * self.settings.cycle_s)
        beyond = Counter(without.values())
        for key, more in excess(self._granted, held, self._told).items():
            if key in self._standing.parties:
                beyond[self._harvesters[key].peer.user] += more
        # Those of one user are counted once, for whatever reason they are too many.
        beyond |= over_limits(self._holders, self._standing.shares, layout)
        for user, have in self._users_held.items():
            self.account.passed(user, seconds, held=have, without=beyond[user])

    @property
    def _users_held(self) -> Counter[str]:
        """How many nodes users have, as the last look has shown."""
        return Counter(self._holders.values())

    def status(self, peer: Peer, now_s: float) -> dict[str, Any]:
        """Return what an administrator sees of all users, and any user of himself.

        Parameters
        ----------
        peer : Peer
        now_s : float
        """
        users = self._harvesters.users()
        users_held = self._users_held
        known = users.keys() | users_held.keys() | self.account.users.keys()
        if not self.sees_all(peer):
            known = {peer.user}
        _, pools = self._shares(users_held)
        rows, others = view.users(
            known,
            users,
            self.settings,
            self.fair_share,
            grants=self._grants,
            held=users_held,
            account=self.account,
        )
        found = {
            "schema": "hpcext.broker-status/1",
            "partition": self.settings.partition,
            "decides": not self._settles(now_s) and not self._journal.behind,
            "failed": self._refused,
            "nodes": len(self._offered),
            "shares": view.shares(self.settings, self.fair_share, now_s),
            "all": self.sees_all(peer),
            "together": view.together(pools, users_held) if self.sees_all(peer) else [],
            "reservations": view.reservations(
                self.settings.reservations,
                self._clock(),
                lambda user: names_of(user, self.fair_share),
                users_held,
                viewer=None if self.sees_all(peer) else peer.user,
            ),
            "users": rows,
            "others": others,
        }
        if self.settings.classes:
            found["classes"] = view.classes(known, self._standing, self._granted, self._holders)
        return found

    def sees_all(self, peer: Peer) -> bool:
        """Return whether somebody may see all users."""
        return peer.uid in {0, os.geteuid()} or peer.user in self.settings.administrators

    def reload(self, settings: Settings) -> None:
        """Go on with other weights, limits, administrators and policy."""
        self.settings = self.settings._replace(
            policy=settings.policy,
            everybody=settings.everybody,
            users=settings.users,
            groups=settings.groups,
            administrators=settings.administrators,
            shares=settings.shares,
            shares_unknown=settings.shares_unknown,
            pools=settings.pools,
            reservations=settings.reservations,
            classes=settings.classes,
        )
        self._policy = settings.decider()
