"""The site's decision: users' parts by weight, and within each the site's policy. No I/O.

A policy sees the trainers of one harvester on the nodes of its part, as that harvester's own would.
So nothing that a user states of his trainers matters to other users, but how many nodes they could
use; and nodes that a policy leaves unused go to those who want more.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from msgspec.structs import replace

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
    """

    user: str
    want: int
    gpus: int


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
    """

    parties: Mapping[str, Party]
    shares: Mapping[str, Share]
    held: Mapping[str, str]
    without: Mapping[str, int]
    pools: Pools = NO_POOLS
    reserved: tuple[Reserved, ...] = ()
    behind: Mapping[str, float] = MappingProxyType({})

    def of(self, user: str) -> list[str]:
        """Return the harvesters of a user."""
        return [name for name, party in self.parties.items() if party.user == user]

    def divided(self, nodes: int, most: Mapping[str, int] | None = None) -> dict[str, int]:
        """Return the part of each harvester of so many nodes; `most` is as in :meth:`wishes`."""
        return divide(
            nodes,
            self.wishes(most),
            self.shares,
            self.without,
            self.pools,
            reserved=self.reserved,
            behind=self.behind,
        )

    def entitled(self, nodes: int) -> dict[str, float]:
        """Return what users are entitled to of so many nodes, if these could be divided."""
        wants = Counter[str]()
        for party in self.parties.values():
            wants[party.user] += party.want
        return entitled(nodes, wants, self.shares, self.without, self.pools, reserved=self.reserved)

    def of_users(self, parts: Mapping[str, int]) -> Counter[str]:
        """Return the sums of parts of harvesters, by user."""
        found = Counter[str]()
        for name, part in parts.items():
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


def decide(now: Snapshot, standing: Standing, policy: Policy, parts: Mapping[str, int]) -> Target:
    """Divide each part among its trainers, and what they leave among the other harvesters.

    Parameters
    ----------
    now : Snapshot
        Its jobs are the trainers of all harvesters.
    standing : Standing
    policy : Policy
        Of the site.
    parts : Mapping[str, int]
        All nodes as `standing` divides them, by harvester.
    """
    site = _Site(now, standing, policy)
    targets = site.ask(parts, now.nodes, granted(now.jobs))
    used = {name: _nodes(target) for name, target in targets.items()}
    full = {name for name in parts if parts[name] and len(used[name]) == parts[name]}
    if any(parts[name] < standing.parties[name].want for name in full):
        # Whoever left some of its part has what it can use.
        most = {name: len(used[name]) for name in parts if name not in full}
        more = standing.divided(len(now.nodes), most)
        gain = {name: more[name] for name in full if more[name] > parts[name]}
        taken = {node for name in used if name not in gain for node in used[name]}
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
        self, parts: Mapping[str, int], nodes: Iterable[str], used: Mapping[str, set[str]]
    ) -> dict[str, Target]:
        """Ask the policy for the trainers of some harvesters, each on its part of some nodes."""
        names = assign(parts, nodes, self._standing.held, used)
        return {name: self._of(name, names[name]) for name in parts}

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
