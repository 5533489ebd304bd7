"""What users have in a simulated run, and what the weights entitle them to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from hpcext.broker.settings import Settings
from hpcext.broker.simulated.policy import NOBODY_SAYS, standing_of
from hpcext.core.engine import Engine
from hpcext.core.facts import Fact
from hpcext.core.values import Action
from hpcext.sim.evaluate.outcome import SimulatedRun, UserRow
from hpcext.sim.replay.heap import Observe
from hpcext.sim.replay.recorder import Timeline
from hpcext.sim.workloads.workload import user_of

MOST_STRETCHES = 240
"""The most stretches of a run for which the nodes of each user are kept, for a plot."""


class Account:
    """Counts node time by user, however the nodes are divided.

    It adds up levels that hold from one step of the engine to the next. A node is had by the user
    whose trainer the engine has on it.

    Parameters
    ----------
    settings : Settings
        Whose weights entitle.
    users : sequence of str
    zero_at : float
        The beginning of the run, in seconds since the epoch.
    division : str
        The name of the division.
    """

    def __init__(
        self, settings: Settings, users: Sequence[str], zero_at: float, division: str
    ) -> None:
        self._settings = settings
        self._users = tuple(users)
        self._zero_at = zero_at
        self._division = division
        self._timeline = Timeline(MOST_STRETCHES)
        self._until_s = 0.0
        none = (0.0,) * len(self._users)
        self._had, self._entitled, self._wanted = none, none, none
        self._wanted_node_s = [0.0] * len(self._users)
        self._known: tuple[object, ...] = ()

    def begin(self, engine: Engine) -> Observe:
        """Return what is told of each step of an engine."""

        def watch(now_s: float, _facts: tuple[Fact, ...], _actions: tuple[Action, ...]) -> None:
            self._pass_to(now_s)
            self._look(engine, now_s)

        return watch

    def completed(self, found: SimulatedRun) -> SimulatedRun:
        """Return the outcome of the run with what users had until its end."""
        self._pass_to(found.end_s)
        stretches = self._timeline.stretches()
        count = len(self._users)
        lengths = [each.end_s - each.start_s for each in stretches]
        rows = []
        for number, user in enumerate(self._users):
            share, _ = self._settings.part(user, NOBODY_SAYS)
            had = tuple(each.means[number] for each in stretches)
            entitled = tuple(each.means[count + number] for each in stretches)
            rows.append(
                UserRow(
                    user,
                    share.weight / self._settings.factor(user, NOBODY_SAYS),
                    share.priority,
                    share.limit,
                    self._wanted_node_s[number],
                    _sum(entitled, lengths),
                    _sum(had, lengths),
                    entitled,
                    had,
                )
            )
        edges_s = (*(each.start_s for each in stretches), *(each.end_s for each in stretches[-1:]))
        return replace(found, division=self._division, users=tuple(rows), edges_s=edges_s)

    def _pass_to(self, now_s: float) -> None:
        self._timeline.add(now_s, (*self._had, *self._entitled))
        passed_s = now_s - self._until_s
        for number, want in enumerate(self._wanted):
            self._wanted_node_s[number] += want * passed_s
        self._until_s = now_s

    def _look(self, engine: Engine, now_s: float) -> None:
        """See what users have, want and are entitled to from now on."""
        world, at_s = engine.world, self._zero_at + now_s
        standing = standing_of(world.unfinished(), world.offered, self._settings, at_s)
        had: dict[str, set[str]] = {user: set() for user in self._users}
        for job in world.queue.busy():
            had[user_of(job.id)].update(node for node in job.held if node in world.offered)
        self._had = tuple(float(len(had[user])) for user in self._users)
        wants = {user: party.want for user, party in standing.parties.items()}
        counts = standing.layout.counts(world.offered)
        known = (counts, wants, standing.reserved)
        if known != self._known:
            self._known = known
            self._entitled = self._levels(standing.entitled(world.offered))
            self._wanted = self._levels(wants)

    def _levels(self, found: Mapping[str, float]) -> tuple[float, ...]:
        return tuple(float(found.get(user, 0.0)) for user in self._users)


def _sum(means: Sequence[float], lengths: Sequence[float]) -> float:
    return sum(mean * length for mean, length in zip(means, lengths, strict=True))
