"""The lifetime of idle nodes, learned from those that have left.

The hazard of leaving is constant between two ages (a piecewise exponential model; Lawless,
*Statistical Models and Methods for Lifetime Data*, 2003, section 3.2): the number of nodes that
left at such an age, divided by the time that nodes spent in it. The time of nodes that are still
there counts as well, so that censoring causes no bias. In the data, the longer a node has lasted,
the longer it will last.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hpcext.core.history.fragments import EDGES_S, Fragments

Floats = NDArray[np.float64]

BEFORE = 5.0
"""Weight of the prior, as a number of nodes of each age that count as observed."""

SHAPE, SCALE_S = 1.7, 900.0
"""Parameters of the prior's Lomax distribution. BFTrainer, section 2.1: 58 % of the fragments of
Summit end within ten minutes, with 10 % of the node-time."""

_EDGES = np.array(EDGES_S)
_WIDTHS = np.diff(_EDGES, append=np.inf)
_MIDDLES = _EDGES + np.diff(_EDGES, append=_EDGES[-1] * 1.5) / 2
_BEFORE_S = BEFORE * (SCALE_S + _MIDDLES) / SHAPE


class Survival:
    """The survival curve of idle nodes.

    Parameters
    ----------
    seen : Fragments
    ages_s : array of float, shape (n,)
        Ages of the present nodes; negative ones, where clocks differ, count as 0.
    nodes : array of float, shape (n,)
        Number of nodes of each age.
    """

    def __init__(self, seen: Fragments, ages_s: Floats, nodes: Floats) -> None:
        ended, stayed_s = np.zeros(len(_EDGES)), np.zeros(len(_EDGES))
        if seen.ended:
            ended, stayed_s = np.array(seen.ended), np.array(seen.stayed_s)
        # A node older than the last age counts as of that age.
        spent_s = np.clip(ages_s[:, None] - _EDGES, 0.0, _WIDTHS)
        self._hazard = (ended + BEFORE) / (stayed_s + nodes @ spent_s + _BEFORE_S)
        until = np.cumsum(self._hazard[:-1] * _WIDTHS[:-1])
        self._cumulated = np.concatenate([[0.0], until])

    def stays(self, ages_s: Floats, later_s: Floats) -> Floats:
        """Return the probability that nodes of each age are still there some time later.

        Parameters
        ----------
        ages_s : array of float, shape (n,)
        later_s : array of float, shape (k,)
            Times after the present, 0 or more.

        Returns
        -------
        array of float, shape (n, k)
        """
        ages_s = np.maximum(ages_s, 0.0)
        then = self._risk(ages_s[:, None] + later_s)
        return np.asarray(np.exp(self._risk(ages_s)[:, None] - then))

    def _risk(self, ages_s: Floats) -> Floats:
        """Return the cumulative hazard up to an age."""
        at = np.searchsorted(_EDGES, ages_s, side="right") - 1
        return np.asarray(self._cumulated[at] + self._hazard[at] * (ages_s - _EDGES[at]))


def early_share(seen: Fragments) -> float:
    """Return the share of nodes with a known end that leave before it, with a prior of one half."""
    return (seen.early + 1.0) / (seen.told + 2.0)
