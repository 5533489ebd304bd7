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
    """As the base class has it."""

    name = "lsf"
    title = "LSF"
    command = "bsub"
    # What a job is sent reaches all that it has started, and ends some of it.
    polls = True
    # It begins a job again whose host it cannot reach.
    begins_elsewhere = True
    # The signals of one bkill, SIGINT and then SIGTERM, are JOB_TERMINATE_INTERVAL apart, 10 s by
    # default. The second is no order to leave at once: there is as much again for saving.
    end_signals_s = 60.0
    # It shows a job that goes back into the queue as EXIT first: for 2 to 4 s, as was recorded.
    settles_s = 5.0

    def own_job(self) -> JobId | None:
        """As the base class has it."""
        here = LsfJob.from_environ()
        return here.name if here is not None else None

    def jobs(self) -> Jobs:
        """As the base class has it."""
        return lsf.Commands()

    @property
    def submitted(self) -> SubmittedPilot:
        """As the base class has it."""
        return lsf_job.SUBMITTED

    def check(self, order: PilotOrder) -> PilotOrder:
        """Refuse a job array."""
        refuse_array(lsf.array_of(order.options))
        return order

    def limit_s(self, time: str) -> float | None:
        """Return the seconds of ``-W``."""
        return lsf.parse_time_limit(time)

    def lacks(self, settings: Settings) -> tuple[str, ...]:
        """As the base class has it."""
        return lsf_job.lacks(settings.lsf_launcher, settings.lsf_gpu_option)

    def launcher(self, settings: Settings) -> str:
        """As the base class has it."""
        return settings.lsf_launcher

    def prepare(self, directory: Path, order: PilotOrder, settings: Settings) -> Sequence[str]:
        """As the base class has it."""
        return lsf_job.prepare(directory, order, settings)

    def hand_in(self, directory: Path, options: Sequence[str]) -> JobId:
        """As the base class has it."""
        return lsf_job.hand_in(directory, options)

    def place(self, run: PilotRun) -> JobPlace:
        """Return the hosts of the job, or its first one for a script."""
        here = LsfJob.from_environ()
        if here is None:
            raise NoManagerError(
                f"pilot {run.name} runs inside a job of LSF, but this process does not"
            )
        return _script(run, here) if run.alone else _hosts(run, here)

    def go_back(self, directory: Path, *, alone: bool) -> None:
        """As the base class has it."""
        here = LsfJob.from_environ()
        if here is not None and alone:
            requeue.go_back(here, directory)
        elif here is not None:
            requeue.mark_pilot(directory)

    def advice(self, job_id: JobId, state: Is, seen: Seen) -> str:
        """As the base class has it."""
        if seen.said == "SSUSP":
            return "LSF resumes it when there is room for it"
        # To a shell the brackets of an element of an array would be a pattern.
        word = f'"{job_id}"' if "[" in str(job_id) else str(job_id)
        return f"bresume {word} lets it {'begin' if state is Is.HELD else 'go on'}"

    def leasing(self, settings: Settings) -> Leasing:
        """As the base class has it."""
        return LsfLeasing(settings.lsf_gpu_option)

    def ticket(self) -> OwnJob | None:
        """As the base class has it."""
        here = LsfJob.from_environ()
        return LsfTicket(here) if here else None

    def write_ticket(self, state_dir: Path, shell: int) -> None:
        """As the base class has it."""
        here = LsfJob.from_environ()
        if here is None:
            super().write_ticket(state_dir, shell)
        else:
            lsf_ticket.write_script(here, state_dir, shell)

    def suspendable(self, command: Sequence[str], shell: int | None) -> SuspendableJob:
        """As the base class has it."""
        here = LsfJob.from_environ()
        if here is None:
            return super().suspendable(command, shell)
        words = [os.fsencode(word) for word in command]
        return LsfSuspendable(here, lsf_suspend.words_of_shell(shell) if shell else words)


def _hosts(run: PilotRun, here: LsfJob) -> JobPlace:
    """Return the hosts of a job; if that is one, and the manager there, without a launcher."""
    # Where there is jsrun the script runs on a launch node, which is named first.
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
    """Return the first host of a job; what its script does on others is its own."""
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
