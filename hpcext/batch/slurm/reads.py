"""The choice of what Slurm is queried with: commands, pyslurm, or slurmrestd."""

from __future__ import annotations

import functools
import importlib
import logging
from types import ModuleType
from typing import Any

from hpcext.batch import runner, slurm
from hpcext.batch.slurm import restd
from hpcext.batch.slurm.api import Api
from hpcext.batch.slurm.commands import Commands
from hpcext.batch.slurm.rest import Rest
from hpcext.config import SLURM_READERS, load_settings
from hpcext.core.errors import BatchError, InputError
from hpcext.numerals import whole

log = logging.getLogger(__name__)

AUTO, COMMANDS, PYSLURM, SLURMRESTD = SLURM_READERS


@functools.cache
def reads() -> Commands:
    """Return what this process queries Slurm with, by the setting ``slurm_reader``.

    Commands answer where that does not work here; if it was asked for by name, a warning says why.
    """
    try:
        wanted = load_settings().slurm_reader
    except InputError as error:
        # Who makes use of other settings says so, too; no job ends for this one.
        log.warning("Slurm is queried as by default: %s", error)
        wanted = AUTO
    if wanted == COMMANDS:
        return Commands()
    try:
        return by_slurmrestd() if wanted == SLURMRESTD else by_pyslurm()
    except BatchError as error:
        level = logging.INFO if wanted == AUTO else logging.WARNING
        log.log(level, "Slurm is queried with its commands: %s", error)
        return Commands()


def by_pyslurm() -> Api:
    """Return queries by pyslurm.

    Raises
    ------
    BatchError
        It is not installed, or is built for another release.
    """
    module = find_pyslurm()
    if module is None:
        raise BatchError("pyslurm is not installed")
    release = slurm.parse_version(runner.run(slurm.version_command()))
    if release_of(module) != release:
        version = f"{release[0]}.{release[1]:02}"
        raise BatchError(f"pyslurm {module.__version__} does not work with Slurm {version}")
    return Api(module)


def by_slurmrestd(timeout_s: float = runner.TIMEOUT_S) -> Rest:
    """Return queries by a slurmrestd, which is started.

    Parameters
    ----------
    timeout_s : float
        Seconds to wait for an answer.

    Raises
    ------
    BatchError
        It is not installed, does not run as this user, or does not answer.
    """
    program = restd.find()
    if program is None:
        raise BatchError("slurmrestd is not installed")
    queries = Rest(restd.Restd(program, timeout_s))
    queries.check()
    return queries


def find_pyslurm() -> ModuleType | None:
    """Return pyslurm, if it and its libraries of Slurm are installed."""
    try:
        return importlib.import_module("pyslurm")
    except (ImportError, OSError):
        return None


def release_of(module: Any) -> tuple[int, int] | None:
    """Return the release of Slurm for which a pyslurm is built: 24.5.0 is for 24.05."""
    major, minor = map(whole, [*str(getattr(module, "__version__", "")).split("."), ""][:2])
    return None if major is None or minor is None else (major, minor)
