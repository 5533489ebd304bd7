"""Commands that save by their own means under a real supervisor: what is believed, what is lost."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from stage import Stage, end

from hpcext.checkpointers import checkpoint
from hpcext.launch import command, own_checkpoints, tree
from hpcext.launch.native import Native
from hpcext.process import Process

SAVER = str(Path(__file__).parent / "saver.py")
FILE = {"file": "count.txt"}
CLOCKS_S = 0.2
"""What the instants of two clocks may be apart that are read one after the other."""
Run = Callable[..., subprocess.Popen[bytes]]


def launched(stage: Stage, saves: Any, *words: str, steps: int = 1_000_000, **changes: Any) -> Any:
    """Run a saver whose job states how it saves."""
    document = msgspec.to_builtins(checkpoint(saves))
    name = document.get("signal", "none")
    command = (sys.executable, SAVER, name, str(steps), *words)
    return stage.run(*command, checkpoint=document, **changes)


def begun(stage: Stage, saves: Any, *words: str, **changes: Any) -> Any:
    """Run one, and wait until it has done a step."""
    supervisor = launched(stage, saves, *words, **changes)
    stage.wait_said("step")
    return supervisor


def suspend(supervisor: subprocess.Popen[bytes]) -> None:
    supervisor.send_signal(signal.SIGTSTP)


def ended(stage: Stage, supervisor: subprocess.Popen[bytes]) -> dict[str, Any]:
    """The account of an attempt that has ended; nothing of it is left."""
    code = end(supervisor)
    document = stage.read("exit.json")
    assert stage.processes() == []
    assert (code == 85) is document["suspended"]
    return document


def saved_step(stage: Stage) -> int:
    return int((stage.path / "count.txt").read_text())


def by(**done: Any) -> dict[str, Any]:
    return {"signal": "SIGUSR1", "done": done}


# What says that it has saved.


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGUSR2", "SIGTERM", "SIGINT", "SIGHUP"])
def test_a_command_is_asked_by_its_signal_and_its_exit_value_says_that_it_has_saved(
    stage: Stage, name: str
) -> None:
    supervisor = begun(stage, {"signal": name, "done": {"exit": [0, 143]}}, "exit=143")
    suspend(supervisor)
    document = ended(stage, supervisor)
    assert document["suspended"]
    assert document["exit_code"] == 143
    assert document["checkpoint"] == {"saved": True, "lost_s": 0.0, "exact": True}
    (step,) = stage.said("step")[-1]
    assert saved_step(stage) == int(step)


def test_another_exit_value_is_a_failure(stage: Stage) -> None:
    supervisor = begun(stage, by(exit=[143]), "fail")
    suspend(supervisor)
    document = ended(stage, supervisor)
    assert not document["suspended"]
    assert document["exit_code"] == 1


def test_any_exit_value_will_do_where_that_is_stated_and_says_nothing_of_a_loss(
    stage: Stage,
) -> None:
    supervisor = begun(stage, by(exit="any"), "fail")
    suspend(supervisor)
    document = ended(stage, supervisor)
    assert document["suspended"]
    assert document["checkpoint"]["exact"] is False


def test_a_newer_file_says_that_it_has_saved_and_then_it_is_ended(stage: Stage) -> None:
    supervisor = begun(stage, by(**FILE))
    suspend(supervisor)
    document = ended(stage, supervisor)
    assert document["suspended"]
    assert document["checkpoint"]["exact"]
    assert saved_step(stage) >= 1


def test_a_command_that_asks_slurm_to_requeue_it_has_saved_and_slurm_does_not_hear_it(
    stage: Stage,
) -> None:
    programs = stage.path / "programs"
    programs.mkdir()
    scontrol = programs / "scontrol"
    scontrol.write_text(f'#!/bin/sh\necho "$@" >>{stage.path / "slurm"}\n')
    scontrol.chmod(0o755)
    document = msgspec.to_builtins(checkpoint(by(requeue=True)))
    ask = "scontrol show job 1; scontrol -o show nodes; "
    command = f"{ask} exec {sys.executable} {SAVER} SIGUSR1 100000 requeue"
    stage.write_launch("sh", "-c", command, checkpoint=document)
    name, _, value = stage.mark.partition("=")
    supervisor = subprocess.Popen(
        stage.supervisor_argv(),
        env={**os.environ, name: value, "PATH": f"{programs}:{os.environ['PATH']}"},
        stderr=subprocess.PIPE,
    )
    stage.wait_said("step")
    suspend(supervisor)
    assert ended(stage, supervisor)["suspended"]
    assert (stage.path / "slurm").read_text() == "show job 1\n-o show nodes\n"


def test_all_that_is_stated_has_to_be_so(stage: Stage) -> None:
    supervisor = begun(stage, by(exit=[143], **FILE), "exit=143", "old")
    suspend(supervisor)
    document = ended(stage, supervisor)
    assert not document["suspended"]
    assert document["exit_code"] == 143
    assert document["checkpoint"]["saved"] is False


# What does not.


@pytest.mark.parametrize("word", ["old", "torn", "zip", "deaf"])
def test_a_file_that_is_not_newer_or_not_whole_says_nothing_and_the_loss_is_known(
    stage: Stage, word: str
) -> None:
    (stage.path / "count.txt").write_text("3")
    supervisor = begun(stage, by(**FILE), word)
    suspend(supervisor)
    stage.wait_said("told")
    last = len(stage.said("step"))
    stage.wait_said("step", times=last + 100)
    assert supervisor.poll() is None
    # Its manager has waited long enough.
    supervisor.terminate()
    document = ended(stage, supervisor)
    assert not document["suspended"]
    assert document["checkpoint"]["saved"] is False
    assert document["checkpoint"]["exact"]
    ran_s = document["main_ended_at"] - document["started_at"]
    assert document["checkpoint"]["lost_s"] == pytest.approx(ran_s, abs=CLOCKS_S)


def test_a_file_that_is_being_written_is_waited_for(stage: Stage) -> None:
    supervisor = begun(stage, by(**FILE), "open")
    suspend(supervisor)
    stage.wait_said("opened")
    assert supervisor.poll() is None
    (stage.path / "go").touch()
    assert ended(stage, supervisor)["suspended"]


def test_the_end_by_its_manager_is_not_taken_for_the_exit_value_that_is_stated(
    stage: Stage,
) -> None:
    supervisor = begun(stage, by(exit=[143]), "deaf")
    suspend(supervisor)
    stage.wait_said("told")
    supervisor.terminate()
    document = ended(stage, supervisor)
    assert document["exit_code"] == -signal.SIGTERM
    assert not document["suspended"]


def test_a_command_that_has_no_handler_yet_is_asked_once_it_has(stage: Stage) -> None:
    saves = {"signal": "SIGTERM", "done": {"exit": [143]}}
    supervisor = launched(stage, saves, "late", "exit=143")
    stage.wait_said("importing")
    suspend(supervisor)
    suspend(supervisor)
    (stage.path / "go").touch()
    assert ended(stage, supervisor)["suspended"]
    assert len(stage.said("told")) == 1
    assert len(stage.said("saved")) == 1


def test_a_second_suspension_asks_nobody_twice(stage: Stage) -> None:
    supervisor = begun(stage, by(**FILE), "old")
    suspend(supervisor)
    stage.wait_said("told")
    suspend(supervisor)
    suspend(supervisor)
    last = len(stage.said("step"))
    stage.wait_said("step", times=last + 60)
    assert len(stage.said("told")) == 1
    supervisor.terminate()
    ended(stage, supervisor)


def test_only_the_topmost_process_that_handles_the_signal_is_asked(stage: Stage) -> None:
    supervisor = begun(stage, by(exit=[0]), "child", "exit=0")
    suspend(supervisor)
    assert ended(stage, supervisor)["suspended"]
    saved_step(stage)


BOTH = """
import os, signal, sys, time
def hear(signum, frame): open(f"heard-{os.getpid()}", "w").close()
signal.signal(signal.SIGUSR1, hear)
if child := os.fork():
    print(child, flush=True)
