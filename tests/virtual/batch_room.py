"""Virtual machine rooms with a batch system: a pilot inside an allocation, and a harvester.

Which batch system it is, how it is set up and what befalls it is said by :mod:`virtual.slurm_room`
and :mod:`virtual.lsf_room`.
"""

from __future__ import annotations

import math
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from msgspec.structs import replace
from virtual import asides, calls, faults, native, nodes, room, shell
from virtual import kernel as kernels
from virtual.batch import Job
from virtual.batch_commands import Commands
from virtual.batch_faults import BatchFaults
from virtual.group import Meeting
from virtual.kernel import Machine, Process
from virtual.room import HOME, PILOT, Path

from hpcext import backends
from hpcext.backends.base import PilotOrder
from hpcext.batch import runner
from hpcext.config import Settings
from hpcext.core.errors import HpcextError
from hpcext.harvest.leases import Terms
from hpcext.jobfile import Gpus, JobSpec, Nodes
from hpcext.launch import agent, supervise
from hpcext.manager import pilot as pilots
from hpcext.manager import standing
from hpcext.manager.directory import NewPilot, create

MOST_S = 3000.0
STEPS = (5, 30)
BROKEN = 0.4
"""How many rooms of several nodes have one on which everything fails."""
PROOF = 0.6
"""In how many of these nothing else happens that could hide a failure."""
LATE_S = 12.0
"""Seconds that a model takes beside grace and cycles until nodes have changed hands."""
CALM = {"main_job", "ask", "kill_manager", "end_manager", "second_manager", "slow", "fail", "late"}
"""Faults with which a job of others waits for the grace at most."""
PROMPT = {"main_job", "ask"}
"""Those with which ours leave at once, without using the grace."""


