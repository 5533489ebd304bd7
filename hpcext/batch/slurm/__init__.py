"""Slurm's commands, and parsers of what they print."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hpcext.allocation import JobId, without_slurm
from hpcext.batch.jobs import UNKNOWN, End, Seen, as_job
from hpcext.core.errors import BatchError
from hpcext.numerals import whole
from hpcext.text import shown

log = logging.getLogger(__name__)

STATES = frozenset(
    {
        "boot_fail", "cancelled", "completed", "completing", "configuring", "deadline",
        "expediting", "failed", "launch_failed", "node_fail", "out_of_memory", "pending",
        "power_up_node", "preempted", "reconfig_fail", "requeued", "requeue_fed", "requeue_hold",
        "resizing", "resv_del_hold", "revoked", "running", "signaling", "special_exit", "stage_out",
        "stopped", "suspended", "timeout", "update_db",
    }
)  # fmt: skip
"""States of a job; https://slurm.schedmd.com/job_state_codes.html, and squeue(1) of 22.05."""

_JOB_ID = re.compile(r"([0-9]{1,18})(?:;[\w.-]+)?\Z")
_GRES = re.compile(r"(?:^|,)gpu:(?!no_consume:)([^:,()]*[^:,()0-9][^:,()]*):")
_CPUS = re.compile(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?\Z")
"""A count of CPUs; it is bounded, since a larger one would only fill the memory."""


class SlurmStep(NamedTuple):
    """A step that Slurm knows of."""

    id: str
    name: str


_LIMIT = re.compile(r"(?:([0-9]{1,9})-)?([0-9]{1,9})(?::([0-9]{1,9}))?(?::([0-9]{1,9}))?\Z")


class Host(NamedTuple):
    """The address by which Slurm reaches a node, and the type of its GPUs; empty for none."""

    address: str
    kind: str


def rows(text: str, columns: int) -> Iterator[list[str]]:
    r"""Yield the cells of each line of a table with ``|`` between them; those that it lacks empty.

    The last cell of a line may hold anything.

    Examples
    --------
    >>> list(rows("7|RUNNING\n8|PENDING|a|b", 3))
    [['7', 'RUNNING', ''], ['8', 'PENDING', 'a|b']]
    """
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|", columns - 1)]
        yield cells + [""] * (columns - len(cells))


def facts(line: str) -> dict[str, str]:
    """Parse ``KEY=VALUE KEY=VALUE ...``, as scontrol prints what it shows on one line."""
    return dict(word.partition("=")[::2] for word in line.split())


def submit_command(options: Sequence[str]) -> list[str]:
    """Submit the script on standard input; sbatch(1)."""
    return ["sbatch", "--parsable", *options]


def parse_job_id(text: str) -> int:
    """Parse the output of ``sbatch --parsable``: ``ID`` or ``ID;CLUSTER``."""
    found = _JOB_ID.match(text.strip())
    if found is None:
        raise BatchError(f"sbatch printed {shown(text.strip())}, not a job id")
    return int(found[1])


def array_of(options: Sequence[str]) -> str | None:
    """Return the option of sbatch that makes a job array; None if none does.

    Examples
    --------
    >>> array_of(["--array=0-3"]), array_of(["-a0-3"]), array_of(["--account=a"])
    ('--array=0-3', '-a0-3', None)
    """
    for option in options:
        if option.partition("=")[0] == "--array" or option.startswith("-a"):
            return option
    return None


def hostnames_command(nodelist: str) -> list[str]:
    """Expand a list of nodes, such as ``n[1-4]``; scontrol(1)."""
    return ["scontrol", "show", "hostnames", nodelist]


def parse_hostnames(text: str) -> tuple[str, ...]:
    """Parse one name on each line."""
    return tuple(text.split())


def steps_command(job_id: JobId) -> list[str]:
    """Ask for the steps of a job that have not ended; squeue(1)."""
    return ["squeue", "--steps", "--noheader", f"--jobs={job_id}", "--format=%i|%j"]


def parse_steps(text: str) -> tuple[SlurmStep, ...]:
    """Parse ``JOB.STEP|NAME`` on each line."""
    return tuple(SlurmStep(*line) for line in rows(text, 2) if line[1])


def cancel_command(target: str, *, signal: str = "", batch: bool = False) -> list[str]:
    """Cancel a job or a step, or send it a signal; scancel(1)."""
    words = ["scancel"]
    if signal:
        words.append(f"--signal={signal}")
    if batch:
        words.append("--batch")
    return [*words, target]


def cancel_named_command(name: str) -> list[str]:
    """End all our jobs of this name; scancel(1)."""
    return ["scancel", "--me", f"--jobname={name}"]


def jobs_command(job_ids: Sequence[JobId]) -> list[str]:
    """Ask for jobs that Slurm still holds, in any state; squeue(1)."""
    listed = ",".join(map(str, job_ids))
    return ["squeue", "--noheader", "--states=all", f"--jobs={listed}", "--format=%i|%T|%r|%N"]


def state(text: str) -> str:
    """Return a state of Slurm's output as one of :data:`STATES` or :data:`UNKNOWN`.

    Examples
    --------
    >>> state("RUNNING"), state("CANCELLED by 1000"), state("CANCELLED+")
    ('running', 'cancelled', 'cancelled')
    """
    words = text.lower().split()
    found = words[0].rstrip("+") if words else ""
    if found not in STATES:
        log.warning("Slurm reports an unknown state of a job: %s", shown(text))
        return UNKNOWN
    return found


def parse_seen(text: str) -> dict[JobId, Seen]:
    """Parse lines of :func:`jobs_command` or :func:`accounting_command`: job → what is said."""
    found: dict[JobId, Seen] = {}
    for ident, said, why, _ in rows(text, 4):
        if (name := as_job(ident)) is not None:
            found[name] = Seen(state(said), why="" if why in {"None", "(null)"} else why)
    return found


def parse_nodelist(text: str, job_id: JobId) -> str:
    """Return the nodes of a running job, such as ``n[1-4]``; empty if it does not run.

    Parameters
    ----------
    text : str
        What :func:`jobs_command` prints. A node that a job with ``--no-kill`` has lost is not in
        it, whatever the node's later state.
    job_id : int or str
    """
    for ident, said, _, nodes in rows(text, 4):
        if as_job(ident) == job_id and state(said) == "running":
            return nodes
    return ""


def accounting_command(job_ids: Sequence[JobId]) -> list[str]:
    """Ask accounting for jobs, which slurmctld forgets after a while; sacct(1)."""
    listed = ",".join(map(str, job_ids))
    words = ["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={listed}"]
    return [*words, "--format=jobid,state"]


def parse_cpus(text: str) -> tuple[int, ...]:
    """Parse the CPUs of an allocation's nodes: ``24(x2),12`` of ``SLURM_JOB_CPUS_PER_NODE``."""
    counts: list[int] = []
    for part in text.split(","):
        found = _CPUS.match(part.strip())
        if found is None:
            raise BatchError(f"SLURM_JOB_CPUS_PER_NODE={shown(text)}: not in the format of Slurm")
        counts += [int(found[1])] * int(found[2] or 1)
    return tuple(counts)


def epoch_times() -> dict[str, str]:
    """Return an environment in which Slurm's commands print epoch seconds; squeue(1)."""
    return {**without_slurm(), "SLURM_TIME_FORMAT": "%s"}


def end_command(job_id: JobId) -> list[str]:
    """Ask for a job's state and end; use with :func:`epoch_times`.

    ``%e`` is the end by which slurmctld acts; in the grace of a preemption it is the end of the
    grace, while ``%S`` and ``%l``, begin and limit, still give that of the limit.
    """
    return ["squeue", "--noheader", "--states=all", f"--jobs={job_id}", "--format=%T|%e|%S|%l"]


def parse_end(text: str) -> End:
    """Parse ``STATE|END|BEGIN|LIMIT``; the end of a job without a limit is a word."""
    lines = text.split()
    fields = lines[0].split("|") if len(lines) == 1 else []
    if len(fields) != 4:
        raise BatchError(f"squeue printed {shown(text.strip())}, not the state of a job")
    said, end, begin, limit = fields
    limit_s = math.inf if limit == "UNLIMITED" else parse_time_limit(limit)
    begin_s = epoch(begin)
    limit_end_s = None if begin_s is None or limit_s is None else begin_s + limit_s
    return End(state(said), epoch(end), limit_end_s)


def epoch(text: str) -> float | None:
    """Parse an instant printed with :func:`epoch_times`; return None for a word such as ``N/A``."""
    at = whole(text)
    return None if at is None else float(at)


def requeue_command(job_id: JobId) -> list[str]:
    """Put a job back into the queue; scontrol(1). After scancel it would bring the job back."""
    return ["scontrol", "requeue", str(job_id)]


def version_command() -> list[str]:
    """Ask for the release of Slurm that is installed here; the command asks no daemon."""
    return ["scontrol", "--version"]


def parse_version(text: str) -> tuple[int, int]:
    """Parse ``slurm 22.05.8`` as (22, 5); distributors write ``slurm-wlm 22.05.8``."""
    found = re.match(r"slurm\S*\s+([0-9]{1,9})\.([0-9]{1,9})(?![0-9])", text)
    if found is None:
        raise BatchError(f"scontrol printed {shown(text.strip())}, not a version")
    return int(found[1]), int(found[2])


def hosts_command(nodelist: str) -> list[str]:
    """Ask for the addresses and resources of nodes; scontrol(1)."""
    return ["scontrol", "--oneliner", "show", "node", nodelist]


def parse_hosts(text: str) -> dict[str, Host]:
    """Parse a node on each line."""
    found = {}
    for said in map(facts, text.splitlines()):
        if "NodeName" in said:
            address = said.get("NodeAddr") or said["NodeName"]
            found[said["NodeName"]] = Host(address, gres_kind(said.get("Gres", "")))
    return found


def gres_kind(gres: str) -> str:
    """Return the type of the GPUs in a list of generic resources; empty for none, or several.

    gres.conf(5): a type is optional, and told from a count by a letter in it.

    Examples
    --------
    >>> gres_kind("gpu:a100:4(S:0,1),mps:400"), gres_kind("gpu:4"), gres_kind("gpu:a:1,gpu:b:1")
    ('a100', '', '')
    """
    kinds = set(_GRES.findall(gres))
    return kinds.pop() if len(kinds) == 1 else ""


def parse_time_limit(text: str) -> float | None:
    """Return the seconds of a time limit as ``sbatch --time`` takes it; None for another form.

    ``M``, ``M:S``, ``H:M:S``, ``D-H``, ``D-H:M`` and ``D-H:M:S``; sbatch(1).

    Examples
    --------
    >>> parse_time_limit("90"), parse_time_limit("2:00:00"), parse_time_limit("1-12")
    (5400.0, 7200.0, 129600.0)
    """
    found = _LIMIT.match(text.strip())
    if found is None:
        return None
    days, *given = found.groups()
    parts = [int(part) for part in given if part is not None]
    if days is not None:
        hours, minutes, seconds = [*parts, 0, 0][:3]
    elif len(parts) == 3:
        hours, minutes, seconds = parts
    else:
        hours, (minutes, seconds) = 0, [*parts, 0][:2]
    return float(((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds)


def job_command(job_id: JobId) -> list[str]:
    """Ask for all that slurmctld says of a job; scontrol(1)."""
    return ["scontrol", "--oneliner", "show", "job", str(job_id)]


def is_running(text: str) -> bool:
    """Return whether a job runs, by what :func:`job_command` prints."""
    return "JobState=RUNNING" in text.split()


def is_preempted(text: str) -> bool:
    """Return whether a job's nodes are wanted for another, by what :func:`job_command` prints.

    slurmctld notes it when the grace begins (``job_ptr->preempt_time``), but not if somebody has
    shortened the time limit.

    Examples
    --------
    >>> is_preempted("JobId=7 PreemptTime=None"), is_preempted("PreemptTime=2026-01-01T00:00:00")
    (False, True)
    """
    return facts(text).get("PreemptTime", "None") not in {"None", "N/A", ""}


def was_cancelled(text: str, restarts: int) -> bool:
    """Return whether a job that is being ended was cancelled, by what :func:`job_command` prints.

    No field says so directly. But a job that was preempted, requeued, or at its time limit has
    another field set, and a record that lacks these fields tells nothing.

    Parameters
    ----------
    text : str
    restarts : int
        The number of its restarts before.

    Examples
    --------
    >>> begins = "JobId=7 JobState=COMPLETING Reason=None Restarts=0 "
    >>> was_cancelled(begins + "PreemptTime=None", 0), was_cancelled(begins, 0)
    (True, False)
    """
    said = facts(text)
    ending = said.get("JobState") in {"COMPLETING", "CANCELLED"}
    why = (said.get("Reason"), said.get("PreemptTime"), said.get("Restarts"))
    return ending and why == ("None", "None", str(restarts))
