"""The driver with an executor that answers at once: order of writing, stopping, full disks."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpcext.core import facts as f
from hpcext.core import values as v
from hpcext.core.engine import Engine, Policy
from hpcext.core.errors import JournalError
from hpcext.manager import driver as drivers
from hpcext.manager import journal
from hpcext.manager.decider import Decider
from hpcext.policies import find_policy

NODE = v.Node("n", 2)


class Echo:
    """Starts, registers and ends jobs as soon as it is told to; remembers what it was told."""

    def __init__(self, emit: Callable[[f.Fact], None], *, finish: bool = True) -> None:
        self.emit = emit
        self.finish = finish
        self.told: list[tuple[v.Kind, str]] = []
        self.looks = 0

    def perform(self, action: v.Action) -> None:
        self.told.append((action.kind, action.job))
        if action.kind is v.Kind.START:
            gpus = tuple(f"n:{index}" for index in range(v.total(action.alloc)))
            self.emit(f.Started(action.job, action.op, gpus))
            self.emit(f.Registered(action.job, action.op, 0))
            if self.finish:
                self.emit(f.Ended(action.job, action.op, f.Outcome.COMPLETED, 0))
        else:
            outcome = f.Outcome.SUSPENDED if action.kind is v.Kind.SUSPEND else f.Outcome.FAILED
            self.emit(f.Ended(action.job, action.op, outcome, 85))

    def look(self) -> None:
        self.looks += 1

    def close(self) -> None:
        self.told.append((v.Kind.KILL, "closed"))


def job(number: int) -> f.Submitted:
    return f.Submitted(v.Job(str(number), f"job{number}", number, (1, 2), 2))


class Run:
    """One driver in a directory, with what happened to it."""

    def __init__(self, path: Path, *, finish: bool = True) -> None:
        self.path = path
        header = journal.Header(began_at=0.0, policy="marble")
        self.journal = journal.Journal(path, header)
        self.engine = Engine()
        self.policy: Policy = find_policy("marble")
        self.quick, self.timeout_s = True, 60.0
        self.finish = finish
        self.seen: list[float] = []
        self.told: list[tuple[v.Kind, str]] = []
        self.on_turn: Callable[[], None] = lambda: None

    def observe(self, engine: Engine, now_s: float) -> None:
        self.seen.append(now_s)
        self.on_turn()

    def no_requests(self) -> Iterator[tuple[tuple[f.Fact, ...], Callable[[], None]]]:
        return iter(())

    def __call__(self, *facts: f.Fact) -> Echo:
        async def main() -> Echo:
            driver = drivers.Driver(
                self.engine,
                self.journal,
                Decider(self.policy, quick=self.quick, timeout_s=self.timeout_s),
                base_s=0.0,
                interval_s=0.02,
                requests=self.no_requests,
                observe=self.observe,
            )
            self.driver = driver
            executor = Echo(driver.emit, finish=self.finish)
            self.told = executor.told
            for fact in facts:
                driver.emit(fact)
            await driver.run(executor)
            return executor

        return asyncio.run(main())


def test_jobs_run_and_the_journal_tells_the_same(tmp_path: Path) -> None:
    run = Run(tmp_path / "j")
    executor = run(f.NodeJoined(NODE), job(1), job(2))
    assert [told for told in executor.told if told[0] is v.Kind.START] == [
        (v.Kind.START, "1"),
        (v.Kind.START, "2"),
    ]
    assert executor.told[-1] == (v.Kind.KILL, "closed")
    replayed = journal.read(tmp_path / "j").replay()
    assert replayed.world.save() == run.engine.world.save()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_signal_suspends_everything_and_leaves(tmp_path: Path, signum: int) -> None:
    run = Run(tmp_path / "j", finish=False)

    def stop() -> None:
        if run.engine.world.jobs["1"].state is v.State.RUNNING:
            run.on_turn = lambda: None
            os.kill(os.getpid(), signum)

    run.on_turn = stop
    executor = run(f.NodeJoined(NODE), job(1))
    assert (v.Kind.SUSPEND, "1") in executor.told
    assert run.driver.stopped_by == signum
    assert run.engine.world.jobs["1"].state is v.State.PENDING
    # The next manager goes on with it.
    run = Run(tmp_path / "j")
    run.engine = journal.read(tmp_path / "j").replay()
    run(f.Began())
    assert run.engine.world.jobs["1"].state is v.State.COMPLETED


def test_nothing_is_done_that_could_not_be_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drivers, "RETRY_S", 0.01)
    run = Run(tmp_path / "j")
    tries: list[tuple[int, int]] = []
    commit = run.journal.commit

    def failing() -> None:
        if run.journal.behind:
            tries.append((len(run.told), len(run.seen)))
            if len(tries) < 4:
                raise JournalError("cannot be written: the disk is full")
        commit()

    monkeypatch.setattr(run.journal, "commit", failing)
    executor = run(f.NodeJoined(NODE), job(1))
    assert tries[:4] == [(0, 0)] * 4
    assert [told for told in executor.told if told[1] == "1"] == [(v.Kind.START, "1")]
    assert run.engine.world.jobs["1"].state is v.State.COMPLETED


def test_one_that_leaves_without_writing_down_what_happened_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it believes, that all is done say, is not in the journal, and its user is told."""
    run = Run(tmp_path / "j")
    full = OSError(errno.ENOSPC, "No space left on device")

    def failing(fd: int, data: bytes) -> int:
        if run.engine.world.jobs["1"].state.final:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
            raise full
        return os.pwrite(fd, data, os.fstat(fd).st_size)

    monkeypatch.setattr(journal, "os", types.SimpleNamespace(**{**vars(os), "write": failing}))
    with pytest.raises(JournalError, match="No space left on device, so it lacks what happened l"):
        run(f.NodeJoined(NODE), job(1))
    assert run.engine.world.jobs["1"].state is v.State.COMPLETED
    assert not journal.read(tmp_path / "j").replay().world.jobs["1"].state.final


