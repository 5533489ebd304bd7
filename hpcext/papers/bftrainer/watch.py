"""The work and the losses of trainers, observed from the facts and actions of an engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hpcext.core.engine import Engine
from hpcext.core.facts import (
    Ended,
    Fact,
    Outcome,
    Progressed,
    Registered,
    Rescaled,
    Started,
    Submitted,
)
from hpcext.core.values import Action, Job, Kind, total
from hpcext.policies.bftrainer import changes_s
from hpcext.scaling.curve import interpolate


class Done(NamedTuple):
    """The outcome of trainers: A_e of §4.1.

    Attributes
    ----------
    samples : float
    alone_s : float
        Sum over the samples of the seconds that each would take its trainer on a single node.
    """

    samples: float = 0.0
    alone_s: float = 0.0


class Lost(NamedTuple):
    """Work that was not done in pauses of trainers, in samples.

    Attributes
    ----------
    rescaling : float
        Work lost in changes of size by choice of the policy, including suspensions, at the speed
        before the change: what the paper subtracts (Eq. 16).
    preemption : float
        Work lost in changes that lost nodes made necessary. If a trainer gets other nodes at the
        same instant, the time by which growing takes longer than shrinking counts as `rescaling`.
    starts : float
        Work lost in starts, at the speed after them. For the paper and its own program, a start
        without a checkpoint is free.
    """

    rescaling: float = 0.0
    preemption: float = 0.0
    starts: float = 0.0


class Ran(NamedTuple):
    """The times of one trainer, with its name."""

    name: str
    submitted_s: float
    started_s: float | None = None
    ended_s: float | None = None


class _Pause(NamedTuple):
    """A pause, in which a trainer makes no progress.

    Attributes
    ----------
    since_s : float
    rate : float
        Speed at which lost work counts.
    forced_s : float
        Largest number of its seconds that count as preemption.
    start : bool
    """

    since_s: float
    rate: float
    forced_s: float = 0.0
    start: bool = False


class EngineWatch:
    """An observer of the steps of an engine.

    Attributes
    ----------
    done : Done
        The work of all trainers, as far as it was reported.
    """

    def __init__(self, engine: Engine, marks_s: Sequence[float] = ()) -> None:
        self.done = Done()
        self.outcomes: list[Done] = []
        self._engine = engine
        self._marks_s = marks_s
        self._ran: dict[str, Ran] = {}
        self._done: dict[str, float] = {}
        self._nodes: dict[str, int] = {}  # by job, the nodes it trained on last
        self._pauses: dict[str, _Pause] = {}
        self.lost = Lost()

    @property
    def ran(self) -> tuple[Ran, ...]:
        """All trainers, in the order of submission."""
        return tuple(self._ran.values())

    def __call__(self, now_s: float, facts: Iterable[Fact], actions: Iterable[Action]) -> None:
        """Observe one step."""
        self.mark(now_s)
        for fact in facts:
            self._hear(now_s, fact)
        for action in actions:
            self._order(now_s, action)
        # A job that has lost all its nodes ends without a fact.
        for job in [job for job in self._pauses if not self._engine.world.jobs[job].state.active]:
            self._go_on(now_s, job)

    def mark(self, now_s: float) -> None:
        """Record the outcome at marks before this instant."""
        while len(self.outcomes) < len(self._marks_s) and (
            self._marks_s[len(self.outcomes)] < now_s
        ):
            self.outcomes.append(self.done)

    def _hear(self, now_s: float, fact: Fact) -> None:
        if isinstance(fact, Submitted):
            self._ran[fact.job.id] = Ran(fact.job.name, now_s)
        elif isinstance(fact, Progressed):
            self._add(fact)
        elif isinstance(fact, Started):
            self._nodes.setdefault(fact.job, 0)
        elif isinstance(fact, (Registered, Rescaled)):
            self._go_on(now_s, fact.job)
            self._nodes[fact.job] = len(self._engine.world.jobs[fact.job].gpus)
        elif isinstance(fact, Ended):
            self._end(now_s, fact)

    def _add(self, fact: Progressed) -> None:
        more = fact.done - self._done.get(fact.job, 0.0)
        self._done[fact.job] = fact.done
        rate = interpolate(self._engine.world.jobs[fact.job].estimate.stated, 1)
        self.done = Done(self.done.samples + more, self.done.alone_s + more / rate)

    def _end(self, now_s: float, fact: Ended) -> None:
        self._go_on(now_s, fact.job)
        if fact.outcome is Outcome.COMPLETED:
            self._ran[fact.job] = self._ran[fact.job]._replace(ended_s=now_s)

    def _order(self, now_s: float, action: Action) -> None:
        job = self._engine.world.jobs[action.job]
        nodes = self._nodes.get(job.id, 0)
        if action.kind is Kind.START:
            ran = self._ran[job.id]
            if ran.started_s is None:
                self._ran[job.id] = ran._replace(started_s=now_s)
            rate = interpolate(job.estimate.stated, total(action.alloc))
            self._stop(job, _Pause(now_s, rate, start=True))
        elif action.kind is Kind.RESCALE:
            _, down_s = changes_s(job)
            forced_s = down_s if len(job.gpus) < nodes else 0.0
            self._stop(job, _Pause(now_s, interpolate(job.estimate.stated, nodes), forced_s))
        elif action.kind is Kind.SUSPEND:
            self._stop(job, _Pause(now_s, interpolate(job.estimate.stated, nodes)))

    def _stop(self, job: Job, pause: _Pause) -> None:
        self._go_on(pause.since_s, job.id)
        self._pauses[job.id] = pause

    def _go_on(self, now_s: float, job: str) -> None:
        """End a trainer's pause: it makes progress again, or begins another pause."""
        pause = self._pauses.pop(job, None)
        if pause is None:
            return
        lasted_s = now_s - pause.since_s
        if pause.start:
            more = Lost(starts=pause.rate * lasted_s)
        else:
            forced_s = min(lasted_s, pause.forced_s)
            more = Lost(pause.rate * (lasted_s - forced_s), pause.rate * forced_s)
        self.lost = Lost(*(sum(pair) for pair in zip(self.lost, more, strict=True)))
