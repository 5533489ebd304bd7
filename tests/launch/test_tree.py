"""Finding processes, and never taking one for another."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
from site_of_test import wait_for
from stage import Stage, runs

from hpcext.launch import sweep, tree
from hpcext.process import Process

SLEEP = (sys.executable, "-c", "import time; time.sleep(3600)")
# Its name has a blank and a parenthesis in it, as a hostile one may.
NESTED = """
import subprocess, sys
open('/proc/self/comm', 'w').write('a) S 1 (b')
child = subprocess.Popen(sys.argv[1:], start_new_session=True)
print(child.pid, flush=True)
child.wait()
"""

THREADS = """
import threading
for _ in range(3):
    threading.Thread(target=lambda: exec("while 1: 0")).start()
"""


def test_descendants_are_found_through_sessions_and_odd_names(stage: Stage) -> None:
    argv = [sys.executable, "-c", NESTED, *SLEEP]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            found = tree.descendants(os.getpid())
            pids = [process.pid for process in found]
            assert pids.index(parent.pid) < pids.index(child)
            assert os.getpid() not in pids
            (only,) = tree.descendants(parent.pid)
            assert (only.pid, only.alive()) == (child, True)
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_later_process_with_the_same_pid_gets_no_signal() -> None:
    with subprocess.Popen(SLEEP) as process:
        this = Process.of(process.pid)
        assert this is not None
        earlier = Process(this.pid, this.start - 1)
        assert not tree.send(earlier, signal.SIGKILL)
        assert runs(process.pid)
        assert tree.send(this, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert not tree.send(this, signal.SIGKILL)


def test_marks_are_whole_variables(stage: Stage) -> None:
    mark = f"HPCEXT_NOTIFY=pid:1:{os.getpid()}"
    environ = {"ONE": "1", "HPCEXT_NOTIFY": mark.partition("=")[2]}
    longer = {"HPCEXT_NOTIFY": environ["HPCEXT_NOTIFY"] + "0"}
    with subprocess.Popen(SLEEP, env=environ) as it, subprocess.Popen(SLEEP, env=longer) as other:
        stage.wait_for(lambda: _has_environ(it.pid) and _has_environ(other.pid), "their exec")
        assert [process.pid for process in tree.marked([mark, "NO=such"])] == [it.pid]
        it.kill()
        other.kill()
        it.wait()
        assert tree.marked([mark]) == []


def test_what_a_signal_would_only_stop_does_not_get_it(stage: Stage) -> None:
    with (
        subprocess.Popen(["sleep", "3600"]) as plain,
        subprocess.Popen(["sh", "-c", "trap 'echo told' TSTP; sleep 3600 & wait"], text=True,
                         stdout=subprocess.PIPE, start_new_session=True) as minds,
    ):  # fmt: skip
        stage.wait_for(lambda: _status(minds.pid, "SigCgt") & 1 << signal.SIGTSTP - 1, "its trap")
        stage.wait_for(lambda: _state(plain.pid) == "S", "the other one to sleep")
        try:
            for process in (plain, minds):
                found = Process.of(process.pid)
                assert found is not None
                tree.tell(found, signal.SIGTSTP)
            assert minds.stdout is not None
            assert minds.stdout.readline() == "told\n"
            # One that was told would be stopped for good, or would have the signal pending.
            stage.wait_for(lambda: _state(plain.pid) == "S", "that it sleeps on")
            assert not _status(plain.pid, "ShdPnd")
            assert _state(plain.pid) == "S"
        finally:
            plain.kill()
            os.killpg(minds.pid, signal.SIGKILL)


def _state(pid: int) -> str:
    """Whether it sleeps (S), is stopped (T)..."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _status(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1], 16) for line in lines if line.startswith(f"{name}:"))


def _has_environ(pid: int, mark: str = "HPCEXT_NOTIFY=") -> bool:
    """Whether a process has a variable; one that gives its memory back has none any more."""
    with contextlib.suppress(OSError):
        return mark.encode() in Path(f"/proc/{pid}/environ").read_bytes()
    return False


def test_a_process_does_nothing_once_all_of_its_threads_have_stopped(stage: Stage) -> None:
    with subprocess.Popen([sys.executable, "-c", THREADS]) as process:
        threads = psutil.Process(process.pid)
        stage.wait_for(lambda: threads.num_threads() == 4, "its threads")
        assert not tree.still(process.pid)
        process.send_signal(signal.SIGSTOP)
        stage.wait_for(lambda: tree.still(process.pid), "that it stops")
        assert process.poll() is None
        process.kill()
        stage.wait_for(lambda: tree.still(process.pid), "its end")
    assert tree.still(process.pid)


_PARENT = """
import ctypes, os, signal, sys, time
child = os.fork()
if child == 0:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    # Pages of 4 KiB take long to give back.
    memory = bytearray(700 << 20)
    memory[::4096] = bytes(len(memory) // 4096)
    print(os.getpid(), flush=True)
time.sleep(1000)
"""


def test_what_its_parent_has_taken_along_counts_until_it_has_ended(tmp_path: Path) -> None:
    """It has no environment any more, and would be missed while it gives its memory back."""
    mark = f"HPCEXT_TEST_MARK={tmp_path}"
    name, _, value = mark.partition("=")
    environ = {**os.environ, name: value}
    for _ in range(5):
        with subprocess.Popen(
            [sys.executable, "-c", _PARENT], env=environ, stdout=subprocess.PIPE, text=True
        ) as parent:
            assert parent.stdout is not None
            child = Process.of(int(parent.stdout.readline()))
            supervisor = Process.of(parent.pid)
            assert child is not None
            assert supervisor is not None
            parent.kill()
        # It has begun to end before the first look, which would find it otherwise.
        wait_for(lambda pid=child.pid: not _has_environ(pid, mark), "the beginning of its end")
        victims: set[Process] = set()
        tree.kill_marked([mark], victims)
        dying = sweep.Dying(supervisor)
        while tree.kill_marked([mark], victims) or dying.any():
            victims.clear()
        assert not child.alive()


def test_a_process_lives_until_its_last_thread_has_ended() -> None:
    # exit(2) of one thread.
    number = {"x86_64": 60}.get(os.uname().machine, 93)
    text = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=lambda: time.sleep(1000)).start()\n"
        "print('ready', flush=True)\n"
        f"ctypes.CDLL(None).syscall({number}, 0)\n"
    )
    words = [sys.executable, "-c", text]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            path = Path(f"/proc/{process.pid}/stat")
            wait_for(lambda: " Z " in path.read_text(), "the end of its first thread")
            found = Process.of(process.pid)
            assert found is not None
            assert found.alive()
        finally:
            process.kill()
    assert not found.alive()
