"""BFTrainer's objective: gain until the next event, less what changes of size cost (Eq. 16)."""

from __future__ import annotations

import itertools

import market
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from market import CURVE, job, snapshot

from hpcext.core.estimate import Estimate
from hpcext.core.values import Job, Role, Run, Snapshot, State, total
from hpcext.policies import find_policy
from hpcext.policies.bftrainer import CHANGE_S, Options


def sizes(now: Snapshot) -> dict[str, int]:
    return market.sizes("bftrainer", now)


def test_each_gpu_goes_where_it_gains_most() -> None:
    flat = job(2, estimate=Estimate(stated={1: 5.0, 4: 6.0}))
    assert sizes(snapshot([job(1), flat], a=5)) == {"1": 4, "2": 1}
    assert sizes(snapshot([flat, job(1)], a=3)) == {"1": 2, "2": 1}


def test_ties_go_to_the_first_in_the_queue() -> None:
    assert sizes(snapshot([job(1), job(2), job(3)], a=2)) == {"1": 1, "2": 1}
    assert sizes(snapshot([job(1), job(2)], a=3)) == {"1": 2, "2": 1}


@pytest.mark.parametrize(("up_s", "grows"), [(0.5, True), (None, True), (80.0, False)])
def test_a_change_has_to_be_worth_its_cost(up_s: float | None, grows: bool) -> None:
    """From 2 to 3 GPUs a job gains 0.6 of the speed of one for T_fwd, and loses 1.8 for up_s."""
    estimate = Estimate(stated=CURVE, up_s=up_s)
    now = snapshot([job(1, 3, {"a": 2}, estimate=estimate)], a=4)
    assert sizes(now) == {"1": 3 if grows else 2}


def test_jobs_that_cannot_change_keep_their_size() -> None:
    for fixed in (
        {"suspendable": False},
        {"run": Run(registered=False)},
        {"state": State.RESCALING},
    ):
        assert sizes(snapshot([job(1, 4, {"a": 1}, **fixed), job(2)], a=4)) == {"1": 1, "2": 3}


def test_nothing_known_means_that_gpus_help_up_to_the_best_size() -> None:
    unknown = Job("1", "j1", 1, (1, 2, 3, 4, 5, 6), 3, nodes=(1, 1))
    assert sizes(snapshot([unknown, job(2)], a=6)) == {"1": 3, "2": 3}


def test_jobs_of_several_nodes_and_of_one() -> None:
    wide = Job("1", "j1", 1, (2,), 2, nodes=(2, 3), estimate=Estimate(stated={1: 1.0, 6: 6.0}))
    target = find_policy("bftrainer")(snapshot([wide, job(2)], a=3, b=2, c=2))
    assert dict(target.grants["1"].alloc) == {"a": 2, "b": 2, "c": 2}
    assert dict(target.grants["2"].alloc) == {"a": 1}
    assert target.grants["1"].role is Role.PRIMARY
    assert target.grants["2"].role is Role.SECONDARY
    assert target.grants["2"].why == "runs on 1 GPU, its share of the GPUs"


