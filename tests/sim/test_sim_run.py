"""Whole runs on the virtual clock, against arithmetic done by hand."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from hpcext.core import facts as f
from hpcext.core import values as v
from hpcext.core.engine import Engine, Policy
from hpcext.core.errors import HpcextError
from hpcext.core.estimate import Estimate
from hpcext.policies import POLICIES, find_policy
from hpcext.sim.evaluate.outcome import JobRow, SimulatedRun
from hpcext.sim.replay.heap import Observe
from hpcext.sim.replay.physics import Faults, Physics
from hpcext.sim.replay.recorder import FIRST_SPAN_S, Levels, Timeline
from hpcext.sim.replay.run import Named, Scenario, SimulationOptions, run

EQUAL = find_policy("equal_share")
EXCLUSIVE = find_policy("exclusive")
MARBLE = find_policy("marble")

Changes = Iterable[tuple[float, tuple[f.Fact, ...]]]


def nodes(count: int, gpus: int = 1, first: int = 1) -> tuple[v.Node, ...]:
    return tuple(v.Node(f"n{number}", gpus) for number in range(first, first + count))


def job(order: int, sizes: tuple[int, ...] = (1,), **more: Any) -> v.Job:
    return v.Job(str(order), f"j{order}", order, sizes, max(sizes), **more)


def trainer(order: int, most: int, **more: Any) -> v.Job:
    """On 1 to `most` nodes with one GPU each, as fast as it has nodes."""
    curve = {count: float(count) for count in range(1, most + 1)}
    estimate = Estimate(stated=curve, work=more.pop("work", 100.0))
    return job(order, nodes=(1, most), estimate=estimate, **more)


def elastic(work: float, **more: Any) -> Physics:
    return Physics({n: float(n) for n in range(1, 9)}, work, elastic=True, **more)


def simulated(
    jobs: Sequence[tuple[v.Job, Physics]],
    there: tuple[v.Node, ...],
    policy: Policy = EQUAL,
    changes: Changes = (),
    how: SimulationOptions | None = None,
) -> SimulatedRun:
    return run(Scenario(iter(jobs), there, iter(changes)), policy, Named("p"), how)


def row(found: SimulatedRun, name: str) -> JobRow:
    (one,) = (each for each in found.jobs if each.job == name)
    return one


def lost(when_s: float, *names: str) -> tuple[float, tuple[f.Fact, ...]]:
    return when_s, tuple(map(f.NodeLost, names))


def joined(when_s: float, *more: v.Node) -> tuple[float, tuple[f.Fact, ...]]:
    return when_s, tuple(map(f.NodeJoined, more))


def test_a_trainer_that_loses_a_node_goes_on_after_the_stall_of_a_shrink() -> None:
    costs = {"rescale_down_s": 3.0, "rescale_up_s": 5.0, "resume_s": 2.0}
    given = [(trainer(1, 4, work=400), elastic(400, **costs))]
    found = simulated(given, nodes(4), changes=[lost(22, "n4")])
    # 2 s to begin, 20 s on four nodes, 3 s of stall, and the rest on three.
    end_s = 22 + 3 + (400 - 20 * 4) / 3
    one = row(found, "1")
    assert found.end_s == one.ended_s == pytest.approx(end_s)
    assert (one.attempts, one.suspends, one.lost) == (1, 0, 0)
    assert one.idle_gpu_s == pytest.approx(2 * 4 + 3 * 3)
    assert one.gpu_s == pytest.approx(22 * 4 + (end_s - 22) * 3)
    assert found.done == 400


def test_a_trainer_that_gets_a_node_trains_on_and_stalls_once() -> None:
    given = [(trainer(1, 4, work=400), elastic(400, rescale_up_s=5.0))]
    found = simulated(given, nodes(2), changes=[joined(50, *nodes(2, first=3))])
    assert found.end_s == pytest.approx(50 + 5 + (400 - 50 * 2) / 4)
    assert row(found, "1").rescales == 1
    assert row(found, "1").idle_gpu_s == pytest.approx(5 * 4)


@pytest.mark.parametrize(
    ("checkpoint_s", "kept"), [(0.0, 41.0), (10.0, 40.0), (None, 0.0)], ids=str
)
def test_a_trainer_that_loses_all_goes_on_from_its_checkpoint(
    checkpoint_s: float | None, kept: float
) -> None:
    """20.5 s on two nodes; what lies behind the newest checkpoint is trained again."""
    given = [(trainer(1, 2), elastic(100, checkpoint_s=checkpoint_s, launch_s=1.0, resume_s=3.0))]
    changes = [lost(24.5, "n1", "n2"), joined(60, *nodes(1))]
    found = simulated(given, nodes(2), changes=changes)
    assert found.end_s == pytest.approx(60 + 4 + (100 - kept))
    one = row(found, "1")
    assert (one.attempts, one.lost) == (2, pytest.approx(41 - kept))
    assert one.idle_gpu_s == pytest.approx(4 * 2 + 4)
    # Nobody holds anything while there is no node.
    (gap,) = (span for span in found.spans if span.start_s == 30)
    assert (gap.offered, gap.held, gap.running, gap.waiting) == (0, 0, 0, 1)


def test_what_a_suspension_and_a_resumption_cost() -> None:
    """Job 2 runs on one GPU of four beside job 1; then it is stopped, and begins on three."""
    curve = {1: 1.0, 3: 3.0}
    first = job(1, (3,)), Physics({3: 1.0}, 10)
    costs = {"launch_s": 0.25, "resume_s": 0.5, "suspend_s": 2.0}
    second = job(2, (1, 2, 3)), Physics(curve, 60, **costs)
    found = simulated([first, second], nodes(1, 4), MARBLE)
    begun_s = 10 + 2 + 0.75
    assert found.end_s == pytest.approx(begun_s + (60 - 9.25) / 3)
    two = row(found, "2")
    assert (two.suspends, two.attempts, two.lost) == (1, 2, 0)
    assert two.gpu_s == pytest.approx(12 * 1 + (found.end_s - 12) * 3)
    assert two.idle_gpu_s == pytest.approx(0.75 + 2 + 0.75 * 3)


def test_a_launch_delay_is_had_by_every_attempt_and_holds_its_gpus() -> None:
    found = simulated([(job(1, (2,)), Physics({2: 2.0}, 10, launch_s=7.0))], nodes(1, 2))
    assert found.end_s == 12
    assert row(found, "1").idle_gpu_s == 14
    assert row(found, "1").gpu_s == 24


def test_two_spread_jobs_on_common_nodes_are_slower_by_the_share_and_only_then() -> None:
    """Both on two nodes with two GPUs, one each; job 2 comes at 10 s, and ends before job 1."""
    both = {"nodes": (2, 2)}
    for share in (0.0, 0.25):
        physics = [Physics({2: 1.0}, work, interference=share) for work in (100.0, 30.0)]
        jobs = [job(1, **both), job(2, submitted_s=10.0, **both)]
        found = simulated(list(zip(jobs, physics, strict=True)), nodes(2, 2))
        second_s = 10 + 30 / (1 - share)
        assert row(found, "2").ended_s == pytest.approx(second_s)
        assert found.end_s == pytest.approx(second_s + 100 - 10 - (second_s - 10) * (1 - share))


def test_a_job_on_one_node_slows_no_other() -> None:
    spread = job(1, nodes=(2, 2)), Physics({2: 1.0}, 100, interference=0.5)
    narrow = job(2, submitted_s=10.0), Physics({1: 1.0}, 30, interference=0.5)
    found = simulated([spread, narrow], nodes(2, 2))
    assert [row(found, name).ended_s for name in "12"] == [100, 40]


def test_spans_are_means_and_add_up() -> None:
    """Two GPUs for 10 s, then four; job 1 holds two of them from 0 to 12, launching for 2 s."""
    first = job(1, (2,)), Physics({2: 1.0}, 10, launch_s=2.0)
    second = job(2, (4,), submitted_s=6.5), Physics({4: 1.0}, 4)
    changes = [joined(10, v.Node("n2", 4))]
    found = simulated([first, second], nodes(1, 2), MARBLE, changes)
    assert [span.start_s for span in found.spans] == list(range(14))
    by = {span.start_s: span for span in found.spans}
    assert (by[0.0].held, by[0.0].training, by[2.0].training) == (2, 0, 2)
    assert (by[5.0].waiting, by[6.0].waiting, by[7.0].waiting) == (0, 0.5, 1)
    assert (by[9.0].offered, by[10.0].offered) == (2, 6)
    assert (by[10.0].running, by[10.0].held, by[13.0].running) == (2, 6, 1)
    for level, jobs in (("held", sum(each.gpu_s for each in found.jobs)), ("offered", 20 + 4 * 6)):
        area = sum(getattr(span, level) * (span.end_s - span.start_s) for span in found.spans)
        assert area == pytest.approx(jobs)


def test_a_run_that_is_cut_says_what_was_so_until_then() -> None:
    jobs = [
        (job(n, (1,), submitted_s=s), Physics({1: 1.0}, 10)) for n, s in ((1, 0), (2, 5), (3, 90))
    ]
    found = simulated(jobs, nodes(1), MARBLE, how=SimulationOptions(until_s=16.0))
    assert found.end_s == 16
    assert found.spans[-1].end_s == 16
    states = [(each.job, each.state, each.started_s, each.ended_s) for each in found.jobs]
    # The third one is yet to come: it is no job of this run.
    assert states == [("1", "completed", 0, 10), ("2", "running", 10, None)]
    assert row(found, "2").gpu_s == 6
    assert found.done == 16


def test_a_run_that_is_cut_while_nothing_happens_still_ends_there() -> None:
    changes = [lost(5, "n1")]
    found = simulated(
        [(job(1), Physics({1: 1.0}, 10))], nodes(1), MARBLE, changes, SimulationOptions(until_s=60)
    )
    assert (found.end_s, found.jobs[0].state, found.jobs[0].lost) == (60, "pending", 5)
    offered = sum(span.offered * (span.end_s - span.start_s) for span in found.spans)
    assert offered == pytest.approx(5)


def test_every_job_has_one_row_also_if_others_waited_for_it() -> None:
    """A finished job is known for as long as another one needs it."""
    physics = Physics({1: 1.0}, 10)
    jobs = [job(1), job(2, after=("1",)), job(3, after=("1", "2")), job(4)]
    found = simulated([(each, physics) for each in jobs], nodes(1), MARBLE)
    assert [each.job for each in found.jobs] == ["1", "2", "3", "4"]
    assert {each.state for each in found.jobs} == {"completed"}
    assert found.done == 40
    assert found.end_s == 40


def test_who_needs_a_job_that_failed_has_a_row_too() -> None:
    jobs = [replace(job(1), retries=0), job(2, after=("1",)), job(3, after=("2",))]
    physics = Physics({1: 1.0}, 1e6)
    how = SimulationOptions(seed=1, faults=Faults(fail_s=1.0))
    found = simulated([(each, physics) for each in jobs], nodes(1), MARBLE, how=how)
    assert [each.state for each in found.jobs] == ["failed", "cancelled", "cancelled"]
    assert [each.gpu_s > 0 for each in found.jobs] == [True, False, False]


def test_a_policy_whose_answer_is_refused_ends_the_run() -> None:
    def greedy(now: v.Snapshot) -> v.Target:
        return v.Target({each.id: v.Grant({"n1": 9}, v.Role.PRIMARY, "") for each in now.jobs})

    with pytest.raises(HpcextError, match="policy p: it grants 9 GPUs to job 1, which takes"):
        simulated([(job(1), Physics({1: 1.0}, 1))], nodes(1), greedy)


@pytest.mark.cases(7)
@pytest.mark.parametrize("policy", [*POLICIES, "pollux:objective=jct"])
def test_equal_jobs_do_not_suspend_each_other_all_the_time(policy: str) -> None:
    """Two of unknown length and speed, one GPU, a day: now and then is fair, each minute is not."""
    physics = Physics({1: 1.0}, 1e9, launch_s=10, resume_s=20, suspend_s=10)
    given = [(job(n), physics) for n in (1, 2)]
    how = SimulationOptions(report_s=30.0, until_s=86_400.0)
    found = simulated(given, nodes(1), find_policy(policy), how=how)
    assert sum(row.suspends for row in found.jobs) <= 20


def test_an_observer_sees_each_step_before_the_next_look() -> None:
    """What was done is said just before an instant; a job that ends is still known."""
    heard: list[tuple[float, float]] = []
    steps: list[float] = []

    def watcher(engine: Engine) -> Observe:
        def watch(now_s: float, facts: tuple[f.Fact, ...], _: tuple[v.Action, ...]) -> None:
            steps.append(now_s)
            for fact in facts:
                if isinstance(fact, f.Progressed):
                    assert engine.world.jobs[fact.job].name == "j1"
                    heard.append((now_s, fact.done))

        return watch

    scenario = Scenario([(job(1), Physics({1: 2.0}, 20))], nodes(1))
    how = SimulationOptions(looks_s=[3.0, 7.0, 50.0])
    found = run(scenario, MARBLE, Named("p"), how, watcher)
    assert [when_s for when_s, _ in heard] == pytest.approx([3, 7, 10])
    assert [done for _, done in heard] == pytest.approx([6, 14, 20])
    assert heard[0][0] < 3
    assert len(steps) == found.events


LEVELS: Levels = (4.0, 3.0, 2.0, 1.0, 0.0)


def test_a_timeline_has_few_spans_however_long_it_is_and_loses_nothing() -> None:
    timeline, most = Timeline(8), 8
    for until_s in range(1, 1001):
        timeline.add(float(until_s), (float(until_s), *LEVELS[1:]))
        spans = timeline.spans()
        assert len(spans) <= most
        assert spans[0].start_s == 0
        assert spans[-1].end_s == until_s
        assert all(a.end_s == b.start_s for a, b in itertools.pairwise(spans))
    # By the width of 2^7 s: 1 to 1000, once each.
    assert {span.end_s - span.start_s for span in spans[:-1]} == {128.0 * FIRST_SPAN_S}
    offered = sum(span.offered * (span.end_s - span.start_s) for span in spans)
    assert offered == pytest.approx(1000 * 1001 / 2)
    assert spans[0].offered == pytest.approx(sum(range(1, 129)) / 128)


def test_an_instant_between_two_edges_of_a_timeline() -> None:
    timeline = Timeline(4)
    timeline.add(0.25, LEVELS)
    timeline.add(0.25, (99.0,) * 5)
    timeline.add(1.5, (8.0, *LEVELS[1:]))
    assert [(s.start_s, s.end_s, s.offered) for s in timeline.spans()] == [
        (0, 1, 0.25 * 4 + 0.75 * 8), (1, 1.5, 8),
    ]  # fmt: skip
