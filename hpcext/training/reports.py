"""What a session tells its manager: report.json, suspended.json, and a signal that says *look*."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from hpcext import documents, protocol

_INTERVAL_S = 1.0
_WINDOW = 20


class Reporter:
    """Writes the progress of an attempt; silent where there is no manager, and off rank 0.

    Parameters
    ----------
    attempt : protocol.Attempt or None
        None: nothing is ever written.
    world_size : int
    """

    def __init__(self, attempt: protocol.Attempt | None, world_size: int) -> None:
        self._attempt = attempt
        self._world_size = world_size
        self._metrics: dict[str, Any] = {}
        self._goodput: dict[str, Any] | None = None
        self._history: deque[tuple[float, float]] = deque(maxlen=_WINDOW)
        self._next_s = 0.0
        self._unsaid = False
        self._registered_at = time.time()
        self._restored_at = 0.0
        self._first_step_at: float | None = None
        self._registered = self._in_place = False
        self._resumed_step = 0
        self._step = 0
        self._done = 0.0
        self.saved_step = 0
        self._rung, self._factor = (attempt and attempt.rungs) or (0, 1)
        self._at_rungs: dict[int, dict[str, float | None]] = {}

    def restored(self, step: int, done: float) -> None:
        """The state is that of a checkpoint, or of a beginning."""
        self._restored_at = time.time()
        self._resumed_step = self.saved_step = self._step = step
        self._done = done
        self._passed(step)

    def register(self, *, in_place: bool = False) -> None:
        """Write the first report and have the manager look; once more if `in_place` is news.

        Parameters
        ----------
        in_place : bool
            The number of ranks can change without stopping.
        """
        if self._registered and self._in_place >= in_place:
            return
        self._registered, self._in_place = True, in_place
        self._write()
        self._signal()

    def stepped(self, step: int, done: float) -> None:
        """A step is done; written at most once a second."""
        self._step = step
        self._done = done
        if self._attempt is None:
            return
        now_s, rung = time.monotonic(), self._passed(step)
        if self._first_step_at is None:
            # Said at once: how long a resumption took is known now. The clock of the rate starts
            # here too, so that a slow first step (compilation, caches) does not count.
            self._first_step_at = time.time()
            self._next_s = now_s
        if rung:
            # Said at once, and kept: what it has here is compared with what others had here.
            self._at_rungs[rung] = _numbers(self._metrics)
            self._next_s = now_s
        self._maybe_write(now_s)
        if rung:
            self._signal()

    def _passed(self, step: int) -> int:
        """The last rung that a trial has come to since this was asked last; 0 if none."""
        passed = 0
        while 0 < self._rung <= step:
            passed = self._rung
            self._rung *= self._factor
        return passed

    def resized(self, world_size: int) -> None:
        """The number of ranks is another one: so will be the rate."""
        self._world_size = world_size
        self._history.clear()

    def metrics(self, values: Mapping[str, Any]) -> None:
        """Numbers to go with the next report; numbers on a device are fetched only then."""
        if self._attempt is None:
            return
        for name, value in values.items():
            detach = getattr(value, "detach", None)
            # A loss that is kept would keep the graph of its whole step in memory.
            self._metrics[name] = detach() if detach else value
        self._unsaid = True

    def goodput(self, noise_scale: float, values: Mapping[str, Any]) -> None:
        """It goes with every report from the next one on, if its noise scale is 0 or more."""
        if self._attempt is None:
            return
        # JSON has no infinity, where no batch is too large.
        noise_scale = min(float(noise_scale), sys.float_info.max)
        if noise_scale >= 0:
            self._goodput = {"noise_scale": noise_scale, **values}
            self._unsaid = True

    def flush(self) -> None:
        """Write what has not been written yet."""
        if self._unsaid:
            self._write()

    def suspended(self, manifest: str, *, agreed_at: float, written_at: float) -> None:
        """Acknowledge a suspension, and have the supervisor look.

        Raises
        ------
        OSError
            The record cannot be written.
        """
        if self._attempt is None:
            return
        self._write()
        document = {
            "schema": protocol.SUSPENDED,
            "attempt": self._attempt.attempt,
            "op": self._attempt.op,
            "step": self._step,
            "manifest": manifest,
            "agreed_at": agreed_at,
            "written_at": written_at,
            "acknowledged_at": time.time(),
        }
        # Not synced: should the machine crash now, the checkpoint is there, and without this
        # record the attempt counts as lost, which goes on from that very checkpoint.
        path = self._attempt.report_dir / protocol.SUSPENDED_FILE
        documents.write_json(path, document, durable=False)
        self._signal()

    def _maybe_write(self, now_s: float) -> None:
        if now_s < self._next_s:
            self._unsaid = True
            return
        self._next_s = now_s + _INTERVAL_S
        self._history.append((now_s, self._done))
        self._write()

    def _rate(self) -> float | None:
        if len(self._history) < 2:
            return None
        (from_s, before), (to_s, after) = self._history[0], self._history[-1]
        return (after - before) / (to_s - from_s)

    def _write(self) -> None:
        attempt = self._attempt
        if attempt is None:
            return
        me = protocol.Process.me()
        document = {
            "schema": protocol.REPORT,
            "attempt": attempt.attempt,
            "op": attempt.op,
            "pid": me.pid,
            "start": me.start,
            "world_size": self._world_size,
            "in_place": self._in_place,
            "step": self._step,
            "resumed_step": self._resumed_step,
            "saved_step": self.saved_step,
            "done": self._done,
            "rate": self._rate(),
            "metrics": _numbers(self._metrics),
            "rungs": self._at_rungs,
            "goodput": self._goodput,
            "registered_at": self._registered_at,
            "restored_at": self._restored_at,
            "first_step_at": self._first_step_at,
            "at": time.time(),
        }
        # Progress is worth less than the training that makes it: a full disk must not stop it.
        with contextlib.suppress(OSError):
            path = attempt.report_dir / protocol.REPORT_FILE
            documents.write_json(path, document, durable=False)
            self._unsaid = False

    def _signal(self) -> None:
        if self._attempt is not None and self._attempt.notify is not None:
            self._attempt.notify.send(protocol.NEWS_SIGNAL)


def _numbers(values: Mapping[str, Any]) -> dict[str, float | None]:
    """The numbers among the values; None for what is not finite, of which JSON has none."""
    numbers: dict[str, float | None] = {}
    for name, value in values.items():
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            number = float(value)
            numbers[name] = number if math.isfinite(number) else None
    return numbers
