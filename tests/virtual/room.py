"""A virtual machine room: a machine on which our real code runs a pilot, and what befalls it."""

from __future__ import annotations

import gc
import logging
import random
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from virtual import calls, loading
from virtual import kernel as kernels
from virtual.kernel import Kernel, Machine, Process

loading.begin()

from virtual import checks, faults, native, shell, training  # noqa: E402
from virtual.checks import HOME, PILOT  # noqa: E402

from hpcext.config import Settings  # noqa: E402
from hpcext.core.errors import HpcextError  # noqa: E402
from hpcext.jobspec import Gpus, JobSpec  # noqa: E402
from hpcext.launch import command, nurseries, supervise  # noqa: E402
from hpcext.manager import journal as journals  # noqa: E402
from hpcext.manager import pilot as pilots  # noqa: E402
from hpcext.manager.directory import NewPilot, create  # noqa: E402
from hpcext.training.checkpoint import hashing  # noqa: E402

Path = loading.module("pathlib").Path
ENTRIES = journals.COMPACT_AFTER

hashing._CHUNK_BYTES = 1 << 12  # a buffer of a megabyte for each small file takes longer than it
# Each supervisor begins by itself: what a nursery saves is the start of an interpreter.
nurseries.AFTER = sys.maxsize
command.fork = lambda child: calls.kernel().fork(child)


PYTHON = "/usr/bin/python3"
COLLECT_AFTER = 500
LEAST_STEPS, MOST_STEPS = 2, 9
"""Of a training; each costs time of the seed's, and few are needed for what goes wrong."""
COMPACTED, COMPACT_AFTER = 0.2, 12
"""How many journals are compacted early, and after how many entries."""
SLOW_STARTS, AT_ONCE = 0.1, 0.2
"""How many programs take long to begin; how many managers are started again at once."""
MOST_S = 600.0
"""Virtual seconds after which a pilot is not over in time."""


class Done(NamedTuple):
    """A step that a training did, as it says itself, outside of all that is tried."""

    at: float
    job: str
    attempt: int
    step: int
    pid: int