while True: time.sleep(1)
"""


def test_what_is_left_of_a_command_is_not_asked_in_its_place(tmp_path: Path) -> None:
    native = Native(msgspec.to_builtins(checkpoint(by(exit=[0]))), tmp_path, tmp_path)
    argv = [sys.executable, "-c", BOTH]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as parent:
        assert parent.stdout is not None
        child = Process.of(int(parent.stdout.readline()))
        above = Process.of(parent.pid)
        assert child is not None
        assert above is not None
        try:
            native.ask([above, child], os.getpid())
            parent.kill()
            parent.wait()
            assert not native.answering()
            native.ask([child], os.getpid())
            assert not native.answering()
        finally:
            os.kill(child.pid, signal.SIGKILL)


ENDS_AT_ONCE = """
import os, signal, subprocess, sys, time
child = (
    "import signal, time\\n"
    "signal.signal(signal.SIGUSR1, lambda *_: open('heard', 'w').close())\\n"
    "print('ready', flush=True)\\n"
    "while True: time.sleep(1)"
)
signal.signal(signal.SIGUSR1, lambda *_: os._exit(0))
print("ready", flush=True)
sys.stdin.readline()
print(subprocess.Popen([sys.executable, "-c", child]).pid, flush=True)
while True: time.sleep(1)
"""


@pytest.fixture
def reaper() -> Iterator[int]:
    """The pid of this process, to which orphans come as to a supervisor."""
    command.become_reaper()
    yield os.getpid()
    command._libc.prctl(command._PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest.mark.parametrize("before", [True, False], ids=["known", "begun since"])
def test_one_that_ends_as_it_is_asked_leaves_nobody_to_be_asked(
    tmp_path: Path, reaper: int, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    native = Native(msgspec.to_builtins(checkpoint(by(exit=[0]))), tmp_path, tmp_path)
    sent = tree.send

    def until_it_has_ended(process: Process, *signums: int) -> bool:
        found = sent(process, *signums)
        until_s = time.monotonic() + 60
        while process.alive() and time.monotonic() < until_s:
            time.sleep(0.01)
        return found

    monkeypatch.setattr(tree, "send", until_it_has_ended)
    argv = [sys.executable, "-c", ENDS_AT_ONCE]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(argv, text=True, cwd=tmp_path, **pipes) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        native.main = parent.pid
        above = Process.of(parent.pid)
        assert above is not None
        parent.stdout.readline()
        parent.stdin.write("go\n")
        parent.stdin.flush()
        lines = {parent.stdout.readline().strip() for _ in range(2)}
        child = Process.of(int((lines - {"ready"}).pop()))
        assert child is not None
        try:
            native.ask([above, child] if before else [above], reaper)
            native.ask([child], reaper)
            assert not native.answering()
            assert not (tmp_path / "heard").exists()
        finally:
            os.kill(child.pid, signal.SIGKILL)
            os.waitpid(child.pid, 0)


# The end of its work.


def test_a_command_that_completes_during_a_suspension_is_complete(stage: Stage) -> None:
    supervisor = begun(stage, by(exit=[143]), "done")
    suspend(supervisor)
    document = ended(stage, supervisor)
    assert document["exit_code"] == 0
    assert not document["suspended"]


# A training that something else has started.


def within(stage: Stage, saves: Any, form: str, *words: str) -> Any:
    """Run a saver within a command, which goes on to write ``after`` into the diary."""
    saver = shlex.join((sys.executable, SAVER, "SIGUSR1", "1000000", *words))
    document = msgspec.to_builtins(checkpoint(saves))
    supervisor = stage.run("sh", "-c", form.format(saver), checkpoint=document)
    stage.wait_said("step")
    return supervisor


PIPE = "{0} | cat >>out.txt; echo after >>diary"


@pytest.mark.parametrize(
    ("done", "form", "words"),
    [
        ({"exit": [143]}, "{0}; echo after >>diary", ["exit=143"]),
        ({"exit": [143]}, PIPE, ["exit=143"]),
        ({"exit": [0]}, "bash -c '{0} && echo after >>diary'; echo after >>diary", ["exit=0"]),
        ({"exit": "any"}, "{0}; echo after >>diary", ["fail"]),
        ({"exit": [143], **FILE}, PIPE, ["exit=143"]),
        (FILE, "{0}; echo after >>diary", ["exit=143"]),
    ],
)
def test_a_script_does_not_go_on_whose_training_has_saved_and_left(
    stage: Stage, done: dict[str, Any], form: str, words: list[str]
) -> None:
    supervisor = within(stage, by(**done), form, *words)
    suspend(supervisor)
    document = ended(stage, supervisor)
    assert document["suspended"]
    assert stage.said("after") == []
    if done != {"exit": "any"}:
        assert document["checkpoint"]["saved"]
        assert document["checkpoint"]["exact"]


@pytest.mark.parametrize("form", ["{0}; echo after >>diary", PIPE])
def test_a_script_goes_on_whose_training_completes_when_it_is_asked(
    stage: Stage, form: str
) -> None:
    supervisor = within(stage, by(exit=[143]), form, "done")
    suspend(supervisor)
    document = ended(stage, supervisor)
    assert (document["suspended"], document["exit_code"]) == (False, 0)
    assert (document["kill_asked_at"], document.get("went_on")) == (None, None)
    assert len(stage.said("after")) == 1


def test_what_has_not_saved_as_stated_is_the_scripts_affair_and_does_not_hold_it(
    stage: Stage,
) -> None:
    supervisor = within(stage, by(exit=[143]), "{0} || exit 5; echo after >>diary", "fail")
    suspend(supervisor)
    document = ended(stage, supervisor)
    assert (document["suspended"], document["exit_code"]) == (False, 5)


DRIVER = "import subprocess, sys; subprocess.run(sys.argv[1:])"


@pytest.mark.parametrize("done", [{"exit": [143]}, {"exit": [143], **FILE}])
def test_a_program_that_goes_on_when_its_training_has_left_has_not_completed(
    stage: Stage, done: dict[str, Any]
) -> None:
    """It is no shell, which could be stopped; nobody knows what it made of the exit value."""
    driver = shlex.join((sys.executable, "-c", DRIVER))
    supervisor = within(stage, by(**done), f"exec {driver} {{0}}", "exit=143")
    suspend(supervisor)
    document = ended(stage, supervisor)
    assert (document["suspended"], document["exit_code"]) == (False, 0)
    assert document["went_on"]
    assert "hpcext: its training was asked to save and left, but" in stage.log.read_text()
    assert document["kill_asked_at"] is not None


def test_nothing_is_said_of_a_loss_of_a_command_that_was_not_suspended(stage: Stage) -> None:
    supervisor = launched(stage, by(**FILE), steps=3)
    document = ended(stage, supervisor)
    assert document["exit_code"] == 0
    assert not document["suspended"]


# Commands that save every so often.


def test_no_more_is_lost_than_it_ran_for_whatever_the_clock_was_set_to(tmp_path: Path) -> None:
    saves = msgspec.to_builtins(checkpoint({"preset": "plain", **FILE}))
    native = Native(saves, tmp_path, tmp_path / "attempt")
    native.begin(print)
    (tmp_path / "count.txt").write_text("3")
    set_forward = time.time() + 3600.0
    told = native.account(acknowledged=True, cut_off=True, ran_s=7.0, ended_at=set_forward)
    assert told == {"saved": True, "lost_s": 7.0, "exact": True}


def test_a_plain_command_is_ended_and_its_loss_is_unknown(stage: Stage) -> None:
    supervisor = begun(stage, "plain")
    suspend(supervisor)
    document = ended(stage, supervisor)
    assert document["suspended"]
    ran_s = document["main_ended_at"] - document["started_at"]
    assert document["checkpoint"] == {
        "saved": False,
        "lost_s": pytest.approx(ran_s, abs=CLOCKS_S),
        "exact": False,
    }


def test_the_loss_of_a_plain_command_is_the_time_since_its_newest_checkpoint(stage: Stage) -> None:
    supervisor = begun(stage, {"preset": "plain", **FILE})
    stage.wait_for((stage.path / "count.txt").exists, "a checkpoint")
    suspend(supervisor)
    document = ended(stage, supervisor)
    assert document["suspended"]
    lost_s = document["main_ended_at"] - (stage.path / "count.txt").stat().st_mtime
    assert document["checkpoint"] == {
        "saved": True,
        "lost_s": pytest.approx(max(0.0, lost_s)),
        "exact": True,
    }


def test_a_plain_command_is_not_ended_while_it_writes(stage: Stage) -> None:
    supervisor = launched(stage, {"preset": "plain", **FILE}, "open")
    stage.wait_said("opened")
    suspend(supervisor)
    stage.wait_for(stage.stopped, "a look")
    assert supervisor.poll() is None
    (stage.path / "go").touch()
    document = ended(stage, supervisor)
    assert document["suspended"]
    assert saved_step(stage) % 10 == 0


def test_a_plain_command_may_be_waited_for_until_it_saves(stage: Stage) -> None:
    supervisor = begun(stage, {"preset": "plain", "after_s": 1000, **FILE})
    suspend(supervisor)
    document = ended(stage, supervisor)
    assert document["suspended"]
    assert document["checkpoint"]["saved"]


def test_a_plain_command_that_does_not_save_in_that_time_is_ended_all_the_same(
    stage: Stage,
) -> None:
    supervisor = begun(stage, {"preset": "plain", "after_s": 0.3, **FILE}, "old")
    suspend(supervisor)
    document = ended(stage, supervisor)
    assert document["suspended"]
    assert document["checkpoint"]["saved"] is False


def test_a_command_that_saves_by_itself_may_have_to_be_waited_for(stage: Stage) -> None:
    supervisor = begun(stage, {"done": FILE})
    suspend(supervisor)
    document = ended(stage, supervisor)
    assert document["suspended"]
    assert document["checkpoint"]["saved"]


# Going on.


def test_the_same_command_goes_on_and_gets_its_newest_checkpoint_as_an_argument(
    stage: Stage,
) -> None:
    saves = {**by(exit=[0], file="*.txt"), "resume": "--from {file} {directory}"}
    left_long_ago(stage.path / "count.txt", "7")
    supervisor = begun(stage, saves, "exit=0")
    assert stage.said("ready")[0][1:] == ["7", "exit=0"]
    added = ["--from", str(stage.path / "count.txt"), str(stage.path)]
    told = f"is older than this job and not used; the command may have {shlex.join(added)}"
    assert told in stage.log.read_text()
    suspend(supervisor)
    assert ended(stage, supervisor)["suspended"]
    step = str(saved_step(stage))
    (stage.path / "later.txt").write_text("")  # empty: not whole
    stage.directory = stage.directory.with_name("attempt-0002")
    stage.directory.mkdir()
    supervisor = launched(stage, saves, "exit=0")
    stage.wait_for(lambda: len(stage.said("ready")) > 1, "the second attempt")
    assert stage.said("ready")[1][1:] == [step, "exit=0", *added]
    assert f"hpcext: goes on from {stage.path / 'count.txt'}" in stage.log.read_text()
    suspend(supervisor)
    assert ended(stage, supervisor)["suspended"]


def left_long_ago(path: Path, text: str) -> None:
    """Write a file as an earlier job has left it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (1e9, 1e9))


