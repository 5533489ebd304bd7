"""Rehearsed suspensions: records that compare the processes before and after a suspension.

At the step at which it should suspend itself, a training writes its checkpoint and then goes on for
some steps, as it would have without a suspension; only then it leaves. The next attempt resumes
from the checkpoint and makes the same steps. Both record fingerprints of their state, and the
losses that the script reports. The whole state of the process is recorded, not only the part given
to its session: otherwise forgotten state would look the same on both sides.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hpcext import documents, protocol
from hpcext.training.checkpoint import Checkpoint, CheckpointError
from hpcext.training.fingerprint import fingerprint
from hpcext.training.ranks import Ranks

STEPS = 3
"""Number of steps after the checkpoint that are compared."""

MOST_S = 20.0
"""Seconds after which a rehearsal ends with fewer steps."""


class Rehearsal:
    """An attempt of a rehearsal.

    Parameters
    ----------
    attempt : protocol.Attempt
    rank : int
        Only rank 0 writes.
    look : callable
        Returns the state of the process, by kind; see
        :meth:`hpcext.training.checkpoint.state.TrainingState.present`.

    Attributes
    ----------
    checkpoint : Checkpoint or None
        The checkpoint of a requested suspension, until this process leaves.
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
    def of(
        cls, attempt: protocol.Attempt | None, rank: int, look: Callable[[], Mapping[str, Any]]
    ) -> Rehearsal | None:
        """Make a rehearsal if the attempt is one; else return None.

        Parameters
        ----------
        attempt : protocol.Attempt or None
        rank : int
        look : callable
            As for the class.
        """
        return cls(attempt, rank, look) if attempt and protocol.rehearsing() else None

    def goes_on(self, ranks: Ranks, write: Callable[[], Checkpoint | None], step: int) -> bool:
        """Return whether to make further steps, once a suspension is requested.

        Parameters
        ----------
        ranks : Ranks
        write : callable
            Writes the checkpoint, as for :meth:`write`.
        step : int
            The present step.
        """
        if self.checkpoint is None:
            if not self.write(ranks, write):
                return False
            self.mark(step)
        return bool(ranks.smallest(int(not self.over())))

    def write(self, ranks: Ranks, write: Callable[[], Checkpoint | None]) -> bool:
        """Write the checkpoint of a requested suspension; return whether that was possible.

        Only rank 0 writes. If it could not, a later request is rehearsed.

        Parameters
        ----------
        ranks : Ranks
        write : callable
            Writes the checkpoint; returns None on the other ranks.
        """
        written, saved = None, True
        try:
            written = write()
        except (OSError, CheckpointError):
            saved = False
        if not ranks.smallest(int(saved)):
            return False
        self.checkpoint = written or Checkpoint(Path(), {})
        return True

    def mark(self, step: int) -> None:
        """Record the state at the step of the checkpoint, which was written or restored."""
        self._step, self._state, self._steps = step, self._present(), []
        self._began_s = time.monotonic()
        self._write()

    def stepped(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Record one more step, with the metrics that were reported in it.

        Parameters
        ----------
        step : int
        metrics : Mapping[str, float or None]
        """
        if self._step is None or step <= self._step or len(self._steps) >= STEPS:
            return
        self._steps.append({"step": step, "metrics": dict(metrics), "state": self._present()})
        self._went_on_s = time.monotonic() - self._began_s
        self._write()

    def over(self) -> bool:
        """Return whether there were enough steps."""
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
