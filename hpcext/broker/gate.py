"""The bound on what one user may ask of a broker, so that a flood costs others nothing."""

from __future__ import annotations

from collections.abc import Iterable

BURST = 20.0
"""Calls that a user may make at once."""

EACH_S = 1.0
"""Seconds after which one more is allowed."""

REMEMBERED = 1024
"""Users beyond which those are forgotten who have not called lately."""

MOST_LINES = 256
"""The most calls at a time, of all users together."""


class Gate:
    """The users who are calling, and how much each has called lately."""

    def __init__(self) -> None:
        self._calling: set[int] = set()
        self._left: dict[int, tuple[float, float]] = {}

    def enter(self, uid: int, now_s: float) -> str:
        """Let a user in; return why not, if so. Whoever came in is to :meth:`leave`.

        Parameters
        ----------
        uid : int
        now_s : float
            Seconds, which never go back.
        """
        if uid in self._calling:
            return "one call at a time"
        if len(self._calling) >= MOST_LINES:
            return "too many calls at a time"
        left, at_s = self._left.get(uid, (BURST, now_s))
        left = min(BURST, left + (now_s - at_s) / EACH_S)
        if left < 1:
            return "too many calls"
        self._left[uid] = left - 1, now_s
        if len(self._left) > REMEMBERED:
            self._forget(now_s)
        self._calling.add(uid)
        return ""

    def leave(self, uid: int) -> None:
        """End the call of a user."""
        self._calling.discard(uid)

    def _forget(self, now_s: float) -> None:
        """Forget those who have all of their calls again."""
        self._left = dict(self._lately(now_s))

    def _lately(self, now_s: float) -> Iterable[tuple[int, tuple[float, float]]]:
        for uid, (left, at_s) in self._left.items():
            if left + (now_s - at_s) / EACH_S < BURST:
                yield uid, (left, at_s)
