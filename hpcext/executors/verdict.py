"""How an attempt failed, in words, by what its supervisors and the batch system wrote down.

All of it may have been written by the job: what does not make sense is left out.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from typing import Any

from hpcext.text import clean, counted

MAX_CODE = 1000
_CHARS = 300

_KILLED = {-signal.SIGKILL, 128 + signal.SIGKILL}

_SLURM = re.compile(r"oom.kill(?: event|ed)|OOM Killed|Out Of Memory|OUT_OF_MEMORY", re.IGNORECASE)
"""``Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.`` of
slurmstepd (src/slurmd/slurmstepd/req.c and mgr.c), and ``task 0: Out Of Memory`` of srun."""


def exit_code(document: Mapping[str, Any]) -> int | None:
    """The exit code of an ``exit.json``; None if it has none that can be."""
    code = document.get("exit_code")
    return code if type(code) is int and -MAX_CODE <= code <= MAX_CODE else None


def how_it_failed(document: Mapping[str, Any], step_said: str = "") -> str:
    """What a person should know of a failure.

    Parameters
    ----------
    document : Mapping
        The ``exit.json`` of the node where it failed first.
    step_said : str
        What was printed beside it by what started the supervisor, an ``srun`` for example.
    """
    if cannot_run := _said(document, "cannot_run"):
        return cannot_run
    if document.get("kill_asked_at") is not None:
        return f"told to end: {ended_by(exit_code(document))}"
    how = ended_by(exit_code(document)) + _memory(document, step_said)
    last = _said(document, "last_line")
    return f"{how}; last line of its log: {last}" if last else how


def ended_by(code: int | None) -> str:
    """An exit code in words: that of :mod:`subprocess`, negative for a signal."""
    if code is None:
        return "how it ended is not known"
    if code < 0:
        return f"killed by {_name(-code) or f'signal {-code}'}"
    if code > 128 and (name := _name(code - 128)):
        return f"exit code {code}, by which a shell means {name}"
    return f"exit code {code}"


def _name(signum: int) -> str:
    try:
        return signal.Signals(signum).name
    except ValueError:
        return ""


def _memory(document: Mapping[str, Any], step_said: str) -> str:
    """Whether it ran out of memory; what else was in its cgroup counts, too."""
    count = document.get("oom_kills")
    killed = count if type(count) is int and 0 < count < 1_000_000 else 0
    if exit_code(document) in _KILLED:
        if killed:
            return ": out of memory, says the kernel of its cgroup"
        return ": out of memory, says Slurm" if _SLURM.search(step_said) else ""
    if killed:
        them = counted(killed, "process", "processes")
        return f"; out of memory, the kernel killed {them} of its cgroup meanwhile"
    return "; out of memory, says Slurm" if _SLURM.search(step_said) else ""


def _said(document: Mapping[str, Any], key: str) -> str:
    text = document.get(key)
    text = clean(text[:_CHARS]) if isinstance(text, str) else ""
    return text if len(text) <= _CHARS else f"{text[:_CHARS]}..."