class Room:
    """One seed: a machine with GPUs, a pilot with trainings, its managers, and faults.

    Parameters
    ----------
    seed : int

    Attributes
    ----------
    steps : list of Done
    complete : set of str
        Jobs whose training ended as it should.
    obeys_s : float
        The most seconds until a training is suspended, if nothing is in its way.
    hands_over_s : float
        The most seconds from a decision to start an attempt to the begin of its supervisor.
    steps_of, gpus_of : tuple of int
        The fewest and most steps of a training, and GPUs of the machine.
    """

    obeys_s, hands_over_s = 1.0, 0.1
    steps_of, gpus_of = (LEAST_STEPS, MOST_STEPS), (1, 3)
    _left = 0

    def __init__(self, seed: int) -> None:
        # When it collects depends on what was before; what has ended must not do anything then.
        gc.disable()
        if not Room._left:
            gc.freeze()
        self.seed = seed
        self.kernel = Kernel(seed, self._program)
        calls.use(self.kernel)
        self._build()
        self.steps: list[Done] = []
        self.managers: list[Process] = []
        self.starting: set[Process] = set()  # supervisors that have done nothing yet
        self.codes: list[int] = []
        self._log = Log(self.kernel)
        self.jobs = 0
        self.left: Any = None  # what the last manager believed as it ended
        self.faults = self._faults()
        self.checks = checks.Checks(self)

    def kinds(self) -> random.Random:
        """Return chance for what kind each training is, of which nothing else is drawn."""
        return random.Random(f"kinds of {self.seed}")

    def _of_kinds(self, specs: list[JobSpec]) -> list[JobSpec]:
        """Have some trainings be of another kind."""
        return native.some(specs, self.kinds())

    def _build(self) -> None:
        self.machine = self.kernel.machine("node1")
        self.disk = self.machine.disk
        for path, mode, uid in (("/home", 0o755, 0), (HOME, 0o700, 1000), ("/tmp", 0o1777, 0)):
            self.disk.make_directory(path, mode, uid)
        self.disk.settle()

    def _faults(self) -> faults.Faults:
        return faults.Faults(self)

    def processes(self) -> list[Process]:
        """Return the processes of all machines."""
        return [each for machine in self.kernel.machines for each in machine.processes.values()]

    def lacks_a_part(self, op: str) -> bool:
        """Return whether an attempt cannot begin on all its nodes, as one was given back."""
        return False

    # Programs.

    def _program(self, argv: Sequence[str]) -> Callable[[Process], int | None] | None:
        script = next((word for word in argv[1:] if word[:1] != "-"), "")
        if script.endswith("/launch/supervise.py"):
            return self._supervisor
        if argv[0].endswith("/train") or argv[0] == "train":
            return self._train
        return self._ours_first(argv)

    def _train(self, process: Process) -> int:
        train = native.train if process.argv[1] == native.NATIVE else training.train
        return train(self, process)

    def _ours_first(self, argv: Sequence[str]) -> Callable[[Process], int | None] | None:
        """Return a script that hpcext has put before the programs of this name, if it has."""
        first = calls.mine().environ.get("PATH", "").partition(":")[0]
        if "/" in argv[0] or not first.startswith(PILOT):
            return None
        path = f"{first}/{argv[0]}"
        try:
            found: Any = self.disk.find(path)
        except OSError:
            return None
        return shell.script(bytes(found.data).decode(), [path, *argv[1:]])

    def _supervisor(self, process: Process) -> int:
        process.name = "supervisor"
        directory = process.argv[-1]
        self.starting.add(process)
        self.checks.launched(directory)
        self.faults.launched()
        self.begin(0.02, 0.1, 3.0)
        self.starting.discard(process)
        code = supervise.main()
        self.checks.supervised(directory, process, code)
        return code

    def begin(self, least_s: float, usual_s: float, most_s: float) -> None:
        """Take the time that a new program takes: usually little."""
        chance = self.kernel.chance
        slow = chance.random() < SLOW_STARTS
        calls.sleep(chance.uniform(usual_s, most_s) if slow else chance.uniform(least_s, usual_s))

    def manage(self, *, begin: Sequence[JobSpec] = (), gpus: int = 0) -> Process:
        """Start a manager: of a new pilot, or of the one that is there."""

        def program(process: Process) -> int:
            process.name = "manager"
            directory = Path(PILOT)
            self.left = None
            self.begin(0.02, 0.2, 1.0)
            try:
                if begin:
                    create(
                        begin,
                        NewPilot(name="p", gpus=range(gpus), logical=True),
                        settings=Settings(
                            policy="marble",
                            state_dir=Path(f"{HOME}/state"),
                            report_interval_s=self._report_s,
                        ),
                        where="jobs.toml",
                        directory=directory,
                    )
                engine, _ = pilots.run(directory, lambda engine, now_s: None)
                self.left = engine.world.save()
            except (HpcextError, OSError) as error:
                # As the command line does, which says it in one line.
                self.kernel.tell(f"manager: {error}")
                return 2
            return 4 * any(not job.state.final for job in engine.world.jobs.values())

        environ = {"HOME": HOME, "PATH": "/usr/bin"}
        manager = self.kernel.spawn(self.machine, [PYTHON, "hpcext"], environ, program)
        self.managers.append(manager)
        return manager

    # What trainings say, by themselves.

    def restored(self, job: str, attempt: int, step: int, process: Process, launch: Any) -> None:
        """Note where an attempt begins."""
        self.kernel.tell(f"job {job} attempt {attempt} begins after step {step}")
        self.checks.begun(job, attempt, step, process, launch)

    def did(self, job: str, attempt: int, step: int, process: Process) -> None:
        """Note a step."""
        self.steps.append(Done(self.kernel.now, job, attempt, step, process.pid))
        self.checks.did(job, attempt, step, process)

    def saved(self, job: str, attempt: int, step: int, path: str) -> None:
        """Note a checkpoint, once it is committed."""
        self.kernel.tell(f"job {job} attempt {attempt} saved step {step}")
        self.checks.saved(job, step, path)

    def saved_natively(self, job: str, attempt: int, step: int) -> None:
        """Note a checkpoint of a training without a session."""
        self.kernel.tell(f"job {job} attempt {attempt} saved step {step} by itself")
        self.checks.keeps(job, step)

    def replayed(self, past: Any) -> Any:
        """Return the world at the end of a journal."""
        return past.replay().world

    def compact_soon(self) -> None:
        """Have some pilots compact their journals now and then, as only old ones do."""
        soon = random.Random(f"journal of {self.seed}").random() < COMPACTED
        journals.COMPACT_AFTER = COMPACT_AFTER if soon else ENTRIES

    # A whole play.

    def play(self, plan: Sequence[faults.Fault] | None = None, steps: int = 0) -> list[str]:
        """Run a pilot through faults; return what was wrong.

        Parameters
        ----------
        plan : sequence of Fault, optional
            By default as the seed says.
        steps : int
            Of each training; 0 for as many as the seed says.
        """
        kernel, chance = self.kernel, self.kernel.chance
        self.compact_soon()
        self.plan = self.faults.draw(random.Random(self.seed)) if plan is None else list(plan)
        kernel.most_pids = chance.choice([14, 24, 32_768])
        self.jobs = chance.choice([1, 1, 2, 2, 3])
        self.save_every, self.step_s = chance.randint(1, 4), chance.choice([0.25, 0.5, 1.5])
        # What is news must not wait for a look: some look every minute only.
        self._report_s = chance.choice([1.0, 4.0, 60.0])
        steps = steps or chance.randint(*self.steps_of)
        self.specs = specs = self._of_kinds(jobs(self.jobs, steps, 2, chance))
        self.faults.befall(self.plan)
        self.bystand()
        self.manage(begin=specs, gpus=chance.randint(*self.gpus_of))
        self._over, self._holds = False, 3
        self._look_after(specs)
        try:
            kernel.run(lambda: self._over, MOST_S)
            self._check(steps)
        except kernels.Stuck as error:
            self.checks.wrong(str(error))
        return [*self.checks.violations, *kernel.errors]

    def _look_after(self, specs: Sequence[JobSpec]) -> None:
        """Have somebody see to the pilot: a manager that is gone is started again."""
        kernel = self.kernel
        if all(manager.dead for manager in self.managers):
            if self.managers[-1].code == 0:
                self._over = True
                return
            began = PILOT in self._made()
            self.manage(begin=() if began else specs, gpus=2)
        elif kernel.now > self.faults.until_s and self._holds:
            self._release()
        soon = kernel.chance.random() < AT_ONCE
        later = 0.01 if soon else kernel.chance.uniform(0.2, faults.RESUMED_S)
        kernel.at(kernel.now + later, lambda: self._look_after(specs))

    def managed(self) -> None:
        """Have another manager go on, if the last one is gone."""
        if all(manager.dead for manager in self.managers) and self._made():
            self.manage()

    def _made(self) -> set[str]:
        try:
            self.disk.find(f"{PILOT}/pilot.json")
        except OSError:
            return set()
        return {PILOT}

    def _release(self) -> None:
        """Have everything that its user has suspended go on; again if nobody has heard it."""
        self._holds -= 1

        def unheard() -> None:
            self._holds += 1

        for job in range(1, self.jobs + 1):
            self.faults.resume(str(job), unheard if job == 1 else lambda: None)

    def bystand(self, pid: int = 0) -> None:
        """Have somebody else's processes come and go; or a single one with this pid."""
        if pid and not self.machine.next_pid(pid):
            return

        def program(process: Process) -> int:
            process.name = "bystander"
            calls.sleep(self.kernel.chance.uniform(0.01, 3))
            return 0

        machine = self._some_machine()
        process = self.kernel.spawn(machine, ["/bin/editor"], {}, program)
        process.name = "bystander"
        if pid:
            return
        later = self.kernel.chance.uniform(0.5, 3)
        if self.kernel.now < self.faults.until_s:
            self.kernel.at(self.kernel.now + later, self.bystand)

    def _some_machine(self) -> Machine:
        return self.machine

    def _check(self, steps: int) -> None:
        def program(process: Process) -> int:
            process.name = "judge"
            self.checks.over(f"{PILOT}/journal.jsonl", steps)
            return 0

        judge = self.kernel.spawn(self.machine, [PYTHON, "judge"], {}, program)
        self.kernel.run(lambda: judge.dead, self.kernel.now + 10)

    def close(self) -> None:
        """Leave it."""
        kernels.close(self.kernel)
        self._log.close()
        calls.use(None)
        Room._left += 1
        if Room._left % COLLECT_AFTER == 0:
            gc.collect()


