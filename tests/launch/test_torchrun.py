"""The supervisor with torchrun, which puts each worker into a session of its own."""

from __future__ import annotations

import signal
import sys

import psutil
from stage import PLAIN, Stage, end, runs

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def test_a_suspension_while_torchrun_imports_reaches_workers_that_come_later(stage: Stage) -> None:
    """Pending signals are not inherited by children: they must be told again."""
    supervisor = stage.run(*TORCHRUN, PLAIN, "block")
    stage.wait_for(lambda: psutil.Process(supervisor.pid).children(), "torchrun")
    supervisor.send_signal(signal.SIGTSTP)
    assert end(supervisor) == 85
    document = stage.read("exit.json")
    assert document["suspended"] is True
    assert document["exit_code"] == 0
    assert len(stage.said("told")) == 2


def test_workers_do_not_outlive_a_killed_torchrun(stage: Stage) -> None:
    supervisor = stage.run(*TORCHRUN, PLAIN, "deaf")
    workers = [int(pid) for pid, *_ in stage.wait_said("ready", 2)]
    [torchrun] = psutil.Process(supervisor.pid).children()
    torchrun.kill()
    assert end(supervisor) == 128 + signal.SIGKILL
    assert stage.read("exit.json")["exit_code"] == -signal.SIGKILL
    assert not any(runs(pid) for pid in workers)
