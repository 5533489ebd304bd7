"""A virtual machine room: a machine on which a pilot of ours runs real code, and what befalls it."""

from __future__ import annotations

import errno
import logging
import signal
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from virtual import calls, kernel as kernels, loading

loading.begin()

from hpcext.config import Settings  # noqa: E402
from hpcext.core.errors import HpcextError  # noqa: E402
from hpcext.jobfile import Gpus, JobSpec  # noqa: E402
from hpcext.launch import command, supervise  # noqa: E402
from hpcext.manager import pilot as pilots  # noqa: E402
from hpcext.manager.directory import NewPilot, create  # noqa: E402
from virtual import training  # noqa: E402

Path = loading.module("pathlib").Path
Kernel, Machine, Process = kernels.Kernel, kernels.Machine, kernels.Process

command.fork = lambda child: calls.kernel().fork(child)  # type: ignore[assignment]

HOME = "/home/user"
PILOT = f"{HOME}/pilot"
PYTHON = "/usr/bin/python3"


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
    """

    def __init__(self, seed: int) -> None:
        self.kernel = Kernel(seed, self._program)
        calls.use(self.kernel)
        self.machine = self.kernel.machine("node1")
        disk = self.machine.disk
        for path, mode, uid in (("/home", 0o755, 0), (HOME, 0o700, 1000), ("/tmp", 0o1777, 0)):
            disk.make_directory(path, mode, uid)
        disk.settle()
        self.steps: list[Done] = []
        self.checkpoints: list[tuple[str, int, int]] = []
        self.begins: list[tuple[str, int, int]] = []
        self.managers: list[Process] = []
        self.codes: list[int] = []
        self._log = Log(self.kernel)

    # Programs.

    def _program(self, argv: Sequence[str]) -> Callable[[Process], int | None] | None:
        script = next((word for word in argv[1:] if word[:1] != "-"), "")
        if script.endswith("/launch/supervise.py"):
            return _supervisor
        if argv[0].endswith("/train") or argv[0] == "train":
            return lambda process: training.train(self, process)
        return None

    def manage(self, *, begin: Sequence[JobSpec] = (), gpus: int = 0) -> Process:
        """Start a manager: of a new pilot, or of the one that is there."""

        def program(process: Process) -> int:
            process.name = "manager"
            directory = Path(PILOT)
            try:
                if begin:
                    create(
                        begin,
                        NewPilot(name="p", gpus=range(gpus), logical=True),
                        settings=Settings(
                            policy="marble", state_dir=Path(f"{HOME}/state"), report_interval_s=1.0
                        ),
                        where="jobs.toml",
                        directory=directory,
                    )
                pilots.run(directory, lambda engine, now_s: None)
            except HpcextError as error:
                self.kernel.tell(f"manager: {error}")
                return 2
            return 0

        environ = {"HOME": HOME, "PATH": "/usr/bin"}
        manager = self.kernel.spawn(self.machine, [PYTHON, "hpcext"], environ, program)
        self.managers.append(manager)
        return manager

    # What trainings say, by themselves.

    def restored(self, job: str, attempt: int, step: int) -> None:
        """Note where an attempt begins."""
        self.kernel.tell(f"job {job} attempt {attempt} begins after step {step}")
        self.begins.append((job, attempt, step))

    def did(self, job: str, attempt: int, step: int, process: Process) -> None:
        """Note a step."""
        self.steps.append(Done(self.kernel.now, job, attempt, step, process.pid))

    def saved(self, job: str, attempt: int, step: int) -> None:
        """Note a checkpoint, once it is committed."""
        self.kernel.tell(f"job {job} attempt {attempt} saved step {step}")
        self.checkpoints.append((job, attempt, step))

    def close(self) -> None:
        """Leave it."""
        kernels.close(self.kernel)
        self._log.close()
        calls.use(None)


def _supervisor(process: Process) -> int:
    process.name = "supervisor"
    return supervise.main()


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


def jobs(count: int, steps: int, gpus: int) -> list[JobSpec]:
    """Return trainings of a number of steps."""
    return [
        JobSpec(
            f"job{at}", ("train", str(steps)), gpus=Gpus(1, gpus), work=float(steps),
            scaling={1: 1.0, gpus: 1.5}, suspend_timeout_s=20.0, retries=2,
        )
        for at in range(1, count + 1)
    ]  # fmt: skip


_: Any = (errno, signal)
