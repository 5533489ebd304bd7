"""An executor whose processes are arithmetic: actions in, events on a heap, facts out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set

from hpcext.core.facts import (
    Ended,
    Fact,
    NodeJoined,
    NodeLost,
    Outcome,
    Progressed,
    Registered,
    Rescaled,
    Started,
)
from hpcext.core.values import Action, Alloc, Kind, Node
from hpcext.sim.replay.attempt import Attempt, Phase, whole
from hpcext.sim.replay.floor import Floor, excess, nodes_of
from hpcext.sim.replay.heap import Heap
from hpcext.sim.replay.ledger import Ledger, Spent, Usage
from hpcext.sim.replay.physics import Faults, Physics, ResizeOutcome, SelfReport, Where

KILL_S = 0.5
"""Seconds from SIGTERM to an empty process tree."""


class SimulatedExecutor:
    """An :class:`~hpcext.executors.base.Executor` that runs jobs on a virtual clock.

    Parameters
    ----------
    heap : Heap
        Receives the events.
    nodes : iterable of Node
        The initial nodes.
    physics : Mapping[str, Physics]
        The true behaviour of each job, by id.
    faults : Faults
    seed : int
        Seed of the faults.
    report_s : float or None
        Time between reports of progress; None: only when an attempt stops training.
    """

    left_s: float | None = None
    preempted: bool = False

    def __init__(
        self,
        heap: Heap,
        nodes: Iterable[Node],
        physics: Mapping[str, Physics],
        *,
        faults: Faults | None = None,
        seed: int = 0,
        report_s: float | None = None,
    ) -> None:
        self._heap = heap
        self._floor = Floor(nodes)
        self._physics = dict(physics)
        self._ledger = Ledger()
        self._faults = faults or Faults()
        self._seed = seed
        self._report_s = report_s
        self._attempts: dict[int, Attempt] = {}  # running ones, by op
        self._last_op = 0
        self._unreported: dict[str, Progressed] = {}  # by job, of attempts that ended at once

    # The protocol of executors.

    def perform(self, action: Action) -> None:
        """Carry out an action, once however often it is given."""
        attempt = self._attempts.get(action.op)
        if action.kind is Kind.START:
            self._start(action, attempt)
        elif attempt is None:
            return
        elif action.kind is Kind.RESCALE:
            self._rescale(action, attempt)
        elif action.kind is Kind.SUSPEND:
            attempt.asked = True
            if attempt.phase in {Phase.TRAINING, Phase.STALLED} and not attempt.luck.unresponsive:
                self._save(attempt)
        elif action.force or not attempt.luck.stubborn:
            self._heap.after(0.0 if action.force else KILL_S, lambda: self._killed(attempt))

    def look(self) -> None:
        """Report the progress of all attempts, with the speed of those that train.

        An attempt that has lost all its nodes is reported late, when it has already ended.
        """
        late, self._unreported = tuple(self._unreported.values()), {}
        if late:
            self._heap.after(0.0, lambda: late)
        for attempt in self._attempts.values():
            if attempt.phase is Phase.TRAINING:
                self._heap.after(0.0, lambda it=attempt: self._report(it))  # type: ignore[misc]
            elif attempt.phase in {Phase.STALLED, Phase.SAVING} and attempt.registered:
                self._heap.after(0.0, lambda it=attempt: self._report_progress(it))  # type: ignore[misc]

    def close(self) -> None:
        """Do nothing, since there is nothing to release."""

    # Events from outside.

    def happen(self, *facts: Fact) -> tuple[Fact, ...]:
        """Apply facts from outside: nodes that come, or that leave and end attempts."""
        lost: list[str] = []
        for fact in facts:
            if isinstance(fact, NodeLost):
                lost.append(fact.name)
                continue
            self._lose(lost)
            if isinstance(fact, NodeJoined):
                self._floor.join(fact.node)
        self._lose(lost)
        return facts

    def expect(self, job: str, physics: Physics) -> None:
        """Register the behaviour of a job that will be submitted."""
        self._physics[job] = physics

    def forget(self, job: str) -> Spent:
        """Forget a job that has ended; return what it had."""
        self._physics.pop(job, None)
        self._unreported.pop(job, None)
        return self._ledger.forget(job)

    def settle(self) -> None:
        """Account for unfinished attempts; nothing is simulated afterwards."""
        for attempt in self._attempts.values():
            self._ledger.settle(attempt, self._heap.now_s)

    def use(self) -> Usage:
        """Return the present use of GPUs."""
        attempts = self._attempts.values()
        held = sum(len(attempt.gpus) for attempt in attempts)
        trains = sum(len(each.ranks) for each in attempts if each.phase is Phase.TRAINING)
        return Usage(self._floor.offered, held, trains, len(attempts))

    def occupied(self) -> tuple[str, ...]:
        """Return all GPUs that attempts truly occupy."""
        return tuple(gpu for attempt in self._attempts.values() for gpu in attempt.gpus)

    def trains_on(self, op: int) -> tuple[str, ...]:
        """Return the GPUs that an attempt trains on; none if it has ended."""
        return self._attempts[op].ranks if op in self._attempts else ()

    # Phases of an attempt.

    def _start(self, action: Action, attempt: Attempt | None) -> None:
        if action.op <= self._last_op:
            # Adopted by a restarted manager; if it has ended, that fact is on its way.
            if attempt is not None and attempt.phase is not Phase.LAUNCHING:
                fact = Started(action.job, action.op, attempt.gpus)
                self._heap.after(0.0, lambda: (fact,))
            return
        luck = self._faults.draw(self._seed, action.job, action.attempt, self._heap.now_s)
        physics = self._physics[action.job]
        gpus = self._floor.pick(action.job, action.alloc)
        attempt = Attempt(action, physics, luck, (), ranks=gpus, held_s=self._heap.now_s)
        self._ledger.begin(attempt)
        self._attempts[action.op], self._last_op = attempt, action.op
        self._occupy(attempt, gpus)
        self._heap.after(physics.launch_s, lambda: self._launched(attempt))

    def _launched(self, attempt: Attempt) -> tuple[Fact, ...]:
        if attempt.phase is not Phase.LAUNCHING:
            return ()
        if not attempt.luck.starts:
            return self._end(attempt, Outcome.LOST, None)
        self._heap.after(attempt.physics.resume_s, lambda: self._registered(attempt))
        return self._tell(
            attempt, Started(attempt.order.job, attempt.order.op, attempt.gpus), late=False
        )

    def _registered(self, attempt: Attempt) -> tuple[Fact, ...]:
        if attempt.phase is not Phase.LAUNCHING:
            return ()
        job, op = attempt.order.job, attempt.order.op
        attempt.registered = True
        self._train(attempt)
        if attempt.luck.fails_after_s is not None:
            self._heap.after(attempt.luck.fails_after_s, lambda: self._failed(attempt))
        if self._report_s is not None:
            self._heap.after(self._report_s, lambda: self._report_on(attempt))
        if attempt.asked and not attempt.luck.unresponsive:
            # The signal came during the launch, when it was blocked and so kept.
            self._save(attempt)
        physics, step = attempt.physics, whole(attempt.steps)
        fact = Registered(job, op, step, physics.in_place or physics.elastic, physics.elastic)
        return self._tell(attempt, fact, late=False)

    def _train(self, attempt: Attempt) -> None:
        """Train at the present speed, until the attempt completes or another event comes first."""
        now_s, physics = self._heap.now_s, attempt.physics
        where, done = self._where(attempt), attempt.trained_to(now_s)
        attempt.train(now_s, physics.stretch(where, done))
        ends = attempt.until >= physics.work
        then = self._completed if ends else self._stretched
        self._later(attempt, attempt.left_s, lambda: then(attempt))

    def _stretched(self, attempt: Attempt) -> tuple[Fact, ...]:
        """Continue training at another speed."""
        self._train(attempt)
        return ()

    def _where(self, attempt: Attempt) -> Where:
        nodes, floor = attempt.nodes(), self._floor
        return attempt.where(floor.kind(nodes), crowded=floor.crowded(nodes))

    def _later(
        self, attempt: Attempt, delay_s: float, produce: Callable[[], tuple[Fact, ...]]
    ) -> None:
        """Add an event of an attempt, which is void if it enters another phase first."""
        turn = attempt.turn
        self._heap.after(delay_s, lambda: produce() if attempt.turn == turn else ())

    def _save(self, attempt: Attempt) -> None:
        attempt.stop(self._heap.now_s, Phase.SAVING)
        self._heap.after(attempt.physics.suspend_s, lambda: self._suspended(attempt))

    def _suspended(self, attempt: Attempt) -> tuple[Fact, ...]:
        if attempt.phase is not Phase.SAVING:
            return ()
        attempt.saved = attempt.done
        return self._end(attempt, Outcome.SUSPENDED, 85)

    def _completed(self, attempt: Attempt) -> tuple[Fact, ...]:
        attempt.stop(self._heap.now_s, Phase.SAVING)
        attempt.saved = attempt.done = attempt.physics.work
        leave_s = attempt.physics.leave_s
        if not leave_s:
            return self._end(attempt, Outcome.COMPLETED, 0)
        self._later(attempt, leave_s, lambda: self._end(attempt, Outcome.COMPLETED, 0))
        return (self._progress(attempt),)

    def _failed(self, attempt: Attempt) -> tuple[Fact, ...]:
        if attempt.phase not in {Phase.TRAINING, Phase.STALLED}:
            return ()
        return self._end(attempt, Outcome.FAILED, 1)

    def _killed(self, attempt: Attempt) -> tuple[Fact, ...]:
        if attempt.phase is Phase.OVER:
            return ()
        return self._end(attempt, Outcome.FAILED, -9)

    def _lose(self, nodes: list[str]) -> None:
        """Remove these nodes."""
        if nodes:
            for op, gpus in self._floor.lose(nodes).items():
                self._take_gpus(self._attempts[op], gpus)
            nodes.clear()

    def _take_gpus(self, attempt: Attempt, gone: Set[str]) -> None:
        """Remove the GPUs of lost nodes from an attempt."""
        elastic = attempt.physics.elastic and attempt.phase in {Phase.TRAINING, Phase.STALLED}
        # An elastic attempt waits to be told its new GPUs.
        attempt.stop(self._heap.now_s, Phase.STALLED if elastic else Phase.BROKEN)
        attempt.ranks = tuple([gpu for gpu in attempt.ranks if gpu not in gone])
        self._occupy(attempt, tuple([gpu for gpu in attempt.gpus if gpu not in gone]))
        if attempt.gpus:
            return
        # No process is left to report now; late or repeated facts arrive when they are stale.
        for fact in self._end(attempt, Outcome.LOST, None):
            if isinstance(fact, Progressed):
                self._unreported[fact.job] = fact

    def _end(self, attempt: Attempt, outcome: Outcome, code: int | None) -> tuple[Fact, ...]:
        """Empty the process tree; the job goes on from its saved work."""
        order = attempt.order
        attempt.stop(self._heap.now_s, Phase.OVER)
        self._ledger.end(attempt)
        del self._attempts[order.op]
        parts = {"write_s": attempt.physics.suspend_s} if outcome is Outcome.SUSPENDED else None
        step = whole(attempt.steps) if attempt.registered else None
        ended = Ended(order.job, order.op, outcome, code, suspend_s=parts, step=step)
        self._occupy(attempt, ())
        # As on a real machine, an attempt that never had a session never reports.
        last = (self._progress(attempt),) if attempt.registered else ()
        return self._tell(attempt, *last, ended, late=True)

    # Changing size in place.

    def _rescale(self, action: Action, attempt: Attempt) -> None:
        """Begin a change of size once; repeat its answer whenever it is requested."""
        if action.resize <= attempt.resize:
            if answer := attempt.answer:
                self._heap.after(0.0, lambda: (answer,))
            return
        physics, phases = attempt.physics, {Phase.TRAINING}
        if physics.elastic:
            # It has lost a node, perhaps while it changed its size.
            phases.add(Phase.STALLED)
        if attempt.phase not in phases:
            return  # It is ending; a suspension, for example, takes precedence.
        attempt.resize, attempt.answer = action.resize, None
        change = self._faults.draw_change(
            self._seed, action.job, action.attempt, action.resize, self._heap.now_s
        )
        more = self._floor.pick(action.job, excess(action.alloc, nodes_of(attempt.gpus)))
        self._occupy(attempt, attempt.gpus + more)
        grows = bool(excess(action.alloc, attempt.nodes()))
        stall_s = physics.rescale_up_s if grows else physics.rescale_down_s
        if change is ResizeOutcome.MUTE:
            return
        ok = change is ResizeOutcome.MADE
        alloc = action.alloc if ok else attempt.nodes()
        if attempt.phase is Phase.STALLED:
            self._stall(attempt, alloc, stall_s, ok=ok)
            return
        join_s = physics.join_s if grows else 0.0
        resize = action.resize

        def joined() -> tuple[Fact, ...]:
            # It trains until then; a report or another speed does not prevent the growth.
            if attempt.resize != resize or attempt.phase is not Phase.TRAINING:
                return ()
            return self._stall(attempt, alloc, stall_s, ok=ok)

        self._heap.after(join_s, joined)

    def _stall(
        self, attempt: Attempt, alloc: Alloc, stall_s: float, *, ok: bool
    ) -> tuple[Fact, ...]:
        attempt.stop(self._heap.now_s, Phase.STALLED)
        self._later(attempt, stall_s, lambda: self._rescaled(attempt, alloc, stall_s, ok=ok))
        return ()

    def _rescaled(
        self, attempt: Attempt, alloc: Alloc, stall_s: float, *, ok: bool
    ) -> tuple[Fact, ...]:
        """Continue training, with other GPUs or with the same ones."""
        attempt.ranks = attempt.chosen(alloc)
        self._occupy(attempt, attempt.ranks)
        self._train(attempt)
        order, why = attempt.order, "" if ok else "a rank did not come up"
        attempt.answer = Rescaled(
            order.job, order.op, attempt.resize, attempt.gpus, ok, stall_s, why
        )
        return self._tell(attempt, attempt.answer, late=True)

    # Reports.

    def _report_on(self, attempt: Attempt) -> tuple[Fact, ...]:
        """Report now, and again after each interval while it trains."""
        # A change of size is a pause, not the end.
        goes_on = attempt.phase in {Phase.TRAINING, Phase.STALLED}
        if goes_on and self._report_s is not None:
            self._heap.after(self._report_s, lambda: self._report_on(attempt))
        return self._report(attempt)

    def _report(self, attempt: Attempt) -> tuple[Fact, ...]:
        if attempt.phase is not Phase.TRAINING:
            return ()
        said = attempt.physics.said(self._where(attempt), attempt.trained_to(self._heap.now_s))
        facts = (self._progress(attempt, said),)
        if not isinstance(attempt.physics.speed, Mapping):
            # It may train differently after a review of its measurements.
            self._train(attempt)
        return facts

    def _report_progress(self, attempt: Attempt) -> tuple[Fact, ...]:
        """Return the progress of an attempt without its speed, which is reported when it trains."""
        if attempt.phase is Phase.OVER:
            return ()
        return (attempt.reached(self._heap.now_s),)

    def _progress(self, attempt: Attempt, said: SelfReport | None = None) -> Progressed:
        self._unreported.pop(attempt.order.job, None)
        return attempt.progress(self._heap.now_s, said)

    def _tell(self, attempt: Attempt, *facts: Fact, late: bool) -> tuple[Fact, ...]:
        """Return facts to be known now, or add them for later; perhaps twice."""
        luck = attempt.luck
        delay_s = luck.late_s if late else 0.0
        if luck.repeats_after_s is not None:
            self._heap.after(delay_s + luck.repeats_after_s, lambda: facts)
        if delay_s:
            self._heap.after(delay_s, lambda: facts)
            return ()
        return facts

    def _occupy(self, attempt: Attempt, gpus: tuple[str, ...]) -> None:
        """Set the GPUs that an attempt occupies; attempts beside it may slow down."""
        had = attempt.gpus
        self._ledger.hold(attempt, gpus, self._heap.now_s)
        for op in self._floor.occupy(attempt.order.op, had, gpus):
            near = self._attempts[op]
            if near.physics.interference and near.phase is Phase.TRAINING:
                self._train(near)
