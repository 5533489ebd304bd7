"""Networks that predict a worker's speed: NARX, which uses its CPU and memory, and two others.

LB-BSP, section 3.2.2 and Table 3. NARX is a feedforward network on the last speeds and on the
current and last usages (eq. 4). The plain recurrent network and the LSTM, with which the paper
compares it, read the last speeds in turn. Each has one hidden layer and uses the last two
iterations.

They are so small that NumPy on one thread is enough, and a training that balances its batches needs
no second framework. All three are trained in the same way, so that they differ only in their
structure.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from hpcext.scaling.speed.online import Floats

LOOK_BACK = 2
HIDDEN = 10
"""Units of the hidden layer."""


DECAY = 1.0
"""Weight decay, on the mean square of the weights. Speeds are mostly noise, which some hundred
weights would learn. Of 0.0001 to 5, this predicted best on a recording other than that of Table
3."""


Arrays = dict[str, Floats]


class Network(ABC):
    """A network as a function of its weights, which are one vector, and its inputs."""

    name: str
    shapes: Mapping[str, tuple[int, ...]]

    @property
    def size(self) -> int:
        """The number of weights."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    def initial(self, rng: np.random.Generator) -> Floats:
        """Draw initial weights, uniform after Glorot and Bengio; biases are zero."""
        parts = []
        for shape in self.shapes.values():
            if len(shape) == 1:
                parts.append(np.zeros(shape))
            else:
                most = math.sqrt(6 / sum(shape))
                parts.append(rng.uniform(-most, most, shape).ravel())
        return np.concatenate(parts)

    def split(self, weights: Floats) -> Arrays:
        """Split a vector of weights into matrices."""
        found, at = {}, 0
        for name, shape in self.shapes.items():
            size = math.prod(shape)
            found[name] = weights[at : at + size].reshape(shape)
            at += size
        return found

    def joined(self, arrays: Arrays) -> Floats:
        """Join matrices into a vector of weights."""
        return np.concatenate([arrays[name].ravel() for name in self.shapes])

    @abstractmethod
    def windows(self, rows: Floats) -> Floats:
        """Return the inputs at each row but the first ones, from speed, CPU and memory."""

    @abstractmethod
    def forward(self, weights: Arrays, inputs: Floats) -> tuple[Floats, Any]:
        """Return the outputs, one for each input, and the values that the backward pass needs.

        Parameters
        ----------
        weights : dict of str to array
            By name, as in `shapes`.
        inputs : array of float
            From :meth:`windows`, one for each output.
        """

    @abstractmethod
    def backward(self, weights: Arrays, inputs: Floats, kept: Any, by_output: Floats) -> Arrays:
        """Return derivatives by the weights, given those by the outputs.

        Parameters
        ----------
        weights, inputs
            As for :meth:`forward`.
        kept : Any
            The second result of :meth:`forward`.
        by_output : array of float, shape (n,)
            Derivatives by the outputs.
        """

    def error(self, weights: Floats, inputs: Floats, targets: Floats) -> tuple[float, Floats]:
        """Return the mean squared error with weight decay, and its derivatives.

        Parameters
        ----------
        weights : array of float, shape (size,)
        inputs : array of float
            From :meth:`windows`, one for each target.
        targets : array of float, shape (n,)
        """
        arrays = self.split(weights)
        outputs, kept = self.forward(arrays, inputs)
        off = outputs - targets
        by_weights = self.joined(self.backward(arrays, inputs, kept, 2 / len(off) * off))
        decay = DECAY / len(weights)
        return float(np.mean(off**2) + decay * weights @ weights), by_weights + 2 * decay * weights


class Narx(Network):
    """The nonlinear autoregressive network with exogenous inputs of eq. 4."""

    name = "narx"

    def __init__(self) -> None:
        inputs = LOOK_BACK + 2 * (LOOK_BACK + 1)
        self.shapes = {
            "in": (inputs, HIDDEN), "in_add": (HIDDEN,), "out": (HIDDEN, 1), "out_add": (1,),
        }  # fmt: skip

    def windows(self, rows: Floats) -> Floats:
        """Return the last two speeds, and each usage now and at the last two boundaries."""
        count = len(rows) - LOOK_BACK
        speeds = [rows[LOOK_BACK - back :][:count, 0] for back in range(LOOK_BACK)]
        usages = [
            rows[LOOK_BACK - back :][:count, series]
            for series in (1, 2)
            for back in range(LOOK_BACK + 1)
        ]
        return np.stack([*speeds, *usages], axis=1)

    def forward(self, weights: Arrays, inputs: Floats) -> tuple[Floats, Any]:
        """Return the outputs, one for each input, and the hidden units."""
        hidden = np.tanh(inputs @ weights["in"] + weights["in_add"])
        return hidden @ weights["out"][:, 0] + weights["out_add"], hidden

    def backward(self, weights: Arrays, inputs: Floats, kept: Any, by_output: Floats) -> Arrays:
        """Return derivatives by the weights, given those by the outputs."""
        hidden = kept
        by_sum = by_output[:, None] * weights["out"][:, 0] * (1 - hidden**2)
        return {
            "in": inputs.T @ by_sum, "in_add": by_sum.sum(axis=0),
            "out": (hidden.T @ by_output)[:, None], "out_add": by_output.sum(keepdims=True),
        }  # fmt: skip


