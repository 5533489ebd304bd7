"""The execution of simulations, one after the other or several at once in worker processes."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool

from hpcext.core.errors import HpcextError
from hpcext.sim.evaluate.outcome import SimulatedRun
from hpcext.sim.replay.tasks import Task, simulate_task


def each(
    tasks: Sequence[Task], numbers: Sequence[int], workers: int
) -> Iterator[tuple[int, SimulatedRun, float]]:
    """Yield runs as they complete.

    Parameters
    ----------
    tasks : sequence of Task
    numbers : sequence of int
        Indices of the tasks to run.
    workers : int
        The largest number of simultaneous runs; from 2 on, each has a process.

    Yields
    ------
    (int, SimulatedRun, float)
        The index, the run, and the seconds that it took.

    Raises
    ------
    HpcextError
        A policy failed, or a process was killed; all other runs are ended.
    """
    workers = min(workers, len(numbers))
    if workers < 2:
        for number in numbers:
            yield (number, *_simulate(tasks[number]))
        return
    # Spawned, because forking is not safe beside the threads of numerical libraries.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_end_with_parent)
    try:
        with _interrupts_blocked():
            futures: dict[Future[tuple[SimulatedRun, float]], int] = {
                pool.submit(_simulate, tasks[number]): number for number in numbers
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


def _end_with_parent() -> None:
    """End this process when its parent has ended, for whatever reason: nobody wants the result."""
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _simulate(task: Task) -> tuple[SimulatedRun, float]:
    try:
        return simulate_task(task)
    except RuntimeError as error:
        said = str(error)
        if not said.startswith(f"{task.policy} "):
            raise
        what = said.removeprefix(f"{task.policy} ")
        raise HpcextError(f"it {what}", where=f"policy {task.policy}") from None
