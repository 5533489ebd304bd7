"""Pollux for short completion times: how jobs begin, what a change has to gain, who weighs less."""

from __future__ import annotations

from itertools import pairwise

import pytest
from market import job, sizes, snapshot

from hpcext.core.errors import InputError
from hpcext.core.estimate import Estimate, Observed
from hpcext.core.values import Job
from hpcext.policies import find_policy

JCT = "pollux:objective=jct"


def linear(most: int, seconds: float = 0.0, **more: float) -> Estimate:
    """Stated; and, where it has trained, on one GPU."""
    seen = (Observed(1, 1, 1.0, seconds=seconds),) if seconds else ()
    return Estimate(stated={n: float(n) for n in range(1, most + 1)}, observed=seen, **more)


def test_a_job_of_unknown_speed_begins_with_a_node() -> None:
    new = job(1, 4, nodes=(1, 16), estimate=Estimate())
    machine = {f"n{n}": 4 for n in range(16)}
    assert sizes("pollux", snapshot([new], **machine)) == {"1": 1}
    assert sizes(JCT, snapshot([new], **machine)) == {"1": 4}


def test_and_is_given_four_times_what_it_had() -> None:
    machine = {f"n{n}": 4 for n in range(16)}
    goals = [{"n0": 4}, {f"n{n}": 4 for n in range(4)}]
    got = []
    for goal in goals:
        had = sum(goal.values())
        seen = tuple(
            Observed(gpus, 1 + gpus // 5, 10.0 * gpus, seconds=600.0) for gpus in {1, 4, had}
        )
        running = job(
            1, 4, goal, nodes=(1, 16), estimate=Estimate(observed=seen), most_gpus=had,
            submitted_s=-1e4,
        )  # fmt: skip
        got.append(sizes(JCT, snapshot([running], **machine))["1"])
    assert got == [16, 64]


@pytest.mark.parametrize(
    ("faster", "cost_s", "gets"), [(1.2, None, 1), (1.5, None, 2), (1.2, 10.0, 2), (1.5, 70.0, 1)]
)
def test_a_change_has_to_pay_soon(faster: float, cost_s: float | None, gets: int) -> None:
    """Within 120 s, at 30 s if it is not known: by a quarter, whatever its age."""
    known = Estimate(stated={1: 1.0, 2: faster}, up_s=cost_s)
    for moves, age_s in ((0, 100.0), (50, 1e6)):
        running = job(1, 2, {"a": 1}, estimate=known, moves=moves, submitted_s=2e6 - age_s)
        assert sizes(JCT, snapshot([running], 2e6, a=2)) == {"1": gets}


def test_who_has_had_more_gpu_time_gets_less() -> None:
    def two(seconds: float) -> list[Job]:
        return [job(1, 9, estimate=linear(9)), job(2, 9, estimate=linear(9, seconds))]

    got = [sizes(JCT, snapshot(two(hours * 3600.0), a=9))["2"] for hours in (0.1, 4, 40, 400)]
    assert all(more >= less for more, less in pairwise(got))
    assert got[0] >= 4
    # Nobody is starved, whatever it has had.
    assert got[-1] == 1
    for hours in (0, 400):
        assert sizes("pollux", snapshot(two(hours * 3600.0), a=10)) == {"1": 5, "2": 5}


def test_a_stated_weight_still_counts() -> None:
    jobs = [job(1, 9, estimate=linear(9)), job(2, 9, weight=8.0, estimate=linear(9))]
    assert sizes(JCT, snapshot(jobs, a=9)) == {"1": 1, "2": 8}


def test_without_p_the_mean_is_a_product() -> None:
    flat = job(1, estimate=Estimate(stated={1: 1.0, 2: 1.25, 4: 1.5}))
    steep = job(2, estimate=Estimate(stated={1: 1.0, 4: 4.0}))
    now = snapshot([flat, steep], a=5)
    assert sizes(JCT, now) == sizes("pollux:p=0", now) == {"1": 1, "2": 4}
    assert sizes(f"{JCT},p=-1", now) == sizes("pollux", now) == {"1": 2, "2": 3}


def test_the_search_of_the_paper_has_the_rules_of_the_paper() -> None:
    with pytest.raises(InputError, match="objective=jct needs search=exact"):
        find_policy(f"{JCT},search=genetic")
