"""The end of an allocation: its time limit, or a preemption of its nodes."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable

from hpcext.allocation import JobId
from hpcext.batch.jobs import LEFT, End
from hpcext.core.errors import BatchError
from hpcext.core.facts import Drain
from hpcext.executors.base import Emit

log = logging.getLogger(__name__)

EARLIER_S = 30.0
"""Seconds by which an end must have moved nearer to be a possible preemption.

slurmctld sets it to the end of the grace (``job_ptr->end_time``). But somebody may have shortened
the limit: ``scontrol update``, bmod(1).
"""

LOOK_S = 300.0
"""The longest time between two questions, so that a shortened limit is noticed.

A thousand jobs then ask three or four times a second in all.
"""

LOOK_SPREAD = 0.2
"""The random share of that time, so that managers that begin together do not ask together."""

RETRY_S = 5.0
"""Seconds after a question without an answer; doubled after each one, up to :data:`LOOK_S`."""

SLACK_S = 1.0
"""Tolerance in seconds: squeue gives whole ones."""

NOTICE_SLACK_S = 60.0
"""Seconds by which Slurm's own notice (``--signal``) may come earlier than asked for; sbatch(1).

A training that this notice suspends is not worth starting again.
"""


class Walltime:
    """A watch that has a pilot suspend its jobs in time before its allocation ends.

    The batch system is asked when the manager begins, when the notice is due (the limit may have
    been extended), when a step is told by it to end, and once in a while between (the limit may
    have been shortened). If it does not answer, it is asked again sooner.

    Parameters
    ----------
    job_id : int or str
    ask : callable
        Job id → its state, and when it ends; or raises BatchError.
    wanted : callable
        Job id → whether its nodes are wanted for another job; or raises BatchError.
    lead_s : float
        Seconds before the end.
    emit : Emit
    loop : asyncio.AbstractEventLoop

    Attributes
    ----------
    leaving, preempted : bool
        Whether jobs are being suspended, and whether the nodes are wanted for another job.
    """

    def __init__(
        self,
        job_id: JobId,
        *,
        ask: Callable[[JobId], End],
        wanted: Callable[[JobId], bool],
        lead_s: float,
        emit: Emit,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._job_id = job_id
        self._ask = ask
        self._wanted = wanted
        self._lead_s = lead_s
        self._emit = emit
        self._loop = loop
        # None until it is known; infinite if there is no limit.
        self._end_s: float | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._retry_s = RETRY_S
        self._looks: set[asyncio.Task[None]] = set()
        self._over = False
        self.leaving = False
        self.preempted = False

    @property
    def left_s(self) -> float | None:
        """Seconds until jobs are suspended; None if no end is known."""
        if self._end_s is None or math.isinf(self._end_s):
            return None
        return self._end_s - self._lead_s - time.time()

    def begin(self, noticed: bool = False) -> None:
        """Look, soon, as :meth:`look` says; and from then on whenever it is due."""
        task = self._loop.create_task(self.look(noticed=noticed))
        self._looks.add(task)
        task.add_done_callback(self._looks.discard)

    def close(self) -> None:
        """Forget the next look."""
        self._set_alarm(None)
        for task in self._looks:
            task.cancel()

    async def look(self, *, noticed: bool = False) -> None:
        """Ask how long the allocation lasts; if it is time to leave, say so.

        Parameters
        ----------
        noticed : bool
            A step was told to end, or a warning came (Slurm's ``--signal``, LSF's ``-wa``).
        """
        if self.leaving:
            return
        before, state, pause_s = self._end_s, "running", _spread(LOOK_S)
        try:
            state, end_s, limit_end_s = await asyncio.to_thread(self._ask, self._job_id)
            self._end_s = math.inf if end_s is None else end_s
            self._retry_s = RETRY_S
            # A job may be preempted before it is looked at for the first time.
            before = before if limit_end_s is None else limit_end_s
        except Exception as error:
            # Any error, such as that no thread can be had: otherwise it would never be asked again.
            log.warning("the end of the allocation is unknown: %s", _said(error))
            pause_s, self._retry_s = self._retry_s, min(2 * self._retry_s, LOOK_S)
        if state in LEFT:
            self._over = True
            self._leave("the allocation is over")
        elif await self._is_preempted(before):
            self.preempt("the batch system wants the nodes of the allocation back")
        else:
            left_s = self.left_s
            if left_s is not None and left_s <= (NOTICE_SLACK_S if noticed else SLACK_S):
                self._leave("the allocation ends soon")
            else:
                self._set_alarm(pause_s if left_s is None else min(pause_s, left_s))

    async def _is_preempted(self, before: float | None) -> bool:
        """Return whether a preemption is why the end is nearer than before."""
        if before is None or self._end_s is None or self._end_s >= before - EARLIER_S:
            return False
        try:
            return await asyncio.to_thread(self._wanted, self._job_id)
        except Exception as error:
            # There may be no time to ask again.
            log.warning("it is unknown why the allocation ends earlier: %s", _said(error))
            return True

    def preempt(self, why: str) -> None:
        """Leave at once: the batch system has said that it wants the nodes."""
        self.preempted = True
        self._leave(why)

    def _leave(self, why: str) -> None:
        if not self.leaving:
            self.leaving = True
            self._set_alarm(None)
            log.warning("%s: its jobs are being suspended", why)
            self._emit(Drain(suspend=True, must=True, left_s=self._until_end_s()))

    def _until_end_s(self) -> float | None:
        """Return the seconds until we must be gone; None if the job is requeued anyway."""
        if self.preempted or self._over or self._end_s is None or math.isinf(self._end_s):
            return None
        return max(0.0, self._end_s - time.time())

    def _set_alarm(self, pause_s: float | None) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = None if pause_s is None else self._loop.call_later(pause_s, self.begin)


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, BatchError) else f"{type(error).__name__}: {error}"


def _spread(pause_s: float) -> float:
    return pause_s * random.uniform(1 - LOOK_SPREAD, 1)
