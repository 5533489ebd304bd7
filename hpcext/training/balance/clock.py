"""The time that a rank takes for its own part of a step, without waiting for other ranks.

From the exchange of the gradients of all ranks until its own next gradients are ready, a rank waits
for no other: it runs the optimizer, reads a batch and makes the passes. Agreements between two
steps and checkpoints do not count. No framework is needed; the clock for GPUs is
:mod:`hpcext.training.torch.clock`.
"""

from __future__ import annotations

import resource
import time
from collections import deque
from pathlib import Path
from typing import Any, NamedTuple

from hpcext.training.balance import MeasuredBatch
from hpcext.training.checkpoint.staging import room_bytes

LOOK_S = 1.0
"""Seconds between two readings of the machine's memory, which are costly."""

UNDER_WAY = 16
"""Largest number of steps of a GPU with unread times; the oldest is dropped first."""


class _Step(NamedTuple):
    """The marks of a step.

    `rest` is the end of the step before: from the exchange of its gradients to its end.
    """

    samples: int
    begin: Any
    computed: Any
    rest: tuple[Any, Any] | None
    cpu_s: float


class Clock:
    """A clock that times the steps of a rank."""

    def __init__(self) -> None:
        self._begin: Any = None
        self._exchanged: Any = None
        self._rest: tuple[Any, Any] | None = None
        self._ready: deque[_Step] = deque(maxlen=UNDER_WAY)
        self._cpu_s = 0.0
        self._looked_s = -LOOK_S
        self._memory = 0.0

    def begin(self) -> None:
        """Mark the beginning of a step."""
        self._cpu_s = time.process_time()
        self._begin = self._mark()

    def computed(self, samples: int) -> None:
        """Mark that this rank's gradients are ready; only the first call in a step counts."""
        if self._begin is None:
            return
        cpu_s = time.process_time() - self._cpu_s
        self._ready.append(_Step(samples, self._begin, self._mark(), self._rest, cpu_s))
        self._begin = self._rest = None

    def exchanged(self) -> None:
        """Mark that all ranks' gradients are exchanged; only the first call in a step counts."""
        if self._exchanged is None:
            self._exchanged = self._mark()

    def end(self) -> None:
        """Mark the end of a step."""
        if self._exchanged is not None:
            self._rest = self._exchanged, self._mark()
        self._exchanged = None

    def forget(self) -> None:
        """Discard the present step, which is not timed."""
        self._begin = self._exchanged = self._rest = None

    def take(self) -> MeasuredBatch | None:
        """Return the newest step whose time is known and was not returned before, or None."""
        found = None
        while self._ready and self._passed(self._ready[0].computed):
            found = self._ready.popleft()
        if found is None:
            return None
        computed_s = self._between(found.begin, found.computed)
        rest_s = self._between(*found.rest) if found.rest else 0.0
        return MeasuredBatch(
            found.samples, computed_s + rest_s, found.cpu_s / max(computed_s, 1e-9)
        )

    def memory(self) -> float:
        """Return the share of the memory available to this rank that is in use, 0 to 1."""
        now_s = time.monotonic()
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            self._memory = self._used()
        return self._memory

    # Methods that other kinds of clock override.

    def _mark(self) -> Any:
        """Return a mark of this instant."""
        return time.perf_counter()

    def _between(self, begin: Any, end: Any) -> float:
        """Return the seconds between two marks."""
        return float(end - begin)

    def _passed(self, mark: Any) -> bool:
        """Return whether the instant of a mark is known yet."""
        return True

    def _used(self) -> float:
        own = _own_bytes()
        return own / max(1, own + room_bytes())


def _own_bytes() -> int:
    """Return the resident memory of this process in bytes."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()
