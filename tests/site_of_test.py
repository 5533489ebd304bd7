"""A place where a test runs real managers with real jobs, and judges by what the jobs wrote."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import forked_commands
import psutil
from written import whole_lines

COUNTER = Path(__file__).parent / "faults" / "counter.py"
WAIT_S = 240.0


class Step(NamedTuple):
    """One line of a counter's own account."""

    attempt: int
    step: int
    time_s: float
    gpus: frozenset[str]
    pid: int


class Site:
    """A directory with a state directory of its own.

    Parameters
    ----------
    path : pathlib.Path
    python : str
        The interpreter for managers and jobs.
    environ : Mapping[str, str], optional
        In place of ours.
    user : str, optional
        Who runs commands.
    """

    def __init__(
        self,
        path: Path,
        *,
        python: str = sys.executable,
        environ: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> None:
        self.path = path
        self.python = python
        self.user = user
        self.pilot = path / "pilot"
        self.jobs = path / "jobs.toml"
        self.started: list[subprocess.Popen[str]] = []
        self.environ = {
            **(os.environ if environ is None else environ),
            "XDG_STATE_HOME": str(path / "state"),
            "XDG_CONFIG_HOME": str(path / "config"),
            "HPCEXT_REPORT_INTERVAL_S": "0.2",
        }

    def write_jobs(self, *jobs: dict[str, Any]) -> Path:
        """Write a job file; values as JSON are TOML too, but for tables."""
        text = ""
        for job in jobs:
            text += "[[job]]\n"
            for key, value in job.items():
                text += f"{key} = {_toml(value)}\n"
        self.jobs.write_text(text)
        return self.jobs

    def counter(
        self, name: str, *, steps: int = 40, step_s: float = 0.01, save_every: int = 5, **more: Any
    ) -> dict[str, Any]:
        """A counting job for :meth:`write_jobs`.

        With ``deaf=True`` it ignores suspensions; with ``gated=True`` its last step waits for
        :meth:`open`, and with ``endless=True`` the step that it does then is its last one, so that
        the job is still there however slow the machine is.
        """
        command = [self.python, str(COUNTER), str(steps), str(step_s), str(save_every)]
        if more.pop("deaf", False):
            command.append("--deaf")
        if more.pop("gated", False):
            command += ["--gate", str(self._gate(name))]
        if more.pop("endless", False):
            command += ["--until", str(self._gate(name))]
        return {
            "name": name,
            "command": command,
            "env": {"COUNTER_LOG": str(self.path / f"{name}.steps")},
            **more,
        }

    def open(self, name: str) -> None:
        """Let a counter that is gated, or endless, do its last step."""
        self._gate(name).touch()

    def _gate(self, name: str) -> Path:
        return self.path / f"{name}.gate"

    def start(
        self, *args: str, python: tuple[str, ...] = ("-m", "hpcext")
    ) -> subprocess.Popen[str]:
        """Start an hpcext command."""
        process = subprocess.Popen(
            [self.python, *python, *args],
            env=self.environ,
            user=self.user,
            group=self.user,
            extra_groups=[] if self.user else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            cwd=self.path,
        )
        self.started.append(process)
        return process

    def run(
        self,
        *args: str,
        python: tuple[str, ...] = ("-m", "hpcext"),
        timeout_s: float = 2 * WAIT_S,
    ) -> Finished:
        """Run an hpcext command to its end."""
        if python == ("-m", "hpcext") and not forked_commands.SPAWNS.intersection(args):
            return self._run_forked(args, timeout_s)
        process = self.start(*args, python=python)
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"{args} took longer than {timeout_s:g} s: {out}{err}") from None
        return Finished(process.returncode, out, err)

    def _run_forked(self, args: Sequence[str], timeout_s: float) -> Finished:
        forking = forked_commands.commands(self.python, self.user, self.environ)
        try:
            return Finished(*forking.run(args, self.environ, self.path, timeout_s))
        except TimeoutError as error:
            raise AssertionError(f"{args} took longer than {timeout_s:g} s: {error}") from None

    def document(self, *args: str, timeout_s: float = 2 * WAIT_S) -> dict[str, Any]:
        """Run a command with ``--json`` and read what it prints."""
        finished = self.run(*args, "--json", timeout_s=timeout_s)
        try:
            document = json.loads(finished.out)
        except ValueError:
            raise AssertionError(finished) from None
        assert isinstance(document, dict), finished
        return document

    def run_until_done(self, *args: str) -> None:
        """Ask again until it is granted: a manager may have to start first, or a session."""
        asked = self.run(*args)
        deadline = time.monotonic() + WAIT_S
        while asked.code and time.monotonic() < deadline:
            asked = self.run(*args)
        assert asked.code == 0, (asked, self.run("status", args[1]), self.run("why", *args[1:3]))

    def told(self, job: str) -> bool:
        """Whether the suspend signal waits for the session of a job's first attempt."""
        path = self.pilot / "jobs" / job / "attempt-0001" / "report.json"
        status = Path(f"/proc/{json.loads(path.read_text())['pid']}/status").read_text()
        pending = [line for line in status.splitlines() if "Pnd:" in line]
        return any(int(line.split()[1], 16) >> signal.SIGTSTP - 1 & 1 for line in pending)

    def steps(self, name: str) -> list[Step]:
        """What a counter says that it did."""
        path = self.path / f"{name}.steps"
        if not path.exists():
            return []
        steps = []
        for line in whole_lines(path):
            attempt, step, time_s, gpus, pid = line.split()
            held = frozenset(gpus.split(","))
            steps.append(Step(int(attempt), int(step), float(time_s), held, int(pid)))
        return steps

    def left_behind(self) -> list[psutil.Process]:
        """Processes that carry this site's directory in their environment."""
        marker = f"HPCEXT_REPORT_DIR={self.path}"
        found = []
        for process in psutil.process_iter():
            try:
                environ = Path(f"/proc/{process.pid}/environ").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if marker in environ:
                found.append(process)
        return found

    def kill_left_behind(self) -> None:
        """Kill what runs of this site; one may end by itself in between."""
        for process in self.left_behind():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def check_account(self, steps: Mapping[str, int | None], *, save_every: int = 5) -> None:
        """Nothing lost, nothing run twice at once, no GPU shared, no process left.

        ``steps`` says how many each did; None stands for any number.

        Every attempt begins no earlier than the last checkpoint before it; attempts of a job do
        not overlap in time; attempts that overlap in time share no GPU.
        """
        spans = []
        for name, total in steps.items():
            by_attempt: dict[int, list[Step]] = defaultdict(list)
            for step in self.steps(name):
                by_attempt[step.attempt].append(step)
            done = 0
            for attempt, taken in sorted(by_attempt.items()):
                assert len({step.pid for step in taken}) == 1, f"{name} ran twice at once"
                numbers = [step.step for step in taken]
                assert numbers == list(range(numbers[0], numbers[-1] + 1))
                # Killed between its account of a step and the checkpoint there: one earlier.
                saved = max(0, done - 1) // save_every * save_every
                assert saved < numbers[0] <= done + 1, f"{name}: lost steps in attempt {attempt}"
                done = numbers[-1]
                spans.append((taken[0].time_s, taken[-1].time_s, taken[0].gpus, name, attempt))
            assert total in {None, done}, f"{name} ended at step {done} of {total}"
        spans.sort(key=lambda span: span[0])
        for index, one in enumerate(spans):
            for other in spans[index + 1 :]:
                if other[0] < one[1]:
                    assert not one[2] & other[2], f"{one} and {other} share a GPU"
                    assert one[3] != other[3], f"{one} and {other} overlap"
        assert not self.left_behind()


class Finished(NamedTuple):
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    """Wait until a condition holds; what it gave."""
    deadline = time.monotonic() + WAIT_S
    while (begun_s := time.monotonic()) < deadline:
        if value := condition():
            return value
        # One that starts a command is not to keep a processor busy.
        time.sleep(max(0.01, time.monotonic() - begun_s))
    raise AssertionError(f"waited {WAIT_S:g} s in vain for {what}")


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)
