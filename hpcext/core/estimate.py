"""What is known of a job's speed, and of what a change of its size costs."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace


class Estimate(msgspec.Struct, frozen=True):
    """What is known of a job's speed; made from what the job states and reports.

    Attributes
    ----------
    stated : Mapping[int, float]
        GPUs → speed, from the job file; the unit is the job's own.
    measured : Mapping[int, float]
        GPUs → work per second, as last reported at that size.
    work : float or None
        Work of the whole job: steps or samples, as the job file says.
    done : float
        Work done and reported so far.
    up_s, down_s : float or None
        Seconds without progress that a growth and a shrink cost this job: as the job file says,
        then as last measured (CAPES and BFTrainer call them R_up and R_dw).
    """

    stated: Mapping[int, float] = msgspec.field(default_factory=dict)
    measured: Mapping[int, float] = msgspec.field(default_factory=dict)
    work: float | None = None
    done: float = 0.0
    up_s: float | None = None
    down_s: float | None = None

    def rate(self, gpus: int, like: int | None = None) -> float | None:
        """Work per second on so many GPUs, or None where that is not known.

        Known where it was measured; and, if it was measured at `like` GPUs, wherever the job
        states how its speeds at the two sizes compare.

        Examples
        --------
        >>> known = Estimate(stated={2: 1.0, 4: 1.5}, measured={2: 10.0})
        >>> known.rate(4), known.rate(4, like=2)
        (None, 15.0)
        """
        if gpus in self.measured or like is None:
            return self.measured.get(gpus)
        measured, stated = self.measured.get(like), self.stated.get(like)
        if measured is None or not stated or gpus not in self.stated:
            return None
        return measured * self.stated[gpus] / stated

    def left_s(self, gpus: int, like: int | None = None) -> float | None:
        """Seconds until the work is done on so many GPUs, where that is known; see `rate`."""
        rate = self.rate(gpus, like)
        if self.work is None or not rate:
            return None
        return max(0.0, self.work - self.done) / rate

    def paid(self, gained: int, cost_s: float) -> Estimate:
        """The same, having learned what it cost to gain so many GPUs (below 0: to lose them)."""
        if not gained:
            return self
        return replace(self, **{"up_s" if gained > 0 else "down_s": cost_s})
