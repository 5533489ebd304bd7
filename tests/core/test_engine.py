"""The engine by hand: facts in, actions out."""

from __future__ import annotations

import pytest

from hpcext.core import values as v
from hpcext.core.engine import Engine
from hpcext.policies import find_policy


def job(order: int, name: str, sizes: tuple[int, ...], optimal: int, **more: object) -> v.Submitted:
    return v.Submitted(v.Job(str(order), name, order, sizes, optimal, **more))  # type: ignore[arg-type]


def shorthand(actions: tuple[v.Action, ...]) -> list[str]:
    return [f"{a.kind.value} {a.job} {v.total(a.alloc) or ''}".strip() for a in actions]


@pytest.fixture
def engine() -> Engine:
    engine = Engine(find_policy("marble"))
    engine.step(0, [v.NodeJoined(v.Node("n", 6))])
    return engine


def run(engine: Engine, now_s: float, *facts: v.Fact) -> list[str]:
    return shorthand(engine.step(now_s, facts)[0])


def begin(engine: Engine, now_s: float, *jobs: str) -> None:
    """Acknowledge the start of jobs, and register their sessions."""
    for name in jobs:
        op = engine.world.jobs[name].op
        run(engine, now_s, v.Started(name, op, tuple(f"n:{name}{i}" for i in range(2))))
        run(engine, now_s, v.Registered(name, op, 0))


def end(engine: Engine, name: str, outcome: v.Outcome, code: int | None = 0) -> v.Ended:
    return v.Ended(name, engine.world.jobs[name].op, outcome, code)


def test_figure_5(engine: Engine) -> None:
    """Job 2 on 3 of its 4 GPUs; when job 1 ends it is promoted, and job 3 gets the last two."""
    sizes = tuple(range(1, 7))
    submitted = [job(1, "resnet", sizes, 3), job(2, "inception", sizes, 4), job(3, "vgg", sizes, 5)]
    assert run(engine, 1, *submitted) == ["start 1 3", "start 2 3"]
    begin(engine, 2, "1", "2")
    assert engine.world.jobs["2"].role is v.Role.SECONDARY
    done = end(engine, "1", v.Outcome.COMPLETED)
    assert run(engine, 9, done) == ["suspend 2", "start 3 2"]
    assert run(engine, 10, end(engine, "2", v.Outcome.SUSPENDED)) == ["start 2 4"]
    assert engine.world.jobs["2"].role is v.Role.PRIMARY
    assert engine.world.jobs["3"].role is v.Role.SECONDARY


def test_section_7b_job_set_2(engine: Engine) -> None:
    """§VII-B: 4 + 2; job 3 takes the 2 that job 2 leaves, and is resumed with 3 after job 1."""
    sizes = tuple(range(1, 7))
    jobs = [job(1, "inception", sizes, 4), job(2, "resnet50", sizes, 3), job(3, "r101", sizes, 3)]
    assert run(engine, 1, *jobs) == ["start 1 4", "start 2 2"]
    begin(engine, 2, "1", "2")
    assert run(engine, 5, end(engine, "2", v.Outcome.COMPLETED)) == ["start 3 2"]
    begin(engine, 6, "3")
    assert run(engine, 9, end(engine, "1", v.Outcome.COMPLETED)) == ["suspend 3"]
    assert run(engine, 9.5, end(engine, "3", v.Outcome.SUSPENDED)) == ["start 3 3"]


def test_stale_acknowledgement_frees_nothing(engine: Engine) -> None:
    run(engine, 1, job(1, "a", (6,), 6), job(2, "b", (6,), 6))
    stale = end(engine, "1", v.Outcome.FAILED, 1)
    assert run(engine, 2, stale) == ["start 2 6"]
    assert run(engine, 4, end(engine, "2", v.Outcome.COMPLETED)) == ["start 1 6"]
    assert run(engine, 5, stale) == []
    assert engine.world.jobs["1"].state is v.State.STARTING
