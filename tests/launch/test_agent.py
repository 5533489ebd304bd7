"""The agent of a lease: a real process that supervises real attempts, without a batch system."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from site_of_test import wait_for

from hpcext import documents, protocol
from hpcext.launch import agent
from hpcext.process import Process

SLEEP = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(60)\n"


class Lease:
    """One, with the agent that holds it."""

    def __init__(self, path: Path) -> None:
        self.path = path / "lease"
        self.path.mkdir()
        self.process: subprocess.Popen[bytes] | None = None

    def write(self, **more: Any) -> None:
        document = {"schema": agent.LEASE, "idle_s": 30.0, "leave_at": None, **more}
        documents.write_json(self.path / agent.LEASE_FILE, document)

    def start(self, **environ: str) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-I", "-S", agent.__file__, str(self.path)]
        self.process = subprocess.Popen(words, env={**os.environ, **environ})
        wait_for((self.path / agent.AGENT_FILE).exists, "the agent")
        return self.process

    def attempt(
        self, op: int, *argv: str, index: int = 0, nodes: int = 1, modules: tuple[str, ...] = ()
    ) -> Path:
        """Have an attempt started; its directory."""
        path = self.path.parent / f"attempt-{op}"
        path.mkdir(exist_ok=True)
        attempt = protocol.Attempt("1", 1, op, path, path, 1, num_nodes=nodes, notices=True)
        document = {
            "schema": protocol.LAUNCH, "job": "1", "attempt": 1, "op": op, "argv": argv,
            "cwd": "/", "environ": attempt.environ(), "log": str(path / "log.txt"),
            "gpus": ["n:0"], "kill_grace_s": 0.2, "suspend_timeout_s": 5.0, "manager": None,
            "notices": True, "allocation": "", "preload": modules,
        }  # fmt: skip
        documents.write_json(path / protocol.LAUNCH_FILE, document)
        run = {"schema": agent.RUN, "directory": str(path), "index": index, "devices": "3,4"}
        documents.write_json(self.path / f"run-{op}.json", run)
        return path


@pytest.fixture
def lease(tmp_path: Path) -> Iterator[Lease]:
    one = Lease(tmp_path)
    one.write()
    yield one
    if one.process is not None and one.process.poll() is None:
        one.process.kill()
        one.process.wait()


def exit_of(path: Path, index: int = 0) -> dict[str, Any]:
    file = protocol.node_directory(path, index) / protocol.EXIT_FILE
    wait_for(file.exists, "the end of an attempt")
    document: dict[str, Any] = json.loads(file.read_text())
    return document


def test_it_says_where_it_is_and_with_which_gpus(lease: Lease) -> None:
    place = {"SLURM_JOB_ID": "17", "SLURM_STEP_ID": "0", "SLURMD_NODENAME": "n4"}
    lease.start(**place, CUDA_VISIBLE_DEVICES="0,GPU-12")
    said = documents.read_json(lease.path / agent.AGENT_FILE, agent.AGENT)
    assert (said["job_id"], said["node"], said["devices"]) == (17, "n4", ["0", "GPU-12"])


def test_the_agent_starts_an_attempt_with_its_part_of_the_gpus(lease: Lease) -> None:
    show = "import os; print(sorted(n for n in os.environ if 'SLURM' in n))\n"
    show += "print(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['HPCEXT_NODE_INDEX'])"
    lease.start(SLURM_JOB_ID="17", SLURM_NODEID="5", SLURM_NTASKS="1")
    path = lease.attempt(1, sys.executable, "-c", show)
    other = lease.attempt(2, sys.executable, "-c", show, index=2, nodes=3)
    assert exit_of(path)["exit_code"] == exit_of(other, 2)["exit_code"] == 0
    assert (path / "log.txt").read_text().splitlines()[1:] == ["[]", "3,4 0"]
    assert (other / "log.node-2.txt").read_text().splitlines()[1:] == ["[]", "3,4 2"]


def test_orders_reach_what_runs_there(lease: Lease) -> None:
    lease.start()
    path = lease.attempt(1, sys.executable, "-c", "import time; time.sleep(60)")
    wait_for((path / "log.txt").exists, "its start")
    order = {"schema": protocol.ORDER, "attempt": 1, "op": 1, "order": "end"}
    documents.write_json(path / protocol.ORDER_FILE, order)
    assert exit_of(path)["exit_code"] == -signal.SIGTERM


def test_it_answers_calls(lease: Lease) -> None:
    """Whether something runs there or not."""
    lease.start()
    assert documents.read_json(lease.path / agent.AGENT_FILE, agent.AGENT)["answers"] is True
    call = lease.path / agent.CALL_FILE
    for busy in (False, True):
        if busy:
            lease.attempt(1, "sleep", "60")
        call.touch()
        wait_for(lambda: not call.exists(), "an answer")


def test_it_answers_while_it_leaves(lease: Lease) -> None:
    """Nobody is to take its node for lost while a training there saves itself."""
    process = lease.start()
    path = lease.attempt(1, sys.executable, "-c", SLEEP)
    wait_for((path / protocol.SUPERVISOR_FILE).exists, "its start")
    supervisor = json.loads((path / protocol.SUPERVISOR_FILE).read_text())
    stopped = psutil.Process(supervisor["pid"])
    stopped.suspend()
    process.send_signal(signal.SIGTERM)
    wait_for((lease.path / agent.LEAVING_FILE).exists, "its notice")
    call = lease.path / agent.CALL_FILE
    call.touch()
    wait_for(lambda: not call.exists(), "an answer")
    stopped.resume()
    assert process.wait(60) == 0


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGUSR2, signal.SIGINT, signal.SIGTSTP])
def test_a_node_that_is_wanted_back_is_left_at_once(lease: Lease, signum: int) -> None:
    process = lease.start()
    path = lease.attempt(1, sys.executable, "-c", SLEEP)
    wait_for((path / protocol.SUPERVISOR_FILE).exists, "its start")
    process.send_signal(signum)
    assert process.wait(30) == 0
    assert (lease.path / agent.LEAVING_FILE).exists()
    assert exit_of(path)["notice_at"] is not None
    # And nothing more is started.
    lease.attempt(2, sys.executable, "-c", "")
    assert not (lease.path.parent / "attempt-2" / protocol.SUPERVISOR_FILE).exists()


WAIT = """
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while not Path(sys.argv[1]).exists():
    time.sleep(0.01)
