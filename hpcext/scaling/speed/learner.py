"""The training of a network that predicts a worker's speed.

All networks are trained in the same way, so that they differ only in their structure.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from hpcext.scaling.speed.networks import LOOK_BACK, NETWORKS, Network
from hpcext.scaling.speed.online import Floats, Model

HELD_OUT = 0.2
"""Share of the rows, the newest, that are held out from training and determine when to stop."""

PATIENCE = 10
"""Steps without a better prediction of the held-out rows after which the training stops."""

MOST_STEPS = 200

CLIPPED = 5.0
"""Standard deviations to which inputs are clipped."""


class Fitted:
    """A network with its weights, and the scale of its inputs.

    Parameters
    ----------
    network : Network
    weights : ndarray
    middle, width : ndarray
        Mean and standard deviation of speed, CPU and memory.
    """

    looks_back = LOOK_BACK + 1

    def __init__(self, network: Network, weights: Floats, middle: Floats, width: Floats) -> None:
        self.network = network
        self.weights = weights
        self.middle, self.width = middle, width
        self._arrays = network.split(weights)

    def ahead(self, rows: Floats) -> float:
        """Predict the speed after these rows of speed, CPU and memory."""
        inputs = self.network.windows(scaled(rows, self.middle, self.width))
        output, _ = self.network.forward(self._arrays, inputs[-1:])
        return float(self.middle[0] + self.width[0] * output[0])

    def state(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {
            "weights": self.weights.tolist(),
            "middle": self.middle.tolist(), "width": self.width.tolist(),
        }  # fmt: skip


class Learner:
    """The training of a network.

    Parameters
    ----------
    name : str
        One of :data:`NETWORKS`.
    seed : int
        Seed of its initial weights.
    """

    def __init__(self, name: str, seed: int = 0) -> None:
        self.network = NETWORKS[name]()
        self._seed = seed

    def fit(self, rows: Floats, start: Model | None) -> Fitted:
        """Train on rows of speed, CPU and memory, starting from the weights of `start` if given."""
        middle, width = rows.mean(axis=0), rows.std(axis=0)
        # A series that never changed has no information, so it stays at zero.
        width = np.where(width > 1e-9 * np.maximum(1.0, np.abs(middle)), width, 1.0)
        every = scaled(rows, middle, width)
        inputs = self.network.windows(every)[:-1]
        # Targets are not clipped.
        targets = ((rows[:, 0] - middle[0]) / width[0])[-len(inputs) :]
        weights = (
            start.weights
            if isinstance(start, Fitted)
            else self.network.initial(np.random.default_rng(self._seed))
        )
        return Fitted(self.network, trained(self.network, weights, inputs, targets), middle, width)

    def loaded(self, state: Mapping[str, Any]) -> Fitted:
        """Make a fitted network from its state.

        Raises
        ------
        ValueError
            The state has no valid weights of this network.
        """
        arrays = [np.asarray(state[key], np.float64) for key in ("weights", "middle", "width")]
        shapes = [each.shape for each in arrays]
        if shapes != [(self.network.size,), (3,), (3,)]:
            raise ValueError(f"no weights of {self.network.name}: {shapes}")
        if not all(np.isfinite(each).all() for each in arrays) or not (arrays[2] > 0).all():
            raise ValueError(f"no weights of {self.network.name}: not finite")
        return Fitted(self.network, *arrays)


def scaled(rows: Floats, middle: Floats, width: Floats) -> Floats:
    """Scale and clip rows for a network.

    Parameters
    ----------
    rows : array of float, shape (n, 3)
        Speed, CPU and memory.
    middle, width : array of float, shape (3,)
        Mean and standard deviation of each.
    """
    return np.clip((rows - middle) / width, -CLIPPED, CLIPPED)


def trained(network: Network, weights: Floats, inputs: Floats, targets: Floats) -> Floats:
    """Train by gradient descent; return the weights that predict the held-out rows best.

    Parameters
    ----------
    network : Network
    weights : array of float
        Initial weights.
    inputs : array of float
        From :meth:`Network.windows`, one row for each target.
    targets : array of float, shape (n,)
        Speeds, scaled.
    """
    from scipy.optimize import minimize  # noqa: PLC0415

    held = max(1, round(HELD_OUT * len(inputs)))
    newest = inputs[-held:], targets[-held:]

    def missed(weights: Floats) -> float:
        outputs, _ = network.forward(network.split(weights), newest[0])
        return float(np.mean((outputs - newest[1]) ** 2))

    best, least, since = weights, missed(weights), 0

    def look(weights: Floats) -> None:
        nonlocal best, least, since
        found, since = missed(weights), since + 1
        if found < least:
            best, least, since = weights.copy(), found, 0
        if since >= PATIENCE:
            raise _Enough

    with contextlib.suppress(_Enough):
        minimize(
            network.error,
            weights,
            args=(inputs[:-held], targets[:-held]),
            jac=True,
            method="L-BFGS-B",
            callback=look,
            options={"maxiter": MOST_STEPS},
        )
    return best


class _Enough(Exception):
    """The early stop of the descent, from its callback; works in every release of SciPy."""
