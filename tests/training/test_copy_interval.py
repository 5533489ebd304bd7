"""How often shards are copied: as often as it costs little."""

from __future__ import annotations

import random

import pytest

from hpcext.training.copy_interval import MOST, Interval


def trained(interval: Interval, usual_s: float, more_s: float, steps: int = 200) -> int:
    """Train with steps that take so long, and more with a copy; the steps between two."""
    chance, now_s, since = random.Random(1), 0.0, 0
    for _ in range(steps):
        copies = since == 0
        interval.step_begins(now_s, copies=copies)
        now_s += chance.uniform(0.98, 1.02) * usual_s + (more_s if copies else 0)
        if chance.random() < 0.05:
            # Something else.
            now_s += 20 * usual_s
        interval.steps = interval.wanted()
        since = (since + 1) % interval.steps
    return interval.steps


@pytest.mark.parametrize(
    ("more", "least", "most"), [(0.0, 1, 1), (0.1, 3, 5), (0.5, 16, 18), (9.0, MOST, MOST)]
)
def test_it_costs_at_most_three_percent(more: float, least: int, most: int) -> None:
    assert least <= trained(Interval(None), 0.5, 0.5 * more) <= most


def test_the_users_choice_counts() -> None:
    assert trained(Interval(7), 0.5, 9.0) == 7


def test_a_step_with_an_interruption_is_not_measured() -> None:
    interval = Interval(None)
    for number in range(40):
        interval.step_begins(float(number), copies=number % 2 == 0)
        if number % 2 == 0:
            interval.interrupted()
    assert interval.wanted() == interval.steps
