"""Virtual machine rooms with an LSF."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

from virtual import batch_room, faults, lsf, shell
from virtual.kernel import Process
from virtual.lsf import Job, Lsf, Order, Queue, Site
from virtual.lsf_commands import FILES, Commands
from virtual.lsf_faults import LsfFaults

from hpcext import backends
from hpcext.batch.lsf import probe
from hpcext.config import Settings
from hpcext.launch import spread, sweep

LAUNCH = os.path.dirname(spread.__file__)
SLOTS = 8
"""Of each host."""

SUSPENDS: tuple[dict[str, str], ...] = (
    {}, {"SUSPEND": "SIGTSTP"}, {"SUSPEND": "brequeue $LSB_JOBID"}
)  # fmt: skip
"""What queues do to jobs that others preempt; by default LSF stops them."""

MANAGERLESS = {"kill_manager", "stop_manager"}
"""Faults with which no manager may be there to suspend trainings when a job is to end."""
STOPS_S = 6.0
"""The most seconds until trainings of a job that LSF has stopped have stopped."""
CALM = {
    "main_job", "ask", "stop_allocation", "slow", "fail", "late", "kill_controller", "jump",
    "second_manager", "shorten",
}  # fmt: skip
"""Faults with which they do."""


class LsfRoom(batch_room.BatchRoom):
    """One seed: a pilot in a job of an LSF."""

    batch, kind_of_faults = "lsf", LsfFaults
    options = ("-q", "batch")

    def _set_up(self, chance: random.Random) -> None:
        self.site = Site(
            periodic_s=chance.choice([5.0, 30.0]),
            pim_s=chance.choice([5.0, 30.0]),
            limit_kill_s=chance.choice([10.0, 600.0]),
            exit_shown_s=chance.uniform(2, 4),
            strays_s=chance.choice([5.0, 60.0]),
            at_once=chance.random() < 0.1,
            far=chance.random() < 0.5,
            host_file=chance.random() < 0.5,
            none_fails=chance.random() < 0.5,
        )
        self.controller = Lsf(
            self.kernel, self.workers, self._queues(chance), self.site, cpus=SLOTS, gpus=self.gpus
        )
        self.controller.seen.append(self._killed_at_once)
        self.controller.left.append(self._left)
        self.controller.hearing.append(self._told)
        self.controller.unreached.append(self._unreached)
        self.commands = Commands(self.controller)
        for node in (self.machine, *self.workers):
            own = node.disk.own  # type: ignore[attr-defined]
            own.make_directory("/usr", 0o755, 0)
            own.make_directory("/usr/bin", 0o755, 0)
            for name in FILES:
                own.make(f"/usr/bin/{name}", 0o755, 0)
            lsf.spool_of(node)  # type: ignore[arg-type]
            own.settle()

    def _queues(self, chance: random.Random) -> list[Queue]:
        return [
            Queue("batch", 10, controls=chance.choice(SUSPENDS)),
            Queue("urgent", 100, preemptive=True),
        ]

    def _main_order(self, **what: Any) -> Order:
        return Order(partition="urgent", cpus=SLOTS, limit_s=300.0, **what)

    def _new(self, settings: Settings) -> dict[str, Any]:
        return {"launcher": backends.find("lsf").launcher(settings)}

    def _killed_at_once(self, job: Job, what: str) -> None:
        """Note that nothing of a job has time to save itself."""
        ends = ("is killed", "is requeued", "is at its run limit", "is preempted")
        if self.site.at_once and job.slots > 1 and what.startswith(ends):
            for process in self.processes():
                if process.name == "training" and process.environ.get("LSB_JOBID") == str(job.id):
                    self.faults._harm(process)

    def _left(self, left: Sequence[Process]) -> None:
        """Note what ends with a script whose manager was killed, while its job was to end."""
        if any(fault.what in MANAGERLESS for fault in self.plan):
            for process in left:
                if process.name == "training":
                    self.faults._harm(process)

    def _told(self, hearers: Sequence[Process]) -> None:
        """Note which trainings hear of LSF: whatever becomes of them then is no failure."""
        for process in hearers:
            # One that is about to begin hears it as well.
            if any(word.endswith("/supervise.py") for word in process.argv):
                self.checks.told.add(faults.job_of(process))

    def _unreached(self, process: Process) -> None:
        """Note that a training cannot begin, or loses a part, as its host is gone."""
        if any(word.endswith("/supervise.py") for word in process.argv):
            self.faults._harm(process)

    # Programs.

    def _program(self, argv: Sequence[str]) -> Callable[[Process], int | None] | None:
        if argv[0] == "sh" and argv[-1].endswith(".shell"):
            return _script
        for name, main in (("spread", spread.main), ("sweep", sweep.main)):
            if argv[0] == sys.executable and argv[3:4] == [f"{LAUNCH}/{name}.py"]:
                return lambda process, name=name, main=main: _named(process, name, main)
        return super()._program(argv)

    def _manager(self, process: Process) -> int:
        probe._memory = None
        return super()._manager(process)

    def as_user(self, what: Callable[[], object], name: str = "user") -> Process:
        """Have the user do something on the login node."""

        def do() -> None:
            probe._memory = None
            what()

        return super().as_user(do, name)

    # What must hold.

    def did(self, job: str, attempt: int, step: int, process: Process) -> None:
        """Note a step; check that its job is not stopped."""
        super().did(job, attempt, step, process)
        own = self.controller.jobs.get(int(process.environ.get("LSB_JOBID", 0)))
        if own is None or own.stopped is None or own.run == 0:
            return
        stood_s = self.controller.now - own.stopped
        calm = all(fault.what in CALM for fault in self.plan) and job not in self.checks.deaf
        if calm and stood_s > STOPS_S + 2 * self.step_s:
            self.checks.wrong(f"job {job} trains {stood_s:.1f} s after LSF has stopped its job")


class HarvestRoom(batch_room.HarvestRoom, LsfRoom):
    """One seed: a harvester of hosts of an LSF."""

    script_is_srun = False

    def _queues(self, chance: random.Random) -> list[Queue]:
        self._mains_use_gpus = chance.random() < 0.5
        controls = chance.choice([*SUSPENDS, "terminates"])
        ends = controls == "terminates"
        return [
            *super()._queues(chance),
            Queue(
                "harvest", 1, controls={} if ends else controls, terminates=ends,
                rerunnable=chance.random() < 0.7, policies=chance.choice(["", "BACKFILL"]),
            ),
        ]  # fmt: skip

    def _main_order(self, **what: Any) -> Order:
        return super()._main_order(gpus=self.gpus if self._mains_use_gpus else 0, **what)


def _script(process: Process) -> int:
    process.name = "script"
    return shell.program(process)


def _named(process: Process, name: str, main: Callable[[], int]) -> int:
    process.name = name
    return main()
