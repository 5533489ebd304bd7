"""The account of what simulated jobs had: GPU time, work done, and work lost."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from hpcext.sim.replay.attempt import Attempt, Phase


class Usage(NamedTuple):
    """The numbers of GPUs that exist, are occupied, and are trained on, and that of attempts."""

    offered: int
    held: int
    trained: int
    attempts: int


@dataclasses.dataclass
class Spent:
    """The GPU-seconds, work done, and work done in vain of a job, over all its attempts."""

    held_gpu_s: float = 0.0
    trained_gpu_s: float = 0.0
    done: float = 0.0
    lost: float = 0.0


class Ledger:
    """The accounts of jobs, and the work and steps that each has saved."""

    def __init__(self) -> None:
        self._spent: dict[str, Spent] = {}
        self._saved: dict[str, tuple[float, float]] = {}  # work and steps, by job

    def begin(self, attempt: Attempt) -> None:
        """Begin an attempt with what its job has saved."""
        job = attempt.order.job
        self._spent.setdefault(job, Spent())
        done, attempt.steps = self._saved.get(job, (0.0, 0.0))
        attempt.began = attempt.saved = attempt.done = done

    def hold(self, attempt: Attempt, gpus: tuple[str, ...], now_s: float) -> None:
        """Charge an attempt for the GPUs that it had, and record those that it has from now on.

        Parameters
        ----------
        attempt : Attempt
        gpus : tuple of str
            ``HOST:INDEX``.
        now_s : float
        """
        spent = self._spent[attempt.order.job]
        spent.held_gpu_s += len(attempt.gpus) * (now_s - attempt.held_s)
        attempt.gpus, attempt.held_s = gpus, now_s

    def end(self, attempt: Attempt) -> None:
        """Record an attempt that has stopped and ends; its job goes on from what it has saved."""
        job = attempt.order.job
        self._saved[job] = (attempt.saved, attempt.saved_steps())
        spent = self._spent[job]
        spent.trained_gpu_s += attempt.trained_gpu_s
        spent.done = attempt.saved
        spent.lost += attempt.done - attempt.saved

    def settle(self, attempt: Attempt, now_s: float) -> None:
        """Record what an unfinished attempt had until now, when the simulation ends."""
        attempt.stop(now_s, Phase.STALLED if attempt.phase is Phase.TRAINING else attempt.phase)
        self.hold(attempt, attempt.gpus, now_s)
        spent = self._spent[attempt.order.job]
        spent.trained_gpu_s += attempt.trained_gpu_s
        spent.done = attempt.done

    def forget(self, job: str) -> Spent:
        """Forget a job that has ended; return what it had."""
        self._saved.pop(job, None)
        return self._spent.pop(job, Spent())
