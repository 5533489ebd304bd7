"""Checks of the features of an LSF-compatible engine that hpcext uses.

A row of :data:`TABLE` states a feature, how to check for it, and what hpcext does without it. If
hpcext is to use another feature of LSF, add its row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from hpcext.batch import lsf
from hpcext.batch.lsf import jobs as lsf_jobs
from hpcext.batch.lsf import probe as lsf_probe
from hpcext.batch.lsf.engine import LsfEngine
from hpcext.core.errors import BatchError
from hpcext.doctor.checkup import Finding
from hpcext.text import clean, listed

FIELDS = (*lsf.FIELDS, "exec_host", "job_description", "pend_reason")
"""All fields of ``bjobs -o`` that hpcext uses."""

NAME = "lsf can"


class Ability(NamedTuple):
    """A feature of an engine: a row of the table.

    Attributes
    ----------
    name : str
        Its purpose.
    words : str
        The command and options that provide it.
    there : callable
        Returns whether an engine has them; None if that is unknown yet.
    instead : str
        What hpcext uses instead, by itself; empty if there is nothing.
    without : str
        The consequence of its absence, or of what is used instead.
    """

    name: str
    words: str
    there: Callable[[LsfEngine], bool | None]
    instead: str = ""
    without: str = ""

    def check(self, engine: LsfEngine) -> Finding:
        """Check whether an engine has this feature."""
        there = self.there(engine)
        if there:
            return Finding(NAME, "ok", f"{self.name}: {self.words}")
        if there is None:
            says = f"{self.name}: only a job can tell whether {self.words} arrive"
            return Finding(NAME, "note", says, "hpcext doctor --submit runs one")
        lacks = f"no {self.words}"
        if self.instead:
            says = f"{self.name}: by another way: {self.instead} ({lacks})"
            return Finding(NAME, "ok", says + (f"; {self.without}" if self.without else ""))
        return Finding(NAME, "note", f"{self.name}: not here ({lacks}); {self.without}")


def _has(command: str, *options: str) -> Callable[[LsfEngine], bool]:
    """Return a check of a command's help text for options; without one, it has all of IBM's."""
    return lambda engine: command in engine.commands and not engine.lacks(command, *options)


TABLE: tuple[Ability, ...] = (
    Ability("jobs", "bjobs -o -json", _has("bjobs", "-o", "-json"), "bjobs -w and bjobs -l"),
    Ability("hosts", "bhosts -o -json", _has("bhosts", "-o", "-json"), "bhosts -w"),
    Ability(
        "groups of hosts",
        "bhosts -X",
        _has("bhosts", "-X"),
        "",
        "members of condensed groups cannot be told apart",
    ),
    Ability("parameters of the site", "bparams -a", _has("bparams", "-a"), "bparams -l"),
    Ability(
        "GPUs of jobs",
        "bsub -gpu",
        _has("bsub", "-gpu"),
        "only slots are requested",
        "request GPUs as the site documents it, in lsf_options and harvest_options, or request "
        "whole hosts",
    ),
    Ability(
        "GPUs of hosts",
        "bhosts -gpu",
        _has("bhosts", "-gpu"),
        "",
        "their number is unknown: give harvesters --slots",
    ),
    Ability(
        "exit values that requeue",
        "bsub -Q",
        _has("bsub", "-Q"),
        "brequeue, or REQUEUE_EXIT_VALUES of the queue",
    ),
    Ability(
        "jobs that are not restarted",
        "bsub -rn",
        _has("bsub", "-rn"),
        "the script of a lease that is restarted ends at once",
    ),
    Ability("directory of a job", "bsub -cwd", _has("bsub", "-cwd"), "scripts change to it"),
    Ability(
        "descriptions of jobs",
        "bsub -Jd",
        _has("bsub", "-Jd"),
        "leases are recognized by their output files",
    ),
    Ability(
        "settings by arguments",
        'arguments of -a "hpcext(...)"',
        lambda engine: engine.arguments,
        "variables (HPCEXT_GPUS and others)",
    ),
    Ability(
        "warning of the end",
        "bsub -wa -wt",
        _has("bsub", "-wa", "-wt"),
        "--lead goes by the run limit",
    ),
    Ability(
        "jobs of several hosts",
        "blaunch",
        _has("blaunch"),
        "",
        "it may exist only where jobs start",
    ),
    Ability(
        "backfill windows", "bslots", _has("bslots"), "", "hosts that LSF keeps are left alone"
    ),
    Ability("reservations", "brsvs", _has("brsvs"), "", "leases may be lost to reservations"),
    Ability(
        "past jobs on long lines",
        "bhist -UF",
        _has("bhist", "-UF"),
        "bhist -l, whose wrapped lines are joined",
    ),
)


def check(engine: LsfEngine, launcher: str) -> Iterator[Finding]:
    """Check an engine for each feature, and for the fields of ``bjobs -o``.

    Parameters
    ----------
    engine : LsfEngine
    launcher : str
        The setting ``lsf_launcher``.
    """
    for row in TABLE:
        yield _launcher(row, engine, launcher) if row.words == "blaunch" else row.check(engine)
    if not engine.lacks("bjobs", "-o", "-json"):
        yield _fields()


def _launcher(row: Ability, engine: LsfEngine, wanted: str) -> Finding:
    if wanted in engine.commands:
        return Finding(NAME, "ok", f"{row.name}: {wanted}")
    if wanted == "blaunch" and "lsrun" in engine.commands:
        says = f"{row.name}: by another way: lsrun -m (no blaunch)"
        return Finding(NAME, "ok", f"{says}; LSF does not count what it starts as the job's")
    other = [name for name in ("blaunch", "jsrun", "lsrun") if name in engine.commands]
    do = f"set lsf_launcher to {other[0]}" if other else ""
    says = f"{row.name}: there is no {wanted} here; it may exist only where jobs start"
    return Finding(NAME, "note", says, do)


def _fields() -> Finding:
    """Check which fields bjobs knows, which it shows only if there is a job."""
    name = "fields of jobs"
    found: object = None
    try:
        for field in FIELDS:
            # One by one, because bjobs ends at the first field that it does not know.
            found = lsf_jobs.ask(dict.fromkeys(("jobid", field)), ["-u", "all"])
            if not found:
                break
    except BatchError as error:
        return Finding(NAME, "wrong", f"{name}: bjobs does not say: {clean(error.what)}")
    refused = sorted(lsf_probe.known().refused & frozenset(FIELDS))
    if refused:
        says = f"{name}: by another way: bjobs -l (bjobs -o has no {listed(refused)})"
        return Finding(NAME, "ok", says)
    if not found:
        says = f"{name}: unknown, as there is no job to ask about; the first job will tell"
        return Finding(NAME, "note", says, "check again when there is one")
    return Finding(NAME, "ok", f"{name}: bjobs -o has all {len(FIELDS)}")
