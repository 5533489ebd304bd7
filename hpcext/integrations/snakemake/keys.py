"""Resources of a rule, as keys of a job."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from hpcext.core.errors import InputError
from hpcext.jobfile import KEYS
from hpcext.numerals import whole
from hpcext.text import listed, shown

PREFIX = "hpcext_"
"""What begins the names of resources that are keys of jobs."""

OWN_KEYS = frozenset({"name", "command", "shell", "env", "trial"})
"""Keys that are not the user's to state."""

JOB_KEYS = tuple(key for key in KEYS if key not in OWN_KEYS)

ENVIRONMENT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX")
"""Variables of Snakemake's environment that its jobs have, too: how they find their programs."""


def keys_of(resources: Mapping[str, Any]) -> dict[str, Any]:
    """Return the resources of a rule as keys of a job.

    Parameters
    ----------
    resources : Mapping[str, Any]
        ``gpu`` is the number of GPUs, or of logical slots, of which every job has one at least;
        ``runtime`` the minutes that a backfilling policy counts with; ``hpcext_KEY`` a job's key.

    Raises
    ------
    InputError
        There is no such key, or a number is none.
    """
    keys: dict[str, Any] = {"gpus": max(1, _number(resources, "gpu"))}
    if minutes := _number(resources, "runtime"):
        keys["walltime_s"] = 60 * minutes
    for name, value in resources.items():
        if not name.startswith(PREFIX):
            continue
        key = name.removeprefix(PREFIX)
        if key not in JOB_KEYS:
            raise InputError(
                f"{shown(name)} is no key of a job",
                where="resources",
                valid=listed(f"{PREFIX}{each}" for each in JOB_KEYS),
            )
        keys[key] = value
    return keys


def _number(resources: Mapping[str, Any], name: str) -> int:
    """Return a resource that is a number; 0 if it is not stated."""
    found = whole(str(resources.get(name) or 0))
    if found is None:
        raise InputError(
            f"{name}={shown(str(resources[name]))}", where="resources", valid="a whole number"
        )
    return found


def environment() -> dict[str, str]:
    """Return the variables by which jobs find their programs."""
    return {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
