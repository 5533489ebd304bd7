"""Trainings in a pid namespace of their own, as containers may have: their pids are other ones."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from stage import Stage, end

from hpcext.launch import tree
from hpcext.process import Process

# What `apptainer exec --pid` does, and one whose /proc is that of the outside.
CONTAINERS = {
    "own": "unshare --user --map-root-user --pid --fork --mount-proc",
    "outer": "unshare --user --map-root-user --pid --fork",
}
OWN = CONTAINERS["own"]


@pytest.mark.parametrize("proc", CONTAINERS)
def test_a_process_is_known_by_what_it_calls_itself_inside(proc: str) -> None:
    code = "from hpcext.process import Process; print(Process.me(), flush=True); input()"
    argv = [*CONTAINERS[proc].split(), "python3", "-c", code]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as container:
        assert container.stdout is not None
        inside = Process.parse(container.stdout.readline().strip())
        assert inside is not None
        below = tree.descendants(os.getpid())
        found = tree.known_inside_as(inside, below)
        (training,) = psutil.Process(container.pid).children()
        assert found == Process.of(training.pid)
        # And nobody else is it, of whatever pid.
        assert tree.known_inside_as(inside._replace(start=inside.start - 1), below) is None
        assert tree.known_inside_as(inside._replace(pid=training.pid), below) is None
        me = Process.me()
        assert tree.known_inside_as(me, [*below, me]) == me
        container.communicate("\n")


@pytest.mark.parametrize("proc", CONTAINERS)
@pytest.mark.parametrize("word", ["callbacks", ""])
def test_what_a_script_has_after_a_suspended_container_is_not_run(
    stage: Stage, word: str, proc: str
) -> None:
    """Nor what the shell in it has, which is its init: all else there ends with that."""
    training = f"{shlex.join(stage.plain('block', word))}; echo inner >> {stage.diary}"
    container = f"{CONTAINERS[proc]} sh -c {shlex.quote(training)}"
    supervisor = stage.run("bash", "-c", f"{container}; echo outer >> {stage.diary}")
    # It cannot send a signal out of there.
    stage.wait_for((stage.directory / "report.json").exists, "its registration")
    supervisor.send_signal(signal.SIGTSTP)
    assert end(supervisor) == 85
    assert stage.read("exit.json")["suspended"] is True
    said = stage.diary.read_text()
    assert ("called back" in said) == bool(word)
    assert "inner" not in said
    assert "outer" not in said


def test_a_suspension_reaches_a_session_that_is_the_init_of_its_container(stage: Stage) -> None:
    supervisor = stage.run(*OWN.split(), *stage.plain("wait", "block"))
    stage.wait_said("importing")
    supervisor.send_signal(signal.SIGTSTP)
    Path(f"{stage.diary}.go").touch()
    assert end(supervisor) == 85
    assert stage.read("report.json")["pid"] == 1


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGUSR2])
def test_a_notice_that_ends_the_shells_leaves_the_container_time_to_save(
    stage: Stage, signum: int
) -> None:
    training = shlex.join(stage.plain("block", "stubborn", "callbacks"))
    supervisor = stage.run("bash", "-c", f"{OWN} {training}; exit 3", notices=True)
    stage.wait_for((stage.directory / "report.json").exists, "its registration")
    for process in psutil.Process(supervisor.pid).children(recursive=True):
        process.send_signal(signum)
    time.sleep(0.5)
    supervisor.send_signal(signum)
    assert end(supervisor) == 85
    document = stage.read("exit.json")
    assert document["suspended"] is True
    assert "called back" in stage.diary.read_text()


def test_a_container_that_is_cancelled_ends(stage: Stage) -> None:
    """Its init does not even die of SIGTERM, which it does not handle."""
    supervisor = stage.run("sh", "-c", f"{OWN} {shlex.join(stage.plain('block'))}; exit 3")
    stage.wait_said("ready")
    supervisor.terminate()
    end(supervisor)
    document = stage.read("exit.json")
    assert document["suspended"] is False
    assert document["kill_asked_at"] is not None
