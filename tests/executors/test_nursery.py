"""A nursery: supervisors that are forked are those that would have begun by themselves."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

import psutil
import pytest
from site_of_test import Site, wait_for
from stage import Stage
from test_local import Local, in_loop

from hpcext.core import facts as f
from hpcext.core import values as v
from hpcext.launch import nurseries as starting
from hpcext.launch import nursery as program
from hpcext.launch import supervise

MANY = starting.AFTER + 4


def nurseries(of: int | None = None) -> list[psutil.Process]:
    """Those of a process; by default of this one."""
    found = []
    for each in psutil.Process(of).children():
        # Another test may have left a zombie here.
        with contextlib.suppress(psutil.Error):
            if program.__file__ in each.cmdline():
                found.append(each)
    return found


async def many_end(local: Local, first: int = 1, count: int = MANY) -> None:
    """Run attempts one after the other; if there is a nursery then, it is ready."""
    for number in range(first, first + count):
        local.job(str(number), "true")
        local.start(str(number))
        ended = await local.heard(f.Ended, str(number))
        assert ended.outcome is f.Outcome.COMPLETED, ended
    while any(starting.PADDING in each.cmdline() for each in nurseries()):
        await asyncio.sleep(0.02)


@in_loop
async def test_a_manager_of_few_jobs_has_none(stage: Stage) -> None:
    local = Local(stage)
    await many_end(local, count=starting.AFTER)
    assert not nurseries()
    await many_end(local, first=100)
    assert len(nurseries()) == 1
    local.executor.close()
    assert not nurseries()


@in_loop
async def test_a_supervisor_looks_and_is_asked_as_ever(stage: Stage) -> None:
    """ps shows its command line; it is its own session, and is suspended and killed."""
    local = Local(stage)
    await many_end(local)
    local.start("1000", "block")
    local.start("1001", "deaf")
    await local.registered("1000")
    (of_all,) = nurseries()
    supervisors = {each.cmdline()[4]: each for each in of_all.children()}
    for job in ("1000", "1001"):
        one = supervisors[str(local.jobs / job / "attempt-0001")]
        assert one.cmdline()[1:4] == ["-I", "-S", supervise.__file__]
        assert os.getsid(one.pid) == one.pid
    local.perform(v.Kind.SUSPEND, "1000")
    local.perform(v.Kind.KILL, "1001")
    assert (await local.heard(f.Ended, "1000")).outcome is f.Outcome.SUSPENDED
    assert (await local.heard(f.Ended, "1001")).exit_code == -signal.SIGTERM


@in_loop
async def test_what_it_has_forked_outlives_it(stage: Stage) -> None:
    """And the next ones begin by themselves."""
    local = Local(stage)
    await many_end(local)
    local.start("1000", "block")
    await local.registered("1000")
    (of_all,) = nurseries()
    of_all.kill()
    of_all.wait(10)
    await many_end(local, first=100)
    local.perform(v.Kind.SUSPEND, "1000")
    assert (await local.heard(f.Ended, "1000")).outcome is f.Outcome.SUSPENDED


@in_loop
async def test_one_that_does_not_answer_is_given_up(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it forks afterwards finds that the attempt is another's."""
    monkeypatch.setattr(starting, "ANSWER_S", 0.2)
    local = Local(stage)
    await many_end(local)
    (of_all,) = nurseries()
    of_all.suspend()
    await many_end(local, first=100)
    assert not nurseries()
    lines = [line for path in local.jobs.glob("*/log.txt") for line in path.read_text().split("\n")]
    assert sum(line.startswith("--- attempt 1") for line in lines) == 2 * MANY


def test_it_ends_with_its_manager(site: Site) -> None:
    """A job that runs then goes on, and the next manager has it."""
    short = [{"name": f"j{number}", "command": ["true"]} for number in range(MANY)]
    site.write_jobs(*short, site.counter("only", gated=True, after=["j0"]))
    manager = site.start("run", str(site.jobs), "--gpus", "2", "--dir", str(site.pilot))
    wait_for(lambda: len(site.steps("only")) >= 39, "all steps but the last")
    (of_all,) = nurseries(manager.pid)
    manager.kill()
    manager.communicate()
    psutil.wait_procs([of_all], 60)
    assert not of_all.is_running()
    site.open("only")
    document = site.document("run", "--resume", str(site.pilot))
    assert {job["state"] for job in document["jobs"]} == {"completed"}
    assert [step.step for step in site.steps("only")] == list(range(1, 41))
    assert {step.attempt for step in site.steps("only")} == {1}
