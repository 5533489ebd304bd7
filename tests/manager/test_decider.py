"""The policy in a process of its own: whatever it is, however it ends, however late it is."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from hpcext.core import facts as f
from hpcext.core import values as v
from hpcext.core.decisions import Question
from hpcext.core.engine import Engine, Policy
from hpcext.manager import driver as drivers
from hpcext.manager import journal
from hpcext.manager.decider import Decider
from hpcext.policies import find_policy

MARBLE = find_policy("marble")
JOB = v.Job("1", "job1", 1, (1, 2), 2, goal={"n": 1}, held={"n": 1}, state=v.State.RUNNING)
NOW = v.Snapshot(
    5.0, {"n": v.Node("n", 2)}, (JOB,), v.Cause.TIME | v.Cause.NODES, {"a": [1]}, (JOB,)
)


async def asked(decider: Decider, now: v.Snapshot = NOW) -> v.Target | str:
    """Ask, and wait for the answer."""
    awake = asyncio.Event()
    decider.ask(Question(1, now), awake.set)
    said = decider.take()
    if said is None:
        await asyncio.wait_for(awake.wait(), 120)
        said = decider.take()
    assert said is not None
    return said


def nobody_left(before: set[psutil.Process]) -> None:
    """A killed process is not waited for by who killed it."""
    _gone, alive = psutil.wait_procs(set(psutil.Process().children()) - before, timeout=500)
    assert not alive, "it is still there"


def answers(policy: Policy, times: int = 1, timeout_s: float = 120.0) -> list[v.Target | str]:
    """What a policy of another process says."""
    before = set(psutil.Process().children())

    async def main() -> list[v.Target | str]:
        decider = Decider(policy, quick=False, timeout_s=timeout_s)
        decider.begin()
        try:
            return [await asked(decider) for _ in range(times)]
        finally:
            decider.close()

    try:
        return asyncio.run(main())
    finally:
        nobody_left(before)


@pytest.mark.parametrize("quick", [True, False])
def test_it_sees_the_same_snapshot_and_says_the_same(quick: bool) -> None:
    """A function of the caller's own, in this process or in another one."""
    here, memo = os.getpid(), {"there": False, "seen": ()}

    def policy(now: v.Snapshot) -> v.Target:
        assert now == NOW
        return replace(MARBLE(now), memo={**memo, "there": os.getpid() != here})

    async def main() -> v.Target | str:
        decider = Decider(policy, quick=quick, timeout_s=120.0)
        decider.begin()
        try:
            return await asked(decider)
        finally:
            decider.close()

    # Of a memo a tuple comes back as JSON has it, wherever it was made.
    memo_back = {"there": not quick, "seen": []}
    assert asyncio.run(main()) == replace(MARBLE(NOW), memo=memo_back)


def test_it_remembers_what_it_has_fitted() -> None:
    """The process stays: a solver is imported once, and a fit that is known is not made again."""
    calls: list[int] = []

    def policy(now: v.Snapshot) -> v.Target:
        calls.append(os.getpid())
        return v.Target(memo={"calls": len(calls)})

    said = answers(policy, 3)
    assert [each.memo for each in said if isinstance(each, v.Target)] == [
        {"calls": 1},
        {"calls": 2},
        {"calls": 3},
    ]
    assert calls == []


def test_past_its_deadline_it_is_ended_and_the_next_question_has_an_answer(tmp_path: Path) -> None:
    first = tmp_path / "first"

    def policy(now: v.Snapshot) -> v.Target:
        if not first.exists():
            first.touch()
            while True:
                """Pure Python: in a thread it could not be ended."""
        return MARBLE(now)

    assert answers(policy, 2, timeout_s=4.0) == ["did not answer within 4 s", MARBLE(NOW)]


def test_one_that_fails_says_how() -> None:
    def policy(now: v.Snapshot) -> v.Target:
        raise ZeroDivisionError("of something")

    assert answers(policy, 2) == ["failed with ZeroDivisionError: of something"] * 2


@pytest.mark.parametrize("said", [None, v.Target(memo={"open": object()})])
def test_a_policy_without_a_target_is_reported(said: v.Target) -> None:
    found = answers(lambda now: said, 2)
    assert all("returned an invalid target" in str(each) for each in found)


def test_a_policy_whose_process_dies_is_reported_and_asked_in_another(tmp_path: Path) -> None:
    first = tmp_path / "first"

    def policy(now: v.Snapshot) -> v.Target:
        if not first.exists():
            first.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return MARBLE(now)

    died, said = answers(policy, 2)
    assert isinstance(died, str)
    assert died.startswith("ran in a process that ended")
    assert said == MARBLE(NOW)


