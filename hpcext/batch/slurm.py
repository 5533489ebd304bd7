"""Slurm's commands, and what they print."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from hpcext.core.errors import BatchError
from hpcext.text import shown

_JOB_ID = re.compile(r"(\d+)(?:;[\w.-]+)?\Z")
_CPUS = re.compile(r"(\d+)(?:\(x(\d+)\))?\Z")


class Step(NamedTuple):
    """A step that Slurm knows of."""

    id: str
    name: str


def submit_command(script: str, options: Sequence[str]) -> list[str]:
    """Submit a script; sbatch(1)."""
    return ["sbatch", "--parsable", *options, script]


def parse_job_id(text: str) -> int:
    """What ``sbatch --parsable`` prints: ``ID`` or ``ID;CLUSTER``."""
    found = _JOB_ID.match(text.strip())
    if found is None:
        raise BatchError(f"sbatch printed {shown(text.strip())}, and no job id")
    return int(found[1])


def hostnames_command(nodelist: str) -> list[str]:
    """Expand a list of nodes, as ``n[1-4]``; scontrol(1)."""
    return ["scontrol", "show", "hostnames", nodelist]


def parse_hostnames(text: str) -> tuple[str, ...]:
    """A name on each line."""
    return tuple(text.split())


def steps_command(job_id: int) -> list[str]:
    """The steps of a job that have not ended; squeue(1)."""
    return ["squeue", "--steps", "--noheader", f"--jobs={job_id}", "--format=%i|%j"]


def parse_steps(text: str) -> tuple[Step, ...]:
    """``JOB.STEP|NAME`` on each line."""
    found = []
    for line in text.splitlines():
        ident, bar, name = line.strip().partition("|")
        if bar:
            found.append(Step(ident, name))
    return tuple(found)


def cancel_command(target: str, *, signal: str = "", batch: bool = False) -> list[str]:
    """Cancel a job or a step, or send it a signal; scancel(1)."""
    words = ["scancel"]
    if signal:
        words.append(f"--signal={signal}")
    if batch:
        words.append("--batch")
    return [*words, target]


def jobs_command(job_ids: Sequence[int]) -> list[str]:
    """Jobs that Slurm still holds, in any state; squeue(1)."""
    listed = ",".join(map(str, job_ids))
    return ["squeue", "--noheader", "--states=all", f"--jobs={listed}", "--format=%i|%T|%r|%N"]


def parse_jobs(text: str) -> dict[int, str]:
    """Job id → state, in lowercase."""
    found = {}
    for line in text.splitlines():
        ident, state = [*line.strip().split("|"), ""][:2]
        if ident.isdecimal():
            found[int(ident)] = state.lower()
    return found


def parse_cpus(text: str) -> tuple[int, ...]:
    """CPUs of each node of an allocation, from ``SLURM_JOB_CPUS_PER_NODE`` as ``24(x2),12``."""
    counts: list[int] = []
    for part in text.split(","):
        found = _CPUS.match(part.strip())
        if found is None:
            raise BatchError(f"SLURM_JOB_CPUS_PER_NODE={shown(text)}: not as Slurm writes it")
        counts += [int(found[1])] * int(found[2] or 1)
    return tuple(counts)
