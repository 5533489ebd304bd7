"""Jobs that take multiples of a number of GPUs, as models do that are divided over that many."""

from __future__ import annotations

import pytest
from played import play

from hpcext.config import POLICIES
from hpcext.core import values as v
from hpcext.policies import find_policy
from hpcext.sim.replay.physics import Physics


@pytest.mark.parametrize("name", POLICIES)
def test_each_policy_gives_multiples_and_no_other_number(name: str) -> None:
    """On seven GPUs: two are left beside a job that takes up to four, and one is left over."""
    sizes = {"1": (2, 4), "2": (4, 8), "3": (2, 4, 6), "4": (3, 6)}
    jobs = [v.Job(job, f"job-{job}", int(job), each, each[-1]) for job, each in sizes.items()]
    physics = {
        job: Physics({size: float(size) for size in each}, work=100.0)
        for job, each in sizes.items()
    }
    result = play(jobs, [v.Node("n1", 7)], find_policy(name), physics)
    for job, each in sizes.items():
        had = {len(part.gpus) for part in result.records[job].segments}
        assert had, (name, job)
        assert had <= set(each), (name, job)
