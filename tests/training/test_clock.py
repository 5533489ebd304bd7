"""What a rank is timed for: its own part of a step, and not its wait for others."""

from __future__ import annotations

import time

from hpcext.training.balance.clock import Clock

WAIT_S, WORK_S = 0.2, 0.05


def test_waiting_for_others_does_not_count() -> None:
    clock = Clock()
    began_s = time.perf_counter()
    clock.begin()
    time.sleep(WORK_S)
    clock.computed(4)
    time.sleep(WAIT_S)
    clock.exchanged()
    time.sleep(WORK_S)
    # A second optimizer of the step: the first one counts.
    clock.exchanged()
    clock.end()
    first = clock.take()
    assert first is not None
    assert first.samples == 4
    # What the ranks agree on between two steps.
    time.sleep(WAIT_S)
    clock.begin()
    time.sleep(WORK_S)
    clock.computed(5)
    took_s = time.perf_counter() - began_s
    second = clock.take()
    assert second is not None
    assert second.samples == 5
    assert first.time_s >= WORK_S
    assert second.time_s >= 2 * WORK_S, "with what came after the exchange before it"
    assert first.time_s + second.time_s <= took_s - 2 * WAIT_S
    assert clock.take() is None, "once"


def test_the_first_gradients_of_all_of_them_count() -> None:
    clock = Clock()
    clock.begin()
    clock.computed(1)
    time.sleep(WORK_S)
    clock.computed(2)
    measured = clock.take()
    assert measured is not None
    assert measured.samples == 1
    assert clock.take() is None


def test_a_step_without_a_beginning_or_gradients_is_none() -> None:
    clock = Clock()
    clock.computed(1)
    clock.end()
    assert clock.take() is None
    clock.begin()
    clock.end()
    assert clock.take() is None
    clock.begin()
    clock.forget()
    clock.computed(1)
    assert clock.take() is None


def test_memory_is_a_share() -> None:
    assert 0 < Clock().memory() < 1
