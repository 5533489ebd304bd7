"""Bounds of a fluid, and of who pays for changes, by hand; and that nobody is faster."""

from __future__ import annotations

import math

import pytest

from hpcext.core.estimate import Estimate
from hpcext.core.values import Job
from hpcext.papers.bftrainer.replay import watched
from hpcext.papers.bftrainer.setup import levels
from hpcext.sim.evaluate.bounds import JobClass, NodeCounts, fluid_end_s, fluid_rate
from hpcext.sim.evaluate.clairvoyant import clairvoyant_end_s
from hpcext.sim.replay.physics import Physics
from hpcext.sim.traces.idle import NodeChange

SPEED = {1: 1.0, 2: 1.5, 4: 2.0}


@pytest.mark.parametrize(
    ("nodes", "parallel", "rate"),
    [
        (0.5, math.inf, 0.5),  # half of one, on one node
        (3.0, math.inf, 3.0),  # three of them
        (3.0, 1, 1.75),  # half of the time on two, half of it on four
        (3.0, 2, 2.5),  # one on one, the other on two
        (99.0, 2, 4.0),  # more than they can use
    ],
)
def test_the_most_that_equal_jobs_do(nodes: float, parallel: float, rate: float) -> None:
    assert fluid_rate(SPEED, nodes, parallel) == pytest.approx(rate)


def test_sizes_that_are_worth_nothing_are_passed_over() -> None:
    # On two nodes it is as slow as on one: between one and four nothing is better than a mixture.
    assert fluid_rate({1: 1.0, 2: 1.0, 4: 4.0}, 2.5, 1) == pytest.approx(2.5)


@pytest.mark.parametrize(("parallel", "end_s"), [(math.inf, 125.0), (3, 100.0 + 100.0 / 3)])
def test_the_end_of_all_work(parallel: float, end_s: float) -> None:
    # 200 until the 100th second, then 4 or 3 a second.
    nodes = NodeCounts([(0.0, 2), (100.0, 4)])
    found = fluid_end_s([JobClass({1: 1.0}, 300.0)], nodes, parallel, until_s=1000.0)
    assert found == pytest.approx(end_s, abs=1.0)


def test_two_kinds_share_nodes_and_places() -> None:
    # The one on one node, the other on three: 1 and 3 a second.
    kinds = [JobClass({1: 1.0}, 100.0), JobClass({1: 1.0, 2: 2.0, 3: 3.0}, 300.0)]
    found = fluid_end_s(kinds, NodeCounts([(0.0, 4)]), 2, until_s=1000.0)
    assert found == pytest.approx(100.0, abs=1.0)


def test_no_end_before_there_is_a_node() -> None:
    nodes = NodeCounts([(0.0, 0), (500.0, 1)])
    assert fluid_end_s([JobClass({1: 1.0}, 10.0)], nodes, 1, 1000.0) == pytest.approx(
        510.0, abs=1.0
    )
    with pytest.raises(ValueError, match="no schedule is done within 505 s"):
        fluid_end_s([JobClass({1: 1.0}, 10.0)], nodes, 1, 505.0)


def changes() -> list[NodeChange]:
    """Six nodes, and after them one or the other that comes or goes every two minutes or so."""
    found = [NodeChange(0.0, (0, 1, 2, 3, 4, 5), ())]
    for number in range(50):
        at_s, node = 548.0 * number, number % 6
        found += [
            NodeChange(at_s + 137.0, (6, 7), ()),
            NodeChange(at_s + 274.0, (), (6, node)),
            NodeChange(at_s + 411.0, (node,), ()),
            NodeChange(at_s + 548.0, (), (7,)),
        ]
    return found


@pytest.mark.parametrize("policy", ["bftrainer:parallel=3", "equal_share:parallel=3,rest=first"])
def test_no_policy_is_faster(policy: str) -> None:
    jobs = [
        (
            Job(
                str(n), f"j{n}", n, (1,), 1, nodes=(1, 4),
                estimate=Estimate(stated=SPEED, work=2000.0, up_s=18.0, down_s=12.0),
            ),
            Physics(
                SPEED, 2000.0, resume_s=18.0, suspend_s=12.0, checkpoint_s=0.0, elastic=True,
                rescale_up_s=18.0, rescale_down_s=12.0,
            ),
        )
        for n in range(1, 6)
    ]  # fmt: skip
    ran = watched(jobs, changes(), policy)
    assert ran.finished
    asked = [JobClass(SPEED, 10_000.0)], NodeCounts(levels(changes())), 3
    end_s = fluid_end_s(*asked, 27_000.0)
    paying_s = clairvoyant_end_s(*asked, 12.0, 27_000.0)
    assert 0.5 * ran.end_s < end_s < paying_s < ran.end_s


def test_one_place_that_pays_for_its_changes() -> None:
    """It begins with a pause, and grows with another one: by hand, what is best."""
    asked = [JobClass({1: 1.0, 2: 2.0}, 300.0)], NodeCounts([(0.0, 1), (100.0, 2)]), 1
    # 90 by the 100th second, nothing until the 110th, and then two a second.
    assert 209.0 < clairvoyant_end_s(*asked, 10.0, 1000.0) <= 215.0
    assert fluid_end_s(*asked, 1000.0) == pytest.approx(200.0, abs=1.0)
    assert clairvoyant_end_s(*asked, 0.0, 1000.0) == pytest.approx(200.0, abs=1.0)


def test_a_node_that_stays_too_short_is_worth_no_change() -> None:
    times = [(100.0 * n + at, 1 + more) for n in range(10) for at, more in ((0.0, 0), (80.0, 1))]
    asked = [JobClass({1: 1.0, 2: 2.0}, 900.0)], NodeCounts(times), 1
    free_s = fluid_end_s(*asked, 1000.0)
    # Twenty seconds of a second node are lost to a pause of twenty: it stays on one.
    paying_s = clairvoyant_end_s(*asked, 20.0, 1000.0)
    assert free_s == pytest.approx(760.0, abs=1.0)
    assert 880.0 < paying_s <= 920.0


def test_two_kinds_that_pay() -> None:
    kinds = [JobClass({1: 1.0}, 100.0), JobClass({1: 1.0, 2: 2.0, 3: 3.0}, 300.0)]
    nodes = NodeCounts([(0.0, 4)])
    assert 100.0 < clairvoyant_end_s(kinds, nodes, 2, 12.0, 1000.0) <= 112.0
    with pytest.raises(ValueError, match="no schedule is done within 50 s"):
        clairvoyant_end_s(kinds, nodes, 2, 12.0, 50.0)