def test_what_earlier_jobs_have_left_is_never_taken(tmp_path: Path) -> None:
    """Neither as a checkpoint to go on from, nor as a sign that this job has saved."""
    saves = msgspec.to_builtins(checkpoint("transformers"))
    state = "trainer_state.json"
    left_long_ago(tmp_path / "out" / "last-week" / "checkpoint-500" / state, "{}")
    left_long_ago(tmp_path / "out" / "last-week" / "checkpoint-400" / state, "{}")
    (tmp_path / "jobs").mkdir()
    # The second begins after a failure of the first.
    for number in (1, 2):
        native = Native(saves, tmp_path, tmp_path / "jobs" / f"attempt-{number}")
        assert native.begin(print) == ["--enable_jit_checkpoint"]
    native.ask([], os.getpid())
    # That leaves another one as the newest.
    shutil.rmtree(tmp_path / "out" / "last-week" / "checkpoint-500")
    assert not native.may_go()
    own = tmp_path / "out" / "now" / "checkpoint-5" / state
    own.parent.mkdir(parents=True)
    own.write_text("{}")
    assert native.may_go()
    native = Native(saves, tmp_path, tmp_path / "jobs" / "attempt-3")
    assert native.begin(print)[1:] == ["--resume_from_checkpoint", str(own.parent)]


