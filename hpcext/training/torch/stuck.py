"""Whether the training's thread is stuck in communication: it waits there, and never wakes up.

Gloo signals no error to an operation that has begun to send to a rank that dies (PyTorch 2.13:
``Pair::signalException`` leaves out what is being transmitted).
"""

from __future__ import annotations

import os
import sys
import threading
import time
from types import FrameType

import torch

IDLE_S = 0.05
"""Seconds of CPU time that a thread may use, in all, while it counts as waiting."""

_TORCH = os.path.dirname(torch.__file__)
_PLACES = (
    os.path.join(_TORCH, "distributed", ""),
    os.path.join(_TORCH, "nn", "parallel", ""),
    # The backward pass, in which gradients are averaged.
    os.path.join(_TORCH, "autograd", ""),
    os.path.join(os.path.dirname(__file__), ""),
)


class TrainingThread:
    """The thread that makes this object, as seen by another one."""

    def __init__(self) -> None:
        self._ident = threading.get_ident()
        self._clock = time.pthread_getcpuclockid(self._ident)
        self._at: tuple[FrameType, int] | None = None
        self._since_s = self._cpu_s = 0.0

    def waits_s(self) -> float:
        """Return for how many seconds, since the first call, it has waited for other ranks."""
        now_s, cpu_s = time.monotonic(), time.clock_gettime(self._clock)
        at = self._place()
        if at is None or at != self._at or cpu_s > self._cpu_s + IDLE_S:
            self._at, self._since_s, self._cpu_s = at, now_s, cpu_s
        return now_s - self._since_s

    def forget(self) -> None:
        """Begin anew: what it does now is not to be counted."""
        self._at = None

    def _place(self) -> tuple[FrameType, int] | None:
        """Return where it is, if that is in communication."""
        frame = sys._current_frames().get(self._ident)
        if frame is None or not frame.f_code.co_filename.startswith(_PLACES):
            return None
        return frame, frame.f_lasti
