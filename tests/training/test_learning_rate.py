"""Rates after a change of the global batch: judged by how far the optimizer moves a parameter."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import lr_scheduler as lrs

from hpcext.training.learning_rate import Rates, Rescale, Rule, rescale, scaled

STEPS = 40
# Resizes at these steps, to this multiple of the first batch; the last one returns to it.
RESIZES = {7: 3, 19: 2, 30: 5, 36: 1}
RULES: dict[str, Callable[[float], float]] = {"linear": float, "sqrt": math.sqrt}

Optimizer = torch.optim.Optimizer
SCHEDULERS: dict[str, Callable[[Optimizer], Any]] = {
    "step": lambda o: lrs.StepLR(o, 5, gamma=0.7),
    "multistep": lambda o: lrs.MultiStepLR(o, [6, 7, 20, 31], gamma=0.3),
    "exponential": lambda o: lrs.ExponentialLR(o, 0.97),
    "cosine": lambda o: lrs.CosineAnnealingLR(o, 12, eta_min=0.01),
    "warm restarts": lambda o: lrs.CosineAnnealingWarmRestarts(o, 6, T_mult=2, eta_min=0.01),
    "one cycle": lambda o: lrs.OneCycleLR(o, max_lr=[0.8, 0.4], total_steps=STEPS + 1),
    "cyclic": lambda o: lrs.CyclicLR(o, [0.01, 0.02], [0.5, 0.6], step_size_up=5),
    "lambda": lambda o: lrs.LambdaLR(o, lambda epoch: 1 / (1 + epoch)),
    "multiplicative": lambda o: lrs.MultiplicativeLR(o, lambda epoch: 0.9 + 0.01 * (epoch % 3)),
    "constant": lambda o: lrs.ConstantLR(o, factor=0.25, total_iters=9),
    "linear": lambda o: lrs.LinearLR(o, start_factor=0.1, total_iters=20),
    "polynomial": lambda o: lrs.PolynomialLR(o, total_iters=STEPS, power=2.0),
    "sequential": lambda o: lrs.SequentialLR(
        o, [lrs.LinearLR(o, 0.1, total_iters=10), lrs.CosineAnnealingLR(o, 30)], milestones=[10]
    ),
    "chained": lambda o: lrs.ChainedScheduler(
        [lrs.ConstantLR(o, factor=0.5, total_iters=4), lrs.ExponentialLR(o, 0.95)]
    ),
    "plateau": lambda o: lrs.ReduceLROnPlateau(o, factor=0.5, patience=2, min_lr=1e-3),
    "none": lambda o: None,
}


class Training:
    """Two parameters whose gradients are 1, so that each step moves them by their rates."""

    def __init__(self, schedule: str, rates: tuple[Any, Any] = (0.3, 0.05)) -> None:
        self.parameters = [torch.zeros((), dtype=torch.float64) for _ in rates]
        groups = [{"params": [p], "lr": lr} for p, lr in zip(self.parameters, rates, strict=True)]
        self.optimizer = torch.optim.SGD(groups)
        self.scheduler = SCHEDULERS[schedule](self.optimizer)
        self.steps = 0

    def step(self) -> list[float]:
        """Make a step; return how far it moved each parameter."""
        for parameter in self.parameters:
            parameter.zero_()
            parameter.grad = torch.ones_like(parameter)
        self.optimizer.step()
        if isinstance(self.scheduler, lrs.ReduceLROnPlateau):
            # Falls, and then stays.
            self.scheduler.step(max(0.5, 1.0 - 0.1 * self.steps))
        elif self.scheduler is not None:
            self.scheduler.step()
        self.steps += 1
        return [-parameter.item() for parameter in self.parameters]

    def state(self) -> dict[str, Any]:
        schedule = self.scheduler.state_dict() if self.scheduler is not None else None
        return {"optimizer": self.optimizer.state_dict(), "scheduler": schedule}

    def load(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])


def undisturbed(schedule: str) -> list[list[float]]:
    training = Training(schedule)
    return [training.step() for _ in range(STEPS)]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("schedule", SCHEDULERS)
def test_each_later_rate_is_the_factor_times_the_undisturbed_one(schedule: str, rule: str) -> None:
    expected = undisturbed(schedule)
    training, scale = Training(schedule), Rescale(64, rule)
    scale.attach(training.optimizer)
    times = 1
    for step in range(STEPS):
        times = RESIZES.get(step, times)
        scale.resize(64 * times)
        moved = training.step()
        factor = RULES[rule](times)
        assert moved == pytest.approx([factor * rate for rate in expected[step]], rel=1e-12)
        if times == 1:
            # Back at the first size, to the last bit.
            assert moved == expected[step]
    if schedule != "none":
        assert len({tuple(rates) for rates in expected}) > 1


@pytest.mark.parametrize("schedule", SCHEDULERS)
def test_the_same_over_restarts_from_checkpoints(schedule: str) -> None:
    expected = undisturbed(schedule)
    training, scale = Training(schedule), Rescale(10, "linear")
    scale.attach(training.optimizer)
    times = 1
    for step in range(STEPS):
        if step in RESIZES:
            times = RESIZES[step]
            saved, state = training.state(), json.loads(json.dumps(scale.state_dict()))
            # A new process, which knows only its own size, loads twice as a session does.
            new, scale = Training(schedule), Rescale(10 * times, "linear")
            scale.attach(new.optimizer)
            new.steps, training = training.steps, new
            for _ in range(2):
                training.load(copy.deepcopy(saved))
                scale.load_state_dict(state)
            assert scale.base_batch == 10
        moved = training.step()
        assert moved == pytest.approx([times * rate for rate in expected[step]], rel=1e-12)


@pytest.mark.parametrize("rule", [*RULES, "none"])
def test_a_warm_up_goes_from_the_old_rate_to_the_new_one(rule: str) -> None:
    def factor(times: float) -> float:
        return RULES.get(rule, lambda _: 1.0)(times)

    training, scale = Training("none", rates=(1.0, 0.5)), Rescale(8, rule, warm_up=4)
    scale.attach(training.optimizer)
    assert training.step() == [1.0, 0.5]
    scale.resize(32)
    ramp = [1 + (factor(4) - 1) * done / 4 for done in range(6)]
    ramp[5:] = [factor(4)]
    for wanted in ramp:
        assert training.step() == pytest.approx([wanted, wanted / 2], rel=1e-12)
    # Less is taken at once: the larger rate is the dangerous one.
    scale.resize(16)
    assert training.step() == pytest.approx([factor(2), factor(2) / 2], rel=1e-12)
    # A warm-up that is interrupted at its middle begins the next one there, and is saved with it.
    scale.resize(32)
    for _ in range(2):
        training.step()
    middle = (factor(2) + factor(4)) / 2
    restored = Rescale(64, rule, warm_up=4)
    restored.load_state_dict(json.loads(json.dumps(scale.state_dict())))
    scale.resize(64)
    for done in range(4):
        wanted = middle + (factor(8) - middle) * done / 4
        assert restored.rate(1.0) == pytest.approx(wanted, rel=1e-12)
        assert training.step()[0] == pytest.approx(wanted, rel=1e-12)
        restored.stepped()
    assert restored.rate(1.0) == training.step()[0] == factor(8)
    assert not restored.warming_up
    scale.resize(8)
    assert training.step() == [1.0, 0.5]
    # Interrupted early by a smaller batch, which is still more than the rate has come to.
    scale.resize(80)
    for _ in range(2):
        begun = training.step()[0]
    assert begun == pytest.approx(1 + (factor(10) - 1) / 4, rel=1e-12)
    scale.resize(48)
    middle = 1 + (factor(10) - 1) / 2
    assert training.step()[0] == pytest.approx(middle, rel=1e-12)
    assert training.step()[0] == pytest.approx(middle + (factor(6) - middle) / 4, rel=1e-12)


@given(
    st.lists(st.tuples(st.integers(1, 64), st.integers(0, 5)), max_size=12),
    st.sampled_from([*RULES, "none"]),
    st.integers(0, 4),
)
def test_no_drift_and_no_rate_outside_those_of_the_batches(
    changes: list[tuple[int, int]], rule: str, warm_up: int
) -> None:
    scale, batches = Rescale(16, rule, warm_up), {16}
    for batch, steps in changes:
        scale.resize(batch)
        batches.add(batch)
        for _ in range(steps):
            bounds = [scaled(0.1, 16, seen, rule) for seen in batches]
            assert min(bounds) * (1 - 1e-12) <= scale.rate(0.1) <= max(bounds) * (1 + 1e-12)
            scale.stepped()
        # Whatever is under way, a checkpoint of it goes on alike.
        again = Rescale(batch, rule, warm_up)
        again.load_state_dict(scale.state_dict())
        assert again.rate(0.1) == scale.rate(0.1)
    scale.resize(16)
    for _ in range(warm_up):
        scale.stepped()
    assert scale.rate(0.1) == 0.1


def test_a_function_is_asked_before_every_step_with_the_rate_of_the_schedule() -> None:
    asked = []

    def rule(old_batch: int, new_batch: int, lr: float) -> float:
        asked.append((old_batch, new_batch, lr))
        return lr * len(asked)

    training, scale = Training("exponential"), Rescale(8, rule)
    scale.attach(training.optimizer)
    assert training.step() == [0.3, 0.05 * 2]
    scale.resize(24)
    assert training.step() == [0.3 * 0.97 * 3, 0.05 * 0.97 * 4]
    assert asked == [(8, 8, 0.3), (8, 8, 0.05), (8, 24, 0.3 * 0.97), (8, 24, 0.05 * 0.97)]
    assert scaled(0.5, 2, 4, lambda old, new, lr: lr * new * old) == 4.0


def test_two_optimizers_share_one_warm_up_and_a_failed_step_leaves_no_trace() -> None:
    first, second, scale = Training("none"), Training("none"), Rescale(1, warm_up=2)
    for training in (first, second):
        scale.attach(training.optimizer)
    scale.resize(3)

    def fail() -> float:
        raise ArithmeticError

    for wanted in (1, 2, 3, 3):
        with pytest.raises(ArithmeticError):
            first.optimizer.step(fail)
        assert second.step()[0] == pytest.approx(0.3 * wanted)
        assert first.step()[0] == pytest.approx(0.3 * wanted)
    assert [group["lr"] for group in first.optimizer.param_groups] == [0.3, 0.05]


def test_a_rate_that_is_a_tensor_stays_the_same_tensor() -> None:
    lr = torch.tensor(0.25, dtype=torch.float64)
    training = Training("exponential", rates=(lr, 0.5))
    assert rescale(training.optimizer, 8, 16) == 2
    assert training.step() == pytest.approx([0.5, 1.0], rel=1e-12)
    assert training.optimizer.param_groups[0]["lr"] is lr
    assert training.step() == pytest.approx([0.5 * 0.97, 0.97], rel=1e-12)


def test_of_a_session_that_learns_its_batch_later() -> None:
    first, rates = Training("exponential"), Rates("sqrt", 0)
    assert rates.state() is None
    rates.use(10, [first.optimizer])
    assert first.step() == [0.3, 0.05]
    # Resized in place, and then restarted at another size.
    rates.use(40, [first.optimizer])
    assert first.step() == pytest.approx([0.6 * 0.97, 0.1 * 0.97], rel=1e-12)
    second, later = Training("exponential"), Rates("sqrt", 0)
    second.load(first.state())
    later.restore(json.loads(json.dumps(rates.state())))
    assert later.state() == rates.state()
    later.use(90, [second.optimizer])
    assert second.step() == pytest.approx([0.9 * 0.97**2, 0.15 * 0.97**2], rel=1e-12)
    with pytest.raises(ValueError, match="'cubic'"):
        Rates("cubic", 0)
    silent = Rates(None, 0)
    silent.use(10, [second.optimizer])
    assert silent.state() is None


def test_the_short_form() -> None:
    training = Training("none")
    # By steps, and from the first batch.
    for old, new, factor in [(8, 24, 3.0), (24, 16, 2.0), (8, 32, 4.0), (32, 8, 1.0)]:
        assert rescale(training.optimizer, old, new) == pytest.approx(factor)
        assert training.step() == pytest.approx([0.3 * factor, 0.05 * factor], rel=1e-12)
    assert training.step() == [0.3, 0.05]
    with pytest.raises(ValueError, match="old_batch=5: the optimizer is at 8"):
        rescale(training.optimizer, 5, 8)
    with pytest.raises(TypeError, match="list has no register_step_pre_hook: valid are PyTorch's"):
        rescale([{"lr": 0.1}], 8, 16)


def test_wrong_arguments() -> None:
    assert scaled(0.1, 3, 3, "sqrt") == 0.1
    wrong: list[tuple[tuple[float, int, int, Rule], str]] = [
        ((0.1, 0, 8, "linear"), "old_batch=0: samples"),
        ((0.1, 8, -1, "none"), "new_batch=-1: samples"),
        ((0.1, 8, 8, "cubic"), "'cubic': must be one of linear, sqrt, none, or a function"),
        ((0.1, 8, 8, lambda old, new, lr: math.nan), "returned nan for batches of 8 and 8"),
        ((0.1, 8, 8, lambda old, new, lr: -lr), "returned -0.1"),
    ]
    for arguments, message in wrong:
        with pytest.raises(ValueError, match=message):
            scaled(*arguments)
    with pytest.raises(ValueError, match="'cubic'"):
        Rescale(8, "cubic")
    with pytest.raises(ValueError, match="warm_up=-1"):
        Rescale(8, warm_up=-1)
    with pytest.raises(ValueError, match="batch=0"):
        Rescale(8).resize(0)


def test_a_step_that_is_undone_counts_for_no_warm_up() -> None:
    """With --replace a step that a dead rank breaks has called the hooks of the optimizers."""
    training, rates = Training("none", rates=(1.0, 0.5)), Rates("linear", warm_up=10)
    rates.use(8, [training.optimizer])
    rates.use(16, [])
    training.step()
    before = json.loads(json.dumps(rates.state()))
    moved = training.step()
    rates.restore(before)
    assert rates.state() == before
    assert training.step() == moved