def test_the_newest_checkpoint_is_taken_however_long_the_search_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one that is newer is seen where others were, though the search is cut off at once."""
    saves = msgspec.to_builtins(checkpoint({"signal": "SIGUSR1", "done": {"file": "**/*.pt"}}))
    saves["resume"] = ["{file}"]
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "deeper").mkdir()
    (tmp_path / "job").mkdir()
    Native(saves, tmp_path, tmp_path / "job" / "attempt-1").begin(print)
    for at, name in enumerate(["b/1.pt", "a/2.pt", "c/3.pt", "b/4.pt", "a/5.pt"]):
        (tmp_path / name).write_text("x")
        os.utime(tmp_path / name, (1e9 + at, 1e9 + at))
    said: list[str] = []
    native = Native(saves, tmp_path, tmp_path / "job" / "attempt-2")
    monkeypatch.setattr(own_checkpoints, "SEARCH_S", -1.0)
    assert native.begin(said.append) == [str(tmp_path / "a" / "5.pt")]
    assert "the search for checkpoints '**/*.pt' took 0 s" in said[0]
    native.ask([], os.getpid())
    assert not native.may_go()
    # It was there before and is found now, as a search gets further.
    (tmp_path / "c" / "deeper" / "0.pt").write_text("x")
    os.utime(tmp_path / "c" / "deeper" / "0.pt", (1e9 + 9, 1e9 + 9))
    monkeypatch.setattr(own_checkpoints, "SEARCH_S", 1e9)
    assert not native.may_go()
    monkeypatch.setattr(own_checkpoints, "SEARCH_S", -1.0)
    (tmp_path / "a" / "6.pt").write_text("x")
    assert native.may_go()


def test_variables_are_added_unless_the_command_has_them(stage: Stage) -> None:
    document = msgspec.to_builtins(checkpoint("lightning"))
    told = stage.path / "told"
    stage.write_launch("sh", "-c", f"env >{told}", checkpoint=document)
    supervisor = subprocess.Popen(
        stage.supervisor_argv(), env={**os.environ, "SLURM_NTASKS": "4"}, stderr=subprocess.PIPE
    )
    end(supervisor)
    environ = dict(line.split("=", 1) for line in told.read_text().splitlines() if "=" in line)
    assert environ["SLURM_NTASKS"] == "4"
    assert environ["SLURM_JOB_ID"] == str(supervisor.pid)
    assert environ["PATH"].startswith(str(stage.directory))


def test_the_signal_has_its_default_action_where_hpcext_ignores_it(stage: Stage) -> None:
    """Lightning takes a signal that is ignored for one that somebody handles."""
    document = msgspec.to_builtins(checkpoint(by(exit=[0])))
    ask = "import signal; print(signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL)"
    end(stage.run(sys.executable, "-c", ask, checkpoint=document))
    assert stage.log.read_text().splitlines()[-1] == "True"


def test_a_session_counts_and_not_what_its_job_states_beside_it(stage: Stage) -> None:
    document = msgspec.to_builtins(checkpoint(by(exit=[0])))
    supervisor = stage.run(*stage.plain(), checkpoint=document)
    stage.wait_said("ready")
    suspend(supervisor)
    document = ended(stage, supervisor)
    assert document["suspended"]
    assert "checkpoint" not in document
    assert stage.read("suspended.json")["step"] >= 1


def test_the_batch_systems_notice_asks_it_as_well(stage: Stage) -> None:
    document = msgspec.to_builtins(checkpoint(by(exit=[143])))
    argv = (sys.executable, SAVER, "SIGUSR1", "100000", "exit=143")
    supervisor = stage.run(*argv, checkpoint=document, notices=True)
    stage.wait_said("step")
    supervisor.send_signal(signal.SIGUSR2)
    assert ended(stage, supervisor)["suspended"]


# Notices of a batch system, which it sends to every process.


def training(stage: Stage) -> psutil.Process:
    ((pid, *_),) = stage.said("ready")
    return psutil.Process(int(pid))


def end_at_notice(stage: Stage, supervisor: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM to both; the training has ended before its supervisor hears of it."""
    one = training(stage)
    supervisor.send_signal(signal.SIGSTOP)
    one.send_signal(signal.SIGTERM)
    stage.wait_for(lambda: one.status() == psutil.STATUS_ZOMBIE, "its end")
    supervisor.send_signal(signal.SIGTERM)
    supervisor.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("done", [{"exit": [0]}, FILE, {"exit": [0], **FILE}])