def _unraisable(unraisable: Any) -> None:
    if not isinstance(unraisable.exc_value, kernels.Dead):
        sys.__unraisablehook__(unraisable)


sys.unraisablehook = _unraisable
# Of tasks whose process was killed.
logging.getLogger("asyncio").setLevel(logging.CRITICAL)
warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)


class Log(logging.Handler):
    """What managers log, as a part of the story."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self._kernel = kernel
        logger = logging.getLogger("hpcext")
        logger.addHandler(self)
        logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        """Tell it."""
        self._kernel.tell(f"log: {record.getMessage()}")

    def close(self) -> None:
        """Hear no more."""
        logging.getLogger("hpcext").removeHandler(self)
        super().close()


def jobs(count: int, steps: int, gpus: int, chance: random.Random) -> list[JobSpec]:
    """Return trainings of a number of steps; a few of them are not as they should be."""
    return [
        JobSpec(
            f"job{at}", command, gpus=Gpus(1, gpus), work=float(steps),
            scaling={1: 1.0, gpus: 1.5}, suspend_timeout_s=chance.choice([20.0, 5.0]), retries=2,
        )
        for at in range(1, count + 1)
        for command in chance.choices(
            [("train", str(steps)), ("train", "deaf", str(steps)), ("train", "fails", "1"),
             ("missing", "1")],
            [30, 3, 2, 1],
        )
    ]  # fmt: skip