"""


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("goes", "signum"),
    [(True, signal.SIGTERM), (False, signal.SIGTERM), (True, signal.SIGTSTP)],
    ids=["in time", "too late", "in time on LSF"],
)
def test_an_elastic_attempt_has_a_moment_to_leave(lease: Lease, goes: bool, signum: int) -> None:
    """It is suspended only if it stays; what cannot is suspended at once."""
    process = lease.start()
    gate = lease.path / "gate"
    elastic = lease.attempt(1, sys.executable, "-c", WAIT, str(gate), index=1, nodes=2)
    first = lease.attempt(2, sys.executable, "-c", SLEEP)
    for path, index in ((elastic, 1), (first, 0)):
        own = protocol.node_directory(path, index)
        wait_for((own / protocol.SUPERVISOR_FILE).exists, "its start")
        me = Process.me()
        report = {"schema": protocol.REPORT, "pid": 1, "start": me.start, "in_place": True}
        documents.write_json(path / protocol.REPORT_FILE, report)
    process.send_signal(signum)
    # As batch systems do it: every process that they know hears it.
    for child in psutil.Process(process.pid).children():
        child.send_signal(signum)
    wait_for((lease.path / agent.LEAVING_FILE).exists, "the notice")
    began = time.time()
    order = {"schema": protocol.ORDER, "attempt": 1, "op": 2, "order": "end"}
    documents.write_json(first / protocol.ORDER_FILE, order)
    assert exit_of(first)["notice_at"] is not None
    if goes:
        gate.touch()
        assert exit_of(elastic, 1)["notice_at"] is None
        assert process.wait(30) == 0
        return
    # A session would save itself now; this one has none, and is ended by its manager.
    order["op"] = 1
    time.sleep(max(0.0, began + agent.GIVE_WAY_S + 2 * agent.LOOK_S - time.time()))
    documents.write_json(elastic / protocol.ORDER_FILE, order)
    said = exit_of(elastic, 1)["notice_at"]
    assert said is not None
    assert said >= began + agent.GIVE_WAY_S - agent.LOOK_S
    assert process.wait(30) == 0


def test_it_leaves_before_its_lease_ends(lease: Lease) -> None:
    process = lease.start()
    path = lease.attempt(1, sys.executable, "-c", SLEEP)
    wait_for((path / protocol.SUPERVISOR_FILE).exists, "its start")
    lease.write(leave_at=time.time() + 0.2)
    assert process.wait(30) == 0
    assert exit_of(path)["notice_at"] is not None


def test_it_is_released(lease: Lease) -> None:
    process = lease.start()
    (lease.path / agent.RELEASE_FILE).touch()
    assert process.wait(10) == 0


def test_at_its_end_it_continues_only_its_shell(lease: Lease) -> None:
    """LSF stops the shell of a lease; others of its process group are none of our business."""
    words = [sys.executable, "-I", "-S", agent.__file__, str(lease.path)]
    script = 'sleep 600 & "$@"; grep ^State "/proc/$!/status"; kill -KILL $!'
    shell = subprocess.Popen(
        ["sh", "-c", script, "sh", *words],
        start_new_session=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    lease.process = shell
    wait_for((lease.path / agent.AGENT_FILE).exists, "the agent")
    for each in psutil.Process(shell.pid).children():
        if each.name() == "sleep":
            each.suspend()
    shell.send_signal(signal.SIGSTOP)
    (lease.path / agent.RELEASE_FILE).touch()
    said, _ = shell.communicate(timeout=30)
    assert "stopped" in said


def test_an_unused_lease_ends_after_its_idle_time(lease: Lease) -> None:
    """It stays while something runs, and then as long as it was told."""
    lease.write(idle_s=1.5)
    began_s = time.monotonic()
    process = lease.start()
    path = lease.attempt(1, sys.executable, "-c", "import time; time.sleep(2.5)")
    assert process.wait(30) == 0
    assert exit_of(path)["exit_code"] == 0
    assert time.monotonic() - began_s >= 4.0
    assert (lease.path / agent.LEAVING_FILE).read_text() == agent.UNUSED


def test_what_ran_before_is_not_run_again(lease: Lease) -> None:
    """A second agent finds the first one's attempt; only one supervisor takes it."""
    first = lease.start()
    path = lease.attempt(1, sys.executable, "-c", "import time; time.sleep(1)")
    wait_for((path / protocol.SUPERVISOR_FILE).exists, "its start")
    first.kill()
    first.wait()
    lease.write(idle_s=0.5)
    (lease.path / agent.AGENT_FILE).unlink()
    assert lease.start().wait(30) == 0
    exit_of(path)
    assert (path / "log.txt").read_text().count("--- attempt") == 1


@pytest.mark.parametrize("text", ["", "{}", "[", '{"schema": "hpcext.lease-run/1"}'])
def test_an_order_that_makes_no_sense_is_left_out(lease: Lease, text: str) -> None:
    lease.start()
    (lease.path / "run-1.json").write_text(text)
    path = lease.attempt(2, sys.executable, "-c", "")
    assert exit_of(path)["exit_code"] == 0


def test_no_lease(tmp_path: Path) -> None:
    words = [sys.executable, "-I", "-S", agent.__file__, str(tmp_path)]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 71
    assert "the lease cannot be used" in ended.stderr