def test_one_that_saves_at_the_notice_itself_and_is_gone_is_suspended_and_not_complete(
    stage: Stage, done: dict[str, Any]
) -> None:
    supervisor = begun(stage, {"signal": "SIGTERM", "done": done}, "exit=0", notices=True)
    end_at_notice(stage, supervisor)
    document = ended(stage, supervisor)
    assert document["suspended"]
    assert document["checkpoint"] == {"saved": True, "lost_s": 0.0, "exact": True}
    (step,) = stage.said("step")[-1]
    assert saved_step(stage) == int(step)


def test_a_notice_is_no_word_that_it_has_saved(stage: Stage) -> None:
    """It ends by itself with another value, and its checkpoint is an old one."""
    saves = {"signal": "SIGTERM", "done": {"exit": [0]}}
    supervisor = begun(stage, saves, "fail", notices=True)
    end_at_notice(stage, supervisor)
    document = ended(stage, supervisor)
    assert not document["suspended"]
    assert document["exit_code"] == 1


@pytest.mark.parametrize("saves", [None, {"file": "count.txt"}])
def test_a_clean_exit_at_the_notice_is_no_completion(stage: Stage, saves: Any) -> None:
    """Of one that handles the signal although nothing says what it does then."""
    document = {} if saves is None else msgspec.to_builtins(checkpoint(saves))
    command = (sys.executable, SAVER, "SIGTERM", "1000000", "exit=0")
    supervisor = stage.run(*command, checkpoint=document or None, notices=True)
    stage.wait_said("step")
    end_at_notice(stage, supervisor)
    document = ended(stage, supervisor)
    assert (document["suspended"], document["exit_code"]) == (False, 0)
    assert document["notice_at"] is not None
    # What ends with 0 because it was told to has not completed.
    assert document["kill_asked_at"] is not None


