"""The base of executors that run attempts inside a batch job, which has an end."""

from __future__ import annotations

import functools
from typing import Any

import msgspec

from hpcext.allocation import JobId
from hpcext.batch.jobs import Jobs
from hpcext.core.facts import Ended, Outcome
from hpcext.executors.processes import ProcessExecutor, Watch
from hpcext.executors.walltime import Walltime
from hpcext.protocol import NOTICE_SIGNAL


class AllocationExecutor(ProcessExecutor):
    """An executor that has everything suspended before its allocation ends.

    Parameters
    ----------
    job_id : int or str
        The allocation's.
    restarts : int or str
        How often that job was put back into the queue, or what else differs between its runs:
        with it, which allocation this is.
    jobs : Jobs
        The source of answers about that job.
    wanted_back : str
        What to say when a notice comes, where that is always an order to leave which reaches the
        trainings too. Empty: it has the batch system asked, and may be about one step alone.
    lead_s : float
        Seconds before its end at which everything is suspended.
    **common
        Parameters of the other base classes.
    """

    def __init__(
        self,
        *,
        job_id: JobId,
        restarts: int | str,
        lead_s: float,
        jobs: Jobs,
        wanted_back: str = "",
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self._job_id = job_id
        self._allocation = f"{job_id}.{restarts}"
        self._tells_steps = not wanted_back
        self._walltime = Walltime(
            job_id,
            ask=jobs.end,
            wanted=jobs.preempted,
            lead_s=lead_s,
            emit=self._emit,
            loop=self._loop,
        )
        self._walltime.begin()
        if self._tells_steps:
            self._loop.add_signal_handler(NOTICE_SIGNAL, self._walltime.begin, True)
        else:
            # It may have reached the trainings, too: what it has suspended is not begun again here,
            # however early it came.
            self._loop.add_signal_handler(NOTICE_SIGNAL, self._walltime.preempt, wanted_back)

    @property
    def left_s(self) -> float | None:
        """Seconds until everything is suspended, since the allocation ends; None if not known."""
        return self._walltime.left_s

    @property
    def preempted(self) -> bool:
        """Whether the allocation is taken for another job."""
        return self._walltime.preempted

    def close(self) -> None:
        """Stop watching, also the time limit."""
        self._walltime.close()
        super().close()

    def _take_over(self, watch: Watch) -> None:
        if watch.files.begun_in() == self._allocation:
            super()._take_over(watch)
        else:
            # What had not begun when an earlier allocation ended must not begin in this one: its
            # nodes are others, and the engine starts the job again.
            self._settle(watch)

    def _over(self, watch: Watch, ended: Ended) -> None:
        if watch.files.ends.noticed():
            self._later(functools.partial(self._noticed, watch, ended))
        else:
            self._finish(watch, ended)

    async def _noticed(self, watch: Watch, ended: Ended) -> None:
        """Find out whether an attempt that got a signal from outside ends with its whole job."""
        await self._look_around(watch, noticed=True)
        if ended.outcome is Outcome.FAILED and (self._walltime.leaving or not self._tells_steps):
            # On one of several nodes it may have died of the end of the others.
            ended = msgspec.structs.replace(ended, outcome=Outcome.EVICTED)
        self._finish(watch, ended)

    async def _look_around(self, watch: Watch, *, noticed: bool = False) -> None:
        """Query the time that is left, before any job is started again."""
        await self._walltime.look(noticed=noticed)

    def _lost(self, watch: Watch) -> Ended:
        # With its allocation, this one or the last, or before it began: no fault of its own.
        over = self._walltime.leaving or watch.files.begun_in() != self._allocation
        never_ran = not over and (watch.never_ran or not watch.files.claimed())
        outcome = Outcome.EVICTED if over or never_ran else Outcome.LOST
        return watch.files.ends.lost(watch.why, outcome, never_ran=never_ran)
