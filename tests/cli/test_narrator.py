"""What a run says: of many jobs as much as happens to them, and each loss and note always."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hpcext.cli import view
from hpcext.cli.live import Live, chosen
from hpcext.cli.narrator import FEW, Narrator, kind_of
from hpcext.cli.output import Output
from hpcext.core import facts as f
from hpcext.core.engine import Engine
from hpcext.core.history.node_time import NodeTime
from hpcext.core.values import Job, Node, State
from hpcext.policies import find_policy

SLOTS = 4


class Listener(Output):
    """Keeps what is said."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append(text)


def make(jobs: int, policy: str = "marble", **each: object) -> Engine:
    """An engine with so many jobs of one GPU."""
    engine = Engine(find_policy(policy))
    plain = Job("0", "j", 0, (1,), 1, nodes=(1, 1))
    queue = [replace(plain, id=str(i), name=f"j{i}", order=i, **each) for i in range(1, jobs + 1)]
    engine.step(0.0, [f.NodeJoined(Node("n", SLOTS)), *map(f.Submitted, queue)])
    return engine


def active(engine: Engine) -> list[Job]:
    return [job for job in engine.world.queue.busy() if job.state.active]


def start_all(engine: Engine, now_s: float) -> None:
    coming = [job for job in active(engine) if job.state is State.STARTING]
    engine.step(now_s, [f.Started(job.id, job.op, (f"n:{job.id}",)) for job in coming])


def end(engine: Engine, job: Job, now_s: float, outcome: f.Outcome = f.Outcome.COMPLETED) -> None:
    engine.step(now_s, [f.Ended(job.id, job.op, outcome, 0 if outcome.value == "completed" else 1)])


def told(jobs: int, policy: str = "marble") -> list[str]:
    """All that is said of a run of so many jobs."""
    engine, out, now_s = make(jobs, policy), Listener(), 0.0
    tell = Narrator(out)
    tell(engine, now_s)
    while not engine.finished:
        now_s += 1.0
        start_all(engine, now_s)
        tell(engine, now_s)
        end(engine, active(engine)[0], now_s + 0.5)
        tell(engine, now_s + 0.5)
    return out.lines


@pytest.mark.parametrize("policy", ["marble", "exclusive", "fixed", "equal_share"])
def test_lines_grow_as_jobs_do(policy: str) -> None:
    few, many = told(60, policy), told(240, policy)
    assert len(few) <= 3 * 60 + 15
    assert len(many) <= 3 * 240 + 20
    assert sum("completed" in line for line in many) == 240


def test_a_reason_is_said_once_with_how_many_have_it_and_then_how_many_are_done() -> None:
    lines = told(240)
    behind = [line for line in lines if "behind" in line]
    assert len(behind) == 1
    assert "235 jobs, the first is j6: pending: waits behind others in the queue" in behind[0]
    assert sum("next in the queue" in line for line in lines) == 1
    counts = [line for line in lines if "are done" in line]
    assert 5 <= len(counts) <= 10
    assert "24 of 240 jobs are done; 4 run, 212 wait" in counts[0]


def test_few_jobs_are_said_to_wait_by_their_names() -> None:
    lines = told(SLOTS + 1)
    assert "[     0.0 s] j5: pending: next in the queue; waits for a free GPU" in lines
    assert not any("are done" in line for line in told(FEW))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("waits for 3 GPUs, and 2 are free", "waits for 12 GPUs, and 0 are free"),
        ("waits for a, b to complete", "waits for c to complete"),
        ("gains 0.25 a second", "gains 17 a second"),
    ],
)  # fmt: skip
def test_reasons_of_one_kind(one: str, other: str) -> None:
    assert kind_of(one) == kind_of(other)
    assert kind_of(one) != kind_of("next in the queue")


def test_many_that_wait_for_others_are_one_line_each_time_a_reason_is_new() -> None:
    engine = Engine(find_policy("marble"))
    first = Job("1", "first", 1, (1,), 1, nodes=(1, 1))
    rest = [replace(first, id=str(i), name=f"r{i}", order=i, after=("1", str(i - 1)))
            for i in range(2, 200)]  # fmt: skip
    engine.step(0.0, [f.NodeJoined(Node("n", 1)), f.Submitted(first), *map(f.Submitted, rest)])
    out = Listener()
    tell = Narrator(out)
    tell(engine, 0.0)
    start_all(engine, 1.0)
    end(engine, active(engine)[0], 2.0)
    tell(engine, 2.0)
    # All but one have another reason than before, of the same kind.
    assert len(out.lines) <= 6


def test_a_loss_is_printed_each_time_and_a_note_once() -> None:
    engine, out = make(SLOTS), Listener()
    tell = Narrator(out)
    tell(engine, 0.0)
    for turn in (1, 2):
        start_all(engine, 100.0 * turn)
        job = engine.world.jobs["1"]
        engine.step(100.0 * turn + 1, [f.Registered("1", job.op, job.saved_step, False)])
        engine.step(100.0 * turn + 2, [f.Progressed("1", job.op, 40 * turn, 10)])
        engine.step(100.0 * turn + 3, [f.Noted("1", job.op, notes=("it is odd",))])
        tell(engine, 100.0 * turn + 3)
        tell(engine, 100.0 * turn + 3)
        end(engine, engine.world.jobs["1"], 100.0 * turn + 4, f.Outcome.FAILED)
        tell(engine, 100.0 * turn + 4)
        engine.step(100.0 * turn + 50, [])
    losses = [line for line in out.lines if "lost (" in line]
    assert len(losses) == 2
    assert sum("warning: it is odd" in line for line in out.lines) == 1
    assert sum("retrying" in line for line in out.lines) == 2


