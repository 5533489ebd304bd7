"""What an estimate keeps of the reports of a job."""

from __future__ import annotations

import msgspec
import pytest

from hpcext.core.engine import Engine
from hpcext.core.estimate import Estimate, Observed
from hpcext.core.facts import Fact, NodeJoined, Progressed, Registered, Rescaled, Started, Submitted
from hpcext.core.values import Job, Node, State
from hpcext.policies import find_policy


def test_time_and_batch_are_those_of_each_place() -> None:
    known = Estimate()
    for now_s, since_s, gpus, nodes, rate in (
        (10.0, 0.0, 2, 1, 5.0), (25.0, 0.0, 2, 1, 5.5), (40.0, 30.0, 4, 2, 9.0),
        (60.0, 30.0, 4, 2, 9.5), (100.0, 90.0, 2, 1, 6.0),
    ):  # fmt: skip
        known = known.saw(now_s, since_s, Observed(gpus, nodes, rate))
    assert known.observed == (
        # From the first report on, and of the second stay from its beginning.
        Observed(2, 1, 6.0, 1.0, 25.0, 100.0),
        Observed(4, 2, 9.5, 1.0, 20.0, 60.0),
    )
    assert known.measured == {2: 6.0, 4: 9.5}


def test_a_size_on_several_numbers_of_nodes_is_that_on_the_fewest() -> None:
    known = Estimate(observed=(Observed(4, 1, 8.0), Observed(4, 2, 6.0), Observed(8, 2, 9.0)))
    assert known.measured == {4: 8.0, 8: 9.0}


def test_a_step_is_as_much_work_as_of_late() -> None:
    known = Estimate(step=10, done=320.0)
    assert known.batch(20, 960.0) == 64.0
    # Nothing new: as in all that was done.
    assert known.batch(10, 320.0) == 32.0
    assert Estimate().batch(0, 0.0) == 1.0


def progress(step: int, loss: float | None, rate: float | None = 2.0) -> Progressed:
    metrics = {} if loss is None else {"loss": loss}
    return Progressed("1", 1, step, done=4.0 * step, rate=rate, metrics=metrics)


def test_an_engine_learns_and_a_saved_one_knows_the_same() -> None:
    engine = Engine(find_policy("marble"))
    job = Job("1", "a", 1, (2,), 2, nodes=(1, 1))
    first: list[Fact] = [NodeJoined(Node("n", 4)), Submitted(job)]
    engine.step(0.0, first)
    engine.step(1.0, [Started("1", 1, ("n:0", "n:1")), Registered("1", 1, step=0, in_place=True)])
    for step in range(1, 11):
        engine.step(1.0 + step, [progress(step, 1.0 / step)])
    known = engine.world.jobs["1"].estimate
    assert known.observed == (Observed(2, 1, 2.0, 4.0, 9.0, 11.0),)
    assert [round(1 / point.loss) for point in known.losses] == list(range(1, 11))
    # It went back to an earlier step: what came after is forgotten.
    engine.step(20.0, [progress(4, 9.0)])
    assert [point.last for point in engine.world.jobs["1"].estimate.losses] == [1, 2, 3, 4]
    again = Engine(
        find_policy("marble"),
        msgspec.json.decode(
            msgspec.json.encode(engine.world.save()), type=type(engine.world.save())
        ),
    )
    assert again.world.jobs["1"] == engine.world.jobs["1"]


def test_moves_and_the_most_gpus_are_counted() -> None:
    engine = Engine(find_policy("equal_share"))
    jobs = [Job(str(n), f"j{n}", n, (1, 2, 3, 4), 4, nodes=(1, 1)) for n in (1, 2)]
    engine.step(0.0, [NodeJoined(Node("n", 4)), Submitted(jobs[0])])
    gpus = tuple(f"n:{index}" for index in range(4))
    engine.step(1.0, [Started("1", 1, gpus), Registered("1", 1, step=0, in_place=True)])
    assert (engine.world.jobs["1"].moves, engine.world.jobs["1"].most_gpus) == (0, 4)
    actions, _ = engine.step(2.0, [Submitted(jobs[1])])
    (rescale,) = actions
    assert engine.world.jobs["1"].state is State.RESCALING
    engine.step(3.0, [Rescaled("1", 1, resize=rescale.resize, gpus=gpus[:2], ok=True)])
    assert (engine.world.jobs["1"].moves, engine.world.jobs["1"].most_gpus) == (1, 4)
    assert (engine.world.jobs["2"].moves, engine.world.jobs["2"].most_gpus) == (0, 2)


@pytest.mark.parametrize("loss", [None, float("nan"), float("inf")])
def test_an_invalid_loss_is_left_out(loss: float | None) -> None:
    assert Estimate().reached(5, 5.0, loss).losses == ()
