"""Free GPUs by class, and what the first ones of them are good for."""

from __future__ import annotations

import random

import numpy as np
import pytest

from hpcext.policies.bftrainer.holes import Holes
from hpcext.policies.bftrainer.pool import Pool, PoolPart, run_of

PIECES = 3


def some_holes(classes: int, seed: int) -> Holes:
    rng = np.random.default_rng(seed)
    stays = rng.uniform(0.0, 1.0, (classes, PIECES))
    return Holes({}, stays, np.log(rng.uniform(0.1, 1.0, (classes, PIECES))))


def one_by_one(holes: Holes, which: list[int], mine: set[int]) -> PoolPart:
    """What some GPUs are good for, of these classes, to a job that has some of others."""
    alive, calm = np.zeros(PIECES), np.zeros(PIECES)
    for at in which:
        alive += holes.stays[at]
    for at in set(which) - mine:
        calm += holes.calm[at]
    return PoolPart(alive, calm)


def test_the_first_gpus_of_some_classes() -> None:
    holes = some_holes(3, 0)
    run = run_of(holes, np.array([2, 0]), np.array([2, 3]), 4)
    for most in range(5):
        alive, calm = one_by_one(holes, [2, 2, 0, 0][:most], set())
        assert run.alive[:, most] == pytest.approx(alive)
        assert run.calm[:, most] == pytest.approx(calm)


def test_there_may_be_fewer_than_are_asked_for() -> None:
    run = run_of(some_holes(2, 0), np.array([1]), np.array([2]), 9)
    assert run.alive.shape == run.calm.shape == (PIECES, 3)


@pytest.mark.parametrize("seed", range(40))
def test_the_order_of_requests_does_not_matter(seed: int) -> None:
    """Against a list of GPUs of which one after the other is taken."""
    rng = random.Random(seed)
    classes = rng.randint(1, 6)
    holes = some_holes(classes, seed)
    order = rng.sample(range(classes), classes)
    counts = [rng.choice([0, 1, 2, 5, 20]) for _ in range(classes)]
    pool = Pool(holes, np.array(order), np.array(counts))
    free = [at for at in order for _ in range(counts[at])]
    for _ in range(30):
        assert pool.left == len(free)
        if not free:
            break
        mine = dict.fromkeys(rng.sample(range(classes), rng.choice([0, 0, 0, 1, classes])), 1)
        assert pool.holds(mine) == bool(set(mine) & set(free))
        wanted = [at for own in mine for at in free if at == own]
        wanted += [at for at in free if at not in mine]
        more = sorted(rng.sample(range(1, len(free) + 1), rng.randint(1, len(free))))
        found = pool.first(np.array(more), mine)
        for column, count in enumerate(more):
            alive, calm = one_by_one(holes, wanted[:count], set(mine))
            assert found.alive[:, column] == pytest.approx(alive)
            assert found.calm[:, column] == pytest.approx(calm)
        if rng.random() < 0.7:
            count = rng.choice(more)
            has = pool.take(count, mine)
            for at in wanted[:count]:
                mine[at] = mine.get(at, 0) + 1
                free.remove(at)
            assert has == mine


def test_the_inputs_are_not_changed() -> None:
    counts = np.array([2, 2])
    pool = Pool(some_holes(2, 0), np.array([0, 1]), counts)
    pool.take(3, {})
    assert counts.tolist() == [2, 2]
