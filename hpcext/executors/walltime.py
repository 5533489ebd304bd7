"""When an allocation ends: by its time limit, or because its nodes are wanted for another job."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable

from hpcext.batch.slurm import End
from hpcext.core.errors import BatchError
from hpcext.core.facts import Drain
from hpcext.executors.base import Emit
from hpcext.protocol import JobId

log = logging.getLogger(__name__)

EARLIER_S = 30.0
"""An end that moved nearer by this much is a preemption: slurmctld sets it to the end of the grace
(``job_ptr->end_time``), and a person rarely shortens a limit of a job that runs."""

SLACK_S = 1.0
"""squeue gives whole seconds."""

NOTICE_SLACK_S = 60.0
"""Slurm's own notice (``--signal``) may come so much earlier than asked for; sbatch(1). What it
has suspended is not worth being started again."""


class Walltime:
    """Has a pilot suspend its jobs in time before its allocation ends.

    The batch system is asked when the manager begins, when the notice is due (the limit may have
    been changed), and when a step hears from it that it is to end; not in between.

    Parameters
    ----------
    job_id : int or str
    ask : callable
        Job id → its state, and when it ends.
    lead_s : float
        How long before the end.
    emit : Emit
    loop : asyncio.AbstractEventLoop
    ask : callable, optional
        Gives the state and the end of the job, or raises BatchError; by default Slurm is asked.

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
        lead_s: float,
        emit: Emit,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._job_id = job_id
        self._ask = ask
        self._lead_s = lead_s
        self._emit = emit
        self._loop = loop
        # None until it was said; infinite if there is none.
        self._end_s: float | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._looks: set[asyncio.Task[None]] = set()
        self._over = False
        self.leaving = False
        self.preempted = False

    @property
    def left_s(self) -> float | None:
        """Seconds until jobs are suspended; None where no end is known."""
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
        before = self._end_s
        state = "running"
        try:
            state, end_s, limit_end_s = await asyncio.to_thread(self._ask, self._job_id)
            self._end_s = math.inf if end_s is None else end_s
            # A job may be preempted before it is looked at for the first time.
            before = before if limit_end_s is None else limit_end_s
        except BatchError as error:
            log.warning("how long the allocation lasts is not known: %s", error)
        left_s, end_s = self.left_s, self._end_s
        nearer = before is not None and end_s is not None and end_s < before - EARLIER_S
        if state != "running":
            self._over = True
            self._leave("the allocation is over")
        elif nearer:
            self.preempted = True
            self._leave("the nodes of the allocation are wanted back")
        elif left_s is not None and left_s <= (NOTICE_SLACK_S if noticed else SLACK_S):
            self._leave("the allocation ends soon")
        else:
            self._set_alarm(left_s)

    def preempt(self, why: str) -> None:
        """Leave at once: the batch system has said that it wants the nodes."""
        self.preempted = True
        self._leave(why)

    def _leave(self, why: str) -> None:
        if not self.leaving:
            self.leaving = True
            self._set_alarm(None)
            log.warning("%s: its jobs are suspended", why)
            self._emit(Drain(stop=True, must=True, left_s=self._until_end_s()))

    def _until_end_s(self) -> float | None:
        """How long there is before we must be gone; a job that is preempted is requeued anyway."""
        if self.preempted or self._over or self._end_s is None or math.isinf(self._end_s):
            return None
        return max(0.0, self._end_s - time.time())

    def _set_alarm(self, pause_s: float | None) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = None if pause_s is None else self._loop.call_later(pause_s, self.begin)
