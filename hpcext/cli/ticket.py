"""The loop of a ticket: wait for its trainer, show the trainer's log, and watch the manager."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from pathlib import Path

from hpcext import protocol
from hpcext.backends.own_job import Ending, OwnJob
from hpcext.cli.output import Output
from hpcext.cli.shared_manager import SharedManager
from hpcext.cli.verbs import copy_log
from hpcext.core.engine import Engine
from hpcext.core.errors import BatchError, HpcextError, JournalError, NoManagerError
from hpcext.core.values import State
from hpcext.manager import spool, tickets
from hpcext.manager.tickets import Ticket
from hpcext.manager.views.reading import Follower
from hpcext.manager.waiting import comes_true, shell_status

log = logging.getLogger(__name__)

LOOK_S = 1.0

ASK_S = 30.0
"""Seconds between queries of the batch system: for our time limit, and for other tickets."""

LEAD_S, SHORT_LEAD_S = 60.0, 30.0
"""Seconds before its time limit at which a ticket is requeued: a usual one, and a short one."""

SHORT_S = 180.0
"""Seconds: a ticket with less time left when it begins is a short one."""

AGAIN_S = 5.0
"""Seconds after which a requeue is tried again that the batch system did not answer."""

ANSWER_S = 20.0
"""Seconds to wait for the manager's answer to a request."""

TERMINATED = 128 + signal.SIGTERM


