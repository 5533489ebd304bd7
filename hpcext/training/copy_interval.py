"""The interval of copies: as many steps as make them cost at most a given part of the time."""

from __future__ import annotations

import math
import statistics
from collections import deque

COST = 0.03
"""What copies may cost, as a part of the time without them."""

MOST = 100
"""Steps between two copies at most."""

_FIRST = 2
_ENOUGH, _KEPT = 5, 15
"""How many steps with a copy, and without, are measured at least, and are kept."""


class Interval:
    """The steps from one copy to the next.

    Parameters
    ----------
    given : int or None
        The user's choice; None: as many as the measured cost asks for.

    Attributes
    ----------
    steps : int
        The present choice. At first every second step has a copy, so that both kinds are measured.
    """

    def __init__(self, given: int | None) -> None:
        self.given = given
        self.steps = given or _FIRST
        self._took_s: dict[bool, deque[float]] = {
            copies: deque(maxlen=_KEPT) for copies in (False, True)
        }
        self._last: tuple[float, bool] | None = None

    def step_begins(self, now_s: float, *, copies: bool) -> None:
        """Take note of the time at which a step begins.

        Parameters
        ----------
        now_s : float
        copies : bool
            Whether a copy is made in this step.
        """
        if self._last is not None:
            before_s, copied = self._last
            self._took_s[copied].append(now_s - before_s)
        self._last = now_s, copies

    def interrupted(self) -> None:
        """Do not count the present step, in which something else happens, too."""
        self._last = None

    def wanted(self) -> int:
        """Return how many steps this rank would have from one copy to the next."""
        if self.given is not None:
            return self.given
        plain, copied = (self._took_s[copies] for copies in (False, True))
        if min(len(plain), len(copied)) < _ENOUGH:
            return self.steps
        # Medians, since a single step may take long for another reason.
        usual_s = statistics.median(plain)
        more_s = statistics.median(copied) - usual_s
        return max(1, min(MOST, math.ceil(more_s / (COST * usual_s)))) if usual_s else 1