def test_where_nodes_have_no_room_a_job_gets_less_and_says_so() -> None:
    rigid = [job(n, sizes=(1, 3), estimate=Estimate(stated={1: 1.0, 3: 3.0})) for n in (1, 2, 3)]
    target = find_policy("bftrainer")(snapshot(rigid, a=4, b=5))
    assert sorted(total(grant.alloc) for grant in target.grants.values()) == [1, 3, 3]
    (short,) = [g for g in target.grants.values() if total(g.alloc) == 1]
    assert short.why == "runs on 1 GPU of 3: no node has room for more"


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(1, 40), min_size=3, max_size=3),
            st.integers(0, 3),
            st.sampled_from([None, 0.0, 5.0, 60.0]),
            st.sampled_from([None, 0.0, 5.0, 60.0]),
        ),
        min_size=1,
        max_size=3,
    ),
    st.integers(0, 7),
)
@settings(max_examples=300)
def test_no_division_of_one_node_gains_more(
    drawn: list[tuple[list[int], int, float | None, float | None]], gpus: int
) -> None:
    """Eq. 16, written down once more and tried for every division."""
    jobs, left = [], gpus
    for order, (speeds, has, up_s, down_s) in enumerate(drawn, 1):
        goal = {"a": min(has, left)} if min(has, left) else None
        left -= min(has, left)
        stated = {size: float(speed) for size, speed in enumerate(speeds, 1)}
        known = Estimate(stated=stated, up_s=up_s, down_s=down_s)
        jobs.append(job(order, 3, goal, estimate=known))

    def gain(each: Job, count: int) -> float:
        def speed(n: int) -> float:
            return each.estimate.stated[n] / each.estimate.stated[1] if n else 0.0

        known, has = each.estimate, total(each.goal)
        up_s = CHANGE_S if known.up_s is None else known.up_s
        down_s = CHANGE_S if known.down_s is None else known.down_s
        cost_s = up_s if count > has else down_s if count < has else 0.0
        return Options().forward_s * speed(count) - cost_s * speed(has)

    best = max(
        sum(map(gain, jobs, counts))
        for counts in itertools.product(range(4), repeat=len(jobs))
        if sum(counts) <= gpus
    )
    found = sizes(snapshot(jobs, a=gpus))
    assert sum(gain(each, found.get(each.id, 0)) for each in jobs) == pytest.approx(best)


def test_objectives() -> None:
    """A fast job that scales badly, a slow one that scales well, one of high priority."""
    fast = job(1, estimate=Estimate(stated={1: 100.0, 2: 130.0, 4: 140.0}))
    slow = job(2, estimate=Estimate(stated={1: 1.0, 4: 4.0}))
    dear = job(3, priority=1.0)
    now = snapshot([fast, slow, dear], a=6)

    def by(objective: str) -> dict[str, int]:
        return market.sizes(f"bftrainer:objective={objective}", now)

    assert by("efficiency") == {"1": 1, "2": 4, "3": 1}
    assert by("throughput") == {"1": 4, "2": 2}
    assert by("priority") == {"1": 1, "2": 1, "3": 4}
    # One's own: of what is as good the first gets most.
    assert by("market.fewest") == {"1": 4, "2": 1, "3": 1}


def test_priorities_beyond_what_numbers_can_hold_count_as_the_largest() -> None:
    jobs = [job(1, priority=-1e9), job(2, priority=1e9), job(3, priority=400.0)]
    found = market.sizes("bftrainer:objective=priority", snapshot(jobs, a=8))
    assert found == {"2": 4, "3": 4}
    alone = market.sizes("bftrainer:objective=priority", snapshot(jobs[:1], a=8))
    assert alone == {"1": 4}


def test_a_weight_counts() -> None:
    assert sizes(snapshot([job(1), job(2, weight=3.0)], a=5)) == {"1": 1, "2": 4}


def test_a_longer_look_ahead_pays_for_a_change() -> None:
    dear = Estimate(stated=CURVE, up_s=80.0)
    now = snapshot([job(1, 3, {"a": 2}, estimate=dear)], a=4)
    assert market.sizes("bftrainer:forward_s=100", now) == {"1": 2}
    assert market.sizes("bftrainer:forward_s=1000", now) == {"1": 3}


def test_the_value_is_that_of_what_was_placed_and_the_bound_that_of_the_counts() -> None:
    rigid = [job(n, sizes=(1, 3), estimate=Estimate(stated={1: 1.0, 3: 3.0})) for n in (1, 2, 3)]
    target = market.answer("bftrainer", snapshot(rigid, a=4, b=5))
    assert (target.value, target.bound) == (pytest.approx(120 * 7), pytest.approx(120 * 9))
