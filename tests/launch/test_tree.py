"""Finding processes, and never taking one for another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from stage import Stage, runs

from hpcext.launch import tree
from hpcext.protocol import Process

SLEEP = (sys.executable, "-c", "import time; time.sleep(3600)")
# Its name has a blank and a parenthesis in it, as a hostile one may.
NESTED = """
import subprocess, sys
open('/proc/self/comm', 'w').write('a) S 1 (b')
child = subprocess.Popen(sys.argv[1:], start_new_session=True)
print(child.pid, flush=True)
child.wait()
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


def _has_environ(pid: int) -> bool:
    return b"HPCEXT_NOTIFY=" in Path(f"/proc/{pid}/environ").read_bytes()
