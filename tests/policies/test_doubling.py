"""Exploring and doubling, on a virtual clock."""

from __future__ import annotations

import itertools

import pytest
from market import answer, job, sizes, snapshot
from played import Played, play

from hpcext.core.decisions import refusal
from hpcext.core.estimate import Estimate, Observed
from hpcext.core.values import Job, Node, Run, State
from hpcext.policies import find_policy
from hpcext.sim.replay.physics import Physics

ANY = Estimate()
PERFECT = Physics(speed={1: 1.0, 8: 8.0}, work=10_000.0)


def run(policy: str, *jobs: Job, gpus: int) -> Played:
    return play(
        jobs, [Node("a", gpus)], find_policy(policy), {each.id: PERFECT for each in jobs},
        report_s=5.0,
    )  # fmt: skip


def gpus_over_time(result: Played, name: str) -> list[int]:
    """In the order in which it had them."""
    held = [len(part.gpus) for part in result.records[name].segments]
    return [gpus for gpus, _ in itertools.groupby(held)]


def test_a_new_job_is_measured_on_1_2_4_and_8_for_150_s_each() -> None:
    result = run("doubling", job(1, 8, estimate=ANY), gpus=8)
    assert gpus_over_time(result, "1") == [1, 2, 4, 8]
    explored = result.records["1"].segments[:3]
    for part in explored:
        assert part.end_s is not None
        assert part.end_s - part.start_s == pytest.approx(150, abs=15)
    seen = result.jobs["1"].estimate.observed
    assert [(each.gpus, each.rate) for each in seen] == [
        (n, pytest.approx(n)) for n in (1, 2, 4, 8)
    ]


def test_gpus_reserved_for_exploring_go_to_no_other_job() -> None:
    first, second = job(1, 8, estimate=ANY), job(2, 1)
    assert sizes("doubling", snapshot([first, second], a=8)) == {"1": 1}
    assert sizes("doubling", snapshot([first, second], a=9)) == {"1": 1, "2": 1}
    # The same when it runs, whether its size may be changed now or not.
    for registered in (True, False):
        running = job(1, 8, {"a": 1}, estimate=ANY, run=Run(registered=registered))
        assert sizes("doubling", snapshot([running, second], a=8)) == {"1": 1}
    target = answer("doubling", snapshot([first, second], a=9))
    assert target.grants["1"].why == "is measured on 1 GPU; 8 GPUs are reserved for it"


def test_what_is_reserved_takes_nothing_from_jobs_that_run() -> None:
    """A node has come, so that there is more to explore; the job's own node is full."""
    starts = job(1, 1, {"n": 1}, nodes=(1, 2), estimate=ANY, state=State.STARTING, run=Run())
    for more in (1, 2):
        others = [job(2, 3, {"n": 3}, sizes=(3,)), job(3, more, sizes=(more,))]
        now = snapshot([starts, *others], 10.0, n=4, m=4)
        target = answer("doubling", now)
        assert refusal(now, target, {each.id: each for each in now.jobs}) == ""
        allocs = {name: grant.alloc for name, grant in target.grants.items()}
        assert allocs == {"1": {"n": 1}, "2": {"n": 3}, "3": {"m": more}}


def test_a_new_job_begins_beside_one_that_has_all_gpus() -> None:
    """It is measured as far as there is room, and then counts as the others do."""
    curve = {n: float(n) for n in (1, 2, 4, 8)}
    known = job(1, 8, {"a": 8}, estimate=Estimate(stated=curve))
    assert sizes("doubling", snapshot([known, job(2, 8, estimate=ANY)], a=8)) == {"1": 4, "2": 1}
    seen = Estimate(observed=tuple(Observed(n, 1, float(n), seconds=150) for n in (1, 2, 4)))
    known, measured = (
        job(1, 8, {"a": 4}, estimate=Estimate(stated=curve)),
        job(2, 8, {"a": 4}, estimate=seen),
    )
    third = job(3, 1, estimate=Estimate(stated={1: 1.0}))
    assert sizes("doubling", snapshot([known, measured], a=8)) == {"1": 4, "2": 4}
    assert sizes("doubling", snapshot([known, measured], a=9)) == {"1": 1, "2": 8}
    # What it cannot be measured on it does not hold.
    assert sizes("doubling", snapshot([known, measured, third], a=8))["3"] == 1


def test_it_explores_no_more_than_it_may_have_and_than_there_is() -> None:
    small = run("doubling", job(1, 3, estimate=ANY), gpus=8)
    assert gpus_over_time(small, "1") == [1, 2]
    narrow = run("doubling:explore_gpus=2", job(1, 8, estimate=ANY), gpus=8)
    assert gpus_over_time(narrow, "1") == [1, 2, 8]
    few = run("doubling", job(1, 8, estimate=ANY), gpus=4)
    assert gpus_over_time(few, "1") == [1, 2, 4]


def test_what_has_no_session_is_not_waited_for() -> None:
    mute = job(1, 8, {"a": 1}, estimate=ANY, run=Run(registered=False))
    for now_s, others in ((299.0, 0), (301.0, 4)):
        found = sizes("doubling", snapshot([mute, job(2)], now_s, a=8))
        assert found == {"1": 1, **({"2": others} if others else {})}


def test_what_saves_by_its_own_means_is_not_waited_for() -> None:
    alone = {"estimate": ANY, "run": Run(registered=True, native=True), "most_gpus": 1}
    for now_s, found in ((299.0, {"1": 1}), (301.0, {"1": 4, "2": 4})):
        native = job(1, 8, {"a": 1}, **alone)
        assert sizes("doubling", snapshot([native, job(2)], now_s, a=8)) == found
    # While it is stopped for that, and when it has begun again: it is not measured anew.
    moves = job(1, 8, {"a": 4}, **{**alone, "state": State.STOPPING}, since_s=301.0)
    again = job(1, 8, {"a": 4}, **{**alone, "most_gpus": 4}, since_s=320.0)
    for native in (moves, again):
        assert sizes("doubling", snapshot([native, job(2)], 330.0, a=8)) == {"1": 4, "2": 4}
    # A session that has yet to report is waited for.
    session = job(1, 8, {"a": 1}, estimate=ANY, most_gpus=1)
    assert sizes("doubling", snapshot([session, job(2)], 301.0, a=8)) == {"1": 1}


def test_what_states_its_speeds_explores_nothing_nor_does_precompute() -> None:
    assert gpus_over_time(run("doubling", job(1), gpus=8), "1") == [4]
    alone = job(1, 8, estimate=ANY)
    assert gpus_over_time(run("doubling:strategy=precompute", alone, gpus=8), "1") == [8]


def test_the_measured_speeds_decide() -> None:
    """One scales perfectly, the other not at all; both have been explored."""

    def explored(*speeds: float) -> Estimate:
        seen = zip((1, 2, 4), speeds, strict=True)
        return Estimate(observed=tuple(Observed(n, 1, speed, seconds=150) for n, speed in seen))

    flat = job(1, estimate=explored(1, 1, 1), state=State.PENDING)
    steep = job(2, estimate=explored(1, 2, 4), state=State.PENDING)
    assert sizes("doubling", snapshot([flat, steep], a=6)) == {"1": 1, "2": 4}
