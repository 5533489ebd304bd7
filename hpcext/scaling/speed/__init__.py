"""The speed of a worker in its next iteration: the predictors of LB-BSP, section 3.2.2.

Chen et al., *Semi-Dynamic Load Balancing*, SoCC 2020. On a shared machine, the speed of a worker
depends on its neighbours. Batches that are to end together need its speed ahead of the iteration
(Algorithm 1), but only the speed in past ones, and its CPU and memory usage, can be observed.

Models are trained while the training runs, in a thread. The moment when a fit ends is therefore
random, so processes that compute the same shares exchange predictions, not models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from hpcext import seams
from hpcext.scaling.speed import arima
from hpcext.scaling.speed.averages import Ema, Memoryless
from hpcext.scaling.speed.learner import Learner
from hpcext.scaling.speed.online import Online


class Predictor(Protocol):
    """A predictor of a worker's speed."""

    def observe(self, speed: float, cpu: float, memory: float) -> None:
        """Process the observations at the boundary before an iteration.

        Parameters
        ----------
        speed : float
            Samples per second in the iteration that ended. The observation is ignored if this is
            not a positive number.
        cpu, memory : float
            Usage of the worker, in any unit that stays the same, as read now. A value that is
            negative or not a number counts as the one before.
        """

    def predict(self) -> float:
        """Predict the speed in the next iteration: positive, or NaN before any observation."""

    def state(self) -> dict[str, Any]:
        """Return the state as JSON values, for a checkpoint or the next training of this kind."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a predictor of the same name.

        Raises
        ------
        ValueError
            The state is not one that such a predictor saved.
        """


def _arima(seed: int, background: bool) -> Predictor:
    return Online(arima.fit, arima.loaded, background=background)


def _network(name: str, seed: int, background: bool) -> Predictor:
    learner = Learner(name, seed)
    return Online(learner.fit, learner.loaded, background=background)


MADE: Mapping[str, Callable[[int, bool], Predictor]] = {
    "memoryless": lambda _, __: Memoryless(),
    "ema": lambda _, __: Ema(),
    "arima": _arima,
    "rnn": lambda seed, background: _network("rnn", seed, background),
    "lstm": lambda seed, background: _network("lstm", seed, background),
    "narx": lambda seed, background: _network("narx", seed, background),
}


def find_predictor(name: str, *, seed: int = 0, background: bool = True) -> Predictor:
    """Make a predictor by its name in Table 3.

    Parameters
    ----------
    name : str
        ``memoryless``, ``ema``, ``arima``, ``rnn``, ``lstm`` or ``narx``; or what an installed
        package provides (:data:`hpcext.seams.PREDICTORS`).
    seed : int
        Seed of the initial weights of networks.
    background : bool
        Whether to fit in a thread; see :class:`~hpcext.scaling.speed.online.Online`.

    Returns
    -------
    Predictor

    Raises
    ------
    ValueError
        There is no such predictor.

    Examples
    --------
    >>> predictor = find_predictor("ema")
    >>> predictor.observe(10.0, 0.5, 0.5)
    >>> predictor.observe(20.0, 1.0, 0.5)
    >>> predictor.predict()
    12.0
    """
    return (MADE.get(name) or _installed(name))(seed, background)


def _installed(name: str) -> Callable[[int, bool], Predictor]:
    """Return the factory of a predictor that an installed package provides."""
    try:
        found: Callable[[int, bool], Predictor] = seams.load(seams.PREDICTORS, name)
    except KeyError:
        known = ", ".join((*MADE, *seams.names(seams.PREDICTORS)))
        raise ValueError(f"predictor={name!r}: must be one of {known}") from None
    except seams.SeamError as error:
        raise ValueError(f"predictor={name!r}: {error}") from None
    return found
