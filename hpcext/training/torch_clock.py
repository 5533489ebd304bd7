"""How long a rank takes for its own part of a step: its time without waiting for other ranks.

Two parts of a step wait for nobody: from its beginning (the batch is read) to its last gradients,
and from the optimizer to its end. On a GPU events of its stream say when it came there; they are
read when it has, which may be some steps later, so nothing waits for the GPU.
"""

from __future__ import annotations

import resource
import time
from collections import deque
from pathlib import Path
from typing import Any

import torch

from hpcext.training.balance import Measured
from hpcext.training.staging import room_bytes

LOOK_S = 1.0
"""Between two looks at the memory of the machine, which take longer than all the rest."""

UNDER_WAY = 16
"""Steps of a GPU that are not read yet; the oldest is given up first."""

_Marks = dict[str, Any]


class Clock:
    """Times the steps of one rank.

    Parameters
    ----------
    device : torch.device
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cuda = device.type == "cuda"
        self._marks: _Marks | None = None
        self._ready: deque[tuple[int, _Marks]] = deque(maxlen=UNDER_WAY)
        self._cpu: list[float] = [0.0, 0.0]
        self._looked_s = -LOOK_S
        self._memory = 0.0

    def begin(self) -> None:
        """A step begins."""
        self._marks = {}
        self._cpu = [time.process_time()] * 2
        self._mark("begin")

    def computed(self) -> None:
        """Some gradients of the last pass are there; the last such call counts."""
        if self._marks is not None:
            self._cpu[1] = time.process_time()
            self._mark("computed")

    def exchanged(self) -> None:
        """The gradients of all ranks are there; the first such call counts."""
        if self._marks is not None and "exchanged" not in self._marks:
            self._mark("exchanged")

    def end(self, samples: int) -> None:
        """The step is over; it had so many samples of this rank."""
        marks, self._marks = self._marks, None
        if marks is None or "computed" not in marks:
            return
        self._marks = marks
        self._mark("end")
        marks["cpu"] = self._cpu[1] - self._cpu[0]
        self._marks = None
        self._ready.append((samples, marks))

    def forget(self) -> None:
        """The step under way does not count."""
        self._marks = None

    def take(self) -> Measured | None:
        """The newest step whose time is known, once."""
        found = None
        while self._ready and self._passed(self._ready[0][1]):
            found = self._ready.popleft()
        if found is None:
            return None
        samples, marks = found
        computed_s = self._between(marks["begin"], marks["computed"])
        rest_s = self._between(marks["exchanged"], marks["end"]) if "exchanged" in marks else 0.0
        return Measured(samples, computed_s + rest_s, marks["cpu"] / max(computed_s, 1e-9))

    def _passed(self, marks: _Marks) -> bool:
        """Whether the GPU has come so far."""
        return not self._cuda or all(marks[name].query() for name in marks if name != "cpu")

    def memory(self) -> float:
        """Share of the memory that this rank may have which it has."""
        now_s = time.monotonic()
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            if self._cuda:
                total = torch.cuda.get_device_properties(self._device).total_memory
                self._memory = torch.cuda.max_memory_reserved(self._device) / total
            else:
                own = _own_bytes()
                self._memory = own / max(1, own + room_bytes())
        return self._memory

    def _mark(self, name: str) -> None:
        assert self._marks is not None
        if self._cuda:
            event: Any = self._marks.get(name)
            if event is None:
                event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(self._device))
            self._marks[name] = event
        else:
            self._marks[name] = time.perf_counter()

    def _between(self, begin: Any, end: Any) -> float:
        if self._cuda:
            return float(begin.elapsed_time(end)) / 1e3
        return float(end - begin)


def _own_bytes() -> int:
    """Memory of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()
