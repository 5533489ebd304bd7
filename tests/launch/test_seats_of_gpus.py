"""Supervisors of attempts on a shared GPU: the order in which a client and its daemon end.

NVIDIA's daemon is faked (``tests/fakes/nvidia``), and keeps the account of what it saw.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from stage import Stage, end
from written import whole_lines

from hpcext.core import aftermath
from hpcext.core.facts import Outcome
from hpcext.core.values import Action, Job, Kind, State
from hpcext.executors.attempt.directory import AttemptFiles

NVIDIA = Path(__file__).parents[1] / "fakes" / "nvidia"


class Gpu:
    """A shared GPU, and a stage of which one attempt has a seat on it."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.directory = stage.path / "mps-0"
        self.log = self.directory / "log" / "mps.log"
        self.seat = {"directory": str(self.directory), "device": "GPU-7"}

    @property
    def pipe(self) -> Path:
        """Where the daemon's sockets are."""
        return Path((self.directory / "pipe").read_text())

    def run(self, *words: str, **changes: object) -> subprocess.Popen[bytes]:
        """Supervise a client."""
        stage = self.stage
        stage.write_launch(*self.client(*words), mps=self.seat, **changes)
        return stage.supervise()

    def client(self, *words: str) -> tuple[str, ...]:
        """The command of a job that uses the GPU all the time."""
        python, plain, *more = self.stage.plain(*words)
        return ("env", f"CLIENT_LOG={os.devnull}", python, str(NVIDIA / "client.py"), plain, *more)

    def account(self) -> list[str]:
        """What the daemon says happened, but for its beginning."""
        return whole_lines(self.log)[1:]