class Recurrent(Network):
    """The base of both recurrent networks, which read speeds in turn."""

    gates = 1

    def __init__(self) -> None:
        wide = self.gates * HIDDEN
        self.shapes = {
            "in": (1, wide), "again": (HIDDEN, wide), "add": (wide,),
            "out": (HIDDEN, 1), "out_add": (1,),
        }  # fmt: skip

    def windows(self, rows: Floats) -> Floats:
        """Return the last two speeds, the older one first."""
        count = len(rows) - LOOK_BACK + 1
        return np.stack([rows[at : at + count, 0] for at in range(LOOK_BACK)], axis=1)

    def _ends(self, hidden: Floats, weights: Arrays) -> Floats:
        return np.asarray(hidden @ weights["out"][:, 0] + weights["out_add"])

    def _ended(self, hidden: Floats, by_output: Floats) -> Arrays:
        """Return the derivatives by the weights of the last layer."""
        return {"out": (hidden.T @ by_output)[:, None], "out_add": by_output.sum(keepdims=True)}


class SimpleRnn(Recurrent):
    """The plain recurrent network."""

    name = "rnn"

    def forward(self, weights: Arrays, inputs: Floats) -> tuple[Floats, Any]:
        """Return the outputs, one for each input, and the hidden states."""
        states = [np.zeros((len(inputs), HIDDEN))]
        for speed in inputs.T:
            total = speed[:, None] @ weights["in"] + states[-1] @ weights["again"] + weights["add"]
            states.append(np.tanh(total))
        return self._ends(states[-1], weights), states

    def backward(self, weights: Arrays, inputs: Floats, kept: Any, by_output: Floats) -> Arrays:
        """Return derivatives by the weights, given those by the outputs."""
        states: list[Floats] = kept
        found = {name: np.zeros(self.shapes[name]) for name in ("in", "again", "add")}
        by_state = by_output[:, None] * weights["out"][:, 0]
        for at in range(inputs.shape[1] - 1, -1, -1):
            by_sum = by_state * (1 - states[at + 1] ** 2)
            found["in"] += inputs[:, at] @ by_sum
            found["again"] += states[at].T @ by_sum
            found["add"] += by_sum.sum(axis=0)
            by_state = by_sum @ weights["again"].T
        return {**found, **self._ended(states[-1], by_output)}


class Lstm(Recurrent):
    """The long short-term memory network; its gates are in, forget, cell, out."""

    name = "lstm"
    gates = 4

    def forward(self, weights: Arrays, inputs: Floats) -> tuple[Floats, Any]:
        """Return the outputs, one for each input, and the states of all steps."""
        state = cell = np.zeros((len(inputs), HIDDEN))
        kept = []
        for speed in inputs.T:
            total = speed[:, None] @ weights["in"] + state @ weights["again"] + weights["add"]
            taken, left, new, shown = np.split(total, self.gates, axis=1)
            taken, left, shown = _sigmoid(taken), _sigmoid(left), _sigmoid(shown)
            new = np.tanh(new)
            before, cell = cell, left * cell + taken * new
            seen = np.tanh(cell)
            kept.append((state, before, taken, left, new, shown, seen))
            state = shown * seen
        return self._ends(state, weights), (kept, state)

    def backward(self, weights: Arrays, inputs: Floats, kept: Any, by_output: Floats) -> Arrays:
        """Return derivatives by the weights, given those by the outputs."""
        steps, last = kept
        found = {name: np.zeros(self.shapes[name]) for name in ("in", "again", "add")}
        by_state = by_output[:, None] * weights["out"][:, 0]
        by_cell = np.zeros_like(by_state)
        for at in range(inputs.shape[1] - 1, -1, -1):
            state, before, taken, left, new, shown, seen = steps[at]
            by_cell = by_cell + by_state * shown * (1 - seen**2)
            by_sum = np.concatenate(
                [
                    by_cell * new * taken * (1 - taken),
                    by_cell * before * left * (1 - left),
                    by_cell * taken * (1 - new**2),
                    by_state * seen * shown * (1 - shown),
                ],
                axis=1,
            )
            found["in"] += inputs[:, at] @ by_sum
            found["again"] += state.T @ by_sum
            found["add"] += by_sum.sum(axis=0)
            by_state, by_cell = by_sum @ weights["again"].T, by_cell * left
        return {**found, **self._ended(last, by_output)}


NETWORKS: Mapping[str, type[Network]] = {each.name: each for each in (Narx, SimpleRnn, Lstm)}


def _sigmoid(x: Floats) -> Floats:
    # This form overflows on neither side.
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x)))
