"""The agent of a lease forks supervisors from a process that has imported what their jobs do."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from site_of_test import wait_for
from test_agent import Lease, exit_of
from written import whole_lines

from hpcext import documents, protocol
from hpcext.launch import agent, preload, supervise, supervision
from hpcext.launch.nurseries import PADDING

MODULE = """
import os, pathlib
with pathlib.Path(os.environ["IMPORTS"]).open("a") as file:
    file.write(f"{os.getpid()}\\n")
"""

SEEN = """
import counted, json, os, sys
shown = sorted(os.environ[name] for name in ("CUDA_VISIBLE_DEVICES", "HPCEXT_NODE_INDEX"))
print(json.dumps([shown, sys.argv[1:], sorted(n for n in os.environ if "SLURM" in n)]), flush=True)
"""

WAITS = SEEN + "import time; time.sleep(600)\n"


class Preloading(Lease):
    """A lease whose jobs import a module of ours."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.imports = path / "imports"
        self.script = path / "script.py"
        (path / "counted.py").write_text(MODULE)
        self.write()

    def begin(self, op: int, text: str = SEEN, module: str = "counted", index: int = 0) -> Path:
        self.script.write_text(text)
        words = (sys.executable, str(self.script), "a b")
        return self.attempt(op, *words, index=index, nodes=index + 1, modules=(module,))

    def hold(self, **environ: str) -> psutil.Process:
        """Begin its agent."""
        own = {"IMPORTS": str(self.imports), "PYTHONPATH": str(self.path.parent)}
        return psutil.Process(self.start(**own, **environ).pid)

    def warm(self) -> psutil.Process:
        """Run a first attempt, until the next one can be forked; the process that does it."""
        first = self.begin(1)
        assert exit_of(first)["exit_code"] == 0, (first / "log.txt").read_text()
        return wait_for(self._ready, "the process that has imported the module")

    def _ready(self) -> psutil.Process | None:
        assert self.process is not None
        for each in psutil.Process(self.process.pid).children():
            # The first attempt may have just ended.
            with contextlib.suppress(psutil.Error):
                words = each.cmdline()
                if preload.__file__ in words and PADDING not in words:
                    return each
        return None

    def count(self) -> int:
        return len(self.imports.read_text().split())


@pytest.fixture
def lease(tmp_path: Path) -> Iterator[Preloading]:
    one = Preloading(tmp_path)
    yield one
    if one.process is not None and one.process.poll() is None:
        one.process.kill()
        one.process.wait()


def printed(path: Path, index: int = 0) -> list[str]:
    log = path / ("log.txt" if index == 0 else f"log.node-{index}.txt")
    return whole_lines(log) if log.exists() else []


def said(path: Path, index: int = 0) -> Any:
    return json.loads(printed(path, index)[1])


@pytest.mark.parametrize("index", [0, 2])
def test_later_attempts_see_what_the_first_saw_and_import_nothing(
    lease: Preloading, index: int
) -> None:
    holder = lease.hold(SLURM_JOB_ID="17", SLURM_NODEID="5", SLURM_NTASKS="1")
    ready = lease.warm()
    second = lease.begin(2, index=index)
    assert exit_of(second, index)["exit_code"] == 0
    assert said(lease.path.parent / "attempt-1") == [["0", "3,4"], ["a b"], []]
    assert said(second, index) == [[*sorted([str(index), "3,4"])], ["a b"], []]
    # The first attempt, and the process that is ready.
    assert lease.count() == 2
    (lease.path / agent.RELEASE_FILE).touch()
    assert lease.process is not None
    assert lease.process.wait(30) == 0
    psutil.wait_procs([ready], 30)
    assert not ready.is_running()
    assert not holder.is_running()