def test_one_that_died_of_the_notice_long_before_its_supervisor_heard_it_has_not_failed(
    stage: Stage,
) -> None:
    """A busy node signals the processes of a job one after the other, the youngest first."""
    stage.write_launch(sys.executable, SAVER, "SIGUSR2", "1000000", notices=True)
    # This machine may be busy, too.
    patient = "ending.LAST_SIGTERM_S = 600.0; raise SystemExit(supervise.main())"
    supervisor = subprocess.Popen(
        [sys.executable, "-c", f"from hpcext.launch import ending, supervise; {patient}",
         str(stage.directory)],
        stderr=subprocess.PIPE,
    )  # fmt: skip
    stage.wait_said("step")
    one = training(stage)
    one.send_signal(signal.SIGTERM)
    stage.wait_for(lambda: not one.is_running(), "its end, which its supervisor has seen")
    supervisor.send_signal(signal.SIGTERM)
    document = ended(stage, supervisor)
    assert document["exit_code"] == -signal.SIGTERM
    assert document["notice_at"] is not None


def test_one_that_fails_is_known_to_without_a_wait_for_a_notice(stage: Stage) -> None:
    supervisor = stage.run("false", notices=True)
    document = ended(stage, supervisor)
    assert (document["exit_code"], document["notice_at"]) == (1, None)