@pytest.fixture
def gpu(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    monkeypatch.setenv("PATH", f"{NVIDIA}{os.pathsep}{os.environ['PATH']}")
    yield Gpu(stage)
    if (stage.path / "mps-0" / "pipe").exists():
        shutil.rmtree((stage.path / "mps-0" / "pipe").read_text(), ignore_errors=True)


def test_a_client_that_ends_by_itself_is_let_go(gpu: Gpu) -> None:
    assert end(gpu.run("short")) == 0
    (pid,) = gpu.stage.said("importing")[0]
    assert gpu.account() == [f"client {pid}", f"left {pid}", "quit with 0 clients"]


def test_one_that_is_suspended_saves_and_is_let_go(gpu: Gpu) -> None:
    supervisor = gpu.run("block")
    pid = gpu.stage.wait_said("ready")[0][0]
    supervisor.send_signal(signal.SIGTSTP)
    assert end(supervisor) == 85
    assert gpu.account() == [f"client {pid}", f"left {pid}", "quit with 0 clients"]


@pytest.mark.cases(1)
@pytest.mark.parametrize("words", [("deaf",), ("deaf", "stubborn")])
def test_one_that_is_killed_is_off_the_gpu_before(gpu: Gpu, words: tuple[str, ...]) -> None:
    supervisor = gpu.run(*words)
    pid = gpu.stage.wait_said("ready")[0][0]
    supervisor.terminate()
    assert end(supervisor) > 128
    assert gpu.account() == [
        f"client {pid}", f"terminate_client {pid}", f"left {pid}", "quit with 0 clients",
    ]  # fmt: skip


def test_one_that_answers_sigterm_ends_by_itself(gpu: Gpu) -> None:
    supervisor = gpu.run("deaf", "tidy", kill_grace_s=60)
    pid = gpu.stage.wait_said("ready")[0][0]
    supervisor.terminate()
    assert end(supervisor) == 0
    assert gpu.account() == [f"client {pid}", f"left {pid}", "quit with 0 clients"]


def test_a_daemon_that_is_silent_costs_time_and_nothing_else(gpu: Gpu) -> None:
    """Ten seconds, once: what is to end ends all the same."""
    supervisor = gpu.run("deaf")
    gpu.stage.wait_said("ready")
    daemon = _daemon(gpu)
    os.kill(daemon, signal.SIGSTOP)
    supervisor.terminate()
    _, said = supervisor.communicate(timeout=500)
    os.kill(daemon, signal.SIGKILL)
    assert supervisor.returncode == 128 + signal.SIGTERM
    assert said.count(b"within 10 s") == 1


def test_the_last_to_leave_ends_the_daemon(gpu: Gpu, tmp_path: Path) -> None:
    supervisor = gpu.run("block")
    gpu.stage.wait_said("ready")
    other = Stage(tmp_path / "other")
    other.write_launch(*gpu.client("short"), mps=gpu.seat)
    assert end(other.supervise()) == 0
    assert "quit with 0 clients" not in gpu.account()
    supervisor.send_signal(signal.SIGTSTP)
    assert end(supervisor) == 85
    assert gpu.account()[-1] == "quit with 0 clients"


def test_a_supervisor_that_was_killed_has_left(gpu: Gpu, tmp_path: Path) -> None:
    supervisor = gpu.run("block")
    pid = gpu.stage.wait_said("ready")[0][0]
    supervisor.kill()
    supervisor.communicate()
    gpu.stage.wait_for(lambda: f"FAULT {pid}" in gpu.account(), "its command to die with it")
    other = Stage(tmp_path / "other")
    other.write_launch(*gpu.client("short"), mps=gpu.seat)
    assert end(other.supervise()) == 0
    assert gpu.account()[-1] == "quit with 0 clients"


@pytest.mark.cases(2)
@pytest.mark.parametrize("kind", ["a link", "open to all", "gone"])
def test_a_directory_that_is_not_ours_alone_is_not_used(
    gpu: Gpu, tmp_path: Path, kind: str
) -> None:
    """In ``/tmp`` anybody may have made it first, or another machine's name may be known."""
    planted = tmp_path / "planted"
    if kind == "a link":
        (tmp_path / "theirs").mkdir(mode=0o700)
        planted.symlink_to(tmp_path / "theirs")
    elif kind == "open to all":
        planted.mkdir()
        planted.chmod(0o777)
    gpu.directory.mkdir()
    (gpu.directory / "pipe").write_text(str(planted))
    supervisor = gpu.run("block")
    gpu.stage.wait_said("ready")
    pipe = gpu.pipe
    assert pipe != planted
    assert pipe.stat().st_mode & 0o777 == 0o700
    supervisor.send_signal(signal.SIGTSTP)
    assert end(supervisor) == 85
    assert not pipe.exists(), "its sockets go with the daemon"
    assert kind == "gone" or not list(planted.iterdir())


def test_a_daemon_that_cannot_be_had_is_not_the_jobs_fault(
    gpu: Gpu,
) -> None:
    (gpu.stage.path / "mps-0").write_text("in the way")
    supervisor = gpu.run("short")
    _, said = supervisor.communicate(timeout=500)
    assert supervisor.returncode == 71
    assert b"nothing was run: " in said
    assert not gpu.stage.said("importing")
    assert gpu.stage.read("exit.json")["not_started"].startswith("NotADirectoryError")
    action = Action(Kind.START, "1", 7, 1, {"n": 1})
    ended = AttemptFiles(gpu.stage.path, action).ends.ended()
    assert ended is not None
    assert ended.outcome is Outcome.EVICTED
    assert ended.why.startswith("could not be started: NotADirectoryError")
    job = Job("1", "one", 1, sizes=(1,), stated=(1,), optimal=1, retries=0)
    state, _ = aftermath.after(job, 0.0, ended, progressed=False)
    assert state is State.PENDING


def _daemon(gpu: Gpu) -> int:
    """Its pid, by its own account: it is its server, too."""
    found = subprocess.run(
        [NVIDIA / "nvidia-cuda-mps-control"],
        input="get_server_list\n",
        env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(gpu.pipe)},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(found.stdout)
