"""The pilot of a draw: its directory, its jobs, its managers one after the other."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from judge import Facts, LostError
from plan import GPUS, Job, Plan

from hpcext import documents
from hpcext.core.errors import JournalError
from hpcext.core.world import World
from hpcext.launch import ranks
from hpcext.manager import journal, spool

HERE = Path(__file__).parent
DISK_BYTES = 8 << 20


class Game:
    """A place where a plan is played.

    Parameters
    ----------
    plan : Plan
    path : pathlib.Path
        Its directory, empty.
    small_disk : bool
        Whether ``disk`` in it is one of its own, which can be filled.
    """

    def __init__(self, plan: Plan, path: Path, *, small_disk: bool = False) -> None:
        self.plan = plan
        self.path = path
        self.small_disk = small_disk
        self.facts = Facts()
        self.pilot = path / "disk" / "pilot"
        self.full = threading.Event()
        self._began_s = time.monotonic()
        self._threads: list[threading.Thread] = []
        self._diary = open(path / "played.txt", "w", buffering=1, encoding="utf-8")  # noqa: SIM115
        self._jobs = {job.name: job for job in plan.jobs}
        self.ids = {job.name: str(number) for number, job in enumerate(plan.jobs, start=1)}
        self._managers = 0
        self._lines = 0
        self._read: dict[str, int] = {}
        self.ended: set[str] = set()
        self.manager: subprocess.Popen[bytes] | None = None
        self.done = False
        for name in ("disk", "tmp", "accounts"):
            (path / name).mkdir()
        self.environ = {
            **os.environ,
            "DRAW": str(path),
            "TMPDIR": str(path / "tmp"),
            "XDG_STATE_HOME": str(path / "state"),
            "XDG_CONFIG_HOME": str(path / "config"),
            "HPCEXT_REPORT_INTERVAL_S": "0.2",
            "OMP_NUM_THREADS": "1",
            # Looked for by PyTorch at import, and not there on a machine for tests.
            "CUDA_VISIBLE_DEVICES": "",
        }
        # Where it is set, every process of a draw would compile all that it imports.
        self.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        if any(fault.kind == "jump" for fault in plan.faults):
            before = os.environ.get("PYTHONPATH", "")
            self.environ["PYTHONPATH"] = os.pathsep.join(
                [str(HERE / "shim"), *before.split(os.pathsep)]
            )
            self.environ["DRAW_CLOCK"] = str(path / "clock")

    def say(self, text: str) -> None:
        """Write down what was done, and when."""
        self._diary.write(f"{time.monotonic() - self._began_s:8.3f} s  {text}\n")

    # The jobs.

    def write_jobs(self) -> Path:
        """The job file of the plan."""
        path = self.path / "jobs.toml"
        path.write_text("\n".join(self._table(job) for job in self.plan.jobs))
        return path

    def _table(self, job: Job) -> str:
        low, high, best = job.gpus
        needs = f'after = ["{job.after}"]\n' if job.after else ""
        words = ", ".join(f'"{word}"' for word in self._command(job))
        account = self.path / "accounts" / f"{job.name}.account"
        return (
            f'[[job]]\nname = "{job.name}"\ncommand = [{words}]\nretries = 50\n'
            f"gpus = {{min = {low}, max = {high}, optimal = {best}}}\n"
            f'suspend_timeout_s = {job.timeout_s}\nenv = {{ACCOUNT = "{account}"}}\n{needs}'
        )

    def _command(self, job: Job) -> list[str]:
        script = "nets" if job.kind in {"elastic", "workers"} else job.kind
        train = [sys.executable, str(HERE / "jobs" / f"{script}.py")]
        train += [str(job.epochs), str(job.step_s), str(job.save_every)]
        if job.kind == "arrays":
            train.append("staging" if job.staging else "between")
        if script == "nets":
            train.append(job.kind)
        if job.kind == "elastic":
            return [sys.executable, "-m", "hpcext", "launch", *train]
        if job.kind == "ranks":
            # What `hpcext launch` becomes; without it, since to start it takes longest of all.
            return [sys.executable, "-I", "-S", str(ranks.__file__), "0", *train]
        if job.kind == "workers":
            torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
            return [*torchrun, "--nproc-per-node", "{gpus}", *train[1:]]
        return train

    def lines(self) -> int:
        """How many lines the jobs have written."""
        for path in (self.path / "accounts").iterdir():
            known = self._read.get(path.stem, 0)
            with open(path, "rb") as file:
                file.seek(known)
                text = file.read()
            if text:
                self._read[path.stem] = known + len(text)
                self._lines += text.count(b"\n")
                if b'"event": "end"' in text:
                    self.ended.add(path.stem)
        return self._lines

    # The manager.

    def start_manager(self) -> None:
        """Start the first one, or one that goes on."""
        if (self.pilot / "pilot.json").exists():
            args = ["--resume", str(self.pilot)]
        else:
            # Killed before it was a pilot: nothing was begun, and a user begins anew.
            shutil.rmtree(self.pilot, ignore_errors=True)
            args = [str(self.path / "jobs.toml"), "--gpus", str(GPUS), "--dir", str(self.pilot)]
        self._managers += 1
        with open(self.path / f"manager-{self._managers}.log", "wb") as log:
            self.manager = subprocess.Popen(
                [sys.executable, "-m", "hpcext", "run", *args],
                env=self.environ,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self.path,
            )
        self.say(f"manager {self._managers} started, pid {self.manager.pid}")

    def end_manager(self, *signums: int, pause_s: float = 0.0) -> None:
        """Signal the manager, wait for its end."""
        if self.manager is None:
            return
        for signum in signums:
            self.manager.send_signal(signum)
            time.sleep(pause_s)
        self.manager.wait()
        self.see_manager(signums)

    def see_manager(self, signums: Sequence[int] = ()) -> bool:
        """Whether a manager runs; it may end if told to, and when all is done.

        Raises
        ------
        LostError
            It ended by itself.
        """
        manager = self.manager
        _reap_orphans(manager)
        if manager is None or self.done:
            return False
        if manager.poll() is None:
            return True
        code = manager.returncode
        self.manager = None
        self.say(f"manager {self._managers} ended with {code}")
        states = self.states()
        if (
            code in {0, 1}
            and len(states) == len(self.plan.jobs)
            and "unfinished" not in states.values()
        ):
            self.done = True
        elif code not in {*(-signum for signum in signums), *(128 + signum for signum in signums)}:
            began = False
            # The first one may not even have had room for that.
            with contextlib.suppress(FileNotFoundError):
                facts = documents.read_json(self.pilot / spool.MANAGER_FILE, spool.MANAGER)
                began = facts["pid"] == manager.pid
            # It says so and does nothing if the disk is full when it begins; not later.
            if began or not self.facts.full:
                raise LostError(f"the manager ended by itself with {code}")
        return False

    def world(self) -> World | None:
        """What the journal says; None if there is none."""
        try:
            past = journal.read(self.pilot / "journal.jsonl")
        except JournalError:
            return None
        return past.replay().world

    def states(self) -> dict[str, str]:
        """What became of each job, by the journal."""
        world = self.world()
        if world is None:
            return {}
        return {
            job.name: job.state.value if job.state.final else "unfinished"
            for job in world.jobs.values()
        }


def _reap_orphans(manager: subprocess.Popen[bytes] | None) -> None:
    """What a killed manager leaves becomes our child, as we are a sub-reaper, and must not stay."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None or (manager is not None and ended.si_pid == manager.pid):
            return
        os.waitpid(ended.si_pid, 0)