def test_one_that_is_asked_otherwise_outlives_the_notice_and_saves(stage: Stage) -> None:
    supervisor = begun(stage, by(exit=[0]), "exit=0", notices=True)
    one = training(stage)
    one.send_signal(signal.SIGTERM)
    # It is sent to both.
    supervisor.send_signal(signal.SIGTERM)
    document = ended(stage, supervisor)
    assert document["suspended"]
    assert document["checkpoint"]["lost_s"] == 0.0


def test_what_outlives_notices_is_still_ended_at_once(stage: Stage) -> None:
    """By a manager's order, which is written down; the grace would be 100 s."""
    supervisor = begun(stage, by(exit=[0]), "deaf", notices=True, kill_grace_s=100.0)
    (stage.directory / "order.json").write_text(
        json.dumps({"schema": "hpcext.order/1", "attempt": 1, "op": 7, "order": "end"})
    )
    supervisor.send_signal(signal.SIGUSR1)
    document = ended(stage, supervisor)
    assert not document["suspended"]
    assert document["exit_code"] == -signal.SIGKILL


def test_one_that_the_signal_of_news_asks_to_save_is_suspended_without_news(stage: Stage) -> None:
    """In a step of Slurm the signal would come to the command as well, whatever the news."""
    supervisor = begun(stage, by(exit=[0]), "exit=0", notices=True)
    order = {"schema": "hpcext.order/1", "attempt": 1, "op": 7, "order": "suspend", "number": 1}
    (stage.directory / "order.new").write_text(json.dumps(order))
    (stage.directory / "order.new").rename(stage.directory / "order.json")
    document = ended(stage, supervisor)
    assert document["suspended"]
    assert len(stage.said("told")) == 1
