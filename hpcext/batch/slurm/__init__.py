"""Commands of Slurm, and parsers of what they print."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from hpcext.allocation import JobId, for_commands
from hpcext.batch.jobs import UNKNOWN, End, Seen, as_job
from hpcext.batch.slurm.tables import facts, lines_of, rows
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
"""The states of a job (https://slurm.schedmd.com/job_state_codes.html, and squeue(1) of 22.05)."""

ONE_CLUSTER = "all commands of hpcext are for the one cluster of this host"
SUBMIT_THERE = "submit it on a host of the other cluster, or with SLURM_CONF set to its slurm.conf"

_JOB_ID = re.compile(r"([0-9]{1,18})(?:;[\w.-]+)?\Z")
_GRES = re.compile(r"(?:^|,)gpu:(?!no_consume:)([^:,()]*[^:,()0-9][^:,()]*):")
_CPUS = re.compile(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?\Z")
"""A count of CPUs, and of nodes; they are bounded, because larger ones would fill the memory."""


class SlurmStep(NamedTuple):
    """A step of a job: its id, ``JOB.STEP``, and its name."""

    id: str
    name: str


_LIMIT = re.compile(r"(?:([0-9]{1,9})-)?([0-9]{1,9})(?::([0-9]{1,9}))?(?::([0-9]{1,9}))?\Z")


class Host(NamedTuple):
    """A node: the address by which Slurm reaches it, and the type of its GPUs, or an empty text."""

    address: str
    kind: str


def submit_command(options: Sequence[str]) -> list[str]:
    """Return the sbatch(1) command that submits a script on its standard input.

    Raises
    ------
    BatchError
        The options name another cluster, which no other command of ours would ask about the job.
    """
    if (option := clusters_of(options)) is not None:
        raise BatchError(ONE_CLUSTER, where=shown(option), do=SUBMIT_THERE)
    return ["sbatch", "--parsable", *options]


def parse_job_id(text: str) -> int:
    """Parse the output of ``sbatch --parsable``: ``ID`` or ``ID;CLUSTER``."""
    found = _JOB_ID.match(text.strip())
    if found is None:
        raise BatchError(f"sbatch printed {shown(text.strip())}, not a job id")
    return int(found[1])


def array_of(options: Sequence[str]) -> str | None:
    """Return the option of sbatch that states a job array; None if there is none.

    Examples
    --------
    >>> array_of(["--array=0-3"]), array_of(["-a0-3"]), array_of(["--account=a"])
    ('--array=0-3', '-a0-3', None)
    """
    for option in options:
        if option.partition("=")[0] == "--array" or option.startswith("-a"):
            return option
    return None


def clusters_of(options: Sequence[str]) -> str | None:
    """Return the option of sbatch that chooses among clusters; None if there is none.

    Examples
    --------
    >>> clusters_of(["--clusters=b"]), clusters_of(["-M", "b"]), clusters_of(["--mem=1"])
    ('--clusters=b', '-M', None)
    """
    for option in options:
        if option.partition("=")[0] in {"--clusters", "--cluster"} or option.startswith("-M"):
            return option
    return None


def hostnames_command(nodelist: str) -> list[str]:
    """Return the scontrol(1) command that expands a list of nodes, such as ``n[1-4]``."""
    return ["scontrol", "show", "hostnames", nodelist]


def parse_hostnames(text: str) -> tuple[str, ...]:
    """Parse names of nodes, one on each line."""
    return tuple(text.split())


def steps_command(job_id: JobId) -> list[str]:
    """Return the squeue(1) command that asks for the steps of a job that have not ended."""
    return ["squeue", "--steps", "--noheader", f"--jobs={job_id}", "--format=%i|%j"]


def parse_steps(text: str) -> tuple[SlurmStep, ...]:
    """Parse steps, ``JOB.STEP|NAME`` on each line."""
    return tuple(SlurmStep(*line) for line in rows(text, 2) if line[1])


def cancel_command(target: str, *, signal: str = "", batch: bool = False) -> list[str]:
    """Return the scancel(1) command that cancels a job or a step, or sends it a signal.

    Parameters
    ----------
    target : str
        The id of a job or a step.
    signal : str
        The signal's name without ``SIG``; empty to cancel.
    batch : bool
        Whether to signal the batch script alone.
    """
    words = ["scancel"]
    if signal:
        words.append(f"--signal={signal}")
    if batch:
        words.append("--batch")
    return [*words, target]


def cancel_named_command(name: str) -> list[str]:
    """Return the scancel(1) command that cancels all our jobs of a name."""
    return ["scancel", "--me", f"--jobname={name}"]


def jobs_command(job_ids: Sequence[JobId]) -> list[str]:
    """Return the squeue(1) command that asks for jobs in any state that slurmctld still knows."""
    listed = ",".join(map(str, job_ids))
    return ["squeue", "--noheader", "--states=all", f"--jobs={listed}", "--format=%i|%T|%r|%N"]


def state(text: str) -> str:
    """Return a state in the output of Slurm as one of :data:`STATES`, or :data:`UNKNOWN`.

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
    """Parse the output of :func:`jobs_command` or :func:`accounting_command`."""
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
        The output of :func:`jobs_command`. It lacks nodes that a job with ``--no-kill`` has lost,
        even if they are up again.
    job_id : int or str
    """
    for ident, said, _, nodes in rows(text, 4):
        if as_job(ident) == job_id and state(said) == "running":
            return nodes
    return ""


def accounting_command(job_ids: Sequence[JobId]) -> list[str]:
    """Return the sacct(1) command that asks accounting for jobs."""
    listed = ",".join(map(str, job_ids))
    words = ["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={listed}"]
    return [*words, "--format=jobid,state"]


def parse_cpus(text: str) -> tuple[int, ...]:
    """Parse ``SLURM_JOB_CPUS_PER_NODE``, such as ``24(x2),12``, into the CPUs of each node."""
    counts: list[int] = []
    for part in text.split(","):
        found = _CPUS.match(part.strip())
        if found is None:
            raise BatchError(f"SLURM_JOB_CPUS_PER_NODE={shown(text)}: not in the format of Slurm")
        counts += [int(found[1])] * int(found[2] or 1)
    return tuple(counts)


def epoch_times() -> dict[str, str]:
    """Return an environment in which commands of Slurm print instants in epoch seconds."""
    return {**for_commands(), "SLURM_TIME_FORMAT": "%s"}


def end_command(job_id: JobId) -> list[str]:
    """Return the squeue(1) command that asks for the state and the end of a job.

    It is for use with :func:`epoch_times`. ``%e`` is the end that slurmctld enforces: in the grace
    of a preemption, the end of the grace, while ``%S`` and ``%l`` are still begin and time limit.
    """
    return ["squeue", "--noheader", "--states=all", f"--jobs={job_id}", "--format=%T|%e|%S|%l"]


def parse_end(text: str) -> End:
    """Parse the output of :func:`end_command`; a job without a limit has a word for its end."""
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
    """Parse an instant in epoch seconds; return None for a word such as ``N/A``."""
    at = whole(text)
    return None if at is None else float(at)


def requeue_command(job_id: JobId) -> list[str]:
    """Return the scontrol(1) command that requeues a job, even one that was cancelled before."""
    return ["scontrol", "requeue", str(job_id)]


def version_command() -> list[str]:
    """Return the command that prints the installed release of Slurm, without asking a daemon."""
    return ["scontrol", "--version"]


def parse_version(text: str) -> tuple[int, int]:
    """Parse ``slurm 22.05.8``, or ``slurm-wlm 22.05.8`` of distributions, as (22, 5)."""
    found = re.match(r"slurm\S*\s+([0-9]{1,9})\.([0-9]{1,9})(?![0-9])", text)
    if found is None:
        raise BatchError(f"scontrol printed {shown(text.strip())}, not a version")
    return int(found[1]), int(found[2])


def hosts_command(nodelist: str) -> list[str]:
    """Return the scontrol(1) command that asks for the addresses and resources of nodes."""
    return ["scontrol", "--oneliner", "show", "node", nodelist]


def parse_hosts(text: str) -> dict[str, Host]:
    """Parse nodes, one on each line, by name."""
    found = {}
    for said in map(facts, lines_of(text)):
        if "NodeName" in said:
            address = said.get("NodeAddr") or said["NodeName"]
            found[said["NodeName"]] = Host(address, gres_kind(said.get("Gres", "")))
    return found


def gres_kind(gres: str) -> str:
    """Return the type of the GPUs in a list of generic resources; empty if none, or several.

    A type is optional (gres.conf(5)); unlike a count it has a letter.

    Examples
    --------
    >>> gres_kind("gpu:a100:4(S:0,1),mps:400"), gres_kind("gpu:4"), gres_kind("gpu:a:1,gpu:b:1")
    ('a100', '', '')
    """
    kinds = set(_GRES.findall(gres))
    return kinds.pop() if len(kinds) == 1 else ""


def parse_time_limit(text: str) -> float | None:
    """Return the seconds of a time limit for ``sbatch --time``; None if it has no valid form.

    The forms are ``M``, ``M:S``, ``H:M:S``, ``D-H``, ``D-H:M`` and ``D-H:M:S``.

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
    """Return the scontrol(1) command that asks for all attributes of a job."""
    return ["scontrol", "--oneliner", "show", "job", str(job_id)]


def is_running(text: str) -> bool:
    """Return whether a job runs, from the output of :func:`job_command`."""
    return "JobState=RUNNING" in text.split()


def is_preempted(text: str) -> bool:
    """Return whether a job is being preempted, from the output of :func:`job_command`.

    slurmctld sets PreemptTime when the grace begins, but not if somebody shortens the time limit.

    Examples
    --------
    >>> is_preempted("JobId=7 PreemptTime=None"), is_preempted("PreemptTime=2026-01-01T00:00:00")
    (False, True)
    """
    return facts(text).get("PreemptTime", "None") not in {"None", "N/A", ""}


def was_cancelled(text: str, restarts: int) -> bool:
    """Return whether a job that ends was cancelled, from the output of :func:`job_command`.

    No field says so directly. But if a job was preempted, requeued, or at its time limit, another
    field is set. Without these fields the answer is no.

    Parameters
    ----------
    text : str
    restarts : int
        The number of restarts of the job before.

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
