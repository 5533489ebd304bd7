"""A ticket waits for its trainer: shows its log, sees that there is a manager, or is it."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from hpcext import protocol
from hpcext.batch import runner, slurm
from hpcext.batch.slurm_reads import reads
from hpcext.cli.output import Output
from hpcext.cli.verbs import copy_log, identity, read_journal
from hpcext.core.engine import Engine
from hpcext.core.errors import BatchError, HpcextError, JournalError, NoManagerError
from hpcext.core.values import State
from hpcext.manager import pilot as pilots
from hpcext.manager import slurm_job, spool, tickets
from hpcext.manager.tickets import Ticket
from hpcext.protocol import Allocation

log = logging.getLogger(__name__)

LOOK_S = 1.0

JOURNAL_SHARE = 20
"""A journal is read anew after so many times as long as the last reading took."""

ASK_S = 30.0
"""So often Slurm is asked of a manager on another node, of the time limit, and of other tickets."""

LEAD_S, SHORT_LEAD_S = 60.0, 30.0
"""A ticket goes back into the queue so long before its time limit; the second of a short one."""

SHORT_S = 180.0

AGAIN_S, AGAIN_MAX_S = 2.0, 60.0
"""Before a manager is tried again that could not be one."""

HAND_OVER_S = 20.0
"""So long a manager that is to leave is waited for."""

LOG = "manager.log"

TERMINATED = 128 + signal.SIGTERM


class Wait:
    """One ticket.

    Parameters
    ----------
    directory : pathlib.Path
        Of the harvester.
    key : str
    ticket : Ticket
    here : Allocation
        Its own job.
    out : Output
    """

    def __init__(
        self, directory: Path, key: str, ticket: Ticket, here: Allocation, out: Output
    ) -> None:
        self._directory = directory
        self._key = key
        self._ticket = ticket
        self._here = here
        self._out = out
        self._told = False
        self._trainer: str | None = None
        self._engine: Engine | None = None
        self._seen: tuple[int, int] | None = None
        self._read_at_s = 0.0
        self._child: int | None = None
        self._again_s = AGAIN_S
        self._try_at_s = 0.0
        self._other: spool.Manager | None = None
        self._other_at_s = 0.0
        self._limit_at_s = 0.0
        self._others_at_s = 0.0
        self._lead_s: float | None = None
        self._requeued = False
        self._failures = 0
        self._said = False
        self._last_trouble = ""
        self._position = self._begin()

    def run(self) -> int:
        """Wait for the end of the trainer; its exit status."""
        signal.signal(signal.SIGTERM, self._on_term)
        try:
            while True:
                if self._told and self._is_over():
                    return TERMINATED
                try:
                    ended = self._turn()
                except (OSError, JournalError) as error:
                    self._trouble(error)
                    ended = None
                if ended is not None:
                    return ended
                time.sleep(LOOK_S)
        finally:
            self._leave()

    def _turn(self) -> int | None:
        """One look at everything; the exit status, if the trainer has ended and nobody needs us."""
        self._check_there()
        self._hand_in()
        self._mind()
        ended = self._look()
        if ended is not None and self._may_leave():
            tickets.forget(self._directory, self._key)
            return ended
        self._go_on_later()
        return None

    def _check_there(self) -> None:
        """A harvester that somebody has removed is not waited for."""
        try:
            os.stat(self._directory / "pilot.json")
        except FileNotFoundError:
            # Of a file system that is not mounted nothing is there.
            os.stat(self._directory.parent)
            raise NoManagerError("the harvester is gone", where=str(self._directory)) from None

    def _trouble(self, error: Exception) -> None:
        """A file system that is away for a while ends no ticket."""
        if str(error) != self._last_trouble:
            self._last_trouble = str(error)
            log.warning("%s; tried again", error)

    def _on_term(self, _signum: int, _frame: object) -> None:
        self._told = True

    # The trainer.

    def _hand_in(self) -> None:
        """See that the trainer is submitted, once."""
        if self._trainer is None:
            self._trainer = tickets.trainer_of(self._directory, self._key)
        if self._trainer is not None or tickets.waits(self._directory, self._key):
            return
        # Refused, it raises here.
        if spool.answer(self._directory, self._key) is None:
            tickets.submit(self._directory, self._key, self._ticket)

    def _look(self) -> int | None:
        """Show what is new; the exit status, if the trainer has ended."""
        if self._trainer is None:
            return None
        self._read()
        job = self._engine.world.jobs.get(self._trainer) if self._engine else None
        # Looked at before, so that nothing is written after the last copy.
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
        return 1 if not code else code if code > 0 else 128 - code

    def _read(self) -> None:
        """Read the journal if it has grown; but not all the time, for a replay is not free."""
        journal = self._directory / "journal.jsonl"
        began_s = time.monotonic()
        if began_s < self._read_at_s or not journal.exists():
            return
        now = identity(journal)
        if now != self._seen:
            self._seen, self._engine = now, read_journal(self._directory)[0]
            self._read_at_s = began_s + JOURNAL_SHARE * (time.monotonic() - began_s)

    def _begin(self) -> int:
        """From where on the log is to be shown: it was shown before, unless sbatch began anew."""
        facts = os.fstat(sys.stdout.fileno())
        fresh = facts.st_size == 0 and self._here.restarts > 0
        return 0 if fresh else tickets.shown(self._directory, self._key)

    def _show(self) -> None:
        path = self._directory / "jobs" / str(self._trainer) / "log.txt"
        position = copy_log(path, self._position, self._out)
        if position != self._position:
            self._position = position
            tickets.has_shown(self._directory, self._key, position)

    # The manager.

    def _mind(self) -> None:
        """See that there is a manager; be it, if nobody else is."""
        now_s = time.monotonic()
        if self._reap() or now_s < self._try_at_s or self._is_final():
            return
        if isinstance(self._other, protocol.Process) or now_s >= self._other_at_s:
            self._other_at_s = now_s + ASK_S
            alive = self._other is not None and self._other.alive()
            self._other = self._other if alive else spool.manager_of(self._directory)
        if self._other is None:
            self._other_at_s = 0.0
            self._try_at_s = now_s + self._again_s
            self._again_s = min(2 * self._again_s, AGAIN_MAX_S)
            self._child = self._start()

    def _is_final(self) -> bool:
        job = self._engine.world.jobs.get(self._trainer or "") if self._engine else None
        return job is not None and job.state.final

    def _start(self) -> int:
        """Start a manager in a process of its own, which Slurm's SIGTERM does not end: the
        trainer of a ticket that was cancelled is cancelled by it."""
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            manage(self._directory, parent)
        return pid

    def _reap(self) -> bool:
        """Whether we are the manager."""
        if self._child is None:
            return False
        pid, status = os.waitpid(self._child, os.WNOHANG)
        if pid == 0:
            if time.monotonic() >= self._try_at_s:
                self._again_s = AGAIN_S
            return True
        self._child = None
        self._failures += os.waitstatus_to_exitcode(status) != 0
        if self._failures == 2:
            # Once may be a race that another ticket has won.
            self._out.note(f"waits for a manager; see {self._directory / LOG}")
        return False

    def _may_leave(self) -> bool:
        """Whether nobody needs us: no manager is ours, or another ticket can be the next one."""
        if not self._reap():
            return True
        return tickets.others(self._directory, self._key)

    def _leave(self) -> None:
        """Have our manager leave; trainings go on."""
        if self._child is None:
            return
        os.kill(self._child, signal.SIGINT)
        if not _until(lambda: os.waitpid(self._child or 0, os.WNOHANG)[0] != 0, HAND_OVER_S):
            os.kill(self._child, signal.SIGKILL)
            os.waitpid(self._child, 0)

    # Slurm.

    def _is_over(self) -> bool:
        """Whether our job is, once it was told to end; one that was cancelled cancels its trainer.

        What Slurm may send at the begin of a grace, or anybody else, is no end yet.
        """
        job_id = self._here.job_id
        try:
            said = runner.run(slurm.job_command(job_id), environ=slurm.epoch_times())
        except BatchError as error:
            log.warning("not known why job %d was told to end: %s", job_id, error)
            return False
        if slurm.is_running(said):
            self._told = False
            return False
        if slurm.was_cancelled(said, self._here.restarts):
            self._cancel()
        return True

    def _cancel(self) -> None:
        """Cancel the trainer, by the manager that there is or the next one."""
        if self._trainer is None:
            self._trainer = tickets.trainer_of(self._directory, self._key)
        if self._trainer is None or self._is_final():
            spool.discard(self._directory / "requests" / f"{self._key}.json")
            return
        try:
            name = spool.put(self._directory, "cancel", job=self._trainer)
            manager = spool.manager_of(self._directory)
            if manager is not None:
                manager.send(protocol.NEWS_SIGNAL)
                _until(lambda: spool.answer(self._directory, name) is not None, HAND_OVER_S)
        except HpcextError as error:
            log.warning("the trainer was not cancelled: %s", error)

    def _go_on_later(self) -> None:
        """Back into the queue before the time limit; and see after tickets that are gone."""
        now_s = time.monotonic()
        if now_s >= self._limit_at_s and not self._requeued:
            self._limit_at_s = now_s + self._near_limit()
        if self._child is not None and now_s >= self._others_at_s:
            self._others_at_s = now_s + ASK_S
            self._cancel_others()

    def _near_limit(self) -> float:
        """Seconds until it is looked at again; requeues if it is time."""
        try:
            end_s = reads().end(self._here.job_id).end_s
        except BatchError:
            return ASK_S
        if end_s is None:
            return ASK_S
        left_s = end_s - time.time()
        if self._lead_s is None:
            self._lead_s = SHORT_LEAD_S if left_s < SHORT_S else LEAD_S
        if left_s > self._lead_s:
            return min(ASK_S, left_s - self._lead_s)
        self._requeued = True
        slurm_job.requeue(self._here.job_id)
        return ASK_S

    def _cancel_others(self) -> None:
        """Cancel trainers whose tickets were cancelled while they waited in the queue."""
        world = self._engine.world if self._engine else None
        if world is None:
            return

        def unfinished(trainer: str) -> bool:
            job = world.jobs.get(trainer)
            return job is not None and not (job.state.final or job.cancelling)

        alone = tickets.left_alone(self._directory, unfinished)
        try:
            states = reads().states(list(alone))
        except BatchError:
            return
        for job_id, trainer in alone.items():
            if states.get(job_id) == "cancelled":
                spool.put(self._directory, "cancel", job=trainer)


def manage(directory: Path, parent: int) -> NoReturn:
    """Be the manager of the tickets' harvester, as long as its ticket's process is there."""
    code = 1
    try:
        # Slurm sends these to all processes of a job; our ticket says when to leave.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGHUP})
        fd = os.open(directory / LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.dup2(fd, sys.stdout.fileno())
        os.dup2(fd, sys.stderr.fileno())
        # Leases inherit our environment.
        protocol.forget_flags()
        logging.basicConfig(format="hpcext: %(message)s", level=logging.WARNING, force=True)

        def observe(_engine: Engine, _now_s: float) -> None:
            if os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGINT)

        pilots.run(directory, observe, passing=True)
        code = 0
    except HpcextError as error:
        log.warning("%s", error)
        code = error.exit_status
    except BaseException:
        # In a fork nobody else would say it.
        log.exception("the manager failed")
    finally:
        logging.shutdown()
        os._exit(code)


def _until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Wait for a condition; whether it came true."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.05)
    return True