def test_the_journal_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "COMPACT_AFTER", 3)
    run = Run(tmp_path / "j")
    run(f.NodeJoined(NODE), *(job(number) for number in range(1, 20)))
    past = journal.read(tmp_path / "j")
    assert len(past.entries) < 4
    engine, time = past.recount()
    assert engine.world.save() == run.engine.world.save()
    assert time.jobs.keys() == engine.world.jobs.keys()
    assert 0 < sum(time.spent.values()) == pytest.approx(time.held_s)


def test_it_sleeps_while_nothing_happens(tmp_path: Path) -> None:
    """With nothing to do but read reports, turns come at the interval and not faster."""
    run = Run(tmp_path / "j", finish=False)
    turns: list[int] = []

    def count() -> None:
        turns.append(1)
        if len(turns) == 12:
            os.kill(os.getpid(), signal.SIGTERM)

    run.on_turn = count
    run(f.NodeJoined(NODE), job(1))
    gaps = [b - a for a, b in zip(run.seen, run.seen[1:], strict=False)]
    assert sorted(gaps)[len(gaps) // 2] >= 0.015


def test_a_request_is_judged_when_the_one_before_it_is_true(tmp_path: Path) -> None:
    run = Run(tmp_path / "j", finish=False)
    run.engine.step(0.0, [f.NodeJoined(NODE), job(1)])
    waiting: list[f.Fact] = [f.Hold("1"), f.Release("1")]
    held: list[bool] = []

    def requests() -> Iterator[tuple[tuple[f.Fact, ...], Callable[[], None]]]:
        for fact in tuple(waiting):
            held.append(run.engine.world.jobs["1"].on_hold)
            yield (fact,), lambda: waiting.pop(0) and None

    run.no_requests = requests  # type: ignore[method-assign]
    run.on_turn = lambda: None if waiting else os.kill(os.getpid(), signal.SIGTERM)
    run()
    assert held == [False, True]


def test_no_request_is_answered_before_it_is_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that comes while the disk is full waits until what came before it is written."""
    monkeypatch.setattr(drivers, "RETRY_S", 0.01)
    run = Run(tmp_path / "j", finish=False)
    commit, full, taken = run.journal.commit, [True] * 3, list[bool]()

    def failing() -> None:
        if run.journal.behind and full and full.pop():
            os.kill(os.getpid(), signal.SIGUSR1)
            raise JournalError("cannot be written: the disk is full")
        commit()

    def answer() -> None:
        world = journal.read(tmp_path / "j").replay().world
        taken.append(world.jobs["1"].on_hold)
        os.kill(os.getpid(), signal.SIGTERM)

    def requests() -> Iterator[tuple[tuple[f.Fact, ...], Callable[[], None]]]:
        if not taken and len(full) < 3:
            yield (f.Hold("1"),), answer

    monkeypatch.setattr(run.journal, "commit", failing)
    run.no_requests = requests  # type: ignore[method-assign]
    run(f.NodeJoined(NODE), job(1))
    assert (full, taken) == ([], [True])


def test_a_request_is_judged_when_what_came_before_it_is_known(tmp_path: Path) -> None:
    """As that a node is lost: another one, the last, is not to be set aside any more."""
    run = Run(tmp_path / "j", finish=False)
    run.engine.step(0.0, [f.NodeJoined(NODE), f.NodeJoined(v.Node("m", 2)), job(1)])
    judged: list[set[str]] = []

    def requests() -> Iterator[tuple[tuple[f.Fact, ...], Callable[[], None]]]:
        judged.append(set(run.engine.world.offered))
        yield (), lambda: os.kill(os.getpid(), signal.SIGTERM)

    run.no_requests = requests  # type: ignore[method-assign]
    run(f.NodeLost("m"))
    assert judged[0] == {"n"}
