"""The modules that are imported beforehand for a job that does not state any: ``preload``.

A session reports them (``training/imported.py``), and what must be so that its script begins in the
same state; the process that imports them sees whether it is (:mod:`hpcext.launch.preload`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from hpcext import documents, protocol
from hpcext.config import load_settings
from hpcext.core.errors import InputError
from hpcext.jobspec import JobSpec
from hpcext.preloading import runs_python

KNOWN = (
    "torch",
    "tensorflow",
    "keras",
    "jax",
    "hpcext.training.torch",
    "hpcext.training.tensorflow",
    "hpcext.training.keras",
    "hpcext.training.jax",
)
"""Modules of which it is known that they can be imported beforehand, frameworks first."""


class Learned(NamedTuple):
    """What can be imported beforehand.

    Attributes
    ----------
    modules : tuple of str
        Names, in order; empty if nothing is to be imported.
    premise : dict
        What must be so then; see :data:`hpcext.launch.preload.Premise`.
    """

    modules: tuple[str, ...] = ()
    premise: Mapping[str, Any] = MappingProxyType({})

    def launch(self) -> dict[str, Any]:
        """Return the fields of ``launch.json`` that say so."""
        if not self.modules:
            return {}
        return {"preload": list(self.modules), "preload_if": dict(self.premise)}


def of_last(last: Path, spec: JobSpec) -> Learned:
    """Return what can be imported for an attempt, by what is known of the one before.

    Parameters
    ----------
    last : pathlib.Path
        The directory of the attempt before.
    spec : JobSpec
        The job.
    """
    if spec.container is not None or spec.as_is or not runs_python(spec) or not _wanted():
        return Learned()
    if (report := _read(last / protocol.REPORT_FILE, protocol.REPORT)) is not None:
        said = report.get("beforehand")
        return _known(said.get("modules"), said) if isinstance(said, dict) else Learned()
    # It has not come so far, or could not be started.
    launch = _read(last / protocol.LAUNCH_FILE, protocol.LAUNCH) or {}
    return _known(launch.get("preload"), launch.get("preload_if"))


def _wanted() -> bool:
    try:
        return load_settings().warm_starts == "auto"
    except InputError:
        # Of a file that was changed since this manager began.
        return False


def _known(names: Any, premise: Any) -> Learned:
    """Return what is known of what a session has said, or an attempt before that began with it."""
    if not isinstance(names, list) or not isinstance(premise, dict):
        return Learned()
    environ, compiled = premise.get("environ"), premise.get("compiled")
    if not isinstance(environ, dict) or not isinstance(compiled, list):
        return Learned()
    modules = tuple(name for name in KNOWN if name in names)
    return Learned(modules, {"environ": environ, "compiled": compiled})


def _read(path: Path, schema: str) -> dict[str, Any] | None:
    try:
        return documents.read_json(path, schema)
    except (OSError, ValueError):
        return None
