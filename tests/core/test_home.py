"""Jobs that can go on only where they were suspended, since their processes are there."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcext.core import facts as f
from hpcext.core import home
from hpcext.core import values as v
from hpcext.core.engine import Engine
from hpcext.policies import POLICIES, find_policy

NODES = [v.Node(name, 1) for name in "abc"]


def job(order: int, **more: Any) -> f.Submitted:
    return f.Submitted(v.Job(str(order), f"j{order}", order, (1,), 1, **more))


def run(engine: Engine, now_s: float, *facts: f.Fact) -> dict[str, str]:
    """Step; where jobs are started by that."""
    actions, _ = engine.step(now_s, facts)
    assert not engine.refusal
    started = {}
    for action in actions:
        if action.kind is v.Kind.START:
            (started[action.job],) = action.alloc
            run(engine, now_s, f.Started(action.job, action.op, ("x",)))
            run(engine, now_s, f.Registered(action.job, action.op, 0, native=True))
    return started


def ended(engine: Engine, name: str, outcome: f.Outcome, **more: Any) -> f.Ended:
    return f.Ended(name, engine.world.jobs[name].op, outcome, 0, **more)


def suspended(engine: Engine, now_s: float, name: str, kept_s: float = 100.0) -> dict[str, str]:
    run(engine, now_s, f.Hold(name))
    return run(
        engine, now_s, ended(engine, name, f.Outcome.SUSPENDED, kept_s=kept_s), f.Release(name)
    )


def begun(policy: str = "exclusive", nodes: list[v.Node] = NODES, jobs: int = 1) -> Engine:
    engine = Engine(find_policy(policy))
    run(engine, 0, *(f.NodeJoined(node) for node in nodes))
    for order in range(1, jobs + 1):
        run(engine, order, job(order))
    return engine


def where(engine: Engine, name: str) -> str:
    return "".join(engine.world.jobs[name].held)


def test_it_goes_on_where_it_was() -> None:
    engine = begun(jobs=3)
    first = where(engine, "2")
    # Both of the others leave as well, so that there is room everywhere.
    for name in ("1", "3"):
        run(engine, 10, ended(engine, name, f.Outcome.COMPLETED))
    assert suspended(engine, 11, "2") == {"2": first}


def test_it_waits_for_its_node_and_others_have_the_rest() -> None:
    engine = begun(jobs=3)
    home_ = where(engine, "2")
    run(engine, 9, f.Hold("2"))
    run(engine, 9, job(4))
    # Another job has its node now, and there is room elsewhere.
    assert run(engine, 10, ended(engine, "2", f.Outcome.SUSPENDED, kept_s=100.0)) == {"4": home_}
    assert run(engine, 11, ended(engine, "1", f.Outcome.COMPLETED)) == {}
    assert run(engine, 12, f.Release("2")) == {}
    waiting = engine.world.jobs["2"]
    assert not waiting.ready
    assert waiting.why.startswith(f"waits for room on {home_}, where its processes were suspended")
    assert run(engine, 13, job(5)) != {}
    assert run(engine, 20, ended(engine, "4", f.Outcome.COMPLETED)) == {"2": home_}


def test_it_waits_no_longer_than_it_had_worked_and_then_begins_anew() -> None:
    engine = begun(nodes=NODES[:2], jobs=1)
    (home_,) = engine.world.jobs["1"].held
    other = "b" if home_ == "a" else "a"
    run(engine, 5, f.Hold("1"))
    run(engine, 5, ended(engine, "1", f.Outcome.SUSPENDED, kept_s=100.0))
    run(engine, 6, f.NodeLost(home_))
    # However long its user has had it on hold: it could have gone on from here.
    _, wake_s = engine.step(1000, [f.Release("1")])
    assert wake_s == 1100
    assert run(engine, 1099) == {}
    assert engine.world.waited_for() == {home_}
    run(engine, 1099, f.Hold("1"))
    assert engine.world.waited_for() == set()
    run(engine, 1099, f.Release("1"))
    assert run(engine, 1100) == {"1": other}
    assert run(engine, 1101, ended(engine, "1", f.Outcome.EVICTED)) == {}
    assert not engine.world.jobs["1"].home


def test_a_node_that_comes_back_is_its_own() -> None:
    engine = begun(nodes=NODES[:2], jobs=1)
    (home_,) = engine.world.jobs["1"].held
    run(engine, 5, f.Hold("1"))
    run(engine, 5, ended(engine, "1", f.Outcome.SUSPENDED, kept_s=100.0))
    run(engine, 6, f.NodeLost(home_), f.Release("1"))
    assert run(engine, 50, f.NodeJoined(v.Node(home_, 1))) == {"1": home_}


def test_a_start_that_is_put_off_leaves_it_where_it_is() -> None:
    engine = begun(jobs=1)
    (home_,) = engine.world.jobs["1"].held
    assert suspended(engine, 5, "1") == {"1": home_}
    assert run(engine, 6, ended(engine, "1", f.Outcome.EVICTED, never_ran=True)) == {}
    assert engine.world.jobs["1"].home == home_
    assert run(engine, 30) == {"1": home_}


def test_what_can_go_on_anywhere_does_not_wait() -> None:
    engine = begun(nodes=NODES[:2], jobs=1)
    (home_,) = engine.world.jobs["1"].held
    run(
        engine,
        5,
        f.Hold("1"),
    )
    run(engine, 5, ended(engine, "1", f.Outcome.SUSPENDED), f.NodeLost(home_))
    assert len(run(engine, 6, f.Release("1"))) == 1


def test_on_one_node_a_job_of_higher_priority_has_its_turn() -> None:
    """It is not kept back: a policy may make room for it, and it can be nowhere else."""
    only = v.Job("1", "j", 1, (1,), 1, home="a", home_work_s=95.0)
    other = v.Job("2", "k", 2, (1,), 1, held={"a": 1}, goal={"a": 1})
    one = {"a": v.Node("a", 1)}
    assert not home.kept_back(only, 5, one, [other])
    two = {**one, "b": v.Node("b", 1)}
    assert home.kept_back(only, 5, two, [other])
    assert not home.kept_back(only, 5, two, [])
    third = v.Job("3", "l", 3, (1,), 1, held={"b": 1}, goal={"b": 1})
    # There is no room anywhere.
    assert not home.kept_back(only, 5, two, [other, third])


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "fixed"])
@given(data=st.data())
def test_no_policy_has_it_begin_elsewhere(policy: str, data: st.DataObject) -> None:
    """With whatever else there is; the time that it waits for its node is not over."""
    engine = Engine(find_policy(policy))
    nodes = [v.Node(name, data.draw(st.integers(1, 3))) for name in "abc"]
    run(engine, 0, *(f.NodeJoined(node) for node in nodes))
    number = data.draw(st.integers(2, 5))
    for order in range(1, number + 1):
        run(engine, order, job(order))
    now_s, homes = 10.0, dict[str, str]()
    for _ in range(data.draw(st.integers(1, 12))):
        now_s += 1
        name = str(data.draw(st.integers(1, number)))
        now = engine.world.jobs[name]
        if now.state is v.State.RUNNING:
            kept = data.draw(st.booleans())
            if kept:
                homes[name] = where(engine, name)
                started = suspended(engine, now_s, name, kept_s=1e6)
            else:
                started = run(engine, now_s, ended(engine, name, f.Outcome.COMPLETED))
        else:
            number += 1
            started = run(engine, now_s, job(number))
        for each, node in started.items():
            assert node == homes.pop(each, node)