def test_where_no_process_can_be_made_it_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither at the start, nor for the first question, nor in place of one that has died."""
    fails, fork = [True, True, False, True], os.fork

    def failing() -> int:
        if fails and fails.pop(0):
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return fork()

    def policy(now: v.Snapshot) -> v.Target:
        if fails:
            os.kill(os.getpid(), signal.SIGKILL)
        return MARBLE(now)

    monkeypatch.setattr(os, "fork", failing)
    before = len(os.listdir("/proc/self/fd"))
    refused = "could not be asked: BlockingIOError: [Errno 11] Resource temporarily unavailable"
    first, died, *others = answers(policy, 4)
    assert str(died).startswith("ran in a process that ended")
    assert [first, *others] == [refused, refused, MARBLE(NOW)]
    assert len(os.listdir("/proc/self/fd")) == before


def test_an_older_question_is_given_up(tmp_path: Path) -> None:
    def policy(now: v.Snapshot) -> v.Target:
        while now.now_s < 6.0:
            time.sleep(0.01)
        return MARBLE(now)

    before = set(psutil.Process().children())

    async def main() -> v.Target | str:
        decider = Decider(policy, quick=False, timeout_s=120.0)
        decider.begin()
        try:
            decider.ask(Question(1, NOW), lambda: None)
            await asyncio.sleep(0.05)
            return await asked(decider, replace(NOW, now_s=7.0))
        finally:
            decider.close()

    assert asyncio.run(main()) == MARBLE(NOW)
    nobody_left(before)


class Nodes:
    """Two nodes that trainings run on; a node that is to be given back is taken after its grace.

    A training that is suspended before that has saved its steps; one that is not loses them.
    """

    def __init__(self, emit: Callable[[f.Fact], None]) -> None:
        self.emit = emit
        self.told: list[tuple[v.Kind, str]] = []

    def perform(self, action: v.Action) -> None:
        self.told.append((action.kind, action.job))
        if action.kind is v.Kind.START:
            gpus = tuple(f"{node}:0" for node in action.alloc)
            self.emit(f.Started(action.job, action.op, gpus))
            self.emit(f.Registered(action.job, action.op, 0))
            self.emit(f.Progressed(action.job, action.op, 500, 0, 500.0))
        elif action.kind is v.Kind.SUSPEND:
            self.emit(f.Progressed(action.job, action.op, 500, 500, 500.0))
            self.emit(f.Ended(action.job, action.op, f.Outcome.SUSPENDED, 85))
        else:
            self.emit(f.Ended(action.job, action.op, f.Outcome.FAILED, -9))

    def look(self) -> None:
        """Nothing is written here."""

    def close(self) -> None:
        """Nothing to end."""


def test_a_node_is_left_in_its_grace_while_the_policy_thinks(tmp_path: Path) -> None:
    """It would think for an hour, of a job that came; the node is wanted back after 10 s."""

    def policy(now: v.Snapshot) -> v.Target:
        while any(job.id == "3" for job in now.jobs):
            time.sleep(0.01)
        return MARBLE(now)

    path, engine = tmp_path / "j", Engine()
    book = journal.Journal(path, journal.Header(began_at=0.0, policy="marble"))
    answered: list[bool] = []

    def requests() -> Iterator[tuple[tuple[f.Fact, ...], Callable[[], None]]]:
        if engine.wants is not None and engine.world.slow is False and not answered:
            yield (), lambda: answered.append(True)

    async def main() -> Nodes:
        turns = 0

        def observe(seen: Engine, now_s: float) -> None:
            nonlocal turns
            running = [job for job in seen.world.jobs.values() if job.step]
            if len(running) == 2 and not turns:
                turns = 1
                driver.emit(f.Submitted(replace(JOB, id="3", order=3, **PENDING)))
            elif turns == 1 and seen.wants is not None:
                turns = 2
                driver.emit(f.NodeJoined(v.Node("m", 0)))
                asyncio.get_running_loop().call_later(10.0, driver.emit, f.NodeLost("m"))
            elif turns == 2 and "m" not in seen.world.nodes:
                turns = 3
                driver.emit(f.Drain(suspend=True))

        decider = Decider(policy, quick=False, timeout_s=3600.0)
        driver = drivers.Driver(
            engine, book, decider, base_s=0.0, interval_s=0.1, requests=requests, observe=observe
        )
        nodes = Nodes(driver.emit)
        for fact in (f.NodeJoined(v.Node("n", 1)), f.NodeJoined(v.Node("m", 1))):
            driver.emit(fact)
        for number in (1, 2):
            job = replace(JOB, id=str(number), order=number, sizes=(1,), optimal=1, **PENDING)
            driver.emit(f.Submitted(job))
        await driver.run(nodes)
        return nodes

    nodes = asyncio.run(asyncio.wait_for(main(), 240))
    assert answered
    # Both went by a suspension, the one on the node first; nobody was killed, and no step lost.
    assert [kind for kind, _ in nodes.told if kind is not v.Kind.START] == [v.Kind.SUSPEND] * 2
    world = engine.world
    assert [world.jobs[name].saved_step for name in "12"] == [500, 500]
    assert [world.records[name].loss for name in "12"] == [None, None]
    # Whoever reads the journal needs no policy to know it.
    assert journal.read(path).replay().world.save() == world.save()


PENDING = {"state": v.State.PENDING, "goal": None, "held": {}}
