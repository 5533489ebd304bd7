"""Predictors of a worker's speed: each learns what it can, and none is led astray."""

from __future__ import annotations

import itertools
import json
import math
import threading

import numpy as np
import pytest

from hpcext.scaling.speed import MADE, find_predictor
from hpcext.scaling.speed import arima as speed_arima
from hpcext.scaling.speed.online import EVERY, LEAST, Floats, Model, Online

NETWORKS = ("rnn", "lstm", "narx")
ONLINE = ("arima", *NETWORKS)
HERE = {"background": False}
"""Fits are over when an observation is taken."""


def rows_of(speeds: Floats, cpu: Floats | None = None) -> Floats:
    """With a memory that does not change, and a CPU share that says nothing unless it is given."""
    cpu = np.full(len(speeds), 0.5) if cpu is None else cpu
    return np.stack([speeds, cpu, np.full(len(speeds), 4.0)], axis=1)


def said(name: str, rows: Floats) -> Floats:
    """What is said after each row."""
    predictor = find_predictor(name, **HERE)
    found = []
    for row in rows.tolist():
        predictor.observe(*row)
        found.append(predictor.predict())
    return np.array(found)


def missed(name: str, rows: Floats) -> float:
    """Root mean squared error after the first fit."""
    off = said(name, rows)[LEAST:-1] - rows[LEAST + 1 :, 0]
    return float(np.sqrt(np.mean(off**2)))


def noise(count: int, seed: int = 1) -> Floats:
    return np.random.default_rng(seed).normal(0, 1, count)


def periodic() -> Floats:
    return rows_of(100 + 30 * np.sin(2 * np.pi * np.arange(900) / 8) + noise(900))


def following() -> tuple[Floats, Floats]:
    """CPU shares that jump, and are known at the boundary; speeds that follow with noise."""
    rng = np.random.default_rng(2)
    shares = np.repeat(rng.uniform(0.2, 1, 100), rng.integers(2, 20, 100))[:900]
    speeds = 1000 * shares + 20 * noise(900)
    # The row of an iteration has the share of the next one.
    return rows_of(speeds, np.append(shares[1:], shares[-1])), shares


@pytest.mark.parametrize("name", MADE)
def test_a_constant_speed_is_learned(name: str) -> None:
    rows = rows_of(100 + 0.1 * noise(600))
    assert said(name, rows)[-1] == pytest.approx(100, rel=0.02)
    same = rows_of(np.full(600, 100.0))
    assert said(name, same)[-1] == pytest.approx(100, rel=0.02)


@pytest.mark.parametrize("name", MADE)
def test_a_level_that_changes_is_followed(name: str) -> None:
    levels = np.repeat([100.0, 60, 140, 80, 120, 60, 100, 140, 60, 100], 70)
    rows = rows_of(levels + noise(700))
    assert said(name, rows)[-1] == pytest.approx(100, rel=0.1)
    assert said(name, rows)[630 - 5] == pytest.approx(60, rel=0.15)


@pytest.mark.parametrize("name", ONLINE)
def test_a_periodic_load_is_learned(name: str) -> None:
    assert missed(name, periodic()) < 0.5 * missed("memoryless", periodic())


def test_narx_alone_knows_what_the_cpu_share_says() -> None:
    rows, _ = following()
    others = min(missed(name, rows) for name in MADE if name != "narx")
    assert missed("narx", rows) < 0.5 * others


def test_the_moving_average_is_that_of_the_paper() -> None:
    assert said("ema", rows_of(np.array([10.0, 20, 20]))).tolist() == pytest.approx([10, 12, 13.6])


def test_the_first_predictions_of_what_is_trained_are_the_moving_average() -> None:
    rows = periodic()[: LEAST + 1]
    average = said("ema", rows)
    for name in ONLINE:
        found = said(name, rows)
        assert found[: LEAST - 1].tolist() == average[: LEAST - 1].tolist()
        assert abs(found[-1] - average[-1]) > 1


def test_coefficients_of_arima_are_found() -> None:
    a1, a2, b = 0.5, -0.3, 0.6
    errors, w = noise(4000), np.zeros(4000)
    for t in range(2, 4000):
        w[t] = a1 * w[t - 1] + a2 * w[t - 2] + errors[t] + b * errors[t - 1]
    speeds = np.cumsum(np.cumsum(w))
    found = speed_arima.fit(rows_of(speeds), None)
    assert found.coefficients == pytest.approx((a1, a2, b), abs=0.05)
    # What is left is the noise alone.
    assert speed_arima.residuals(np.array(found.coefficients), w).std() == pytest.approx(
        1, rel=0.05
    )
    ahead = [found.ahead(rows_of(speeds[: t + 1])) for t in range(3000, 3200)]
    off = np.array(ahead) - speeds[3001:3201]
    assert np.sqrt(np.mean(off**2)) == pytest.approx(1, rel=0.15)


@pytest.mark.parametrize("name", MADE)
def test_nothing_is_known_before_the_first_observation(name: str) -> None:
    assert math.isnan(find_predictor(name).predict())


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -5.0, 0.0])
def test_an_invalid_speed_is_ignored(name: str, bad: float) -> None:
    predictor = find_predictor(name)
    predictor.observe(bad, 0.5, 4.0)
    assert math.isnan(predictor.predict())
    predictor.observe(10.0, 0.5, 4.0)
    predictor.observe(bad, 0.5, 4.0)
    assert predictor.predict() == 10.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
