"""A ticket that is a job of LSF: its script, and the reason of its end.

While a job ends, the reason is unknown: bkill(1) and brequeue(1) send the same signals, SIGINT and
SIGTERM, and bjobs(1) shows RUN until the host has reported. Afterwards it shows EXIT, or PEND.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from hpcext import documents, protocol, state
from hpcext.allocation import JobId
from hpcext.backends import batch_job
from hpcext.backends.lsf import requeue
from hpcext.backends.lsf import suspend as lsf_suspend
from hpcext.backends.own_job import Ending
from hpcext.batch import lsf
from hpcext.batch.lsf import inside as lsf_inside
from hpcext.batch.lsf.inside import LsfJob
from hpcext.launch.tree import boot_id
from hpcext.process import Process

TICKET = "hpcext.lsf-ticket/1"

REQUEUED_S = 15.0
"""Seconds after which EXIT is final; one engine shows a requeued job so for 2 to 4 s."""

_PROCESS = "manager.json"
"""The file that names the process to which hpcext-job-control sends SIGUSR2, to await its end."""

_SCRIPT = """#!/bin/sh
# The ticket of a trainer, and the leader of its LSF job.
exec {python} -m hpcext trainer -- {command}
"""


class LsfTicket:
    """A job of LSF as an :class:`~hpcext.backends.own_job.OwnJob`.

    Parameters
    ----------
    here : LsfJob
    """

    system = "lsf"
    # SIGKILL follows after JOB_TERMINATE_INTERVAL (bkill(1)).
    ends = frozenset({signal.SIGINT, signal.SIGTERM})
    leaves = frozenset({signal.SIGUSR2})

    def __init__(self, here: LsfJob) -> None:
        self.id: JobId = here.name
        self.numbers: tuple[JobId, ...] = (here.id,)
        name = protocol.environ().get("LSB_JOBNAME", "")
        # LSB_JOBNAME of an element is the name of its array, with all indices.
        self.name = (name.partition("[")[0] if here.element else name) or "job"
        self.run_of = here.file
        self._here = here
        self._directory: Path | None = None
        self._goes_back = False
        # Other job → when it was first seen to have ended.
        self._ended_s: dict[JobId, float] = {}

    def begin(self, state_dir: Path) -> None:
        """Make this process known to hpcext-job-control."""
        self._directory = directory = _earlier_directory(self._here) or _new_directory(
            self._here, state_dir
        )
        requeue.begin(directory)
        me = Process.me()
        facts = {"schema": TICKET, "pid": me.pid, "start": me.start, "boot_id": boot_id()}
        documents.write_json(directory / _PROCESS, facts, durable=False)

    def forget(self) -> None:
        """Remove the directory by which hpcext-job-control finds the ticket."""
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            with contextlib.suppress(OSError):
                lsf_suspend.link(self._here).unlink()

    def environ(self) -> dict[str, str]:
        """Return our environment without the variables of the job, except its index in an array."""
        return lsf_inside.environ_of_others() | lsf_inside.of_element()

    def is_its_script(self, path: Path) -> bool:
        """Return whether a file is in the spool of LSF."""
        return bool(self.run_of) and path.name.startswith(self.run_of)

    def keeps_output(self) -> bool:
        """Return whether output goes straight to the file of ``-o``.

        Otherwise LSF keeps that of the last run only.
        """
        wanted = self._here.output
        return bool(wanted) and os.path.realpath(wanted) == os.readlink(
            f"/proc/self/fd/{sys.stdout.fileno()}"
        )

    def ending(self) -> Ending:
        """Return why it ends, which is known only if we have requeued it ourselves."""
        return Ending.AGAIN if self._goes_back else Ending.OPEN

    def end_s(self) -> float | None:
        """Return the end of its run limit in epoch seconds."""
        return lsf.Commands().end(self.id).end_s

    def go_back(self) -> int | None:
        """Requeue it, as suspendable jobs are requeued."""
        assert self._directory is not None
        self._goes_back = True
        try:
            requeue.request(self._here, self._directory)
        finally:
            status = requeue.status(self._directory)
            self._goes_back = status is not None
        return status

    def given_up(self, job_ids: Sequence[JobId]) -> set[JobId]:
        """Return those that stay in state EXIT; a requeued one is PEND or PSUSP soon after."""
        now_s = time.monotonic()
        names = {_name(job): job for job in job_ids}
        states = lsf.Commands().states(list(names))
        failed = [names[job] for job, state in states.items() if state == "failed"]
        self._ended_s = {job: self._ended_s.get(job, now_s) for job in failed}
        return {job for job, since_s in self._ended_s.items() if now_s - since_s >= REQUEUED_S}


def _name(job_id: JobId) -> JobId:
    """Return the name of a job in LSF, such as ``4711[2]`` for ``4711_2`` in a ticket's key."""
    number, bar, index = str(job_id).partition("_")
    return f"{number}[{index}]" if bar else job_id


def write_script(here: LsfJob, state_dir: Path, shell: int) -> None:
    """Write the script that the job's shell becomes: a ticket that trains the shell's command.

    Parameters
    ----------
    here : LsfJob
    state_dir : pathlib.Path
    shell : int
        The pid of the shell.

    Raises
    ------
    InputError
        The command of the shell cannot be read again.
    """
    words = lsf_suspend.words_of_shell(shell)
    directory = _earlier_directory(here) or _new_directory(here, state_dir)
    command = directory / lsf_suspend.COMMAND
    if not command.exists():
        lsf_suspend.write_command(directory, words, here)
    text = _SCRIPT.format(python=shlex.quote(sys.executable), command=shlex.quote(str(command)))
    documents.write_file(directory / batch_job.SCRIPT, os.fsencode(text))


def _earlier_directory(here: LsfJob) -> Path | None:
    """Return the directory that an earlier run of the job, or its starter, has created."""
    path = lsf_suspend.link(here)
    return path.resolve() if lsf_suspend.known(here, path) else None


def _new_directory(here: LsfJob, state_dir: Path) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    directory = state.make(state_dir, "tickets", f"{lsf_suspend.key(here)}-{stamp}")
    state.check_safe(directory)
    lsf_suspend.note(here, directory)
    lsf_suspend.register(here, directory)
    return directory
