"""The live driver: it waits for something to happen, steps the engine, and acts on its answer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from hpcext.core.engine import Engine
from hpcext.core.errors import JournalError
from hpcext.core.facts import Drain, Fact
from hpcext.core.history.node_time import Meter, NodeTime
from hpcext.core.values import Action
from hpcext.executors.base import Executor
from hpcext.manager import journal as journals
from hpcext.manager.decider import Decider
from hpcext.protocol import NEWS_SIGNAL

log = logging.getLogger(__name__)

ASK_AGAIN_S = 60.0
"""Seconds after which a policy without an answer that is followed is asked again in any case.

It may have had no memory, or too little time.
"""

RETRY_S = 2.0
"""Seconds before a journal that could not be written is tried again."""

Observe = Callable[[Engine, float], None]
"""An observer that is called after each turn; it reads, and changes nothing."""

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Driver:
    """A driver, which feeds one engine with what happens on one executor.

    It sleeps until an executor has a fact, a request or a signal comes, or the engine wants to be
    woken; only reports of progress are polled, every `interval_s`.

    Parameters
    ----------
    engine : Engine
    journal : Journal
    decider : Decider
        Answers the engine's questions. If it is late, or fails, all stays as it was.
    base_s : float
        The present instant.
    interval_s : float
        How often reports of progress are read when nothing else happens.
    requests : callable
        Gives the facts that users request; it is told when they are in the journal.
    observe : callable
    node_time : NodeTime, optional
        Of the engine so far.
    stay : bool
        Whether to wait for more jobs when nothing is left to do, until the pilot is drained.
    leave : bool
        Whether to leave at once when told to end; running jobs go on.
    moves_on : bool
        Whether to end if no waiting job can use the remaining nodes, to go on with other nodes:
        nobody should be billed for nodes on which nothing can run.
    once_s : float
        Signals to end within this time count as one: a batch system signals the leader of a job and
        its group.
    """

    def __init__(
        self,
        engine: Engine,
        journal: journals.Journal,
        decider: Decider,
        *,
        base_s: float,
        interval_s: float,
        requests: Callable[[], Iterable[tuple[tuple[Fact, ...], Callable[[], None]]]],
        observe: Observe,
        node_time: NodeTime | None = None,
        stay: bool = False,
        leave: bool = False,
        moves_on: bool = False,
        once_s: float = 0.0,
    ) -> None:
        self.engine = engine
        self.stopped_by: signal.Signals | None = None
        self._journal = journal
        self._decider = decider
        self._asked = 0
        self._refused = ""
        self._zero = time.monotonic() - base_s
        self._interval_s = interval_s
        self._requests = requests
        self._observe = observe
        before = NodeTime(at_s=base_s) if node_time is None else node_time
        self._meter = Meter(engine.world, before)
        self._facts: list[Fact] = []
        self._actions: list[Action] = []
        self._answers: list[Callable[[], None]] = []
        self._awake = asyncio.Event()
        self._news = True
        self._wake_s: float | None = None
        self._retry_s = base_s
        self._looked_s = base_s
        self._leave = False
        self._stays = stay
        self._leaves = leave
        self._moves_on = moves_on
        self._once_s = once_s
        self._told_s = float("-inf")

    def now_s(self) -> float:
        """Return the seconds since the manager began; setting a clock back does not change them."""
        return time.monotonic() - self._zero

    @property
    def node_time(self) -> NodeTime:
        """What the time of the nodes went into so far."""
        return self._meter.time

    def emit(self, fact: Fact) -> None:
        """Take a fact in; called by the executor, in the loop's thread."""
        self._facts.append(fact)
        self._awake.set()

    async def run(self, executor: Executor, news: Iterable[Fact] = ()) -> None:
        """Drive until nothing is left to do, or until told to leave.

        Parameters
        ----------
        executor : Executor
        news : iterable of Fact
            Facts that the engine does not know yet. The ends of attempts come first: a job that
            completed before its node was lost is complete.

        Raises
        ------
        JournalError
            It was told to leave, and could not write down what happened last.
        """
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(NEWS_SIGNAL, self._on_news)
        for signum in STOP_SIGNALS:
            loop.add_signal_handler(signum, self._on_stop, signum)
        try:
            self._decider.begin()
            for action in self.engine.outstanding():
                executor.perform(action)
            self._facts.extend(news)
            while not self._leave:
                self._turn(executor)
                if self._done() and not self._facts and not self._journal.behind:
                    break
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._awake.wait(), self._pause_s())
                self._awake.clear()
            self._write_the_rest()
        finally:
            self._decider.close()
            executor.close()
            # The handler of news stays as long as there is a loop: by default it would kill us.
            for signum in STOP_SIGNALS:
                loop.remove_signal_handler(signum)

    def _turn(self, executor: Executor) -> None:
        """Gather, step, write down, act: always in this order."""
        now_s = self.now_s()
        # What comes while something could not be written down waits.
        learns = not self._journal.behind
        if self._news or now_s >= self._looked_s + self._interval_s:
            self._news, self._looked_s = False, now_s
            executor.look()
            # A request is judged by what is known by then, such as that a node is lost.
            if learns:
                self._learn(now_s)
            # Unanswered ones are in the spool still: they were taken, but not written down. Others
            # wait, since none may be answered before it is written down.
            for facts, answer in self._requests() if learns and not self._answers else ():
                self._facts.extend(facts)
                self._answers.append(answer)
                if facts:
                    # The next one is judged when this one is true.
                    self._on_news()
                    break
        if learns:
            self._learn(now_s)
            self._decide(now_s)
        try:
            self._journal.commit()
        except JournalError as error:
            # Act on nothing that is not written down; wait instead.
            log.warning("%s", error)
            self._retry_s = now_s + RETRY_S
            return
        actions, self._actions = self._actions, []
        for action in actions:
            executor.perform(action)
        self._compact(now_s)
        self._move_on()
        answers, self._answers = self._answers, []
        for answer in answers:
            answer()
        if not learns:
            self._on_news()  # facts have waited, and requests
        self._observe(self.engine, now_s)

    def _learn(self, now_s: float) -> None:
        """Give the engine the facts that have come; also without any, if it wants to wake."""
        facts = tuple(self._facts)
        due = self._wake_s is not None and now_s >= self._wake_s
        if facts or due:
            del self._facts[: len(facts)]
            self._step(now_s, facts)

    def _write_the_rest(self) -> None:
        """Write down what still is not, or raise: what it believes is not all to be believed."""
        try:
            self._journal.commit()
        except JournalError as error:
            raise JournalError(
                f"{error.what}, so it lacks what happened last",
                where=error.where,
                do="free some space and start a manager again, which finds out what happened",
            ) from None

    def _step(self, now_s: float, facts: tuple[Fact, ...]) -> None:
        """Give the engine facts, and hold its actions back until the journal has the facts."""
        self._journal.note(now_s, facts)
        before = self.engine.world.aside
        actions, self._wake_s = self.engine.step(now_s, facts)
        for name, why in self.engine.world.aside.items():
            if name not in before:
                log.warning(
                    "node %s is set aside: %s; hpcext nodes --readmit %s uses it again",
                    name, why, name,
                )  # fmt: skip
        self._meter.watch(now_s, facts)
        self._actions += actions

    def _decide(self, now_s: float) -> None:
        """Have the engine's question answered, and tell it the answer to the last one."""
        while wanted := self.engine.wants:
            if wanted.number != self._asked:
                self._asked = wanted.number
                self._decider.ask(wanted, self._awake.set)
            said = self._decider.take()
            if said is None:
                return
            decided = self.engine.answer(said, terse=True)
            if decided.failed:
                decided = replace(decided, wake_s=now_s + ASK_AGAIN_S)
                if decided.failed != self._refused:
                    log.warning(
                        "the policy %s; jobs keep what they have, and it is asked again",
                        decided.failed,
                    )
            self._refused = decided.failed
            self._step(now_s, (decided,))

    def _move_on(self) -> None:
        """Leave nodes on which nothing that waits can run any more."""
        if self._moves_on and not self.engine.world.suspending and self.engine.stranded:
            log.warning("none of the waiting jobs can run on what is left of the allocation")
            self.emit(Drain(suspend=True, must=True))

    def _done(self) -> bool:
        return self.engine.finished and (self.engine.world.draining or not self._stays)

    def _pause_s(self) -> float:
        """Return the seconds until the engine's wake or the next look at reports."""
        until = self._looked_s + self._interval_s
        if self._journal.behind:
            until = self._retry_s
        elif self._wake_s is not None:
            until = min(until, self._wake_s)
        return max(0.0, until - self.now_s())

    def _compact(self, now_s: float) -> None:
        if not self._journal.long:
            return
        try:
            self._journal.compact(now_s, self.engine.world.save(), self._meter.time)
        except OSError as error:
            log.warning("the journal could not be compacted: %s", error.strerror)

    def _on_news(self) -> None:
        self._news = True
        self._awake.set()

    def _on_stop(self, signum: signal.Signals) -> None:
        """Suspend everything, then leave; on a second signal, leave at once.

        Suspensions in progress then continue without it, and the next manager finds the result.
        """
        before, self._told_s = self._told_s, time.monotonic()
        if self._told_s < before + self._once_s:
            return
        first, self.stopped_by = self.stopped_by is None, self.stopped_by or signal.Signals(signum)
        if first and not self._leaves:
            self.emit(Drain(suspend=True))
        else:
            self._leave = True
            self._awake.set()