def test_an_invalid_usage_is_replaced_by_the_previous_one(bad: float) -> None:
    rows, _ = following()
    one, other = find_predictor("narx", **HERE), find_predictor("narx", **HERE)
    for speed, cpu, memory in rows[: LEAST + 1].tolist():
        one.observe(speed, cpu, memory)
        other.observe(speed, cpu, memory)
    before = rows[LEAST, 1]
    one.observe(500.0, bad, bad)
    other.observe(500.0, before, 4.0)
    assert one.predict() == other.predict()
    assert one.predict() != find_predictor("narx").predict()


@pytest.mark.parametrize("name", ONLINE)
def test_predictions_stay_near_what_was_seen(name: str) -> None:
    rows = periodic()
    predictor = find_predictor(name, **HERE)
    for row in rows.tolist():
        predictor.observe(*row)
    # A fast iteration that a clock made up, and usages from another world.
    predictor.observe(131.0, 1e12, 1e12)
    assert 30 < predictor.predict() < 220


@pytest.mark.parametrize("name", MADE)
def test_a_state_that_is_saved_and_loaded_predicts_the_same(name: str) -> None:
    rows, _ = following()
    one, other = find_predictor(name, **HERE), find_predictor(name, seed=9, **HERE)
    for row in rows[: LEAST + 20].tolist():
        one.observe(*row)
    state = json.loads(json.dumps(one.state(), allow_nan=False))
    other.load(state)
    for row in rows[LEAST + 20 : LEAST + 60].tolist():
        assert other.predict() == one.predict()
        one.observe(*row)
        other.observe(*row)
    empty = find_predictor(name)
    other.load(json.loads(json.dumps(empty.state())))
    assert math.isnan(other.predict())


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("given", ["nothing", "numbers", "shape"])
def test_a_state_of_something_else_is_refused_and_changes_nothing(name: str, given: str) -> None:
    predictor = find_predictor(name)
    predictor.observe(10.0, 0.5, 4.0)
    state = {
        "nothing": {},
        "numbers": {
            "speed": math.inf, "average": {"speed": 1.0}, "rows": [[math.nan] * 3],
            "seen": [1, 1], "model": None,
        },
        "shape": {
            "speed": "fast", "average": {"speed": 1.0}, "rows": [], "seen": None,
            "model": {"weights": [1], "middle": [0], "width": [1], "coefficients": [9, 9, 9]},
        },
    }[given]  # fmt: skip
    with pytest.raises(ValueError, match="no state of a predictor"):
        predictor.load(state)
    assert predictor.predict() == 10.0


def test_the_model_of_an_earlier_worker_predicts_from_the_first_iterations_on() -> None:
    rows, _ = following()
    earlier = find_predictor("narx", **HERE)
    for row in rows[:LEAST].tolist():
        earlier.observe(*row)
    warm, cold = find_predictor("narx", **HERE), find_predictor("narx", **HERE)
    warm.load(earlier.state())
    off: dict[str, list[float]] = {"warm": [], "cold": []}
    for now, after in itertools.pairwise(rows[600:701]):
        for key, predictor in (("warm", warm), ("cold", cold)):
            predictor.observe(*now)
            off[key].append((predictor.predict() - after[0]) ** 2)
    assert sum(off["warm"]) < 0.25 * sum(off["cold"])


class Held:
    """A model that is found when the test says so."""

    looks_back = 1

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        self.starts: list[Model | None] = []
        self.sizes: list[int] = []

    def fit(self, rows: Floats, start: Model | None) -> Held:
        self.starts.append(start)
        self.sizes.append(len(rows))
        self.begun.set()
        assert self.go.wait(120)
        return self

    def ahead(self, rows: Floats) -> float:
        return 11.0

    def state(self) -> dict[str, object]:
        return {}


def test_a_training_goes_on_while_a_model_is_fitted() -> None:
    held = Held()
    predictor = Online(held.fit, lambda _: held)
    for _ in range(LEAST):
        predictor.observe(10.0, 0.5, 4.0)
    assert held.begun.wait(120)
    # Another fit would be due, but one is under way.
    for _ in range(EVERY):
        predictor.observe(10.0, 0.5, 4.0)
    assert (predictor.predict(), predictor.trained) == (10.0, False)
    held.go.set()
    predictor.settle()
    assert (predictor.predict(), predictor.trained) == (11.0, True)
    predictor.observe(10.0, 0.5, 4.0)
    predictor.settle()
    assert held.starts == [None, held]
    assert held.sizes == [LEAST, LEAST + EVERY + 1]


def test_in_a_thread_comes_out_what_comes_out_without() -> None:
    rows, _ = following()
    one, other = find_predictor("narx"), find_predictor("narx", **HERE)
    assert isinstance(one, Online)
    for row in rows[:LEAST].tolist():
        one.observe(*row)
        other.observe(*row)
    one.settle()
    assert one.trained
    assert one.predict() == other.predict()


def test_an_unknown_predictor_is_refused() -> None:
    with pytest.raises(ValueError, match="predictor='prophet': must be one of memoryless, ema"):
        find_predictor("prophet")
