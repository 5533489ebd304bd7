"""The backend for LSF."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hpcext.allocation import JobId
from hpcext.backends.base import Backend, JobPlace, PilotOrder, PilotRun, refuse_array
from hpcext.backends.batch_job import SubmittedPilot
from hpcext.backends.lsf import job as lsf_job
from hpcext.backends.lsf import requeue
from hpcext.backends.lsf import suspend as lsf_suspend
from hpcext.backends.lsf import ticket as lsf_ticket
from hpcext.backends.lsf.script import LsfScript
from hpcext.backends.lsf.steps import Launcher, LsfHost, LsfSteps
from hpcext.backends.lsf.suspend import LsfSuspendable
from hpcext.backends.lsf.ticket import LsfTicket
from hpcext.backends.own_job import OwnJob
from hpcext.backends.suspendable_job import SuspendableJob
from hpcext.batch import lsf
from hpcext.batch.jobs import Jobs, Seen
from hpcext.batch.leasing import Leasing
from hpcext.batch.lsf.engine import starts_on_hosts
from hpcext.batch.lsf.inside import LsfJob
from hpcext.batch.lsf.leasing import LsfLeasing
from hpcext.batch.standing import Is
from hpcext.config import Settings
from hpcext.core.errors import NoManagerError
from hpcext.core.values import Node
from hpcext.executors.base import Executor

JSRUN = "jsrun"


class Lsf(Backend):
    """LSF, or an engine of its line."""

    name = "lsf"
    title = "LSF"
    command = "bsub"
    # A signal to a job reaches all of its processes, and ends some of them.
    polls = True
    # LSF restarts a job whose host it cannot reach.
    begins_elsewhere = True
    # One bkill sends SIGINT and then SIGTERM, JOB_TERMINATE_INTERVAL apart (10 s by default). The
    # second signal is no request to leave at once: as much time again follows it for saving.
    end_signals_s = 60.0
    # LSF first shows a requeued job as EXIT: for 2 to 4 s, as recorded.
    settles_s = 5.0

    def own_job(self) -> JobId | None:
        """Return the name of the job of LSF in which this process runs."""
        here = LsfJob.from_environ()
        return here.name if here is not None else None

    def jobs(self) -> Jobs:
        """Return an object for queries by the commands of LSF."""
        return lsf.Commands()

    @property
    def submitted(self) -> SubmittedPilot:
        """The notes on its job in the directory of a pilot."""
        return lsf_job.SUBMITTED

    def check(self, order: PilotOrder) -> PilotOrder:
        """Refuse a job array."""
        refuse_array(lsf.array_of(order.options))
        return order

    def limit_s(self, time: str) -> float | None:
        """Return the seconds of ``-W``."""
        return lsf.parse_time_limit(time)

    def lacks(self, settings: Settings) -> tuple[str, ...]:
        """Return that GPUs cannot be requested, if bsub has no option for them."""
        return lsf_job.lacks(settings.lsf_launcher, settings.lsf_gpu_option)

    def launcher(self, settings: Settings) -> str:
        """Return the setting ``lsf_launcher``."""
        return settings.lsf_launcher

    def prepare(self, directory: Path, order: PilotOrder, settings: Settings) -> Sequence[str]:
        """Write the script of a pilot, and return the options of bsub for it."""
        return lsf_job.prepare(directory, order, settings)

    def hand_in(self, directory: Path, options: Sequence[str]) -> JobId:
        """Submit the script of a pilot with bsub."""
        return lsf_job.hand_in(directory, options)

    def place(self, run: PilotRun) -> JobPlace:
        """Return the hosts of the job; for a suspendable script, the first one."""
        here = LsfJob.from_environ()
        if here is None:
            raise NoManagerError(
                f"pilot {run.name} runs inside a job of LSF, but this process does not"
            )
        return _script(run, here) if run.alone else _hosts(run, here)

    def go_back(self, directory: Path, *, alone: bool) -> None:
        """Requeue the job in which this process runs, at once or through its script."""
        here = LsfJob.from_environ()
        if here is not None and alone:
            requeue.go_back(here, directory)
        elif here is not None:
            requeue.mark_pilot(directory)

    def advice(self, job_id: JobId, state: Is, seen: Seen) -> str:
        """Return which command resumes a job, unless LSF does it."""
        if seen.said == "SSUSP":
            return "LSF resumes it when there is room for it"
        # Quoted, because a shell takes the brackets of an element for a pattern.
        word = f'"{job_id}"' if "[" in str(job_id) else str(job_id)
        return f"bresume {word} lets it {'begin' if state is Is.HELD else 'go on'}"

    def leasing(self, settings: Settings) -> Leasing:
        """Return what leases hosts of LSF."""
        return LsfLeasing(settings.lsf_gpu_option)

    def ticket(self) -> OwnJob | None:
        """Return the job in which this process runs; None outside LSF."""
        here = LsfJob.from_environ()
        return LsfTicket(here) if here else None

    def write_ticket(self, state_dir: Path, shell: int) -> None:
        """Write the script of a ticket that trains the command of a shell."""
        here = LsfJob.from_environ()
        if here is None:
            super().write_ticket(state_dir, shell)
        else:
            lsf_ticket.write_script(here, state_dir, shell)

    def suspendable(self, command: Sequence[str], shell: int | None) -> SuspendableJob:
        """Return the job in which this process runs, to be made suspendable."""
        here = LsfJob.from_environ()
        if here is None:
            return super().suspendable(command, shell)
        words = [os.fsencode(word) for word in command]
        return LsfSuspendable(here, lsf_suspend.words_of_shell(shell) if shell else words)


def _hosts(run: PilotRun, here: LsfJob) -> JobPlace:
    """Return the hosts of a job; a launcher is used unless the only one is the manager's."""
    # With jsrun, the script runs on a launch node, which is the first of the hosts.
    listed = here.hosts[1:] if run.launcher == JSRUN else here.hosts
    if not listed:
        raise NoManagerError(f"LSF does not say which hosts job {here.name} has")
    gpus = len(run.gpus)
    nodes = tuple(Node(name, gpus) for name, _ in listed)
    times = requeue.restarts(run.directory)
    common: dict[str, Any] = {
        "job_id": here.name,
        "restarts": here.number or times,
        "lead_s": run.lead_s,
    }
    executor: Callable[..., Executor]
    if run.launcher != JSRUN and len(nodes) == 1:
        executor = functools.partial(
            LsfHost, node=nodes[0], indices=here.indices or run.gpus, **common
        )
    else:
        launcher = Launcher(starts_on_hosts(run.launcher), dict(listed), gpus)
        executor = functools.partial(
            LsfSteps, nodes=nodes, launcher=launcher, orphans=run.orphans, **common
        )
    goes_back = functools.partial(requeue.mark_pilot, run.directory)
    return JobPlace(nodes, executor, goes_back, times)


def _script(run: PilotRun, here: LsfJob) -> JobPlace:
    """Return the first host of a job; what its script does on other hosts is its own affair."""
    if not lsf_suspend.known(here, run.directory):
        raise NoManagerError(
            f"pilot {run.name} runs inside its own job of LSF, and this is a different one"
        )
    node = Node(run.node, len(run.gpus))
    runs = lsf_suspend.runs(run.directory)
    executor = functools.partial(
        LsfScript,
        job_id=here.name,
        restarts=runs,
        lead_s=run.lead_s,
        node=node,
        indices=run.gpus,
    )
    goes_back = functools.partial(requeue.go_back, here, run.directory)
    return JobPlace((node,), executor, goes_back, runs - 1)