class TicketLoop:
    """The loop of one ticket.

    Parameters
    ----------
    directory : pathlib.Path
        The harvester's.
    key : str
        The ticket's name among those of the harvester.
    ticket : Ticket
        What its trainer is to run.
    here : OwnJob
        The batch job that the ticket is.
    out : Output
    """

    def __init__(
        self, directory: Path, key: str, ticket: Ticket, here: OwnJob, out: Output
    ) -> None:
        self._directory = directory
        self._key = key
        self._ticket = ticket
        self._here = here
        self._out = out
        self._told = self._noticed = False
        self._trainer: str | None = None
        self._engine: Engine | None = None
        self._follower = Follower(directory)
        self._manager = SharedManager(directory, out)
        self._limit_at_s = 0.0
        self._others_at_s = 0.0
        self._lead_s: float | None = None
        self._end_s: float | None = None
        self._requeued = False
        self._said = False
        self._last_trouble = ""
        self._position = self._first_position()

    def run(self) -> int:
        """Wait for the end of the trainer; return its exit status."""
        for signum in self._here.ends:
            signal.signal(signum, self._on_end)
        for signum in self._here.leaves:
            signal.signal(signum, self._on_notice)
        try:
            while True:
                if self._told and self._is_over():
                    return TERMINATED
                try:
                    ended = self._poll()
                except (OSError, JournalError) as error:
                    self._log_once(error)
                    ended = None
                if ended is not None:
                    return ended
                time.sleep(LOOK_S)
        finally:
            self._manager.leave()

    def _poll(self) -> int | None:
        """Do all that is due; return the exit status once the ticket may end."""
        self._check_harvester()
        self._submit_trainer()
        if not self._manager.runs_here() and not self._is_final():
            self._manager.find_or_start()
        ended = self._look()
        # A ticket that runs the manager ends when another ticket can take over.
        if ended is not None and (
            not self._manager.runs_here() or tickets.others(self._directory, self._key)
        ):
            tickets.forget(self._directory, self._key)
            self._here.forget()
            return ended
        return self._requeue_in_time()

    def _check_harvester(self) -> None:
        """Raise NoManagerError if somebody has removed the harvester."""
        try:
            os.stat(self._directory / "pilot.json")
        except FileNotFoundError:
            # If the file system is not mounted, the parent is missing, too: this raises OSError.
            os.stat(self._directory.parent)
            raise NoManagerError("the harvester is gone", where=str(self._directory)) from None

    def _log_once(self, error: Exception) -> None:
        """Log an error, once: a ticket outlives a file system that is away for a while."""
        if str(error) != self._last_trouble:
            self._last_trouble = str(error)
            log.warning("%s; tried again", error)

    def _on_end(self, _signum: int, _frame: object) -> None:
        self._told = True

    def _on_notice(self, _signum: int, _frame: object) -> None:
        self._noticed = True

    # The trainer.

    def _submit_trainer(self) -> None:
        """Submit the trainer, unless that was done."""
        if self._trainer is None:
            self._trainer = tickets.trainer_of(self._directory, self._key)
        if self._trainer is not None:
            tickets.release(self._directory, self._key, self._trainer)
            return
        if tickets.waits(self._directory, self._key):
            return
        # An answer that refuses the trainer is raised here.
        if spool.answer(self._directory, self._key) is None:
            tickets.submit(self._directory, self._key, self._ticket)

    def _look(self) -> int | None:
        """Show what is new; return the exit status if the trainer has ended."""
        if self._trainer is None:
            return None
        self._read()
        job = self._engine.world.jobs.get(self._trainer) if self._engine else None
        # Read before the log is copied, so that nothing is written after the last copy.
        final = job is not None and job.state.final
        self._show()
        if not final or self._engine is None or job is None:
            return None
        if job.state is State.COMPLETED:
            return 0
        if not self._said:
            self._said = True
            self._out.note(f"{job.name} {job.state.value}: {job.why}")
        code = self._engine.world.records[job.id].exit_code
        return shell_status(code) if code else 1

    def _read(self) -> None:
        """Read the journal, once there is one."""
        if (self._directory / "journal.jsonl").exists():
            self._engine = self._follower.engine()

    def _first_position(self) -> int:
        """Return the position to show the log from: 0, or where an earlier run stopped."""
        return tickets.shown(self._directory, self._key) if self._here.keeps_output() else 0

    def _show(self) -> None:
        path = self._directory / "jobs" / str(self._trainer) / "log.txt"
        position = copy_log(path, self._position, self._out)
        if position != self._position:
            self._position = position
            tickets.has_shown(self._directory, self._key, position)

    def _is_final(self) -> bool:
        job = self._engine.world.jobs.get(self._trainer or "") if self._engine else None
        return job is not None and job.state.final

    # Our job.

    def _is_over(self) -> bool:
        """Return whether our job is ending after a signal; if so, cancel or suspend the trainer."""
        try:
            why = self._here.ending()
        except BatchError as error:
            log.warning("it is unknown why job %s was told to end: %s", self._here.id, error)
            return False
        if why is Ending.NONE:
            self._told = False
            return False
        if why is not Ending.AGAIN and self._has_trainer():
            self._ask("cancel") if why is Ending.CANCELLED else self._suspend_trainer()
        return True

    def _has_trainer(self) -> bool:
        """Return whether we have an unfinished trainer; withdraw a submission still unread."""
        if self._trainer is None:
            self._trainer = tickets.trainer_of(self._directory, self._key)
        if self._trainer is not None and not self._is_final():
            return True
        spool.discard(self._directory / "requests" / f"{self._key}.json")
        return False

    def _suspend_trainer(self) -> None:
        """Have our trainer leave its nodes.

        If our job begins again, the trainer goes on. If the job has ended for good, the ticket that
        runs the manager, or the next one to do so, cancels the trainer.
        """
        self._read()
        job = self._engine.world.jobs.get(self._trainer or "") if self._engine else None
        if job is not None and job.on_hold:
            return
        if job is None or job.run.registered or not job.state.active:
            tickets.mark(self._directory, self._key, "held")
            self._ask("suspend")
        else:
            # It has no checkpoint to keep; if it begins again, it trains from the start.
            tickets.mark(self._directory, self._key, "ended")
            self._ask("cancel")

    def _ask(self, verb: str) -> None:
        """Send the manager, the present or the next one, a request about our trainer."""
        try:
            name = spool.put(self._directory, verb, job=self._trainer)
            manager = spool.manager_of(self._directory)
            if manager is not None:
                manager.send(protocol.NEWS_SIGNAL)
                comes_true(lambda: spool.answer(self._directory, name) is not None, ANSWER_S)
        except HpcextError as error:
            log.warning("%s of the trainer: %s", verb, error)

    def _requeue_in_time(self) -> int | None:
        """Requeue the job before its time limit, and cancel the trainers of tickets that are gone.

        Returns
        -------
        int or None
            The exit status to end with, if the job has to go back into the queue.
        """
        now_s = time.monotonic()
        if not self._requeued and (self._noticed or now_s >= self._limit_at_s):
            left_s = 0.0 if self._noticed else self._left_s()
            if left_s <= 0.0:
                return self._go_back(now_s)
            self._limit_at_s = now_s + min(ASK_S, left_s)
        if self._manager.runs_here() and now_s >= self._others_at_s:
            self._others_at_s = now_s + ASK_S
            self._cancel_others()
        return None

    def _go_back(self, now_s: float) -> int | None:
        """Requeue the job, as :meth:`_requeue_in_time` returns it; if that fails, again soon."""
        try:
            status = self._here.go_back()
        except BatchError as error:
            self._log_once(error)
            self._limit_at_s = now_s + AGAIN_S
            return None
        self._requeued = True
        return status

    def _left_s(self) -> float:
        """Return the seconds until it is time to requeue the job, by the end that was told last."""
        with contextlib.suppress(BatchError):
            self._end_s = self._here.end_s()
        if self._end_s is None:
            return ASK_S
        left_s = self._end_s - time.time()
        if self._lead_s is None:
            self._lead_s = SHORT_LEAD_S if left_s < SHORT_S else LEAD_S
        return left_s - self._lead_s

    def _cancel_others(self) -> None:
        """Cancel the trainers of cancelled tickets that could not do it themselves."""
        world = self._engine.world if self._engine else None
        if world is None:
            return

        def unfinished(trainer: str) -> bool:
            job = world.jobs.get(trainer)
            return job is not None and not (job.state.final or job.cancelling)

        alone = tickets.left_alone(self._directory, unfinished)
        try:
            given_up = self._here.given_up(list(alone))
        except BatchError:
            return
        for job_id in given_up & alone.keys():
            spool.put(self._directory, "cancel", job=alone[job_id])
