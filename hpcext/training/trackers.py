"""The run of an experiment tracker in which a training logs, noted for its next attempt."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

from hpcext import documents, protocol

_PARENT = "mlflow.parentRunId"


class MlflowRun:
    """The note of the run of MLflow that is active in this process.

    Parameters
    ----------
    directory : pathlib.Path
        That of the checkpoints of the job.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / protocol.MLFLOW_RUN_FILE
        self._noted = ""

    def note(self) -> None:
        """Write down the active run, unless it is noted already; cheap if MLflow is not in use."""
        run = _active()
        if not run or run == self._noted:
            return
        # Without the note the next attempt logs into another run; a training is worth more.
        with contextlib.suppress(OSError):
            documents.write_file(self._path, f"{run}\n".encode(), durable=False)
            self._noted = run


def _active() -> str:
    """Return the id of the active run; empty if there is none.

    A run that is nested in another is none: the first that the next attempt starts is the other.
    """
    # It is not imported for this.
    active_run: Any = getattr(sys.modules.get("mlflow"), "active_run", None)
    if active_run is None:
        return ""
    try:
        run = active_run()
        return "" if run is None or _PARENT in run.data.tags else str(run.info.run_id)
    except Exception:
        # Whatever another release of it raises, the training goes on.
        return ""
