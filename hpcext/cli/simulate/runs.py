"""The execution of simulations, one after the other or several at once in worker processes."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, MutableSequence, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import TypeAlias

from hpcext.core.errors import HpcextError
from hpcext.sim.evaluate.outcome import SimulatedRun
from hpcext.sim.replay.tasks import Task, simulate_task

Parts: TypeAlias = MutableSequence[float]

PATIENCE_S = 2.0
"""Seconds after which processes are worth their start, if nobody has said how many to use."""


class Runs:
    """Runs of tasks, and how far they are.

    Parameters
    ----------
    tasks : sequence of Task
    numbers : sequence of int
        Indices of the tasks to run.
    """

    def __init__(self, tasks: Sequence[Task], numbers: Sequence[int]) -> None:
        self._tasks, self._numbers = tasks, numbers
        self._parts = multiprocessing.get_context("spawn").RawArray("d", len(tasks))

    def within(self) -> float:
        """Return the sum of the parts that are done of the runs in progress."""
        return float(sum(self._parts))

    def each(self, workers: int | None) -> Iterator[tuple[int, SimulatedRun, float]]:
        """Yield runs as they complete; see :func:`_each`."""
        for number, found, wall_s in _each(self._tasks, self._numbers, workers, self._parts):
            self._parts[number] = 0.0
            yield number, found, wall_s


class _TakesLong(Exception):
    """The runs would take long, one after the other."""


def _each(
    tasks: Sequence[Task], numbers: Sequence[int], workers: int | None, parts: Parts
) -> Iterator[tuple[int, SimulatedRun, float]]:
    """Yield runs as they complete.

    Parameters
    ----------
    tasks : sequence of Task
    numbers : sequence of int
        Indices of the tasks to run.
    workers : int or None
        The largest number of simultaneous runs; from 2 on, each has a process. None: one for each
        processor, once it is seen that the runs take long.
    parts : array of float
        The part of each task that is done, which the runs keep up to date.

    Yields
    ------
    (int, SimulatedRun, float)
        The index, the run, and the seconds that it took.

    Raises
    ------
    HpcextError
        A policy failed, or a process was killed; all other runs are ended.
    """
    left = list(numbers)
    if workers is None:
        workers = len(os.sched_getaffinity(0))
        until_s = time.monotonic() + PATIENCE_S if workers > 1 else math.inf
        with contextlib.suppress(_TakesLong):
            yield from _one_by_one(tasks, left, parts, until_s)
    elif min(workers, len(left)) < 2:
        yield from _one_by_one(tasks, left, parts, math.inf)
    if left:
        yield from _at_once(tasks, left, min(workers, len(left)), parts)


def _one_by_one(
    tasks: Sequence[Task], left: list[int], parts: Parts, until_s: float
) -> Iterator[tuple[int, SimulatedRun, float]]:
    """Run tasks in this process, and take them off the list.

    Raises
    ------
    _TakesLong
        It is later than `until_s` of the monotonic clock, and several runs are left.
    """
    while left:

        def tell(part: float) -> None:
            parts[left[0]] = part
            if len(left) > 1 and time.monotonic() > until_s:
                raise _TakesLong

        found = simulate_task(tasks[left[0]], tell)
        yield (left.pop(0), *found)


def _at_once(
    tasks: Sequence[Task], numbers: Sequence[int], workers: int, parts: Parts
) -> Iterator[tuple[int, SimulatedRun, float]]:
    # Spawned, because forking is not safe beside the threads of numerical libraries.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(
        workers, mp_context=context, initializer=_begin_worker, initargs=(parts,)
    )
    try:
        with _interrupts_blocked():
            futures: dict[Future[tuple[SimulatedRun, float]], int] = {
                pool.submit(_in_worker, tasks[number], number): number for number in numbers
            }
        for future in as_completed(futures):
            yield (futures[future], *future.result())
    except BrokenProcessPool:
        do = "if it ran out of memory, use fewer --workers"
        raise HpcextError("a simulation process was killed", do=do) from None
    finally:
        # After an error or an interrupt nobody needs the results of the others.
        for process in multiprocessing.active_children():
            process.terminate()
        pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block SIGINT in processes that are started in this context: only their parent handles it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_shared: list[Parts] = []
"""Of a worker: what it shares with its parent."""


def _begin_worker(parts: Parts) -> None:
    _shared.append(parts)
    _end_with_parent()


def _in_worker(task: Task, number: int) -> tuple[SimulatedRun, float]:
    def tell(part: float) -> None:
        _shared[-1][number] = part

    return simulate_task(task, tell)


def _end_with_parent() -> None:
    """End this process when its parent has ended, for whatever reason: nobody wants the result."""
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
