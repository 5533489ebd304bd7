"""The site's decision: users' parts by weight, and within each the site's policy. No I/O.

A policy sees the trainers of one harvester on the nodes of its part, as that harvester's own would.
So nothing that a user states of his trainers matters to other users, but how many nodes they could
use; and nodes that a policy leaves unused go to those who want more.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Set
from types import MappingProxyType
from typing import Any, NamedTuple

from msgspec.structs import replace

from hpcext.broker.by_class import (
    NONE,
    Layout,
    Parts,
    Rules,
    divide_by_class,
    entitled_by_class,
    totals,
)
from hpcext.broker.division import NO_POOLS, Pools, Reserved, Share, Wish, assign, divide
from hpcext.broker.entitlement import entitled
from hpcext.core.engine import Policy
from hpcext.core.values import NO_RUN, Alloc, Grant, Job, Node, Snapshot, State, Target, suits


class Party(NamedTuple):
    """A harvester that asks for nodes.

    Attributes
    ----------
    user : str
    want : int
        The most nodes that it can use and take now.
    gpus : int
        That it uses on each node.
    keeps : bool
        Whether it gets no other nodes than those that it has.
    """

    user: str
    want: int
    gpus: int
    keeps: bool = False


class Standing(NamedTuple):
    """What is so besides the engine's world.

    Attributes
    ----------
    parties : Mapping[str, Party]
    shares : Mapping[str, Share]
        By user.
    held : Mapping[str, str]
        Node → the harvester of `parties` that has it.
    without : Mapping[str, int]
        Nodes that users hold by harvesters that did not ask.
    pools : Pools
        What several users may have together.
    reserved : tuple of Reserved
        What is reserved for users now.
    behind : Mapping[str, float]
        By user, as :func:`~hpcext.broker.division.divide` takes it.
    layout : Layout
        The classes of nodes.
    """

    parties: Mapping[str, Party]
    shares: Mapping[str, Share]
    held: Mapping[str, str]
    without: Mapping[str, int]
    pools: Pools = NO_POOLS
    reserved: tuple[Reserved, ...] = ()
    behind: Mapping[str, float] = MappingProxyType({})
    layout: Layout = Layout()

    def of(self, user: str) -> list[str]:
        """Return the harvesters of a user."""
        return [name for name, party in self.parties.items() if party.user == user]

    def parts(self, nodes: Collection[str]) -> Parts:
        """Return the part of each harvester of some nodes, by class."""
        if not self.layout.names:
            return {NONE: self.divided(len(nodes))}
        return self._by_class(nodes, self.wishes(), self.layout.without)

    def more(
        self, nodes: Collection[str], used: Mapping[str, Collection[str]], full: Set[str]
    ) -> Parts:
        """Return parts where the rest of all nodes is divided among those who want more.

        Parameters
        ----------
        nodes : collection of str
            All of them.
        used : Mapping[str, collection of str]
            By harvester, the nodes that its trainers use.
        full : set of str
            Harvesters that use all that they were given.
        """
        counts = {name: self.layout.counts(own) for name, own in used.items()}
        had = {name: Counter(self.layout.without.get(name, {})) for name in self.layout.names}
        for each, own in counts.items():
            for name, count in own.items():
                had[name][self.parties[each].user] += count
        taken = {node for own in used.values() for node in own}
        wishes = {
            each: wish._replace(want=wish.want - len(used[each]) if each in full else 0)
            for each, wish in self.wishes().items()
        }
        rest = self._by_class([node for node in nodes if node not in taken], wishes, had)
        return {
            name: {each: part + counts[each][name] for each, part in own.items()}
            for name, own in rest.items()
        }

    def _by_class(
        self,
        nodes: Collection[str],
        wishes: Mapping[str, Wish],
        had: Mapping[str, Mapping[str, int]],
    ) -> Parts:
        have: dict[str, Counter[str]] = {name: Counter() for name in self.layout.names}
        for node, each in self.held.items():
            have[self.layout.of.get(node, NONE)][each] += 1
        keep = {name for name, party in self.parties.items() if party.keeps}
        return divide_by_class(self._counts(nodes), wishes, have, self._rules(had), keep)

    def _counts(self, nodes: Collection[str]) -> dict[str, int]:
        return {name: len(own) for name, own in self.layout.by_class(nodes).items()}

    def _rules(self, had: Mapping[str, Mapping[str, int]]) -> Rules:
        return Rules(self.shares, had, self.pools, self.reserved, self.behind)

    def divided(self, nodes: int, most: Mapping[str, int] | None = None) -> dict[str, int]:
        """Return the part of each harvester of so many nodes, where there are no classes.

        Parameters
        ----------
        nodes : int
        most : Mapping[str, int] or None
            As in :meth:`wishes`.
        """
        return divide(
            nodes,
            self.wishes(most),
            self.shares,
            self.without,
            self.pools,
            reserved=self.reserved,
            behind=self.behind,
        )

    def entitled(self, nodes: Collection[str]) -> dict[str, float]:
        """Return what users are entitled to of some nodes, if these could be divided."""
        wants = Counter[str]()
        for party in self.parties.values():
            wants[party.user] += party.want
        if self.layout.names:
            rules = self._rules(self.layout.without)
            return entitled_by_class(self._counts(nodes), wants, rules)
        return entitled(
            len(nodes), wants, self.shares, self.without, self.pools, reserved=self.reserved
        )

    def of_users(self, parts: Parts) -> Counter[str]:
        """Return the sums of parts of harvesters, by user."""
        found = Counter[str]()
        for name, part in totals(parts).items():
            if name in self.parties:
                found[self.parties[name].user] += part
        return found

    def wishes(self, most: Mapping[str, int] | None = None) -> dict[str, Wish]:
        """Return what each wants, or less where `most` says so."""
        have = dict.fromkeys(self.parties, 0)
        for name in self.held.values():
            have[name] += 1
        most = most or {}
        return {
            name: Wish(party.user, min(party.want, most.get(name, party.want)), have[name])
            for name, party in self.parties.items()
        }


def key_of(job_id: str) -> str:
    """Return the harvester of a job."""
    return job_id.rpartition("/")[0]


def granted(jobs: Iterable[Job]) -> dict[str, set[str]]:
    """Return the nodes that the trainers of each harvester have by the last decision."""
    found: dict[str, set[str]] = defaultdict(set)
    for job in jobs:
        found[key_of(job.id)].update(job.goal or ())
    return found


def decide(now: Snapshot, standing: Standing, policy: Policy, parts: Parts) -> Target:
    """Divide each part among its trainers, and what they leave among the other harvesters.

    Parameters
    ----------
    now : Snapshot
        Its jobs are the trainers of all harvesters.
    standing : Standing
    policy : Policy
        Of the site.
    parts : Mapping[str, Mapping[str, int]]
        All nodes as `standing` divides them: class → harvester → nodes.
    """
    site = _Site(now, standing, policy)
    targets = site.ask(parts, now.nodes, granted(now.jobs))
    used, sums = {name: _nodes(target) for name, target in targets.items()}, totals(parts)
    full = {name for name in sums if sums[name] and len(used[name]) == sums[name]}
    if any(sums[name] < standing.parties[name].want for name in full):
        # Whoever left some of its part has what it can use.
        if standing.layout.names:
            more = standing.more(now.nodes, used, full)
        else:
            most = {name: len(used[name]) for name in sums if name not in full}
            more = {NONE: standing.divided(len(now.nodes), most)}
        then = totals(more)
        gain = {
            of: {
                name: part for name, part in own.items() if name in full and then[name] > sums[name]
            }
            for of, own in more.items()
        }
        gains = totals(gain).keys()
        taken = {node for name in used if name not in gains for node in used[name]}
        targets.update(site.ask(gain, now.nodes.keys() - taken, used))
    return _merged(targets)


class _Site:
    """A snapshot in the parts of its harvesters."""

    def __init__(self, now: Snapshot, standing: Standing, policy: Policy) -> None:
        self._now = now
        self._standing = standing
        self._policy = policy
        self._jobs: dict[str, list[Job]] = defaultdict(list)
        for job in now.jobs:
            self._jobs[key_of(job.id)].append(job)
        self._memo: Mapping[str, Any] = now.memo or {}

    def ask(
        self, parts: Parts, nodes: Iterable[str], used: Mapping[str, set[str]]
    ) -> dict[str, Target]:
        """Ask the policy for the trainers of some harvesters, each on its part of some nodes."""
        there = self._standing.layout.by_class(nodes)
        names: dict[str, list[str]] = {name: [] for own in parts.values() for name in own}
        for of, own in parts.items():
            for name, chosen in assign(own, there[of], self._standing.held, used).items():
                names[name] += chosen
        return {name: self._of(name, own) for name, own in names.items()}

    def _of(self, name: str, nodes: Iterable[str]) -> Target:
        gpus = self._standing.parties[name].gpus
        there = {node: _with(self._now.nodes[node], gpus) for node in nodes}
        jobs = tuple(_on(job, there) for job in self._jobs[name])
        if not jobs or not there:
            return Target(waits={job.id: "its user has no part of the nodes now" for job in jobs})
        busy = tuple(job for job in jobs if job.goal is not None or job.state.active)
        memo = self._memo.get(name)
        return self._policy(replace(self._now, nodes=there, jobs=jobs, busy=busy, memo=memo))


def _with(node: Node, gpus: int) -> Node:
    return node if node.gpus <= gpus else replace(node, gpus=gpus)


def _on(job: Job, nodes: Mapping[str, Node]) -> Job:
    """Return a job as it is on these nodes: one that has others goes on with the rest of its own.

    If it cannot, it is to begin anew.
    """
    goal = job.held if job.goal is None else job.goal
    held, left = _on_nodes(job.held, nodes), _on_nodes(goal, nodes)
    if len(left) == len(goal):
        return job if held == job.held else replace(job, held=held)
    trains = job.state in {State.RUNNING, State.RESCALING} and job.run.elastic
    if trains and not left.keys().isdisjoint(held) and suits(job, left):
        return replace(job, state=State.RUNNING, goal=left, held=held)
    return replace(job, state=State.PENDING, goal=None, held={}, gpus=(), run=NO_RUN)


def _on_nodes(alloc: Alloc, nodes: Mapping[str, Node]) -> Alloc:
    """Return what of an allocation is on these nodes."""
    return {
        node: gpus for node, gpus in alloc.items() if node in nodes and gpus <= nodes[node].gpus
    }


def _nodes(target: Target) -> set[str]:
    return {node for grant in target.grants.values() for node in grant.alloc}


def _merged(targets: Mapping[str, Target]) -> Target:
    grants: dict[str, Grant] = {}
    waits: dict[str, str] = {}
    for target in targets.values():
        grants.update(target.grants)
        waits.update(target.waits)
    memo = {name: target.memo for name, target in targets.items() if target.memo is not None}
    wakes = [target.wake_s for target in targets.values() if target.wake_s is not None]
    return Target(grants, waits, min(wakes, default=None), memo or None)
