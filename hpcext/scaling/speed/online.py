"""A predictor whose model is fitted repeatedly while the training that it observes runs."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hpcext.scaling.speed.averages import Ema, is_speed

Floats = NDArray[np.float64]

LEAST = 500
"""Iterations before a model is trained (section 4); a moving average predicts until then."""

EVERY = 100
"""Iterations between two fits; the second starts from the model of the first."""

KEPT = 2000
"""Newest iterations that a fit uses."""

BEYOND = 1.5
"""Factor beyond the observed speeds to which predictions are limited, whatever the model says."""


class Model(Protocol):
    """A fitted model."""

    @property
    def looks_back(self) -> int:
        """The number of rows that a prediction needs."""

    def ahead(self, rows: Floats) -> float:
        """Predict the speed after these rows of speed, CPU and memory."""

    def state(self) -> dict[str, Any]:
        """Return the state as JSON values."""


Fit = Callable[[Floats, "Model | None"], "Model"]
"""A function that fits a model to rows, starting from another model."""


class Online:
    """A :class:`~hpcext.scaling.speed.Predictor` that learns while the training runs.

    Parameters
    ----------
    fit : callable
        Fits a model to rows of speed, CPU and memory, starting from another model.
    loaded : callable
        Makes a model from a state; raises ValueError if the state is not valid.
    background : bool
        Whether to fit in a thread. Otherwise :meth:`observe` sometimes takes as long as a fit, and
        the same observations lead to the same predictions.
    """

    def __init__(
        self, fit: Fit, loaded: Callable[[Mapping[str, Any]], Model], *, background: bool = True
    ) -> None:
        self._fit = fit
        self._loaded = loaded
        self._background = background
        self._rows: deque[tuple[float, float, float]] = deque(maxlen=KEPT)
        self._average = Ema()
        self._slowest, self._fastest = math.inf, 0.0
        self._model: Model | None = None
        self._new = 0
        self._thread: threading.Thread | None = None

    @property
    def trained(self) -> bool:
        """Whether the model predicts, rather than the moving average."""
        return self._model is not None and len(self._rows) >= self._model.looks_back

    def observe(self, speed: float, cpu: float, memory: float) -> None:
        """Record the last iteration; begin a fit when one is due."""
        if not is_speed(speed):
            return
        before = self._rows[-1] if self._rows else (0.0, 0.0, 0.0)
        self._rows.append((float(speed), _usage(cpu, before[1]), _usage(memory, before[2])))
        self._average.observe(speed, cpu, memory)
        self._slowest, self._fastest = min(self._slowest, speed), max(self._fastest, speed)
        self._new += 1
        if len(self._rows) >= LEAST and self._new >= EVERY and not self._fitting():
            self._new = 0
            self._begin()

    def predict(self) -> float:
        """Predict the next speed by the model if there is one, else by the moving average."""
        model = self._model
        if model is None or len(self._rows) < model.looks_back:
            return self._average.predict()
        speed = model.ahead(self._newest(model.looks_back))
        if not math.isfinite(speed):
            return self._average.predict()
        return min(max(speed, self._slowest / BEYOND), self._fastest * BEYOND)

    def settle(self) -> None:
        """Wait until no fit is running."""
        if self._thread is not None:
            self._thread.join()

    def state(self) -> dict[str, Any]:
        """Return the state as JSON values, without old rows, so that a checkpoint stays small."""
        model = self._model
        rows = [] if model is None else self._newest(model.looks_back).tolist()
        told = None if model is None else model.state()
        seen = [self._slowest, self._fastest] if self._rows else None
        return {"average": self._average.state(), "rows": rows, "seen": seen, "model": told}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a state; even the model of another worker is a better start than none."""
        self.settle()
        average = Ema()
        try:
            model = None if state["model"] is None else self._loaded(state["model"])
            rows = [(float(a), float(b), float(c)) for a, b, c in state["rows"]]
            slowest, fastest = (math.inf, 0.0) if state["seen"] is None else state["seen"]
            average.load(state["average"])
            if not np.isfinite(rows).all() or not (slowest > 0 and 0 <= fastest < math.inf):
                raise ValueError("numbers that no predictor has")
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"no state of a predictor: {error}") from None
        self._average, self._model = average, model
        self._slowest, self._fastest = float(slowest), float(fastest)
        self._rows.clear()
        self._rows.extend(rows)
        self._new = 0

    def _newest(self, count: int) -> Floats:
        first = max(0, len(self._rows) - count)
        rows = [self._rows[at] for at in range(first, len(self._rows))]
        return np.array(rows, dtype=np.float64).reshape(-1, 3)

    def _fitting(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _begin(self) -> None:
        rows = np.array(self._rows, dtype=np.float64)
        if not self._background:
            self._learn(rows)
            return
        # A daemon thread, so that the end of a training does not wait for it.
        self._thread = threading.Thread(
            target=self._learn, args=(rows,), name="hpcext-speed", daemon=True
        )
        self._thread.start()

    def _learn(self, rows: Floats) -> None:
        self._model = self._fit(rows, self._model)


def _usage(now: float, before: float) -> float:
    return float(now) if math.isfinite(now) and now >= 0 else before
