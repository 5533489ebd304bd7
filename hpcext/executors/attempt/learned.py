"""The modules that are imported beforehand for a job that does not state any: ``preload``.

A session reports them, if its script would begin in the same state (``training/imported.py``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpcext import documents, protocol
from hpcext.config import load_settings
from hpcext.core.errors import InputError
from hpcext.jobspec import JobSpec
from hpcext.preloading import runs_python

KNOWN = ("torch", "hpcext.training.torch")
"""Modules of which it is known that they can be imported beforehand."""


def of_last(last: Path, spec: JobSpec) -> tuple[str, ...]:
    """Return what can be imported for an attempt, by what is known of the one before.

    Parameters
    ----------
    last : pathlib.Path
        The directory of the attempt before.
    spec : JobSpec
        The job.
    """
    if spec.container is not None or spec.as_is or not runs_python(spec) or not _wanted():
        return ()
    if (report := _read(last / protocol.REPORT_FILE, protocol.REPORT)) is not None:
        return _known(report.get("beforehand"))
    # It has not come so far, or could not be started.
    launch = _read(last / protocol.LAUNCH_FILE, protocol.LAUNCH) or {}
    return _known(launch.get("preload"))


def _wanted() -> bool:
    try:
        return load_settings().warm_starts == "auto"
    except InputError:
        # Of a file that was changed since this manager began.
        return False


def _known(names: Any) -> tuple[str, ...]:
    stated = names if isinstance(names, list) else []
    return tuple(name for name in KNOWN if name in stated)


def _read(path: Path, schema: str) -> dict[str, Any] | None:
    try:
        return documents.read_json(path, schema)
    except (OSError, ValueError):
        return None
