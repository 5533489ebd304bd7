"""GPUs that are left on nodes, and jobs that a division gave nothing."""

from __future__ import annotations

from typing import Any

import pytest
from market import answer, job, sizes, snapshot
from msgspec.structs import replace

from hpcext.core.estimate import Estimate
from hpcext.core.values import Alloc, Job, Run, State
from hpcext.policies.placement import leftover
from hpcext.policies.placement.place import place

POLICIES = ("bftrainer", "equal_share", "optimus", "total_time", "doubling:strategy=precompute")
KNOWN = Estimate(stated={1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0}, work=100.0)


def queue(*needs: int) -> list[Job]:
    return [job(n, sizes=(need,), estimate=KNOWN) for n, need in enumerate(needs, 1)]


@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_is_idle_that_a_job_could_have(policy: str) -> None:
    """By numbers the first three have all eight GPUs; the third fits on no node."""
    jobs = queue(3, 3, 2, 1, 1)
    target = answer(policy, snapshot(jobs, a=4, b=4))
    allocs = {name: grant.alloc for name, grant in target.grants.items()}
    assert {name: sum(alloc.values()) for name, alloc in allocs.items()} == {
        "1": 3, "2": 3, "4": 1, "5": 1,
    }  # fmt: skip
    assert target.value is None or target.bound is None or target.value <= target.bound + 1e-9
    # There they stay.
    runs = {"state": State.RUNNING, "run": Run(registered=True)}
    after = [
        replace(each, goal=allocs[each.id], held=allocs[each.id], **runs)
        if each.id in allocs
        else each
        for each in jobs
    ]
    again = answer(policy, snapshot(after, a=4, b=4))
    assert {name: grant.alloc for name, grant in again.grants.items()} == allocs


def test_a_solver_that_knows_limits_has_the_last_word() -> None:
    jobs = queue(3, 3, 2, 1, 1)
    jobs[2] = replace(jobs[2], weight=2.0)
    for policy, found in (
        ("bftrainer", {"1": 3, "2": 3, "4": 1, "5": 1}),
        ("bftrainer:solver=counting", {"1": 3, "2": 3}),
    ):
        assert sizes(policy, snapshot(jobs, a=4, b=4)) == found


def test_it_is_looked_for_once_for_equal_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def count(*args: Any, **more: Any) -> list[Alloc]:
        asked.append(args)
        return place(*args, **more)

    monkeypatch.setattr(leftover, "place", count)
    assert len(sizes("equal_share", snapshot(queue(*[3] * 1000), a=4, b=4))) == 2
    assert len(asked) == 1
