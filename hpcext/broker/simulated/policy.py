"""The broker's decision as the policy of a simulated run.

It is the decision of the live broker on the same engine. It sees what a broker would hear of
trainers and nodes: the snapshot, and nothing of the simulation behind it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from msgspec.structs import replace

from hpcext.broker.classes import layout
from hpcext.broker.decision import Party, Standing, decide
from hpcext.broker.division import Pools
from hpcext.broker.fair_share import Reading
from hpcext.broker.reservations import next_change
from hpcext.broker.rounding import Rounding
from hpcext.broker.settings import Settings
from hpcext.core.engine import Policy
from hpcext.core.values import Job, Node, Snapshot, Target
from hpcext.harvest.leases import Terms, wanted
from hpcext.sim.workloads.workload import user_of

NOBODY_SAYS = Reading()
"""What the batch system says of users: a simulation does not ask it."""

PAST_S = 1e-3
"""Seconds after an edge of a reservation, which is then past by any arithmetic."""

LEAST_S = 1.0
"""Seconds between two decisions of which only the time has come."""


def standing_of(
    jobs: Iterable[Job],
    nodes: Mapping[str, Node],
    settings: Settings,
    at_s: float,
    behind: Mapping[str, float] = MappingProxyType({}),
) -> Standing:
    """Return what a broker would know of users, each of whom has one harvester.

    Parameters
    ----------
    jobs : iterable of Job
        Unfinished ones.
    nodes : Mapping[str, Node]
    settings : Settings
    at_s : float
        Seconds since the epoch, for reservations.
    behind : Mapping[str, float]
        By user, as :func:`~hpcext.broker.division.divide` takes it.
    """
    own: dict[str, list[Job]] = defaultdict(list)
    held: dict[str, str] = {}
    for job in jobs:
        user = user_of(job.id)
        own[user].append(job)
        for node in job.held:
            if node in nodes:
                held.setdefault(node, user)
    terms = Terms(
        partition=settings.partition, gpus=max((node.gpus for node in nodes.values()), default=1)
    )
    parts = {user: settings.part(user, NOBODY_SAYS) for user in own}
    return Standing(
        {user: Party(user, wanted(theirs, terms), terms.gpus) for user, theirs in own.items()},
        {user: share for user, (share, _) in parts.items()},
        held,
        {},
        Pools(settings.pools, {user: pools for user, (_, pools) in parts.items()}),
        settings.reserved(own, NOBODY_SAYS, at_s),
        behind,
        layout(settings.classes, {name: node.kind for name, node in nodes.items()}),
    )


class ByWeights:
    """A policy: nodes are divided among users, and a user's among his trainers by another policy.

    Parameters
    ----------
    settings : Settings
    policy : Policy
        For the trainers of a user.
    zero_at : float
        The beginning of the run, in seconds since the epoch.
    """

    def __init__(self, settings: Settings, policy: Policy, zero_at: float) -> None:
        self._settings = settings
        self._policy = policy
        self._zero_at = zero_at
        self._rounding = Rounding()

    def __call__(self, now: Snapshot) -> Target:
        """Decide; :data:`~hpcext.core.engine.Policy`."""
        self._rounding.pass_to(now.now_s)
        at_s = self._zero_at + now.now_s
        standing = standing_of(now.jobs, now.nodes, self._settings, at_s, self._rounding.behind)
        parts = standing.parts(now.nodes)
        target = decide(now, standing, self._policy, parts)
        self._rounding.decided(standing.entitled(now.nodes), standing.of_users(parts))
        return replace(target, wake_s=self._wake_s(now.now_s, target))

    def _wake_s(self, now_s: float, target: Target) -> float | None:
        """Return when to decide again although nothing has happened."""
        edge_at = next_change(self._settings.reservations, self._zero_at + now_s)
        edge_s = math.inf if edge_at is None else edge_at - self._zero_at + PAST_S
        # Where nobody can use a node, no other rounding is of any use, and the run is to end.
        turns_s = self._rounding.turns_s() if target.grants else math.inf
        turn_s = now_s + max(LEAST_S, turns_s)
        wake_s = min(edge_s, turn_s, math.inf if target.wake_s is None else target.wake_s)
        return wake_s if math.isfinite(wake_s) else None
