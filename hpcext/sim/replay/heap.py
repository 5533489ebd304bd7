"""The driver of the engine in simulations: a heap of events instead of a clock.

It makes no decision. Like the live driver it gathers facts, steps the engine, and passes its
actions to an executor, but it does not wait.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections.abc import Callable, Iterable

from hpcext.core.engine import Engine
from hpcext.core.facts import Fact
from hpcext.core.values import Action
from hpcext.executors.base import Executor

Produce = Callable[[], Iterable[Fact]]
"""The effect of an event at its time: it changes the simulated truth and returns facts."""

Observe = Callable[[float, tuple[Fact, ...], tuple[Action, ...]], None]
"""An observer of each step, called with the instant, its facts, and the returned actions."""


class Heap:
    """A queue of events in order of time, and of insertion within one instant.

    Attributes
    ----------
    now_s : float
        The virtual clock; it never goes back.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Produce]] = []
        self._sequence = itertools.count()

    def at(self, when_s: float, produce: Produce) -> None:
        """Add an event; one in the past happens now.

        Parameters
        ----------
        when_s : float
        produce : callable
            Its effect.
        """
        heapq.heappush(self._events, (max(when_s, self.now_s), next(self._sequence), produce))

    def after(self, delay_s: float, produce: Produce) -> None:
        """Add an event after a delay from now."""
        self.at(self.now_s + delay_s, produce)

    def feed(self, events: Iterable[tuple[float, Produce]]) -> None:
        """Add events that are in order of time, each when its predecessor has happened.

        All events of one instant become one event on the heap, so that simultaneous submissions are
        known together, as to a live manager.
        """
        following = iter(events)

        def pull() -> None:
            for when_s, produce in itertools.islice(following, 1):
                self.at(when_s, functools.partial(happen, produce))

        def happen(produce: Produce) -> Iterable[Fact]:
            facts = [*produce()]
            for when_s, another in following:
                if when_s > self.now_s:
                    self.at(when_s, functools.partial(happen, another))
                    break
                facts.extend(another())
            return facts

        pull()

    @property
    def next_s(self) -> float:
        """The instant of the next event; infinite if there is none."""
        return self._events[0][0] if self._events else math.inf

    def advance(self, to_s: float) -> tuple[Fact, ...]:
        """Set the clock and run the events that are due; return their facts, in order.

        An event that one of these adds for the same instant is left for the next call, because its
        cause must be known before it.
        """
        self.now_s = max(self.now_s, to_s)
        due: list[Produce] = []
        while self._events and self._events[0][0] <= self.now_s:
            due.append(heapq.heappop(self._events)[2])
        return tuple(fact for produce in due for fact in produce())


def drive(
    engine: Engine,
    heap: Heap,
    executor: Executor,
    *,
    until_s: float = math.inf,
    observe: Observe | None = None,
    quiet: Callable[[float], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> None:
    """Step an engine from event to event until nothing more can happen.

    Parameters
    ----------
    engine : Engine
        New or restored; a restored one is asked again for its outstanding actions.
    heap : Heap
    executor : Executor
        Puts the effects of its actions on the same heap.
    until_s : float
        Return before the first event later than this; another call continues from there.
    observe : callable, optional
    quiet : callable, optional
        Called with the instant of events that the engine is not told of, when they have happened.
    stop : callable, optional
        Called after each step; returns whether to stop.
    """
    for action in engine.outstanding():
        executor.perform(action)
    wake_s = heap.now_s
    while (now_s := min(heap.next_s, wake_s)) <= until_s and now_s < math.inf:
        facts = heap.advance(now_s)
        if not facts and heap.now_s < wake_s:
            # Its attempt had ended, or does something of which a manager is told later, if at all.
            if quiet is not None:
                quiet(heap.now_s)
            continue
        actions, wake = engine.step(heap.now_s, facts)
        wake_s = math.inf if wake is None else wake
        if observe is not None:
            observe(heap.now_s, facts, actions)
        for action in actions:
            executor.perform(action)
        if stop is not None and stop():
            return