def test_a_supervisor_that_was_forked_is_a_child_of_the_agent(lease: Preloading) -> None:
    """It has the command line and the process group that it would have otherwise."""
    holder = lease.hold()
    ready = lease.warm()
    path = lease.begin(2, WAITS)
    supervisor = wait_for(
        lambda: next((each for each in holder.children() if each != ready), None), "its supervisor"
    )
    wait_for(lambda: str(path) in supervisor.cmdline(), "its command line")
    assert supervisor.cmdline()[1:6] == ["-I", "-S", supervise.__file__, str(path), "0"]
    assert os.getpgid(supervisor.pid) == os.getpgid(holder.pid)
    (command,) = wait_for(supervisor.children, "its command")
    assert not ready.children()
    # The agent reaps both, and neither stays as a zombie.
    supervisor.kill()
    psutil.wait_procs([supervisor, command], 30)
    assert not supervisor.is_running()
    assert not command.is_running()
    # And nobody is taken for it: the next one is begun.
    assert exit_of(lease.begin(3))["exit_code"] == 0


@pytest.mark.parametrize("how", ["notice", "killed"])
def test_it_hears_that_the_node_is_wanted_back(lease: Preloading, how: str) -> None:
    holder = lease.hold()
    ready = lease.warm()
    path = lease.begin(2, WAITS)
    wait_for(lambda: len(printed(path)) == 2, "its command")
    if how == "killed":
        holder.kill()
        assert lease.process is not None
        lease.process.wait()
    else:
        holder.send_signal(signal.SIGTERM)
        # As batch systems do it: every process that they know hears it.
        ready.send_signal(signal.SIGTERM)
    assert exit_of(path)["notice_at"] is not None
    psutil.wait_procs([ready, holder], 30)
    assert not ready.is_running()


def test_it_is_given_its_orders(lease: Preloading) -> None:
    lease.hold()
    lease.warm()
    path = lease.begin(2, WAITS)
    wait_for(lambda: len(printed(path)) == 2, "its command")
    order = {"schema": protocol.ORDER, "attempt": 1, "op": 2, "order": "end"}
    documents.write_json(path / protocol.ORDER_FILE, order)
    assert exit_of(path)["exit_code"] == -signal.SIGTERM


def test_what_cannot_be_imported_is_said_and_the_job_runs(lease: Preloading) -> None:
    lease.hold()
    path = lease.begin(1, "import time; time.sleep(600)", module="absent")
    why = path / protocol.UNPRELOADED_FILE
    wait_for(why.exists, "the reason")
    document = documents.read_json(why, protocol.UNPRELOADED)
    assert document["why"] == "absent: ModuleNotFoundError: No module named 'absent'"
    assert exit_of(lease.begin(2, module="absent"))["exit_code"] == 0


def test_one_that_is_killed_does_not_take_its_attempts_with_it(lease: Preloading) -> None:
    lease.hold()
    ready = lease.warm()
    path = lease.begin(2, WAITS)
    wait_for(lambda: len(printed(path)) == 2, "its command")
    ready.kill()
    assert exit_of(lease.begin(3))["exit_code"] == 0
    order = {"schema": protocol.ORDER, "attempt": 1, "op": 2, "order": "end"}
    documents.write_json(path / protocol.ORDER_FILE, order)
    ended = exit_of(path)
    assert (ended["exit_code"], ended["notice_at"]) == (-signal.SIGTERM, None)


@pytest.mark.parametrize("ours", [True, False])
def test_a_supervisor_that_began_unexpectedly_counts(tmp_path: Path, ours: bool) -> None:
    """The process that forks did not answer in time: another one was begun, and found it there."""
    child = subprocess.Popen(["sleep", "600"])
    try:
        document = {"schema": protocol.SUPERVISOR, "pid": child.pid if ours else os.getppid()}
        documents.write_json(tmp_path / protocol.SUPERVISOR_FILE, document)
        attempt = agent._Attempt(1, tmp_path, 0, None)
        assert attempt.is_others() == ours
        assert attempt.pid == (child.pid if ours else 1)
    finally:
        child.kill()
        child.wait()


def test_its_code_is_that_of_a_supervisor() -> None:
    assert agent.TAKEN == supervision.TAKEN
