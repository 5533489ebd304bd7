"""Parameters of submitit, as keys of a job."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcext.checks import at, integer, known_keys, number
from hpcext.core.errors import InputError
from hpcext.jobfields import MAX_FACTOR, MAX_NODES
from hpcext.jobfile import KEYS
from hpcext.jobtext import job_text
from hpcext.text import listed, shown

OWN_KEYS = frozenset({"command", "shell", "checkpoint", "trial", "mem_per_gpu"})
"""Keys of a job that are not the user's to state.

The last is a parameter of Slurm's executor, too: submitit would take that for ours where it is
stated without a prefix.
"""

JOB_KEYS = tuple(key for key in KEYS if key not in OWN_KEYS)

GENERIC = (
    "timeout_min", "mem_gb", "cpus_per_task", "gpus_per_node", "tasks_per_node", "stderr_to_stdout",
)  # fmt: skip
"""Parameters of all executors that are no keys."""

PILOT = "pilot"
"""The parameter that names the pilot."""


def parameters(stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters of submitit as keys of a job, and the pilot."""
    known_keys(stated, (PILOT, *JOB_KEYS, *GENERIC), "parameter")
    found: dict[str, Any] = {}
    ignored = []
    for key, value in stated.items():
        if value is None:
            continue
        if key == "tasks_per_node":
            if value != 1:
                valid = "1: a function is one process on each node"
                raise InputError(shown(value), where=key, valid=valid)
        elif key == "nodes":
            with at(key):
                found[key] = integer(value, 1, MAX_NODES)
        elif key in {"mem_gb", "cpus_per_task"}:
            ignored.append(key)
        elif key == "gpus_per_node":
            found["gpus"] = value
        elif key == "timeout_min":
            with at(key):
                found["walltime_s"] = 60 * number(value, 0, MAX_FACTOR / 60, above=True)
        elif key != "stderr_to_stdout":
            found[key] = str(value) if isinstance(value, Path) else value
    _check_stated(found)
    if ignored:
        told = f"{listed(ignored)}: ignored, since a pilot shares out GPUs only"
        warnings.warn(told, stacklevel=2)
    return found


def _check_stated(keys: Mapping[str, Any]) -> None:
    """Refuse values that no job file could hold; the manager checks the others."""
    for key, value in keys.items():
        try:
            job_text({key: value})
        except TypeError:
            valid = "strings, numbers, and lists and dicts of these"
            raise InputError(f"of type {type(value).__name__}", where=key, valid=valid) from None
