"""The clock of a rank whose GPU computes behind its Python code.

Events in its stream record when the GPU reached each place. They are read once it has, which may be
some steps later, so that no code waits for the GPU.
"""

from __future__ import annotations

from typing import Any

import torch

from hpcext.training.balance.clock import Clock


class CudaClock(Clock):
    """A :class:`~hpcext.training.balance.clock.Clock` by the events of a GPU.

    Parameters
    ----------
    device : torch.device
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def _mark(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def _between(self, begin: Any, end: Any) -> float:
        return float(begin.elapsed_time(end)) / 1e3

    def _passed(self, mark: Any) -> bool:
        return bool(mark.query())

    def _used(self) -> float:
        total = torch.cuda.get_device_properties(self._device).total_memory
        return torch.cuda.max_memory_reserved(self._device) / total