class BatchRoom(room.Room):
    """One seed: some nodes and a login node, a pilot in a job of a batch system, and other jobs.

    Attributes
    ----------
    controller : Controller
    commands : Commands
    mains : list of Job
        Jobs of others, for which ours have to leave.
    grace_s : float
        Seconds that ours may take for that.
    """

    obeys_s, hands_over_s = 15.0, math.inf
    counts: ClassVar = (1, 3)
    """How many nodes there are."""

    steps_of: ClassVar = STEPS
    batch: ClassVar[str]
    """The name of the backend."""

    options: ClassVar[tuple[str, ...]] = ()
    """Those with which a user submits a pilot."""

    kind_of_faults: ClassVar[type[BatchFaults]]
    script_is_srun = False
    """Whether what ends the script of a job ends its step at once."""

    controller: Any
    commands: Commands

    def _build(self) -> None:
        kernel, chance = self.kernel, self.kernel.chance
        # What a process remembers is the process's: none of it is from another room.
        runner._warned_s[0] = -float("inf")
        self.count = chance.randint(*self.counts)
        names = ["login", *(f"n{at}" for at in range(1, self.count + 1))]
        login, *workers = nodes.cluster(kernel, names, chance.choice([0.0, 1.0, nodes.STALE_S]))
        self.machine, self.workers = login, workers
        self.disk = login.disk.home._server  # type: ignore[attr-defined]
        self.disk.make_directory(HOME, 0o700, 1000)
        self.disk.settle()
        for each in workers:
            each.skew_s = chance.choice([0.0, 0.0, chance.uniform(-2, 2)])
        self.gpus = chance.randint(1, 3)
        self.grace_s = chance.choice([0.0, 30.0, 60.0])
        self._set_up(chance)
        self.meetings: dict[tuple[str, int, int], Meeting] = defaultdict(Meeting)
        self.controller.seen.append(self._begins)
        self.mains: list[Job] = []
        self.asides = asides.Asides(self)

    def _set_up(self, chance: random.Random) -> None:
        """Make the controller and its commands."""
        raise NotImplementedError

    def _faults(self) -> faults.Faults:
        return self.kind_of_faults(self)

    def _some_machine(self) -> Machine:
        up = [each for each in self.workers if each.up]
        return self.kernel.chance.choice(up) if up else self.machine

    # Programs.

    def _program(self, argv: Sequence[str]) -> Callable[[Process], int | None] | None:
        if found := self._ours_first(argv) or self.commands.program(argv):
            return found
        name = argv[0].rpartition("/")[2]
        if name in shell.PROGRAMS:
            return shell.PROGRAMS[name]
        if "hpcext" in argv:
            return self._manager
        if any(word.endswith("/launch/agent.py") for word in argv):
            return _agent
        return super()._program(argv)

    def _manager(self, process: Process) -> int:
        """Do what ``hpcext run --resume`` does."""
        process.name = "manager"
        self.managers.append(process)
        self.left = None
        self.begin(0.02, 0.2, 1.0)
        try:
            engine, _ = pilots.run(Path(process.argv[-1]), lambda engine, now_s: None)
            self.left = engine.world.save()
        except (HpcextError, OSError) as error:
            self.kernel.tell(f"manager: {error}")
            return 2
        return 4 * any(not job.state.final for job in engine.world.jobs.values())

    def _supervisor(self, process: Process) -> int:
        process.name = "supervisor"
        at = next(at for at, word in enumerate(process.argv) if word.endswith("supervise.py"))
        directory = process.argv[at + 1]
        self.starting.add(process)
        self.checks.launched(directory)
        self.begin(0.02, 0.1, 3.0)
        self.starting.discard(process)
        code = supervise.main()
        self.checks.ended(directory, process, code)
        return code

    def _train(self, process: Process) -> int:
        if self.asides.begins(process):
            process.name = "training"
            self.begin(0.02, 0.3, 3.0)
            return asides.FAILS
        return super()._train(process)

    def replayed(self, past: Any) -> Any:
        """Check what the journal says of nodes; return the world at its end."""
        return self.asides.replayed(past)

    def _break_a_node(self, *, chosen: bool) -> None:
        """Have whatever begins on one of several nodes fail, in some rooms.

        Parameters
        ----------
        chosen : bool
            Whether the faults are the room's own.
        """
        chance = random.Random(f"nodes of {self.seed}")
        name = chance.choice(self.workers).name
        if self.count > 1 and self.asides.room_for(name) and chance.random() < BROKEN:
            self.asides.broken = name
            if chance.random() < PROOF:
                # So that nothing hides what speaks against it.
                if chosen:
                    self.plan = [fault for fault in self.plan if fault.what in asides.QUIET]
                self.specs = [replace(spec, nodes=Nodes(1, 1)) for spec in self.specs]

    def _release(self) -> None:
        super()._release()
        for name in (each.name for each in self.workers):
            if ("readmit", name) not in self.asides.refused:
                self.faults.readmit(name)

    def manage(self, **_: Any) -> Process:
        """Have a user start a manager where it does not belong."""
        argv = [sys.executable, "-m", "hpcext", "--quiet", "run", "--resume", PILOT]
        return self.kernel.spawn(self.machine, argv, self._environ(), self._manager)

    def _environ(self) -> dict[str, str]:
        return {"HOME": HOME, "PATH": "/usr/bin"}

    def as_user(self, what: Callable[[], object], name: str = "user") -> Process:
        """Have the user do something on the login node."""

        def program(process: Process) -> int:
            process.name = name
            try:
                what()
            except (HpcextError, OSError) as error:
                self.kernel.tell(f"user: {error}")
                return 1
            return 0

        return self.kernel.spawn(self.machine, ["hpcext"], self._environ(), program)

    # A whole play.

    def play(self, plan: Sequence[faults.Fault] | None = None, steps: int = 0) -> list[str]:
        """Run a pilot through faults; return what was wrong."""
        kernel, chance = self.kernel, self.kernel.chance
        self.compact_soon()
        chosen = random.Random(self.seed)
        self.plan = self.faults.draw(chosen) if plan is None else list(plan)
        kernel.most_pids = chance.choice([40, 32_768])
        steps = steps or chance.randint(*self.steps_of)
        self._prepare(steps)
        self._break_a_node(chosen=plan is None)
        self.faults.befall(self.plan)
        self.bystand()
        self._over, self._holds = False, 20
        kernel.at(1.0, self._look_on)
        try:
            kernel.run(lambda: self._over, MOST_S)
            self._settle()
            self._check(steps)
        except kernels.Stuck as error:
            self.checks.wrong(str(error))
        return [*self.checks.violations, *kernel.errors]

    def _prepare(self, steps: int) -> None:
        chance = self.kernel.chance
        self.jobs = chance.randint(1, 3)
        self.save_every, self.step_s = chance.randint(1, 7), chance.choice([0.25, 0.5])
        self._report_s = chance.choice([1.0, 4.0, 60.0])
        self.specs = self._specs(steps)
        self._limit = chance.choice(["", "1", "2"])
        self._requeue = chance.random() < 0.8
        self._lead_s = chance.choice([10.0, 25.0])
        self._begun = False
        self._user = self.as_user(self._submit)

    def _specs(self, steps: int) -> list[JobSpec]:
        """Return the jobs of the pilot."""
        found = jobs(self.jobs, steps, self.gpus, self.count, self.kernel.chance)
        return native.some(found, self.kinds())

    def _submit(self) -> None:
        """Do what ``hpcext pilot submit`` does."""
        settings = Settings(
            policy="marble",
            state_dir=Path(f"{HOME}/state"),
            report_interval_s=self._report_s,
            batch=self.batch,
        )
        directory = create(
            self.specs,
            NewPilot(
                name="p", gpus=range(self.gpus), batch=self.batch, nodes=self.count,
                lead_s=self._lead_s, requeue=self._requeue, **self._new(settings),
            ),
            settings=settings, where="jobs.toml", directory=Path(PILOT),
        )  # fmt: skip
        backends.find(self.batch).submit(directory, self._order(), settings)

    def _new(self, settings: Settings) -> dict[str, Any]:
        """Return what else a new pilot of this batch system says."""
        return {}

    def _order(self) -> PilotOrder:
        return PilotOrder(
            nodes=self.count, gpus=self.gpus, requeue=self._requeue, time=self._limit,
            options=self.options,
        )  # fmt: skip

    def _resubmit(self) -> None:
        """Do what ``hpcext pilot resubmit`` does."""
        directory = Path(PILOT)
        backend = backends.find(self.batch)
        try:
            backend.submitted.options(directory)
        except HpcextError:
            # Its submission failed, or nobody knows of it: as nobody had begun.
            self._submit_again(directory)
            return
        standing.refuse_resubmission(directory)
        backend.resubmit(directory)

    def _submit_again(self, directory: Any) -> None:
        settings = Settings(policy="marble", state_dir=Path(f"{HOME}/state"), batch=self.batch)
        backends.find(self.batch).submit(directory, self._order(), settings)

    def _ours(self) -> list[Job]:
        """Return the jobs of the pilot, as the controller has them, whatever was answered."""
        return [
            job for job in self.controller.jobs.values()
            if job.order.name.startswith("hpcext-pilot")
        ]  # fmt: skip

    def running(self) -> list[Any]:
        """Return those that run."""
        return [job for job in self._ours() if job.runs]

    def _look_on(self) -> None:
        """Have the user see to the pilot now and then."""
        kernel = self.kernel
        kernel.at(kernel.now + kernel.chance.uniform(2, 8), self._look_on)
        if not self._user.dead:
            return
        ours = self._ours()
        if not all(job.over for job in ours):
            manages = any(not manager.dead for manager in self.managers)
            if kernel.now > self.faults.until_s and self._holds and manages:
                self._release()
            return
        if ours and ours[-1].done:
            self._over = True
            return
        began = PILOT in self._made()
        self._user = self.as_user(self._resubmit if began else self._submit)

    def _settle(self) -> None:
        """Let what is under way come to an end."""
        until = self.kernel.now + 5
        self.kernel.run(lambda: self.kernel.now >= until, until + 10)

    # Jobs of others.

    def main_job(self, chance: random.Random) -> None:
        """Have somebody else submit a job for which ours has to leave."""
        wanted = chance.randint(1, self.count)
        seconds = chance.uniform(1, 20)

        def program(process: Process) -> int:
            process.name = "main"
            calls.sleep(seconds)
            return 0

        order = self._main_order(name="main", nodes=wanted, uid=1001, program=program)
        self.mains.append(self.controller.submit(order))

    def _main_order(self, **what: Any) -> Any:
        """Return an order of whole nodes, for which others have to leave."""
        raise NotImplementedError

    def _begins(self, job: Job, what: str) -> None:
        """Check that a job of others begins as soon as ours has to make room for it."""
        if job not in self.mains or not what.startswith("begins"):
            return
        waited_s = job.began - job.submitted if job.began else 0.0
        others = [each for each in self.mains if each is not job and each.id < job.id]
        alone = all(each.ended is not None and each.ended < job.submitted for each in others)
        calm = all(fault.what in CALM for fault in self.plan) and not self.checks.deaf
        most_s = self.controller.site.cycle_s + LATE_S
        if not all(fault.what in PROMPT for fault in self.plan):
            most_s += self.grace_s
        if alone and calm and waited_s > most_s:
            self.checks.wrong(f"job {job.id} of others waited for {waited_s:.1f} s")


