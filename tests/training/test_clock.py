"""What a rank is timed for: its own part of a step, and not its wait for others."""

from __future__ import annotations

import time

import torch

from hpcext.training.torch_clock import Clock

WAIT_S, WORK_S = 0.2, 0.05


def test_waiting_for_others_does_not_count() -> None:
    clock = Clock(torch.device("cpu"))
    began_s = time.perf_counter()
    clock.begin()
    time.sleep(WORK_S)
    clock.computed()
    time.sleep(WAIT_S)
    clock.exchanged()
    time.sleep(WORK_S)
    # A second optimizer of the step: the first one counts.
    clock.exchanged()
    clock.end(5)
    took_s = time.perf_counter() - began_s
    measured = clock.take()
    assert measured is not None
    assert measured.samples == 5
    assert 2 * WORK_S <= measured.time_s <= took_s - WAIT_S
    assert clock.take() is None, "once"


def test_the_last_gradients_count() -> None:
    clock = Clock(torch.device("cpu"))
    clock.begin()
    clock.computed()
    time.sleep(WORK_S)
    clock.computed()
    clock.end(1)
    measured = clock.take()
    assert measured is not None
    assert measured.time_s >= WORK_S


def test_a_step_without_a_beginning_or_gradients_is_none() -> None:
    clock = Clock(torch.device("cpu"))
    clock.computed()
    clock.end(1)
    assert clock.take() is None
    clock.begin()
    clock.end(1)
    assert clock.take() is None
    clock.begin()
    clock.forget()
    clock.computed()
    clock.end(1)
    assert clock.take() is None


def test_memory_is_a_share() -> None:
    assert 0 < Clock(torch.device("cpu")).memory() < 1