def test_each_failure_is_printed() -> None:
    engine, out = make(90, retries=0), Listener()
    tell = Narrator(out)
    now_s = 0.0
    while not engine.finished:
        now_s += 1.0
        start_all(engine, now_s)
        tell(engine, now_s)
        end(engine, active(engine)[0], now_s, f.Outcome.FAILED)
        tell(engine, now_s)
    assert sum("failed: " in line for line in out.lines) == 90


def test_another_reading_of_the_same_pilot_tells_only_what_is_new() -> None:
    out = Listener()
    tell = Narrator(out)
    tell(make(30), 0.0)
    first = len(out.lines)
    tell(make(30), 1.0)
    assert len(out.lines) == first
    later = make(30)
    start_all(later, 1.0)
    tell(later, 2.0)
    assert len(out.lines) == first + SLOTS


class Board:
    """A screen of so many lines."""

    def __init__(self, lines: int) -> None:
        self._lines = lines
        self.rows: list[tuple[str, ...]] = []
        self.above = ""

    def lines(self) -> int:
        return self._lines

    def show(self, rows: list[tuple[str, ...]], above: str) -> None:
        self.rows, self.above = rows, above


def test_a_screen_shows_what_fits_those_that_run_first_and_a_line_for_all() -> None:
    engine, out, board = make(500), Listener(), Board(12)
    show = Live(out, board)  # type: ignore[arg-type]
    start_all(engine, 1.0)
    show(engine, 1.0)
    assert len(board.rows) == 12
    assert [row[2] for row in board.rows[:SLOTS]] == ["running"] * SLOTS
    assert [row[1] for row in board.rows[SLOTS:]] == [f"j{i}" for i in range(5, 13)]
    assert board.above == "0 of 500 jobs are done; 4 run, 496 wait"
    end(engine, active(engine)[0], 2.0, f.Outcome.COMPLETED)
    show(engine, 2.0)
    assert board.above == "1 of 500 jobs are done; 4 run, 495 wait"
    assert board.rows[0][1:3] == ("j1", "completed")
    assert len(board.rows) == 12
    assert out.lines == []


def test_a_screen_with_room_for_all_keeps_their_order() -> None:
    engine = make(9)
    start_all(engine, 1.0)
    end(engine, active(engine)[2], 2.0)
    assert [job.id for job in chosen(engine, 9)] == [str(i) for i in range(1, 10)]


def test_losses_and_failures_are_told_beside_a_screen() -> None:
    engine, out = make(SLOTS, retries=1), Listener()
    show = Live(out, Board(5))  # type: ignore[arg-type]
    start_all(engine, 1.0)
    job = engine.world.jobs["1"]
    engine.step(2.0, [f.Registered("1", job.op, 0, False)])
    engine.step(3.0, [f.Progressed("1", job.op, 40, 10)])
    show(engine, 3.0)
    end(engine, engine.world.jobs["1"], 4.0, f.Outcome.FAILED)
    show(engine, 4.0)
    show(engine, 5.0)
    assert len(out.lines) == 1
    assert "30 steps are lost" in out.lines[0]
    engine.step(9.0, [])
    start_all(engine, 10.0)
    end(engine, engine.world.jobs["1"], 11.0, f.Outcome.FAILED)
    show(engine, 11.0)
    assert len(out.lines) == 2
    assert "j1: failed" in out.lines[1]


@pytest.mark.parametrize("how", ["cancelled", "failed"])
def test_of_a_job_that_goes_nowhere_it_is_not_said_whence_it_goes_on(how: str) -> None:
    engine, out = make(1, retries=0), Listener()
    tell = Narrator(out)
    start_all(engine, 1.0)
    op = engine.world.jobs["1"].op
    engine.step(2.0, [f.Registered("1", op, 0, False), f.Progressed("1", op, 40, 10)])
    if how == "cancelled":
        engine.step(3.0, [f.Cancel("1")])
    end(engine, engine.world.jobs["1"], 4.0, f.Outcome.FAILED)
    tell(engine, 4.0)
    job, record = engine.world.jobs["1"], engine.world.records["1"]
    assert job.state.value == how
    assert record.loss is not None
    assert not any("goes on" in line for line in [*out.lines, *view.why(job, record)])


def test_the_summary_of_many_jobs_is_short_and_that_of_few_has_each() -> None:
    for jobs, most in ((400, 10), (20, 40)):
        engine, out, now_s = make(jobs), Listener(), 0.0
        while not engine.finished:
            now_s += 1.0
            start_all(engine, now_s)
            end(engine, active(engine)[0], now_s)
        rows: list[int] = []
        out.table = lambda _, found, rows=rows: rows.append(len(found))  # type: ignore[method-assign]
        view.summary(out, engine, now_s, NodeTime())
        assert len(out.lines) + sum(rows) <= most
        if jobs == 400:
            assert out.lines[0] == "400 jobs: 400 completed"
        else:
            assert rows == [20]


def test_why_names_the_jobs_that_are_ahead() -> None:
    engine = make(30)
    last = engine.world.jobs["30"]
    assert view.before(engine.world, last) == "before it: j5, j6, j7 and 22 more"
    assert view.before(engine.world, engine.world.jobs["5"]) == ""
