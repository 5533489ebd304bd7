"""The jobs with which a pilot begins: those of a file, or of a command line itself."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

from hpcext.apart import check_apart
from hpcext.cli import commands
from hpcext.cli.output import Output
from hpcext.config import Settings
from hpcext.core.errors import InputError
from hpcext.jobfile import COMMAND_LINE, parse_jobs, read_jobs
from hpcext.jobspec import JobSpec
from hpcext.manager import choosing
from hpcext.manager.refine import profiles_for


class StatedJobs(NamedTuple):
    """The jobs with which a pilot begins.

    Attributes
    ----------
    specs : tuple of JobSpec
    where : str
        Where they are stated, for messages.
    file : str
        Their file, absolute; empty if there is none.
    name : str
        The default name of their pilot.
    """

    specs: tuple[JobSpec, ...]
    where: str
    file: str
    name: str


def stated_jobs(args: argparse.Namespace, settings: Settings, out: Output) -> StatedJobs:
    """Return the jobs of a file, or those that the command line itself states.

    Parameters
    ----------
    args : argparse.Namespace
        Of ``hpcext run``.
    settings : Settings
    out : Output

    Raises
    ------
    InputError
        There are none, or a job is invalid.
    """
    written = commands.read(args)
    if written is not None:
        specs = jobs_of_text(written.text, COMMAND_LINE, settings, out)
        return StatedJobs(specs, COMMAND_LINE, "", written.name)
    if args.jobs is not None:
        specs = read_job_file(args.jobs, settings, out, empty=args.stay)
        file = str(args.jobs.absolute())
        return StatedJobs(specs, str(args.jobs), file, name_after(args.jobs))
    if args.stay and args.name:
        return StatedJobs((), "", "", args.name)
    raise InputError(
        "no job file",
        valid="hpcext run JOBS.toml, hpcext run -- COMMAND, hpcext run --stay --name NAME, "
        "or hpcext run --resume PILOT",
    )


def read_job_file(
    path: Path, settings: Settings, out: Output, *, empty: bool = False
) -> tuple[JobSpec, ...]:
    """Read the jobs of a new pilot; print warnings about values that are probably mistakes.

    Parameters
    ----------
    path : pathlib.Path
    settings : Settings
    out : Output
    empty : bool
        Whether a file without jobs is allowed.

    Raises
    ------
    InputError
        The file is invalid.
    """
    warnings: list[str] = []
    specs = read_jobs(
        path,
        suspend_timeout_s=settings.suspend_timeout_s,
        container_runtime=settings.container_runtime,
        profiles=profiles_for(settings.state_dir / "profiles"),
        empty=empty,
        warnings=warnings,
    )
    for warning in warnings:
        out.note(f"warning: {warning}")
    check_apart(specs, str(path))
    if told := choosing.same_file(path, settings.state_dir):
        out.note(told)
    return specs


def jobs_of_text(text: str, where: str, settings: Settings, out: Output) -> tuple[JobSpec, ...]:
    """Read jobs that are in no file; print warnings about values that are probably mistakes.

    Parameters
    ----------
    text : str
        A job file; relative directories in it start here.
    where : str
        Its place, for messages.
    settings : Settings
    out : Output

    Raises
    ------
    InputError
        The text is invalid.
    """
    warnings: list[str] = []
    specs = parse_jobs(
        text,
        where,
        Path.cwd(),
        suspend_timeout_s=settings.suspend_timeout_s,
        container_runtime=settings.container_runtime,
        profiles=profiles_for(settings.state_dir / "profiles"),
        warnings=warnings,
    )
    for warning in warnings:
        out.note(f"warning: {warning}")
    check_apart(specs, where)
    return specs


def name_after(path: Path) -> str:
    """Return a name for a pilot: that of its job file, with all other characters replaced."""
    kept = "".join(char if char.isascii() and char.isalnum() else "-" for char in path.stem)
    return kept.strip("-")[:64] or "run"