class HarvestRoom(BatchRoom):
    """One seed: a harvester on the login node, which leases idle nodes until others want them."""

    script_is_srun = True
    policy: ClassVar = "marble"
    ends_s: ClassVar = 120.0
    """Seconds after the harvester in which the last lease has to be given back."""

    def _prepare(self, steps: int) -> None:
        chance = self.kernel.chance
        self.jobs = chance.randint(1, 3)
        self.save_every, self.step_s = chance.randint(1, 7), chance.choice([0.25, 0.5])
        self._report_s = chance.choice([1.0, 4.0])
        self.specs = self._specs(steps)
        self._terms = Terms(
            partition="harvest", system=self.batch, gpus=self.gpus,
            least_s=chance.choice([60.0, 180.0]), idle_s=chance.choice([10.0, 60.0]),
            cycle_s=chance.choice([2.0, 15.0]),
        )  # fmt: skip
        self.manage()

    def manage(self, **_: Any) -> Process:
        """Start a harvester: a new one, or that which is there."""
        argv = [sys.executable, "-m", "hpcext", "--quiet", "run", "--resume", PILOT]
        began = PILOT in self._made()
        return self.kernel.spawn(
            self.machine, argv, self._environ(), self._manager if began else self._harvest
        )

    def _harvest(self, process: Process) -> int:
        """Do what ``hpcext harvest start`` does."""
        try:
            create(
                self.specs,
                NewPilot(
                    name="p", gpus=range(self.gpus), nodes=self._terms.max_nodes,
                    harvest=self._terms,
                ),
                settings=Settings(
                    policy=self.policy, state_dir=Path(f"{HOME}/state"), batch=self.batch,
                    report_interval_s=self._report_s,
                ),
                where="jobs.toml", directory=Path(PILOT),
            )  # fmt: skip
        except (HpcextError, OSError) as error:
            self.kernel.tell(f"manager: {error}")
            return 2
        return self._manager(process)

    def _ours(self) -> list[Job]:
        return [job for job in self.controller.jobs.values() if job.order.partition == "harvest"]

    def lacks_a_part(self, op: str) -> bool:
        held = {
            each.argv[-1] for each in self.processes() if each.name == "agent" and not each.dead
        }
        leases: Any = self.disk.find(f"{PILOT}/leases")
        files = (
            name
            for lease, directory in leases.entries.items()
            if f"{PILOT}/leases/{lease}" not in held
            for name in directory.entries
        )
        return any(name.startswith(f"run-{op}-") for name in files)

    def _look_on(self) -> None:
        """Have the user see to the harvester: one that is gone is started again."""
        kernel = self.kernel
        kernel.at(kernel.now + kernel.chance.uniform(1, 5), self._look_on)
        if all(manager.dead for manager in self.managers):
            if self.managers and self.managers[-1].code == 0:
                self._over = True
                return
            if not any(each.name == "starts" and not each.dead for each in self.processes()):
                self.manage().name = "starts"
        elif kernel.now > self.faults.until_s and self._holds:
            self._release()

    def _settle(self) -> None:
        """Wait until the last lease has been given back, and nobody is about to find that out."""

        def over() -> bool:
            managed = any(not manager.dead for manager in self.managers)
            return not managed and all(job.over for job in self._ours())

        self.kernel.run(over, self.kernel.now + self.ends_s)


def _agent(process: Process) -> int:
    process.name = "agent"
    code = agent.main()
    agent._wake_shells()
    return code


def jobs(count: int, steps: int, gpus: int, nodes_: int, chance: random.Random) -> list[JobSpec]:
    """Return trainings of a number of steps, some of them on several nodes."""
    found = []
    for at in range(1, count + 1):
        wide = chance.randint(1, nodes_) if chance.random() < 0.5 else 1
        (command,) = chance.choices(
            [("train", str(steps)), ("train", "deaf", str(steps)), ("train", "fails", "1")],
            [30, 2, 2],
        )
        found.append(
            JobSpec(
                f"job{at}", command, gpus=Gpus(1, gpus), nodes=Nodes(wide, wide),
                work=float(steps), suspend_timeout_s=20.0, retries=2,
            )
        )  # fmt: skip
    return found
