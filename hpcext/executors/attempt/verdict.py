"""The failure of an attempt in words, from what its supervisors and the batch system wrote.

The job may have written any of it, so invalid parts are ignored.
"""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from hpcext.executors.attempt.readings import instant
from hpcext.text import clean, counted

MAX_CODE = 1000
_CHARS = 400

_TERMINATED = {-signal.SIGTERM, 128 + signal.SIGTERM}
_KILLED = {-signal.SIGKILL, 128 + signal.SIGKILL}

_SLURM = re.compile(r"oom.kill(?: event|ed)|OOM Killed|Out Of Memory|OUT_OF_MEMORY", re.IGNORECASE)
"""Slurm's messages about a lack of memory.

``Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.`` of
slurmstepd (src/slurmd/slurmstepd/req.c and mgr.c), and ``task 0: Out Of Memory`` of srun.
"""


def exit_code(document: Mapping[str, Any]) -> int | None:
    """Return the exit code of an ``exit.json``; None if it has no possible one."""
    code = document.get("exit_code")
    return code if type(code) is int and -MAX_CODE <= code <= MAX_CODE else None


def failed_by_itself(ends: Sequence[Mapping[str, Any]]) -> int | None:
    """Return which node of an attempt failed first, before any of them was to suspend or end.

    After such a failure ``srun`` ends what runs on the other nodes, by the signal of a preemption.
    That they got it makes of the failure neither an eviction nor a suspension.

    Parameters
    ----------
    ends : sequence of Mapping
        The ``exit.json`` of each node; empty if there is none.

    Returns
    -------
    int or None
        The node's index; None if there was no such failure.
    """
    stops = [instant(end, key) for end in ends for key in ("notice_at", "suspend_asked_at")]
    stop_at = min((at for at in stops if at is not None), default=math.inf)
    failures = [
        (ended_at, index)
        for index, end in enumerate(ends)
        # A shell dies of SIGTERM itself, a moment before its supervisor gets the signal.
        if exit_code(end) not in {None, 0, *_TERMINATED}
        and (ended_at := instant(end, "main_ended_at")) is not None
        and ended_at < stop_at
    ]
    return min(failures)[1] if failures else None


def how_it_failed(document: Mapping[str, Any], step_said: str = "") -> str:
    """Return what a person should know of a failure.

    Parameters
    ----------
    document : Mapping
        The ``exit.json`` of the node where it failed first.
    step_said : str
        The output of the program that started the supervisor, such as ``srun``.
    """
    if cannot_run := _said(document, "cannot_run"):
        return cannot_run
    if document.get("kill_asked_at") is not None:
        return f"told to end: {ended_by(exit_code(document))}"
    how = ended_by(exit_code(document)) + _memory(document, step_said)
    if gpus := broken_gpus(document) or _words(document, "gpus_noted"):
        how = f"{how}; {gpus}"
    last = _said(document, "last_line")
    return f"{how}; last line of its log: {last}" if last else how


def broken_gpus(document: Mapping[str, Any]) -> str:
    """Return what the driver says is wrong with the GPUs of a node; empty if nothing.

    Parameters
    ----------
    document : Mapping
        The ``exit.json`` of the node.
    """
    return _words(document, "gpus_broken")


def _words(document: Mapping[str, Any], key: str) -> str:
    said = document.get(key)
    texts = [each for each in said if isinstance(each, str)] if isinstance(said, list) else []
    return clean(", ".join(texts)[:_CHARS])


def ended_by(code: int | None) -> str:
    """Return an exit code, in the convention of :mod:`subprocess`, in words."""
    if code is None:
        return "it is unknown how it ended"
    if code < 0:
        return f"killed by {_name(-code) or f'signal {-code}'}"
    if code > 128 and (name := _name(code - 128)):
        return f"exit code {code}, by which a shell reports {name}"
    return f"exit code {code}"


def _name(signum: int) -> str:
    try:
        return signal.Signals(signum).name
    except ValueError:
        return ""


def _memory(document: Mapping[str, Any], step_said: str) -> str:
    """Return in words whether it ran out of memory; other processes of its cgroup count as well."""
    count = document.get("oom_kills")
    killed = count if type(count) is int and 0 < count < 1_000_000 else 0
    if exit_code(document) in _KILLED:
        if killed:
            return ": out of memory, as the kernel counted in its cgroup"
        return ": out of memory, as Slurm reports" if _SLURM.search(step_said) else ""
    if killed:
        them = counted(killed, "process", "processes")
        return f"; out of memory: the kernel killed {them} of its cgroup meanwhile"
    return "; out of memory, as Slurm reports" if _SLURM.search(step_said) else ""


def _said(document: Mapping[str, Any], key: str) -> str:
    text = document.get(key)
    text = clean(text[:_CHARS]) if isinstance(text, str) else ""
    return text if len(text) <= _CHARS else f"{text[:_CHARS]}..."
