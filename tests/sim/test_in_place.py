"""Changes of size in place on the virtual clock, against arithmetic done by hand."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from played import Played, play

from hpcext.core import facts as f
from hpcext.core import values as v
from hpcext.core.engine import Engine
from hpcext.core.estimate import Estimate
from hpcext.manager.views.report import run_document
from hpcext.policies import find_policy
from hpcext.scaling.curve import interpolate
from hpcext.sim.evaluate.metrics import figures
from hpcext.sim.replay.executor import SimulatedExecutor
from hpcext.sim.replay.heap import Heap, drive
from hpcext.sim.replay.physics import Faults, Physics, SelfReport, Stretch, Where

MARBLE = find_policy("marble")
NODE = v.Node("n", 4)
GROWS = Physics(
    {1: 4.0, 3: 10.0}, work=100, suspend_s=1.5, resume_s=0.5,
    in_place=True, join_s=2.0, rescale_up_s=0.25, rescale_down_s=0.75,
)  # fmt: skip
"""Job 2 of `promoted`: for 0.5 s it restores, then it trains."""


def job(order: int, **more: object) -> v.Job:
    return replace(v.Job(str(order), f"j{order}", order, (1, 2, 3, 4), 3), **more)


def promoted(physics: Physics, faults: Faults | None = None, **more: object) -> Played:
    """Job 1 for 10 s on three of four GPUs; job 2 on the last one meanwhile, then on three."""
    both = {"1": Physics({3: 10.0}, work=100), "2": physics}
    return play([job(1), job(2, **more)], [NODE], MARBLE, both, faults=faults)


def test_growth_in_place_costs_its_stall_and_nothing_else() -> None:
    result = promoted(GROWS)
    # It trains on while the new ranks come up: 11.5 s of training at 4, a stall, the rest at 10.
    assert result.run.end_s == pytest.approx(12 + 0.25 + (100 - 4 * 11.5) / 10)
    record = result.records["2"]
    assert (record.rescales, record.suspends, record.lost_steps) == (1, 0, 0)
    first, second = record.segments
    assert (first.end_s, second.start_s, second.stall_s) == (12.25, 12.25, 0.25)
    assert (first.gpus, second.gpus) == (("n:3",), ("n:3", "n:0", "n:1"))
    assert [part.role for part in record.segments] == [v.Role.SECONDARY, v.Role.PRIMARY]
    assert result.jobs["2"].attempt == 1
    assert result.jobs["2"].estimate.up_s == 0.25
    # The same by suspension and resumption, two seconds without progress, ends later.
    assert promoted(replace(GROWS, in_place=False)).run.end_s == pytest.approx(18.2)
    assert result.run.end_s < 18.2


@pytest.mark.parametrize("join_s", [0.0, 2.0])
@pytest.mark.parametrize("faults", [Faults(), Faults(late_s=3.0)], ids=["", "late"])
def test_no_second_of_a_pause_counts_as_training(join_s: float, faults: Faults) -> None:
    slow = replace(GROWS, join_s=join_s, rescale_up_s=5.0)
    done = figures(promoted(slow, faults).run)
    assert done.training_gpu_h is not None
    assert done.training_gpu_h * 3600 == pytest.approx(done.used_gpu_h * 3600 - done.idle_gpu_s)


def test_it_reports_again_after_a_change_during_which_it_was_to_report() -> None:
    """At 12.1 s, and it stalls from 12 s to 12.25 s."""
    heap = Heap()
    physics = {"1": Physics({3: 10.0}, work=100), "2": replace(GROWS, work=1000, resume_s=0.1)}
    executor = SimulatedExecutor(heap, [NODE], physics, report_s=4.0)
    heap.at(0.0, lambda: [f.NodeJoined(NODE), f.Submitted(job(1)), f.Submitted(job(2))])
    engine = Engine(MARBLE)
    drive(engine, heap, executor, until_s=12.05)
    before = engine.world.jobs["2"]
    drive(engine, heap, executor, until_s=30.0)
    after = engine.world.jobs["2"]
    assert (before.state, before.step) == (v.State.RESCALING, 32)
    # The last of 16.1, 20.1, 24.1 and 28.1 s.
    assert after.step == int(4 * 11.9 + 10 * (28.1 - 12.25))


def test_a_shrink_stalls_at_once_and_frees_its_gpus_afterwards() -> None:
    physics = {"1": replace(GROWS, resume_s=0.0), "2": Physics({3: 10.0}, work=10)}
    inputs: list[tuple[float, f.Fact]] = [(4.0, f.Resize("1", 1))]
    jobs = [job(1), job(2, sizes=(3,))]
    result = play(jobs, [NODE], MARBLE, physics, inputs=inputs)
    assert [part.gpus for part in result.records["1"].segments] == [
        ("n:0", "n:1", "n:2"), ("n:0",),
    ]  # fmt: skip
    assert result.records["2"].segments[0].start_s == 4.75
    assert result.jobs["1"].since_s == pytest.approx(4.75 + (100 - 4 * 10) / 4)
    assert result.jobs["1"].estimate.down_s == 0.75


@pytest.mark.parametrize(
    ("faults", "suspended_s"), [(Faults(unscaled=1), 12.25), (Faults(mute=1), 10 + 20)], ids=str
)
def test_where_it_does_not_work_the_job_is_suspended_and_resumed(
    faults: Faults, suspended_s: float
) -> None:
    slow = replace(GROWS, work=400)
    result = promoted(slow, faults, suspend_timeout_s=20.0)
    kinds = [(when_s, action.kind.value) for when_s, action in result.actions if action.job == "2"]
    assert kinds == [
        (0.0, "start"), (10.0, "rescale"), (suspended_s, "suspend"), (suspended_s + 1.5, "start"),
    ]  # fmt: skip
    record = result.records["2"]
    assert (record.rescales, record.suspends, record.lost_steps) == (0, 1, 0)
    trained_s = suspended_s - 0.5 - (0.25 if faults.unscaled else 0.0)
    left = 400 - 4 * trained_s
    assert result.run.end_s == pytest.approx(suspended_s + 1.5 + 0.5 + left / 10)


def test_a_suspension_in_the_middle_of_a_change_goes_before_it() -> None:
    """At 11 s new ranks are on their way; at 12.1 s nobody trains."""
    for when_s, done in ((11.0, 4 * 10.5), (12.1, 4 * 11.5)):
        inputs: list[tuple[float, f.Fact]] = [(when_s, f.Hold("2")), (20.0, f.Release("2"))]
        physics = {"1": Physics({3: 10.0}, work=100), "2": GROWS}
        result = play([job(1), job(2)], [NODE], MARBLE, physics, inputs=inputs)
        record = result.records["2"]
        assert (record.rescales, record.suspends) == (0, 1)
        assert record.segments[0].end_s == when_s + 1.5
        assert result.run.end_s == pytest.approx(20 + 0.5 + (100 - done) / 10)


def test_a_failure_after_a_change_goes_back_to_a_checkpoint_from_before_it() -> None:
    """The newest one is that of its eighth second; the change does not count as one."""
    physics = {"1": replace(GROWS, resume_s=0.0, checkpoint_s=4.0, join_s=0.0)}
    inputs: list[tuple[float, f.Fact]] = [
        (0.0, f.Resize("1", 1)), (10.0, f.Resize("1", 3)),
        (12.0, f.NodeLost("n")), (20.0, f.NodeJoined(NODE)),
    ]  # fmt: skip
    result = play([job(1, sizes=(1, 3))], [NODE], MARBLE, physics, inputs=inputs)
    assert [len(part.gpus) for part in result.records["1"].segments] == [1, 3, 3]
    assert result.run.end_s == pytest.approx(20 + (100 - 4 * 8) / 10)


def test_an_answer_is_given_again_to_a_manager_that_asks_again() -> None:
    heap = Heap()
    executor = SimulatedExecutor(heap, [NODE], {"1": replace(GROWS, work=1000)})
    start = v.Action(v.Kind.START, "1", 1, 1, alloc={"n": 1})
    executor.perform(start)
    grow = v.Action(v.Kind.RESCALE, "1", 1, 1, alloc={"n": 3}, resize=1)
    told: list[f.Fact] = []
    for when_s, actions in ((1.0, [grow, grow]), (2.0, [start, grow]), (9.0, [start, grow])):
        while heap.next_s <= when_s:
            told += heap.advance(heap.next_s)
        heap.advance(when_s)
        for action in actions:
            executor.perform(action)
        assert len(executor.occupied()) == 3
    told += heap.advance(9.0)
    answers = [fact for fact in told if isinstance(fact, f.Rescaled)]
    assert answers == [f.Rescaled("1", 1, 1, ("n:0", "n:1", "n:2"), True, 0.25)] * 2


def test_the_executor_refuses_to_grow_onto_what_is_taken() -> None:
    heap = Heap()
    executor = SimulatedExecutor(heap, [NODE], dict.fromkeys("12", replace(GROWS, resume_s=0.0)))
    for number in (1, 2):
        executor.perform(v.Action(v.Kind.START, str(number), number, 1, alloc={"n": 2}))
    for _ in range(2):
        heap.advance(0.0)
    with pytest.raises(RuntimeError, match="1 GPUs of n, 0 free"):
        executor.perform(v.Action(v.Kind.RESCALE, "1", 1, 1, alloc={"n": 3}, resize=1))


def test_a_second_manager_goes_on_in_the_middle_of_a_change() -> None:
    whole = promoted(GROWS)
    heap = Heap()
    executor = SimulatedExecutor(heap, [NODE], {"1": Physics({3: 10.0}, work=100), "2": GROWS})
    facts: list[f.Fact] = [f.NodeJoined(NODE), f.Submitted(job(1)), f.Submitted(job(2))]
    heap.at(0.0, lambda: facts)
    engine = Engine(MARBLE)
    for until_s in (11.0, 12.1, float("inf")):  # new ranks come up; nobody trains
        drive(engine, heap, executor, until_s=until_s)
        engine = Engine(MARBLE, engine.world.save())
    assert engine.world.records == whole.records
    assert engine.world.jobs == whole.jobs


def test_who_would_end_no_sooner_is_not_promoted() -> None:
    """At 10 s job 2 has 60 of 100 to do at 4 a second: 15 s; on three GPUs 6 s and the cost."""
    for up_s, rescales in ((8.9, 1), (9.0, 0)):
        known = Estimate(stated={1: 0.4, 3: 1.0}, work=100, up_s=up_s)
        physics = {
            "1": Physics({3: 10.0}, work=100),
            "2": replace(GROWS, resume_s=0.0, rescale_up_s=up_s, join_s=0.0),
        }
        jobs = [job(1), job(2, estimate=known)]
        result = play(jobs, [NODE], MARBLE, physics, report_s=5.0)
        assert result.records["2"].rescales == rescales
        assert result.run.end_s == pytest.approx(10 + min(up_s + 6, 15))


def test_the_document_says_how_each_stretch_began_and_what_it_cost() -> None:
    heap = Heap()
    slow = replace(GROWS, work=300)
    executor = SimulatedExecutor(heap, [NODE], {"1": Physics({3: 10.0}, work=100), "2": slow})
    facts: list[f.Fact] = [f.NodeJoined(NODE), f.Submitted(job(1)), f.Submitted(job(2))]
    heap.at(0.0, lambda: facts)
    heap.at(20.0, lambda: [f.Hold("2")])
    heap.at(30.0, lambda: [f.Release("2")])
    engine = Engine(MARBLE)
    drive(engine, heap, executor)
    document = run_document(engine.world, policy="marble", began_at=0.0, now_s=heap.now_s)
    first, second = document["jobs"]
    assert [(part["change"], part["stall_s"]) for part in second["segments"]] == [
        ("start", None), ("rescale", 0.25), ("resume", None),
    ]  # fmt: skip
    assert [part["change"] for part in first["segments"]] == ["start"]
    assert (second["rescales"], second["up_s"], second["down_s"]) == (1, 0.25, None)
    assert (first["rescales"], first["up_s"], first["down_s"]) == (0, None, None)


class Steady:
    """As fast as a curve says, and asked for it as a training that looks at itself."""

    def stretch(self, where: Where, done: float) -> Stretch:
        return Stretch(interpolate(GROWS.speed, where.total))  # type: ignore[arg-type]

    def said(self, where: Where, done: float) -> SelfReport:
        return SelfReport()

    def alone_s(self, gpus: float, per_node: int) -> float:
        return 1.0


def test_it_grows_though_it_reports_meanwhile() -> None:
    """A training that looks at itself goes on anew with each report: here twice while it grows."""
    own = replace(GROWS, speed=Steady(), work=1000)
    results = []
    for physics in (replace(GROWS, work=1000), own):
        both = {"1": Physics({3: 10.0}, work=100), "2": physics}
        heap = Heap()
        executor = SimulatedExecutor(heap, [NODE], both, report_s=0.8)
        heap.at(0.0, lambda: [f.NodeJoined(NODE), f.Submitted(job(1)), f.Submitted(job(2))])
        engine = Engine(MARBLE)
        drive(engine, heap, executor, until_s=200.0)
        results.append((engine.world.jobs["2"].since_s, engine.world.records["2"].rescales))
    assert results == [(pytest.approx(12 + 0.25 + (1000 - 4 * 11.5) / 10), 1)] * 2
