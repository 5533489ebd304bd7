"""Messages of a session to its manager: report.json, suspended.json, and a signal for news."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcext import documents, protocol
from hpcext.process import Process
from hpcext.training import imported
from hpcext.training.checkpoint import warn
from hpcext.training.reserve import SIZE, Reserve
from hpcext.training.step_times import StepTimes
from hpcext.training.trackers import MlflowRun

_INTERVAL_S = 1.0
_WINDOW = 20
_MAX_NOTES = 8


class Reporter:
    """The reporter of an attempt's progress; silent without a manager, and on ranks other than 0.

    Parameters
    ----------
    attempt : protocol.Attempt or None
        The attempt; None if nothing is ever written.
    world_size : int

    Attributes
    ----------
    registered : bool
        Whether a place to stop was reached; from then on the job can be suspended.
    """

    def __init__(self, attempt: protocol.Attempt | None, world_size: int) -> None:
        self._attempt = attempt
        self._world_size = world_size
        self._metrics: dict[str, Any] = {}
        self._notes: list[str] = []
        self._fresh: dict[str, Any] = {}
        self._goodput: dict[str, Any] | None = None
        self._history: deque[tuple[float, float]] = deque(maxlen=_WINDOW)
        self._next_s = 0.0
        self._unsaid = False
        self._registered_at = time.time()
        self._restored_at = 0.0
        self._first_step_at: float | None = None
        self.registered = self._in_place = False
        self._resumed_step = 0
        self._step = 0
        self._done = 0.0
        self.saved_step = 0
        self._rung, self._factor = (attempt and attempt.rungs) or (0, 1)
        self._at_rungs: dict[int, dict[str, float | None]] = {}
        self._cannot_save: str | None = None
        self._waits_to_save = False
        self._declined = 0
        self._reserve = Reserve(attempt.report_dir / protocol.REPORT_FILE) if attempt else None
        self._last_step: int | None = None
        self._steps = StepTimes()
        self._mlflow = MlflowRun(attempt.checkpoint_dir) if attempt else None
        self._beforehand = imported.beforehand() if attempt else {}

    def restored(self, step: int, done: float) -> None:
        """Record that the state is restored from a checkpoint, or is that of a new training."""
        self._restored_at = time.time()
        self._resumed_step = self.saved_step = self._step = step
        self._done = done
        self._passed(step)
        if self._attempt is not None and self._last_step is None:
            path = self._attempt.report_dir / protocol.LAST_STEP
            with contextlib.suppress(OSError):
                self._last_step = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._count(step, pauses=True)

    def pause(self) -> None:
        """Record that the next step may take long, because other work precedes it."""
        self._steps.pause()
        self._count(self._step, pauses=True)

    def _count(self, step: int, *, pauses: bool = False) -> None:
        """Record that a step is done, so that it is known even if this process is killed now."""
        if self._last_step is None:
            return
        try:
            # Unlike a report it takes a microsecond; written in place, it needs no disk space.
            os.pwrite(self._last_step, b"%016d%c" % (step, b"\t" if pauses else b"\n"), 0)
        except OSError:
            # No number is better than one that is too small.
            with contextlib.suppress(OSError):
                os.ftruncate(self._last_step, 0)
            os.close(self._last_step)
            self._last_step = None

    # Failures to save.

    def saved(self, step: int) -> None:
        """Record that there is a checkpoint of this step."""
        self.saved_step = step
        self._waits_to_save = False
        if self._cannot_save is not None:
            self._cannot_save, self._next_s, self._unsaid = None, 0.0, True

    def cannot_save(self, why: str) -> None:
        """Report that a periodic checkpoint was not written, with the next report."""
        self._cannot_save, self._next_s, self._unsaid = why, 0.0, True

    def waits_to_save(self, why: str) -> None:
        """Report at once that the training is over but its last checkpoint cannot be written."""
        self._cannot_save, self._waits_to_save = why, True
        self._write()
        self._signal()

    def declined(self, why: str) -> None:
        """Report at once that a suspension is declined because the state cannot be saved."""
        self._cannot_save = why
        self._declined += 1
        self._write()
        self._signal()

    def register(self, *, in_place: bool = False) -> None:
        """Write the first report and notify the manager; again if `in_place` has become true.

        Parameters
        ----------
        in_place : bool
            Whether the number of ranks can change without stopping.
        """
        if self.registered and self._in_place >= in_place:
            return
        self.registered, self._in_place = True, in_place
        self._write()
        self._signal()

    def note(self, text: str) -> None:
        """Show the user a message once, on standard error and through the manager."""
        if text in self._notes or len(self._notes) == _MAX_NOTES:
            return
        self._notes.append(text)
        warn(text)
        self._write()
        self._signal()

    def stepped(self, step: int, done: float) -> None:
        """Record that a step is done; a report is written at most once a second.

        Parameters
        ----------
        step : int
            Steps since the job began.
        done : float
            Work since then, in the job's unit.
        """
        self._step = step
        self._done = done
        if self._attempt is None:
            return
        self._count(step)
        now_s, rung = time.monotonic(), self._passed(step)
        self._steps.stepped(now_s)
        if self._first_step_at is None:
            # Reported at once, because the duration of a resumption is known now. The rate is
            # measured from here on, so that a slow first step (compilation, caches) does not count.
            self._first_step_at = time.time()
            self._next_s = now_s
        if rung:
            # Reported at once, and kept, because metrics at a rung are compared between trials.
            self._at_rungs[rung] = _numbers(self._metrics)
            self._next_s = now_s
        self._maybe_write(now_s)
        if rung:
            self._signal()

    def _passed(self, step: int) -> int:
        """Return the last rung that a trial reached since the last call; 0 if none."""
        passed = 0
        while 0 < self._rung <= step:
            passed = self._rung
            self._rung *= self._factor
        return passed

    def resized(self, world_size: int) -> None:
        """Set the number of ranks, and measure the rate again."""
        self._world_size = world_size
        self._history.clear()
        self._steps = StepTimes()
        self.pause()

    def metrics(self, values: Mapping[str, Any]) -> None:
        """Set numbers for the next report; numbers on a device are fetched only then."""
        if self._attempt is None:
            return
        for name, value in values.items():
            detach = getattr(value, "detach", None)
            # Keeping an attached loss would keep the graph of its whole step in memory.
            self._metrics[name] = self._fresh[name] = detach() if detach else value
        self._unsaid = True

    def fresh(self) -> dict[str, float | None]:
        """Return the metrics that were reported since the last call."""
        fresh, self._fresh = self._fresh, {}
        return _numbers(fresh)

    def goodput(self, noise_scale: float, values: Mapping[str, Any]) -> None:
        """Set the goodput model for all following reports, unless phi is negative.

        Parameters
        ----------
        noise_scale : float
            phi, in samples.
        values : Mapping[str, Any]
            Other keys, see :data:`hpcext.protocol.REPORT`.
        """
        if self._attempt is None:
            return
        # JSON has no infinity, which means that no batch is too large.
        noise_scale = min(float(noise_scale), sys.float_info.max)
        if noise_scale >= 0:
            self._goodput = {"noise_scale": noise_scale, **values}
            self._unsaid = True

    def flush(self) -> None:
        """Write what has not been written yet."""
        if self._unsaid:
            self._write()

    def suspended(self, manifest: str, *, agreed_at: float, written_at: float) -> None:
        """Acknowledge a suspension, and notify the supervisor.

        Parameters
        ----------
        manifest : str
            Path of the manifest of the checkpoint.
        agreed_at, written_at : float
            Times of the agreement and of the end of writing, in seconds since the epoch.

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
        # Not synced: should the machine crash now, the checkpoint exists, and without this record
        # the attempt counts as lost, and the job goes on from that checkpoint.
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
        if self._mlflow is not None:
            self._mlflow.note()
        me = Process.me()
        document = {
            "schema": protocol.REPORT,
            "attempt": attempt.attempt,
            "op": attempt.op,
            "pid": me.pid,
            "start": me.start,
            "world_size": self._world_size,
            "suspendable": self.registered,
            "in_place": self._in_place,
            "notes": self._notes,
            "step": self._step,
            "resumed_step": self._resumed_step,
            "saved_step": self.saved_step,
            "done": self._done,
            "rate": self._rate(),
            "metrics": _numbers(self._metrics),
            "rungs": self._at_rungs,
            "goodput": self._goodput,
            "step_s": self._steps.usual(),
            "cannot_save": self._cannot_save,
            "declined": self._declined,
            "waits_to_save": self._waits_to_save,
            "beforehand": self._beforehand,
            "registered_at": self._registered_at,
            "restored_at": self._restored_at,
            "first_step_at": self._first_step_at,
            "at": time.time(),
        }
        # A report is worth less than the training, so a full disk must not stop it.
        with contextlib.suppress(OSError):
            self._replace(attempt.report_dir / protocol.REPORT_FILE, document)
            self._unsaid = False

    def _replace(self, path: Path, document: dict[str, Any]) -> None:
        assert self._reserve is not None
        try:
            documents.write_json(path, document, durable=False)
            self._reserve.keep()
        except OSError:
            # The manager must learn that it cannot save, if necessary without the long parts.
            data = json.dumps(document).encode() + b"\n"
            if len(data) > SIZE:
                short = {**document, "metrics": {}, "rungs": {}, "goodput": None}
                data = json.dumps(short).encode()
            self._reserve.replace(data)

    def _signal(self) -> None:
        if self._attempt is not None and self._attempt.notify is not None:
            self._attempt.notify.send(protocol.NEWS_SIGNAL)


def _numbers(values: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the numbers among the values; None for those not finite, which JSON lacks."""
    numbers: dict[str, float | None] = {}
    for name, value in values.items():
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            number = float(value)
            numbers[name] = number if math.isfinite(number) else None
    return numbers
