"""How long the nodes that have left had stayed.

These are only observations, in bounded memory; :mod:`hpcext.scaling.survival` makes predictions
from them.
"""

from __future__ import annotations

import bisect

import msgspec

EDGES_S = (0.0, *(20.0 * 1.5**step for step in range(30)))
"""Classes of ages, in seconds: each reaches from one value to the next; the last is unbounded."""

EARLY_S = 60.0
"""A node that leaves by no more than this before its end leaves at its end: batch systems plan in
such steps."""


class Fragments(msgspec.Struct, frozen=True):
    """Nodes that have left, by the age that they reached.

    Attributes
    ----------
    ended : tuple of float
        How many left at an age between two of :data:`EDGES_S`; empty: none so far.
    stayed_s : tuple of float
        Seconds that they were of such an age, all together.
    told : int
        How many of them had an end that was known.
    early : int
        How many of those left before it.
    """

    ended: tuple[float, ...] = ()
    stayed_s: tuple[float, ...] = ()
    told: int = 0
    early: int = 0


class FragmentCounter:
    """A count of the nodes that leave."""

    def __init__(self, before: Fragments | None = None) -> None:
        if before is None or len(before.ended) != len(EDGES_S):
            # None so far; or of a release that tells other ages apart.
            before = Fragments()
        self._ended = list(before.ended or (0.0,) * len(EDGES_S))
        self._stayed_s = list(before.stayed_s or (0.0,) * len(EDGES_S))
        self._told, self._early = before.told, before.early
        self._fragments: Fragments | None = before

    def left(
        self, age_s: float, nodes: int = 1, *, early_s: float | None = None, ended: bool = True
    ) -> None:
        """Count nodes of an age that have left.

        Parameters
        ----------
        age_s : float
            Below 0, where clocks differ: counts as 0.
        nodes : int
        early_s : float or None
            How many seconds before their known end they left; None: no end was known.
        ended : bool
            Somebody needs them. Else all that is known is that they stayed so long.
        """
        if early_s is not None and ended:
            self._told += nodes
            self._early += nodes * (early_s > EARLY_S)
        age_s = max(0.0, age_s)
        last = bisect.bisect_right(EDGES_S, age_s) - 1
        for at in range(last):
            self._stayed_s[at] += nodes * (EDGES_S[at + 1] - EDGES_S[at])
        self._stayed_s[last] += nodes * (age_s - EDGES_S[last])
        self._ended[last] += nodes * ended
        self._fragments = None

    @property
    def fragments(self) -> Fragments:
        """The observations so far."""
        if self._fragments is None:
            ended, stayed_s = tuple(self._ended), tuple(self._stayed_s)
            self._fragments = Fragments(ended, stayed_s, self._told, self._early)
        return self._fragments
