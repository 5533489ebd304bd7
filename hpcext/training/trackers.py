"""The runs of experiment trackers in which a training logs, from one attempt to the next."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcext import documents, protocol
from hpcext.training.leave import at_most

HAND_OVER_S = 10.0
"""Longest time for what is not handed over yet; the GPUs are waited for meanwhile."""

_PARENT = "mlflow.parentRunId"

_WRITERS = ("torch.utils.tensorboard.writer", "tensorboardX.writer")
"""Modules whose ``SummaryWriter`` keeps what it is told, two minutes by default."""


class MlflowRun:
    """The note of the run of MLflow that is active in this process.

    Parameters
    ----------
    directory : pathlib.Path
        That of the checkpoints of the job.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / protocol.MLFLOW_NOTE
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
    active_run = _used("mlflow", "active_run")
    if active_run is None:
        return ""
    try:
        run = active_run()
        return "" if run is None or _PARENT in run.data.tags else str(run.info.run_id)
    except Exception:
        # Whatever another release of it raises, the training goes on.
        return ""


def hand_over() -> None:
    """Have trackers write or send what they still keep, before this process ends.

    It is ended without the interpreter's own clean-up, in which they would do so. Each has a
    thread, since one that cannot reach its server may wait for minutes.
    """
    # An exit code that is not 0 would say that the training has failed.
    calls: list[Callable[[], Any]] = []
    if (finish := _used("wandb", "finish")) is not None:
        calls.append(lambda: finish(exit_code=0))
    if _active() and (flush := _used("mlflow", "flush_async_logging")) is not None:
        calls.append(flush)
    kinds = [kind for name in _WRITERS if (kind := _used(name, "SummaryWriter")) is not None]
    # Of the type itself, since an attribute of a stranger's object may do anything.
    calls += [each.flush for each in (gc.get_objects() if kinds else ()) if type(each) in kinds]
    at_most(HAND_OVER_S, calls)


def _used(module: str, name: str) -> Any:
    """Return an attribute of a module that the training has imported; None without it."""
    return getattr(sys.modules.get(module), name, None)
