"""What is believed of a job, by what it states and by what was observed."""

from __future__ import annotations

import numpy as np
import pytest

from hpcext.core.estimate import Estimate, Observed
from hpcext.core.history.losses import Point, add
from hpcext.scaling.estimator import GpuCounts, alone_s, rate_alone, speedups, work_left


def sizes(*gpus: int, nodes: int | None = None) -> GpuCounts:
    counts = np.array(gpus)
    if nodes is None:
        return GpuCounts.on_one_node(counts)
    return GpuCounts(counts, np.full(len(gpus), nodes))


def seen(*places: tuple[int, int, float], batch: float = 1.0) -> Estimate:
    """GPUs, nodes and work per second."""
    return Estimate(observed=tuple(Observed(*place, batch, 100.0) for place in sorted(places)))


def test_nothing_is_known_of_nothing() -> None:
    assert speedups(Estimate(), sizes(0, 1, 4)) is None
    assert rate_alone(Estimate()) is None
    assert work_left(Estimate()) is None


@pytest.mark.parametrize("ring", [False, True])
def test_a_job_scales_perfectly_until_it_is_seen_not_to(ring: bool) -> None:
    for place in ((1, 1, 5.0), (2, 1, 10.0)):
        found = speedups(seen(place), sizes(0, 1, 2, 8), ring=ring)
        assert found == pytest.approx([0, 1, 2, 8], rel=0.01)
    slower = speedups(seen((1, 1, 5.0), (2, 1, 7.0), (4, 1, 8.0)), sizes(2, 4, 8), ring=ring)
    assert slower is not None
    assert slower[:2] == pytest.approx([1.4, 1.6], rel=0.05)
    assert slower[2] < 2


def test_several_nodes_are_slower_only_once_they_were_tried() -> None:
    here = seen((1, 1, 5.0), (2, 1, 9.0), (4, 1, 16.0))
    apart, together = (speedups(here, sizes(8, nodes=n)) for n in (2, 1))
    assert apart == pytest.approx(together)
    tried = seen((1, 1, 5.0), (2, 1, 9.0), (4, 1, 16.0), (8, 2, 10.0))
    found = speedups(tried, sizes(8, nodes=2))
    assert found is not None
    assert found[0] == pytest.approx(2, rel=0.1)


def test_a_batch_that_grows_with_the_gpus_keeps_growing() -> None:
    """As fast a step on four GPUs as on one, with four times the samples in it."""
    weak = Estimate(
        observed=(
            Observed(1, 1, 320.0, 32.0),
            Observed(2, 1, 630.0, 64.0),
            Observed(4, 1, 1240.0, 128.0),
        )
    )
    found = speedups(weak, sizes(4, 8))
    assert found == pytest.approx([3.9, 7.7], rel=0.05)


def test_noise_that_is_too_small_to_matter_changes_nothing() -> None:
    """Speeds are taken in steps of two percent: a decision does not waver with every report."""
    about = [(1, 1, 5.0), (2, 1, 9.1), (4, 1, 15.9)]
    first = speedups(seen(*about), sizes(1, 2, 3, 4, 8))
    again = speedups(seen((1, 1, 5.001), *about[1:]), sizes(1, 2, 3, 4, 8))
    assert first is not None
    assert again is not None
    assert first.tolist() == again.tolist()
    other = speedups(seen((1, 1, 5.5), *about[1:]), sizes(1, 2, 3, 4, 8))
    assert other is not None
    assert other[3] < first[3]


def test_the_unit_of_what_is_stated_does_not_matter() -> None:
    for unit in (1e-3, 1.0, 1e6):
        stated = Estimate(stated={1: 2 * unit, 4: 5 * unit})
        assert speedups(stated, sizes(0, 1, 2, 4, 8)) == pytest.approx([0, 1, 1.5, 2.5, 2.5])


def test_the_speed_of_one_gpu_is_that_of_where_it_trained_longest() -> None:
    known = Estimate(
        stated={1: 1.0, 2: 2.0, 4: 3.0},
        observed=(Observed(2, 1, 7.0, seconds=10.0), Observed(4, 1, 9.0, seconds=99.0)),
    )
    assert rate_alone(known) == pytest.approx(3.0)
    # Before it has shown any, what it states is taken for work per second.
    assert rate_alone(Estimate(stated={2: 4.0})) == 2.0


def test_what_is_left_is_by_work_or_by_the_loss() -> None:
    known = Estimate(stated={1: 2.0}, work=100.0, done=30.0)
    assert (work_left(known), alone_s(known)) == (70.0, 35.0)
    assert work_left(Estimate(work=10.0, done=11.0)) == 0.0
    losses: tuple[Point, ...] = ()
    for step in range(1, 201):
        losses = add(losses, step, 1 / (0.1 * step + 1) + 0.5)
    # 32 samples a step; a loss of 0.52 is reached after 490 steps.
    falling = Estimate(losses=losses, target_loss=0.52, step=200, done=6400.0)
    assert work_left(falling) == pytest.approx(290 * 32, rel=0.02)
    # Never, and not known yet.
    assert work_left(Estimate(losses=losses, target_loss=0.4, step=200, done=6400.0)) is None
    assert work_left(Estimate(losses=losses[:3], target_loss=0.52, step=3, done=96.0)) is None
