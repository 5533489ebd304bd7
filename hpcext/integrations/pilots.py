"""The pilots of other tools: which one their jobs go to, and which one a job is in."""

from __future__ import annotations

from pathlib import Path

from hpcext.config import load_settings
from hpcext.core.errors import InputError, NoManagerError
from hpcext.manager import choosing
from hpcext.manager import directory as pilots
from hpcext.numerals import whole
from hpcext.text import listed, shown


def chosen(handle: str, where: str) -> Path:
    """Return the directory of a pilot.

    Parameters
    ----------
    handle : str
        Its directory, id or name; empty: the only pilot that runs.
    where : str
        What states it, for messages.

    Raises
    ------
    InputError
        Several pilots run.
    NoManagerError
        There is no such pilot, or none runs.
    """
    state_dir = load_settings().state_dir
    if handle:
        return pilots.find(handle, state_dir)
    running = choosing.running(state_dir)
    if not running:
        raise NoManagerError(
            "no pilot is running",
            where=where,
            valid="a directory, an id or a name",
            do="begin one: hpcext run --stay --name NAME --detach",
        )
    if len(running) > 1:
        raise InputError(
            f"{len(running)} pilots are running, so name the one that you mean",
            where=where,
            valid=listed(pilots.load(path).id for path in running),
        )
    return running[0]


def pilot_of(job_id: str) -> Path:
    """Return the directory of the pilot of a job, by the id that the job has in another tool."""
    pilot, _, within = job_id.rpartition(".")
    if not pilot or whole(within) is None:
        raise InputError(f"{shown(job_id)} is no job of a pilot", valid="PILOT.NUMBER")
    return pilots.find(pilot, load_settings().state_dir)
