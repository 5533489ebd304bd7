"""Finish-time fairness of simulated jobs: by hand, and by its definition."""

from __future__ import annotations

import random

import pytest

from hpcext.core import facts as f
from hpcext.core import values as v
from hpcext.policies import find_policy
from hpcext.sim.evaluate.fair import alone_s
from hpcext.sim.evaluate.outcome import JobRow, SimulatedRun
from hpcext.sim.replay.physics import Physics
from hpcext.sim.replay.run import Named, Scenario, SimulationOptions, run

LINEAR = {1: 1.0, 2: 2.0, 4: 4.0}
MACHINE = (v.Node("n1", 4),)


def job(order: int, submitted_s: float = 0.0, **more: object) -> v.Job:
    return v.Job(str(order), f"j{order}", order, (1, 2, 4), 4, submitted_s=submitted_s, **more)  # type: ignore[arg-type]


def simulated(
    jobs: list[v.Job], work: list[float], policy: str = "exclusive", **more: object
) -> SimulatedRun:
    physics = [Physics(LINEAR, each) for each in work]
    scenario = Scenario(list(zip(jobs, physics, strict=True)), MACHINE, **more)  # type: ignore[arg-type]
    return run(scenario, find_policy(policy), Named(policy))


def rows(found: SimulatedRun) -> dict[str, JobRow]:
    return {row.job: row for row in found.jobs}


def test_two_jobs_by_hand() -> None:
    """One after the other on four GPUs, 25 s each, both there from the beginning."""
    found = rows(simulated([job(1), job(2)], [100, 100]))
    assert [found[name].ended_s for name in "12"] == [25, 50]
    # There were two all the time of job 1: two GPUs. Of job 2 in the mean 1.5: 2.67 GPUs.
    assert found["1"].fair_s == pytest.approx(100 / 2)
    assert found["2"].fair_s == pytest.approx(100 / (4 / 1.5))


def test_what_nothing_is_said_of() -> None:
    """Who waits for others, who does not complete, and who has nodes that come and go."""
    found = rows(simulated([job(1), job(2, after=("1",))], [100, 100]))
    # Job 2 could not use anything while job 1 was there.
    assert found["1"].fair_s == 25
    assert (found["2"].state, found["2"].fair_s) == ("completed", None)
    cancelled = [(5.0, (f.Cancel("2"),)), (90.0, ())]
    assert all(
        row.fair_s is None
        for changes in (cancelled, iter(()))
        for row in simulated([job(1), job(2)], [100, 100], changes=changes).jobs
    )


def test_a_run_that_is_cut_says_it_of_those_that_completed() -> None:
    scenario = Scenario([(job(n), Physics(LINEAR, 100)) for n in (1, 2)], MACHINE)
    found = run(scenario, find_policy("exclusive"), Named(""), SimulationOptions(until_s=30))
    assert [row.fair_s for row in found.jobs] == [50, None]


@pytest.mark.parametrize(
    ("curve", "sizes", "nodes", "gpus", "seconds"),
    [
        (LINEAR, (1, 2, 4), None, 3.0, 100 / 3),
        # As if it had one GPU half of the time.
        (LINEAR, (1, 2, 4), None, 0.5, 200),
        # It takes no more than four, or cannot use more than it may have.
        (LINEAR, (1, 2, 4), None, 64.0, 25),
        (LINEAR, (1, 2), (1, 1), 64.0, 50),
        # Rigid on 2 nodes with 4 GPUs each: eight, or a part of the time.
        ({8: 5.0}, (4,), (2, 2), 2.0, 80),
        # Three are slower than two.
        ({1: 1.0, 2: 2.0, 3: 1.5}, (1, 2, 3), (1, 1), 3.0, 50),
    ],
)  # fmt: skip
def test_alone_on_so_many_gpus(
    curve: dict[int, float],
    sizes: tuple[int, ...],
    nodes: tuple[int, int] | None,
    gpus: float,
    seconds: float,
) -> None:
    each = v.Job("1", "a", 1, sizes, max(sizes), nodes=nodes)
    assert alone_s(each, Physics(curve, 100), gpus, 4) == pytest.approx(seconds)


@pytest.mark.parametrize("seed", range(5))
def test_it_is_what_the_definition_says(seed: int) -> None:
    """The machine by the mean number of jobs beside each, summed up job by job."""
    source = random.Random(seed)
    when_s = sorted(source.choice([0.0, source.uniform(0, 500)]) for _ in range(60))
    jobs = [job(number, each) for number, each in enumerate(when_s, 1)]
    found = simulated(jobs, [source.uniform(10, 60) for _ in jobs], "equal_share")
    lives = [(row.submitted_s, row.ended_s or 0.0) for row in found.jobs]
    for row, (begin, end) in zip(found.jobs, lives, strict=True):
        together = sum(max(0.0, min(end, to) - max(begin, since)) for since, to in lives)
        share = 4 * (end - begin) / together
        assert row.fair_s == pytest.approx(row.work / share)
