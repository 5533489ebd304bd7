"""Job and trainer files, which have one schema: reading and checks.

:mod:`hpcext.jobfields` checks the value of each key; here the relations between jobs are checked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcext import checkpointers, containers, preloading, shells
from hpcext import jobfields as fields
from hpcext.checkpointers import Checkpointer
from hpcext.checks import at, boolean, kind_of, known_keys, placed
from hpcext.core.errors import InputError
from hpcext.core.trials import Trial
from hpcext.jobspec import Gpus, JobSpec, Nodes, contained
from hpcext.profiles import Profiles
from hpcext.scaling.kinds import curve_of
from hpcext.text import SHOWN_CHARS, clean, counted, did_you_mean, listed, shown
from hpcext.textfiles import read_text

MAX_JOBS = 100_000
"""Largest number of jobs in a file; reading so many takes some seconds."""

COMMAND_LINE = "command line"
"""The place of jobs that are not in a job file of a user, for messages."""

_SHOWN_CYCLE = 8


def read_jobs(
    path: Path,
    *,
    suspend_timeout_s: float = 60.0,
    container_runtime: str = containers.AUTO,
    profiles: Profiles | None = None,
    empty: bool = False,
    warnings: list[str] | None = None,
) -> tuple[JobSpec, ...]:
    """Read and check a job file.

    Parameters
    ----------
    path : pathlib.Path
    suspend_timeout_s : float
        Default, in seconds, for jobs that do not state one.
    container_runtime : str
        What runs the containers of jobs that do not state it.
    profiles : Profiles, optional
        The store in which ``scaling = "NAME"`` is looked up.
    empty : bool
        Whether the file may have no jobs.
    warnings : list of str, optional
        List to which warnings about valid but probably unintended content are appended.

    Returns
    -------
    tuple of JobSpec
        In the order of the file.

    Raises
    ------
    InputError
        The file cannot be read or has an error; the message names the first one, on one line.
    """
    text = read_text(path)
    base = path.absolute().parent
    where = clean(str(path))
    if empty and not shells.document(text, where):
        return ()
    return parse_jobs(
        text,
        where,
        base,
        suspend_timeout_s=suspend_timeout_s,
        container_runtime=container_runtime,
        profiles=profiles,
        warnings=warnings,
    )


def parse_jobs(
    text: str,
    where: str,
    base: Path,
    *,
    known: Collection[str] = (),
    suspend_timeout_s: float = 60.0,
    container_runtime: str = containers.AUTO,
    profiles: Profiles | None = None,
    warnings: list[str] | None = None,
) -> tuple[JobSpec, ...]:
    """Read and check the text of a job file.

    Parameters
    ----------
    text : str
    where : str
        The name of the file in messages.
    base : pathlib.Path
        The directory to which relative directories refer.
    known : collection of str
        Names of jobs outside the file that `after` may refer to.
    suspend_timeout_s : float
        Default, in seconds, for jobs that do not state one.
    container_runtime : str
        What runs the containers of jobs that do not state it.
    profiles : Profiles, optional
        The store in which ``scaling = "NAME"`` is looked up.
    warnings : list of str, optional
        As for :func:`read_jobs`.

    Raises
    ------
    InputError
        The text has an error; the message names the first one, on one line.
    """
    tables = _tables(shells.document(text, where), where)
    defaults = {"workdir": str(base), "suspend_timeout_s": suspend_timeout_s}
    specs: list[JobSpec] = []
    numbers: dict[str, int] = {}
    for number, table in enumerate(tables, start=1):
        stated = place(where, number, table.get("name") if isinstance(table, dict) else None)
        spec = _job(table, stated, defaults, base, profiles)
        with at(stated, "container"):
            spec = contained(spec, base, container_runtime)
        if spec.name in numbers:
            raise InputError(
                f"{spec.name!r} is already the name of [[job]] {numbers[spec.name]}",
                where=f"{stated}: name",
                valid="a name that no other job in the file has",
            )
        numbers[spec.name] = number
        specs.append(spec)
    _check_directories(specs, str(base), where)
    _check_dependencies(specs, numbers, known, where)
    _check_trials(specs, where)
    if warnings is not None:
        commands = [table["command"] for table in tables]
        warnings += shells.warnings(specs, commands, where, in_file=where != COMMAND_LINE)
    return tuple(specs)


def _tables(document: dict[str, Any], where: str) -> list[Any]:
    """Return the ``[[job]]`` tables of a document."""
    do = 'begin each job with [[job]], as in: [[job]] name = "cnn" command = "python train.py"'
    try:
        known_keys(document, ("job",), "table or key")
    except InputError as error:
        raise InputError(error.what, where=where, valid="[[job]]", do=error.do) from None
    jobs = document.get("job", [])
    if not isinstance(jobs, list):
        raise InputError(f"job is {kind_of(jobs)}", where=where, valid="[[job]]", do=do)
    if not jobs:
        raise InputError("it has no [[job]]", where=where, do=do)
    if len(jobs) > MAX_JOBS:
        raise InputError(
            f"{len(jobs)} jobs", where=where, valid=f"at most {MAX_JOBS}", do="split the file"
        )
    return jobs


def place(where: str, number: int, name: Any) -> str:
    """Return the place of a job, for messages.

    Parameters
    ----------
    where : str
        The job file, or :data:`COMMAND_LINE`.
    number : int
        Its position in the file, from 1.
    name : Any
        As in the file; left out if it is not a string.

    Examples
    --------
    >>> place("jobs.toml", 3, "cnn"), place("jobs.toml", 3, None), place(COMMAND_LINE, 3, "cnn")
    ('jobs.toml: [[job]] 3 (cnn)', 'jobs.toml: [[job]] 3', 'command line: job cnn')
    """
    said = clean(name[:SHOWN_CHARS]) if isinstance(name, str) else ""
    if where == COMMAND_LINE:
        return f"{where}: job {said}"
    return f"{where}: [[job]] {number}" + (f" ({said})" if isinstance(name, str) else "")


_FIELDS: Mapping[str, Callable[[Any], Any]] = {
    "name": fields.name,
    "command": fields.command,
    "shell": boolean,
    "gpus": lambda value: Gpus(**fields.gpus(value)),
    "nodes": lambda value: Nodes(**fields.nodes(value)),
    "scaling": fields.scaling,
    "work": fields.work,
    "target_loss": fields.target_loss,
    "after": fields.after,
    "env": fields.env,
    "workdir": fields.workdir,
    "retries": fields.retries,
    "hang": fields.hang,
    "hang_after_s": fields.timeout_s,
    "walltime_s": fields.walltime_s,
    "suspend_timeout_s": fields.timeout_s,
    "rescale_up_s": fields.seconds,
    "rescale_down_s": fields.seconds,
    "weight": fields.weight,
    "priority": fields.priority,
    "mem_per_gpu": fields.mem_per_gpu,
    "mps": boolean,
    "trial": fields.trial,
    "trackers": boolean,
    "checkpoint": checkpointers.checkpoint,
    "container": containers.container,
    "preload": preloading.preload,
}

KEYS = tuple(_FIELDS)
"""Every key of a ``[[job]]``."""


def _job(
    table: Any, stated: str, defaults: Mapping[str, Any], base: Path, profiles: Profiles | None
) -> JobSpec:
    """Check one job, as far as that is possible without the others."""
    if not isinstance(table, dict):
        raise InputError(kind_of(table), where=stated, valid="a table")
    key = ""
    try:
        known_keys(table, KEYS)
        values = dict(defaults)
        for key, value in table.items():
            for_shell = key == "command" and table.get("shell") is True
            values[key] = (shells.for_shell if for_shell else _FIELDS[key])(value)
    except InputError as error:
        raise placed(error, stated, key) from None
    for key in ("name", "command"):
        if key not in table:
            raise InputError(f"{key} is missing", where=stated, do=f'add {key} = "..."')
    if "work" in values:
        values["work"], values["work_unit"] = values["work"]
    scaling = values.get("scaling", {})
    if isinstance(scaling, dict) and any(isinstance(each, dict) for each in scaling.values()):
        values["by_kind"] = scaling
        values["scaling"] = curve_of(scaling, profiles.gpu if profiles else "")
    if isinstance(scaling, str):
        with at(stated, "scaling"):
            values.update(_measured(values, profiles))
    if "workdir" in table:
        # Not Path.resolve, because the path of a link should stay as the user wrote it.
        values["workdir"] = os.path.normpath(base / values["workdir"])
    if (saves := values.get("checkpoint")) is not None:
        with at(stated, "checkpoint"):
            values.update(_natively(saves, table))
    spec = JobSpec(**values, learns="preload" not in table)
    with at(stated, "preload"):
        preloading.check(spec)
    if spec.checkpoint is not None:
        with at(stated, "checkpoint"):
            checkpointers.check_size(
                spec.checkpoint,
                gpus=(spec.gpus.min, spec.gpus.max),
                nodes=spec.nodes.max,
                mps=spec.mps,
            )
    if spec.mps and (spec.gpus.min, spec.nodes.min) != (1, 1):
        raise InputError(
            "true, but the job needs more than one GPU",
            where=f"{stated}: mps",
            valid="true only for a job that can run on one GPU, of which it may get just a share",
        )
    return spec


def _natively(saves: Checkpointer, table: Mapping[str, Any]) -> dict[str, Any]:
    """Check how a job saves by its own means against its other keys; return the derived keys."""
    checkpointers.check_command(saves, shell=table.get("shell") is True)
    timeout_s = saves.suspend_timeout_s
    if timeout_s is None or (saves.plain and "suspend_timeout_s" in table):
        return {}
    if "suspend_timeout_s" in table:
        raise InputError(
            "stated beside suspend_timeout_s, which is the same",
            where="after_s",
            do="leave one of them out",
        )
    return {"suspend_timeout_s": timeout_s}


def _measured(values: Mapping[str, Any], profiles: Profiles | None) -> dict[str, Any]:
    """Look up the profile that a job names and return the fields that it determines."""
    name = values["scaling"]
    if profiles is None:
        raise InputError(
            f"{shown(name)} names a profile, but there are no profiles here",
            valid="a table of GPUs and speeds, as {1 = 1.0, 2 = 1.9}",
        )
    curve, relative = profiles.curve(name, values.get("work_unit"))
    gpus = values.get("gpus", Gpus())
    if not any(size in gpus.sizes for size in curve):
        from_ = "" if gpus.min == gpus.max else f"{gpus.min} to "
        raise InputError(
            f"profile {shown(name)} has no measurement on {from_}{counted(gpus.max, 'GPU')}",
            valid=f"the numbers of GPUs it was measured on: {listed(map(str, curve))}",
            do=f"to measure it, run hpcext profile --name {name} --gpus {gpus.max} -- COMMAND",
        )
    by_kind = profiles.by_kind(name, values.get("work_unit"))
    return {"scaling": curve, "by_kind": by_kind, "profile": name, "relative": relative}


def _check_directories(specs: Sequence[JobSpec], base: str, where: str) -> None:
    """Refuse a job whose directory does not exist, since it would fail in every attempt."""
    good = {base}
    for number, spec in enumerate(specs, start=1):
        if spec.workdir not in good and not os.path.isdir(spec.workdir):
            raise InputError(
                f"there is no directory {shown(spec.workdir)}",
                where=f"{place(where, number, spec.name)}: workdir",
                valid="an existing directory; a relative path starts at the job file's directory",
            )
        good.add(spec.workdir)


def _check_dependencies(
    specs: Sequence[JobSpec], numbers: Mapping[str, int], known: Collection[str], where: str
) -> None:
    """Refuse dependencies that are unknown or circular."""
    for number, spec in enumerate(specs, start=1):
        for other in spec.after:
            if other not in numbers and other not in known:
                names = [*numbers, *known]
                raise InputError(
                    f"unknown job {shown(other)}",
                    where=f"{place(where, number, spec.name)}: after",
                    valid=listed(name for name in names if name != spec.name) or "no other job",
                    do=did_you_mean(other, names[:MAX_JOBS]),
                )
    cycle = find_cycle({spec.name: spec.after for spec in specs})
    if cycle:
        first = cycle[0]
        shown_part = cycle if len(cycle) <= _SHOWN_CYCLE else [*cycle[:_SHOWN_CYCLE], "..."]
        raise InputError(
            f"these jobs wait for each other: {' -> '.join([*shown_part, first])}",
            where=f"{place(where, numbers[first], first)}: after",
            do="remove one of these dependencies",
        )


def _check_trials(specs: Sequence[JobSpec], where: str) -> None:
    """Refuse a sweep whose trials would be compared by different rules."""
    first: dict[str, tuple[int, Trial]] = {}
    for number, spec in enumerate(specs, start=1):
        if spec.trial is None:
            continue
        other, trial = first.setdefault(spec.trial.sweep, (number, spec.trial))
        if trial.rules != spec.trial.rules:
            raise InputError(
                f"the rules of sweep {trial.sweep} differ from those in [[job]] {other}",
                where=f"{place(where, number, spec.name)}: trial",
                valid="the same metric, goal, first and factor in all trials of a sweep",
            )


def find_cycle(after: Mapping[str, Collection[str]]) -> list[str]:
    """Find a cycle of jobs that depend on each other.

    This is Kahn's algorithm, in time linear in jobs and dependencies and without recursion.

    Parameters
    ----------
    after : Mapping[str, collection of str]
        Names of the jobs on which each job depends, by name; names that are no keys count as
        completed.

    Returns
    -------
    list of str
        Each job depends on the next one and the last on the first; empty if there is no cycle.
    """
    waits = {name: {other for other in others if other in after} for name, others in after.items()}
    followers: dict[str, list[str]] = {name: [] for name in after}
    for name, others in waits.items():
        for other in others:
            followers[other].append(name)
    free = [name for name, others in waits.items() if not others]
    while free:
        done = free.pop()
        for name in followers[done]:
            waits[name].discard(done)
            if not waits[name]:
                free.append(name)
    # Every job left depends on another one that is left, so following them leads into a cycle.
    here = next((name for name, others in waits.items() if others), None)
    path: dict[str, int] = {}
    while here is not None and here not in path:
        path[here] = len(path)
        here = min(waits[here])
    return list(path)[path[here] :] if here is not None else []
