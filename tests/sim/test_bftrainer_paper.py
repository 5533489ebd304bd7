"""BFTrainer's experiments: what is replayed, what costs are, and U, by hand on made-up traces."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from hpcext.core.errors import InputError
from hpcext.core.estimate import Estimate
from hpcext.core.values import Job
from hpcext.papers.bftrainer import experiments as bftrainer
from hpcext.papers.bftrainer.hpo import preempted
from hpcext.papers.bftrainer.parallel import poorest
from hpcext.papers.bftrainer.parts import equal_use
from hpcext.papers.bftrainer.replay import Replayed, ReplayRun, replay, watched
from hpcext.papers.bftrainer.setup import MIX, Idle, network, node_s, trainers
from hpcext.papers.bftrainer.watch import Done
from hpcext.papers.study import Extent
from hpcext.sim.replay.physics import Physics
from hpcext.sim.traces.idle import NodeChange, write_idle

UP_S, DOWN_S = 18.0, 12.0

WEEK = (
    NodeChange(100.0, (0, 1, 7), ()),
    NodeChange(200.0, (2,), (7,)),
    NodeChange(300.0, (7,), (0,)),
    NodeChange(500.0, (), (1, 2)),
)


def trace(folder: Path) -> str:
    path = folder / "idle.csv"
    write_idle(path, WEEK)
    return str(path)


def one(order: int, speed: dict[int, float], work: float = 1e6) -> tuple[Job, Physics]:
    """A trainer that runs on any number of nodes that its speed has."""
    known = Estimate(stated=speed, work=work, up_s=UP_S, down_s=DOWN_S)
    job = Job(str(order), f"J-{order}", order, (1,), 1, nodes=(1, max(speed)), estimate=known)
    physics = Physics(
        speed, work, resume_s=UP_S, suspend_s=DOWN_S, checkpoint_s=0.0, elastic=True,
        rescale_up_s=UP_S, rescale_down_s=DOWN_S,
    )  # fmt: skip
    return job, physics


def alone(changes: list[NodeChange], until_s: float, marks_s: tuple[float, ...] = ()) -> Replayed:
    """One trainer of perfect scaling on all nodes that there are."""
    speed = {1: 10.0, 2: 20.0, 3: 30.0, 4: 40.0}
    policy = "bftrainer:parallel=1,objective=throughput,forward_s=1000"
    return watched([one(1, speed)], changes, policy, until_s, marks_s)


def test_idle_nodes_from_the_beginning_and_again(tmp_path: Path) -> None:
    path = trace(tmp_path)
    assert list(Idle(path, skip=1).changes()) == [
        NodeChange(0.0, (0, 1, 2), ()), NodeChange(100.0, (7,), (0,)),
        NodeChange(300.0, (), (1, 2)),
    ]  # fmt: skip
    assert list(Idle(path, lowest=2).changes()) == [
        NodeChange(0.0, (0, 1), ()), NodeChange(200.0, (), (0,)), NodeChange(400.0, (), (1,)),
    ]  # fmt: skip
    # Behind a week node 7 is still there, and 0 and 1 come.
    found = list(itertools.islice(Idle(path, again=True).changes(), 6))
    assert found[4:] == [NodeChange(604_800.0, (0, 1), ()), NodeChange(604_900.0, (2,), (7,))]


def test_node_seconds_are_the_integral(tmp_path: Path) -> None:
    # 3 nodes for 100 s, 3 for 100 s, 3 for 200 s, then 1: node 7.
    marks = (50.0, 100.0, 400.0, 1000.0)
    assert node_s(Idle(trace(tmp_path)).changes(), marks) == [150.0, 300.0, 1200.0, 1800.0]
    assert node_s([NodeChange(0.0, (5,), ()), NodeChange(10.0, (), (5,))], (4.0, 30.0)) == [
        4.0,
        10.0,
    ]


def test_costs_are_counted_by_the_pauses() -> None:
    changes = [NodeChange(0.0, (0,), ()), NodeChange(100.0, (1,), ()), NodeChange(200.0, (), (1,))]
    found = alone(changes, 300.0, (100.0, 200.0, 300.0))
    # It starts for 18 s, grows from 100 to 118 s, and goes on at 212 s.
    assert [done.samples for done in found.outcomes] == pytest.approx([820.0, 2460.0, 3340.0])
    assert found.done == pytest.approx(Done(3340.0, 334.0))
    assert found.lost == (10.0 * UP_S, 20.0 * DOWN_S, 10.0 * UP_S)
    assert (found.held_node_s, found.trained_node_s) == pytest.approx((400.0, 334.0))
    assert (found.end_s, found.finished) == (300.0, False)


def test_who_loses_one_node_and_gets_others_pays_for_both() -> None:
    changes = [NodeChange(0.0, (0, 1), ()), NodeChange(100.0, (2, 3), (1,))]
    found = alone(changes, 300.0)
    # R_down of the 18 s is preemption, at the speed of two nodes.
    assert found.lost == (20.0 * (UP_S - DOWN_S), 20.0 * DOWN_S, 20.0 * UP_S)
    assert found.done.samples == pytest.approx(20.0 * 82 + 30.0 * 182)


def test_a_pause_that_is_cut_short_costs_what_it_lasted() -> None:
    changes = [NodeChange(0.0, (0,), ()), NodeChange(100.0, (1,), ()), NodeChange(104.0, (), (1,))]
    found = alone(changes, 200.0)
    # Four seconds of growing; node 1 was never trained on, so that nothing was preempted.
    assert found.lost.rescaling == 10.0 * (4.0 + DOWN_S)
    assert found.lost.preemption == 0.0
    assert found.done.samples == pytest.approx(10.0 * (82 + 84))


def test_who_loses_all_nodes_starts_again() -> None:
    changes = [
        NodeChange(0.0, (0,), ()),
        NodeChange(100.0, (), (0,)),
        NodeChange(150.0, (1, 2), ()),
    ]
    found = alone(changes, 250.0)
    assert found.lost == (0.0, 0.0, 10.0 * UP_S + 20.0 * UP_S)
    assert found.done.samples == pytest.approx(10.0 * 82 + 20.0 * 82)


def test_who_loses_all_nodes_during_a_pause_has_paused_until_then() -> None:
    changes = [
        NodeChange(0.0, (0, 1), ()), NodeChange(100.0, (), (1,)), NodeChange(105.0, (), (0,)),
        NodeChange(150.0, (2,), ()),
    ]  # fmt: skip
    found = alone(changes, 250.0)
    assert found.lost == (0.0, 20.0 * 5.0, 20.0 * UP_S + 10.0 * UP_S)
    assert found.done.samples == pytest.approx(20.0 * 82 + 10.0 * 82)


def test_what_is_done_by_who_has_no_nodes_at_a_mark_counts_for_it() -> None:
    changes = [
        NodeChange(0.0, (0, 1), ()), NodeChange(100.0, (), (0, 1)), NodeChange(140.0, (2,), ()),
        NodeChange(190.0, (3,), (2,)),
    ]  # fmt: skip
    found = alone(changes, 200.0, (50.0, 120.0, 150.0, 180.0, 195.0))
    # At 120 s it has none, at 150 s it starts, at 195 s it does so again.
    parts = [20.0 * 32, 20.0 * 82, 20.0 * 82, 20.0 * 82 + 10.0 * 22, 20.0 * 82 + 10.0 * 32]
    assert [done.samples for done in found.outcomes] == pytest.approx(parts)
    assert found.done.samples == pytest.approx(parts[-1])


def test_what_is_done_by_who_pauses_at_a_mark_counts_for_it() -> None:
    changes = [NodeChange(0.0, (0, 1), ()), NodeChange(100.0, (), (1,))]
    found = alone(changes, 200.0, (105.0,))
    # It stands still from 100 to 112 s.
    assert found.outcomes[0].samples == pytest.approx(20.0 * 82)
    assert found.done.samples == pytest.approx(20.0 * 82 + 10.0 * 88)


def test_utilisation_by_hand() -> None:
    # 80 nodes: each of ten ShuffleNets on eight, 20,400 a second; and 80 on single ones, 2,800.
    offered = 80.0 * 1000.0
    done = Done(0.9 * 204_000.0 * 1000.0, 0.6 * offered)
    use = equal_use("ShuffleNet", done, offered, 1000.0, 10)
    assert use == pytest.approx((90.0, 60.0))


def test_the_same_again() -> None:
    case = ReplayRun("VGG-16", "bftrainer:parallel=3", Idle(seed=5, lowest=300), 7200.0, (3600.0,))
    first = replay(case)
    assert first.done.samples > first.outcomes[0].samples > 0
    assert replay(case) == first


def test_without_costs_on_nodes_that_stay_nothing_is_lost() -> None:
    found = replay(ReplayRun("ResNet18", "bftrainer:parallel=4", 32, 3600.0, rescale=0.0))
    assert sum(found.lost) == 0.0
    # The first has all 32 nodes until the second comes after 36 s, and so on.
    parts = 36 * (144_800 + 2 * 78_000 + 78_000 + 2 * (20_400 + 39_600) / 2) + 3492 * 4 * 39_600
    assert found.done.samples == pytest.approx(parts, rel=0.01)
    assert found.held_node_s == pytest.approx(32 * 3600.0)


def test_the_share_of_changes_that_a_lost_node_follows(tmp_path: Path) -> None:
    idle = Idle(trace(tmp_path))
    # At 0, 100, 200 and 400 s, the last three with a node that leaves.
    assert preempted(idle, 1000.0, 100.0) == 0.5
    assert preempted(idle, 1000.0, 99.0) == 0.0
    assert preempted(idle, 1000.0, 200.0) == 0.75


def test_the_poorest_half_day(tmp_path: Path) -> None:
    # After 400 s node 7 of ten is idle, and no other one; in the first half day there were more.
    assert poorest(Idle(trace(tmp_path), lowest=10)) == pytest.approx(10.0)


def test_trainers_of_table_2() -> None:
    mixed = list(trainers(MIX, 2.0))
    assert len(mixed) == 1000
    names = [network(job.name) for job, _ in mixed[:8]]
    assert names == [
        "AlexNet", "VGG-16", "ResNet18", "DenseNet", "MnasNet", "ShuffleNet", "MobileNets",
        "AlexNet",
    ]  # fmt: skip
    job, physics = mixed[3]
    assert (job.estimate.up_s, physics.rescale_down_s, physics.work) == (36.0, 24.0, 130e6)
    assert network("J00004-mnasnet1") == "MnasNet"


def test_data_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        bftrainer.study(Extent(data=tmp_path, quick=True))


@pytest.mark.slow
def test_a_part_of_it_without_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bftrainer, "QUICK_S", 6 * 3600.0)
    found = bftrainer.study(Extent(quick=True))
    titles = [table.title for table in found.tables]
    assert len(titles) == len(set(titles))
    rows = {f"{table.title}: {row.what}": row for table in found.tables for row in table.rows}
    assert all(row.why for row in rows.values() if row.far or row.ours is None)
    used = [row.ours for name, row in rows.items() if "U by" in name and row.unit == "%"]
    assert len(used) >= 12
    assert all(ours is not None and 20 < ours < 101 for ours in used)
