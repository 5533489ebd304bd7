"""How long a rank takes for its own part of a step: its time without waiting for other ranks.

From where the gradients of all ranks are there to where its own next ones are, it waits for
nobody: the optimizer, the reading of a batch, and the passes. What the ranks agree on between two
steps, and checkpoints, do not count. No framework is needed; that of GPUs is
:mod:`hpcext.training.torch_clock`.
"""

from __future__ import annotations

import resource
import time
from collections import deque
from pathlib import Path
from typing import Any, NamedTuple

from hpcext.training.balance import Measured
from hpcext.training.staging import room_bytes

LOOK_S = 1.0
"""Between two looks at the memory of the machine, which take longer than all the rest."""

UNDER_WAY = 16
"""Steps of a GPU that are not read yet; the oldest is given up first."""


class _Step(NamedTuple):
    """Marks of one step; `rest` are those of the step before: all gradients are there, its end."""

    samples: int
    begin: Any
    computed: Any
    rest: tuple[Any, Any] | None
    cpu_s: float


class Clock:
    """Times the steps of one rank."""

    def __init__(self) -> None:
        self._begin: Any = None
        self._exchanged: Any = None
        self._rest: tuple[Any, Any] | None = None
        self._ready: deque[_Step] = deque(maxlen=UNDER_WAY)
        self._cpu_s = 0.0
        self._looked_s = -LOOK_S
        self._memory = 0.0

    def begin(self) -> None:
        """A step begins."""
        self._cpu_s = time.process_time()
        self._begin = self._mark()

    def computed(self, samples: int) -> None:
        """The gradients of this rank are there, of so many samples; the first such call counts."""
        if self._begin is None:
            return
        cpu_s = time.process_time() - self._cpu_s
        self._ready.append(_Step(samples, self._begin, self._mark(), self._rest, cpu_s))
        self._begin = self._rest = None

    def exchanged(self) -> None:
        """The gradients of all ranks are there; the first such call in a step counts."""
        if self._exchanged is None:
            self._exchanged = self._mark()

    def end(self) -> None:
        """The step is over."""
        if self._exchanged is not None:
            self._rest = self._exchanged, self._mark()
        self._exchanged = None

    def forget(self) -> None:
        """The step under way does not count."""
        self._begin = self._exchanged = self._rest = None

    def take(self) -> Measured | None:
        """The newest step whose time is known, once."""
        found = None
        while self._ready and self._passed(self._ready[0].computed):
            found = self._ready.popleft()
        if found is None:
            return None
        computed_s = self._between(found.begin, found.computed)
        rest_s = self._between(*found.rest) if found.rest else 0.0
        return Measured(found.samples, computed_s + rest_s, found.cpu_s / max(computed_s, 1e-9))

    def memory(self) -> float:
        """Share of the memory that this rank may have which it has."""
        now_s = time.monotonic()
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            self._memory = self._used()
        return self._memory

    # What another kind of clock does otherwise.

    def _mark(self) -> Any:
        """Now."""
        return time.perf_counter()

    def _between(self, begin: Any, end: Any) -> float:
        """Seconds from one mark to another."""
        return float(end - begin)

    def _passed(self, mark: Any) -> bool:
        """Whether it is known when that was."""
        return True

    def _used(self) -> float:
        own = _own_bytes()
        return own / max(1, own + room_bytes())


def _own_bytes() -> int:
    """Memory of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()
