"""The networks: their derivatives, against differences and PyTorch; when training stops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hpcext.scaling.speed.learner import HELD_OUT, Learner, trained
from hpcext.scaling.speed.networks import HIDDEN, NETWORKS, Lstm, SimpleRnn
from hpcext.scaling.speed.online import Floats

ROWS = np.random.default_rng(3).normal(0, 1, (60, 3))


def case(name: str) -> tuple[Floats, Floats, Floats]:
    """Weights, inputs, targets."""
    network = NETWORKS[name]()
    rng = np.random.default_rng(4)
    inputs = network.windows(ROWS)
    return (
        network.initial(rng) + 0.1 * rng.normal(size=network.size),
        inputs,
        rng.normal(size=len(inputs)),
    )


@pytest.mark.parametrize("name", NETWORKS)
def test_derivatives_are_those_of_differences(name: str) -> None:
    network, (weights, inputs, targets) = NETWORKS[name](), case(name)
    _, found = network.error(weights, inputs, targets)
    step = 1e-6
    for at in range(len(weights)):
        more, less = weights.copy(), weights.copy()
        more[at] += step
        less[at] -= step
        higher, _ = network.error(more, inputs, targets)
        lower, _ = network.error(less, inputs, targets)
        assert found[at] == pytest.approx((higher - lower) / (2 * step), rel=1e-4, abs=1e-8)


@pytest.mark.parametrize("name", ["rnn", "lstm"])
def test_the_recurrent_ones_are_those_of_pytorch(name: str) -> None:
    network = {"rnn": SimpleRnn, "lstm": Lstm}[name]()
    weights, inputs, _ = case(name)
    arrays = network.split(weights)
    theirs = {"rnn": torch.nn.RNN, "lstm": torch.nn.LSTM}[name](1, HIDDEN, batch_first=True)
    theirs.double()
    with torch.no_grad():
        theirs.weight_ih_l0.copy_(torch.tensor(arrays["in"].T))
        theirs.weight_hh_l0.copy_(torch.tensor(arrays["again"].T))
        theirs.bias_ih_l0.copy_(torch.tensor(arrays["add"]))
        theirs.bias_hh_l0.zero_()
        states, _ = theirs(torch.tensor(inputs)[:, :, None])
    expected = states[:, -1].numpy() @ arrays["out"][:, 0] + arrays["out_add"]
    found, _ = network.forward(arrays, inputs)
    assert found == pytest.approx(expected, abs=1e-12)


def test_narx_sees_the_last_speeds_and_the_usages_from_now_on_back() -> None:
    rows = np.arange(12.0).reshape(4, 3)
    # Speeds 0 3 6 9, CPU 1 4 7 10, memory 2 5 8 11.
    assert NETWORKS["narx"]().windows(rows).tolist() == [
        [6, 3, 7, 4, 1, 8, 5, 2],
        [9, 6, 10, 7, 4, 11, 8, 5],
    ]


@pytest.mark.parametrize("name", NETWORKS)
def test_training_stops_early_and_at_the_best(name: str) -> None:
    network, (weights, inputs, targets) = NETWORKS[name](), case(name)
    held = round(HELD_OUT * len(inputs))
    # Targets are noise: on what is held out, learning more of the others is no better.
    found = trained(network, weights, inputs, targets)

    def missed(weights: Floats, part: slice) -> float:
        outputs, _ = network.forward(network.split(weights), inputs[part])
        return float(np.mean((outputs - targets[part]) ** 2))

    newest = slice(-held, None)
    assert missed(found, newest) <= missed(weights, newest)
    # Least squares without an end would know the others by heart.
    assert missed(found, slice(0, -held)) > 0.3


def test_a_fit_begins_with_the_weights_of_the_one_before() -> None:
    learner, other = Learner("narx", 1), Learner("narx", 2)
    rows = np.abs(ROWS) + 1
    first = learner.fit(rows, None)
    again, elsewhere = learner.fit(rows, first), other.fit(rows, first)
    assert again.weights.tolist() == elsewhere.weights.tolist()
    assert again.weights.tolist() != other.fit(rows, None).weights.tolist()
