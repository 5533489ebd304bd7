"""What a rehearsed suspension is judged by: the process before it, and the one after it.

At the step at which it is asked to suspend itself, a training writes its checkpoint and then goes
on for some steps, as it would have without a suspension; only then it leaves. The next attempt goes
on from the checkpoint, and makes the same steps. Both write down what they are like, and the losses
that the script reports. What is looked at is what the process has, and not what its session was
given to save: else what was forgotten would be the same on both sides.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

from hpcext import documents, protocol
from hpcext.training.checkpoint import Checkpoint
from hpcext.training.fingerprint import fingerprint

STEPS = 3
"""So many more are compared."""

MOST_S = 20.0
"""Or as many as this has time for."""


class Rehearsal:
    """One attempt of a rehearsal.

    Parameters
    ----------
    attempt : protocol.Attempt
    rank : int
        The first one writes.
    look : callable
        What the process has now, by kind; see
        :meth:`hpcext.training.state.State.present`.

    Attributes
    ----------
    checkpoint : Checkpoint or None
        Written when a suspension was asked for, until this process leaves.
    """

    def __init__(
        self, attempt: protocol.Attempt, rank: int, look: Callable[[], Mapping[str, Any]]
    ) -> None:
        self._attempt = attempt
        self._rank = rank
        self._look = look
        self._step: int | None = None
        self._state: Mapping[str, str | None] = {}
        self._steps: list[dict[str, Any]] = []
        self._began_s = self._went_on_s = 0.0
        self.checkpoint: Checkpoint | None = None

    @classmethod
    def asked(
        cls, attempt: protocol.Attempt | None, rank: int, look: Callable[[], Mapping[str, Any]]
    ) -> Rehearsal | None:
        """None where nobody rehearses."""
        return cls(attempt, rank, look) if attempt and protocol.rehearsing() else None

    def mark(self, step: int) -> None:
        """This is the step of the checkpoint: it was written, or is restored."""
        self._step, self._state, self._steps = step, self._present(), []
        self._began_s = time.monotonic()
        self._write()

    def stepped(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """One more step is done; `metrics` were reported in it."""
        if self._step is None or step <= self._step or len(self._steps) >= STEPS:
            return
        self._steps.append({"step": step, "metrics": dict(metrics), "state": self._present()})
        self._went_on_s = time.monotonic() - self._began_s
        self._write()

    def over(self) -> bool:
        """Whether there were enough steps."""
        return len(self._steps) >= STEPS or time.monotonic() - self._began_s > MOST_S

    def _present(self) -> dict[str, str | None]:
        if self._rank != 0:
            return {}
        return {kind: fingerprint(value) for kind, value in self._look().items()}

    def _write(self) -> None:
        if self._rank != 0:
            return
        document = {
            "schema": protocol.REHEARSAL,
            "attempt": self._attempt.attempt,
            "op": self._attempt.op,
            "step": self._step,
            "state": self._state,
            "steps": self._steps,
            "went_on_s": self._went_on_s,
        }
        with contextlib.suppress(OSError):
            path = self._attempt.report_dir / protocol.REHEARSAL_FILE
            documents.write_json(path, document, durable=False)
