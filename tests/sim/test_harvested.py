"""The efficiency of a harvester, from what its trainers state and were measured at."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from hpcext.core.estimate import Estimate, Observed
from hpcext.core.values import Job, State
from hpcext.jobfile import JobSpec
from hpcext.sim.harvested import Efficiency, Offered, efficiency

SPEC = JobSpec("any", ("true",))


def trainer(number: int, done: float, work: float | None = None, **known: object) -> Job:
    """One of one GPU on one or two nodes."""
    estimate = Estimate(done=done, work=work, **known)  # type: ignore[arg-type]
    return Job(str(number), f"t{number}", number, (1,), 1, nodes=(1, 2), estimate=estimate)


def seen(rate: float, gpus: int = 1, kind: str = "") -> tuple[Observed, ...]:
    return (Observed(gpus, gpus, rate, seconds=60.0, kind=kind),)


def found(jobs: Sequence[Job], nodes: float, lasted_s: float, spec: JobSpec = SPEC) -> Efficiency:
    return efficiency(jobs, lambda _: spec, "equal_share", Offered(nodes, 1, lasted_s))


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
    assert found([ran, other], 2.0, 100, shape).why == "of t2 no speed is known"


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


@pytest.mark.parametrize(
    ("job", "nodes", "why"),
    [
        (trainer(1, 9.0, 99.0), 1.0, "of t1 no speed is known"),
        (trainer(1, 9.0, observed=seen(1.0)), 1.0, "t1 does not say how much work it has"),
        (
            trainer(1, 9.0, 99.0, observed=(*seen(1.0, kind="a"), *seen(2.0, kind="b"))),
            1.0,
            "they were on GPUs of several kinds",
        ),
        (trainer(1, 9.0, 99.0, observed=seen(1.0)), 0.2, "0.20 nodes that stay could not have"),
        (
            replace(trainer(1, 9.0, observed=seen(1.0)), state=State.COMPLETED, nodes=(2, 2)),
            1.0,
            "1.00 nodes that stay could not have",
        ),
    ],
)
def test_what_cannot_be_known(job: Job, nodes: float, why: str) -> None:
    said = found([job], nodes, 100.0)
    assert said.value is None
    assert why in said.why
