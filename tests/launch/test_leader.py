"""What an attempt does when the batch system stops or kills the leader of its job."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator

import pytest

from hpcext.launch.leader import CONTINUE, END, HALT, SUSPEND, Leader
from hpcext.process import Process


@pytest.fixture
def process() -> Iterator[Process]:
    with subprocess.Popen(["sleep", "600"]) as child:
        found = Process.of(child.pid)
        assert found is not None
        yield found
        child.kill()


def stop(process: Process) -> None:
    process.send(signal.SIGSTOP)
    while not process.stopped():
        pass


def go_on(process: Process) -> None:
    process.send(signal.SIGCONT)
    while process.stopped():
        pass


def test_what_saves_itself_is_suspended_and_halted_if_it_does_not_leave(process: Process) -> None:
    leader = Leader(process, 10.0)
    assert leader.look(0.0, saves=True) is None
    stop(process)
    assert [leader.look(at_s, saves=True) for at_s in (1.0, 2.0, 10.9)] == [SUSPEND, None, None]
    assert [leader.look(at_s, saves=True) for at_s in (11.0, 12.0)] == [HALT, HALT]
    go_on(process)
    assert [leader.look(at_s, saves=True) for at_s in (13.0, 14.0)] == [CONTINUE, None]
    stop(process)
    assert leader.look(15.0, saves=True) == SUSPEND
    go_on(process)
    assert leader.look(16.0, saves=True) is None


def test_what_does_not_save_itself_is_halted(process: Process) -> None:
    leader = Leader(process, 10.0)
    stop(process)
    assert [leader.look(at_s, saves=False) for at_s in (1.0, 1.0, 2.0)] == [None, HALT, HALT]


def test_the_end_of_a_leader_is_said_once(process: Process) -> None:
    leader = Leader(process, 10.0)
    process.send(signal.SIGKILL)
    while process.alive():
        pass
    assert [leader.look(at_s, saves=True) for at_s in (1.0, 2.0)] == [END, None]
