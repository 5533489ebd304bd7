"""The utilisation efficiency of a harvester, from what its trainers state and were measured at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from hpcext.core import facts as f
from hpcext.core.engine import Engine
from hpcext.core.estimate import Estimate, Observed
from hpcext.core.history.node_time import Meter, NodeTime, Use
from hpcext.core.values import Job, State
from hpcext.jobspec import JobSpec
from hpcext.policies import find_policy
from hpcext.sim.evaluate.metrics import figures
from hpcext.sim.pilots.harvested import Offered, UtilisationEfficiency, utilisation_efficiency
from hpcext.sim.replay.run import Named, Scenario, SimulationOptions, run
from hpcext.sim.replay.tasks import NodeSource, Task, simulate_task

SPEC = JobSpec("any", ("true",))


def trainer(number: int, done: float, work: float | None = None, **known: object) -> Job:
    """One of one GPU on one or two nodes."""
    estimate = Estimate(done=done, work=work, **known)  # type: ignore[arg-type]
    return Job(str(number), f"t{number}", number, (1,), 1, nodes=(1, 2), estimate=estimate)


def seen(rate: float, gpus: int = 1, kind: str = "") -> tuple[Observed, ...]:
    return (Observed(gpus, gpus, rate, seconds=60.0, kind=kind),)


def found(
    jobs: Sequence[Job], nodes: float, lasted_s: float, spec: JobSpec = SPEC
) -> UtilisationEfficiency:
    return utilisation_efficiency(jobs, lambda _: spec, "equal_share", Offered(nodes, 1, lasted_s))


def test_the_shape_is_stated_and_the_speed_was_measured() -> None:
    """On two nodes 30 a second, on one then 20."""
    job = trainer(1, 900.0, 1e6, stated={1: 1.0, 2: 1.5}, observed=seen(30.0, gpus=2))
    assert found([job], 1.0, 100).value == pytest.approx(900 / 2000)
    assert found([job], 2.0, 100).value == pytest.approx(900 / 3000)
    # Of 1.5 nodes, as two; a part of them is as good as its share.
    assert found([job], 1.5, 100).ideal == pytest.approx(3000 * 1.5 / 2)


def test_who_has_not_run_yet_is_as_fast_as_who_states_the_same() -> None:
    ran = trainer(1, 900.0, 1e6, stated={1: 1.0, 2: 1.5}, observed=seen(10.0))
    waits = trainer(2, 0.0, 1e6, stated={1: 1.0, 2: 1.5})
    assert found([ran, waits], 2.0, 100).ideal == pytest.approx(2 * 10 * 100)
    other = trainer(2, 0.0, 1e6, stated={1: 5.0})
    assert found([ran, other], 2.0, 100).ideal == pytest.approx((10 + 5) * 100)
    shape = replace(SPEC, relative=True)
    assert found([ran, other], 2.0, 100, shape).why == "no speed of t2 is known"


def test_when_all_are_done_it_is_how_long_they_would_have_been_at_it() -> None:
    """1000 of work at 10 a second: half of the time. Who was cancelled had no more to do."""
    done = replace(trainer(1, 1000.0, observed=seen(10.0)), state=State.COMPLETED)
    assert found([done], 1.0, 200).value == pytest.approx(0.5)
    gone = replace(trainer(2, 500.0, 1e6, observed=seen(10.0)), state=State.CANCELLED)
    never = replace(trainer(3, 0.0), state=State.CANCELLED)
    assert found([done, gone, never], 1.0, 200).value == pytest.approx(0.75)


def test_a_trainer_is_there_when_it_was_submitted() -> None:
    late = replace(trainer(1, 400.0, 1e6, observed=seen(10.0)), submitted_s=50.0)
    assert found([late], 1.0, 100).ideal == pytest.approx(500)


def test_from_a_journal_it_is_what_the_simulator_says_of_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two trainers on two to four nodes, half an hour of them."""
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text(
        "name,submit_s,n_min,n_max,rescale_up_s,rescale_down_s,samples,rate_1,rate_2,rate_3\n"
        "a,0,1,3,20,10,1e6,10,19,27\nb,60,1,3,20,10,1e6,5,10,15\n"
    )
    Path("i.csv").write_text("time_s,joined,left\n0,0-1,\n300,2-3,\n700,,0\n1100,0,2\n1500,,1\n")
    task = Task("t.csv", "bftrainer", NodeSource(idle="i.csv"), until_s=1800.0)
    source = task.place.find()
    jobs = task.jobs(source)
    log: list[tuple[float, tuple[f.Fact, ...]]] = []
    run(
        Scenario(jobs.jobs(0), source.nodes, source.changes(0)),
        find_policy(task.policy),
        Named(task.policy),
        SimulationOptions(until_s=1800.0, looks_s=tuple(range(5, 1801, 5))),
        lambda _: lambda now_s, facts, actions: log.append((now_s, facts)),
    )
    engine, time = Engine(find_policy(task.policy)), NodeTime()
    meter = Meter(engine.world, time)
    for now_s, facts in log:
        engine.step(now_s, facts)
        meter.watch(now_s, facts)
    time.passed(engine.world, 1800.0)
    samples = replace(SPEC, work_unit="samples")
    offered = Offered(time.held_s / 1800, 1, 1800.0)
    live = utilisation_efficiency(
        [*engine.world.jobs.values()], lambda _: samples, "bftrainer", offered
    )
    simulated = figures(simulate_task(task)[0])
    assert offered.nodes == pytest.approx(simulated.offered_gpu_h * 2)
    assert live.value == pytest.approx(simulated.ideal_share)
    assert time.spent[Use.TRAINING] == pytest.approx(simulated.training_gpu_h * 3600, rel=0.02)
    assert time.spent[Use.PREEMPTION] > 0


@pytest.mark.parametrize(
    ("job", "nodes", "why"),
    [
        (trainer(1, 9.0, 99.0), 1.0, "no speed of t1 is known"),
        (trainer(1, 9.0, observed=seen(1.0)), 1.0, "the total work of t1 is not stated"),
        (
            trainer(1, 9.0, 99.0, observed=(*seen(1.0, kind="a"), *seen(2.0, kind="b"))),
            1.0,
            "the trainers ran on several kinds of GPU",
        ),
        (trainer(1, 9.0, 99.0, observed=seen(1.0)), 0.2, "0.20 nodes that stay could not have"),
        (
            replace(trainer(1, 9.0, observed=seen(1.0)), state=State.COMPLETED, nodes=(2, 2)),
            1.0,
            "1.00 nodes that stay could not have",
        ),
    ],
)
def test_an_efficiency_that_is_unknown_says_why(job: Job, nodes: float, why: str) -> None:
    said = found([job], nodes, 100.0)
    assert said.value is None
    assert why in said.why
