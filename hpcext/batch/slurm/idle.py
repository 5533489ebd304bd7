"""The idle nodes of a partition, and for how long they are idle: holes and leases of Slurm.

The nodes of a hole in front of a pending job are ``planned`` (sinfo(1)). The hole ends at the
expected start of the job (``squeue --start``), or of a reservation. If jobs of other users are
hidden (``PrivateData=jobs``), their expected starts are, too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from hpcext.batch import runner
from hpcext.batch.jobs import UNKNOWN
from hpcext.batch.leasing import LEASE, THERE, WAITING, Held, Idle, Other
from hpcext.batch.slurm import (
    epoch,
    epoch_times,
    gres_kind,
    hostnames_command,
    parse_hostnames,
    parse_time_limit,
    state,
)
from hpcext.batch.slurm.tables import facts, lines_of, new_mark, rows, table
from hpcext.numerals import whole

_GPUS = re.compile(r"(?:^|,)gpu:(?:[^:,()]*[^:,()0-9][^:,()]*:)?([0-9]{1,18})(?![0-9])")
_FLAGS = "*~#!%$@^+-"
IDLE = frozenset({"idle", "planned"})
_ASLEEP = frozenset("~#!%@^")
"""Flags of nodes that are powered down, or going down or up (sinfo(1), NODE STATE CODES)."""


_FOR_NODES = frozenset({"None", "Resources", "Priority"})
"""Reasons of a job that waits for nodes and nothing else (squeue(1), JOB REASON CODES)."""


class Planned(NamedTuple):
    """A pending job with an expected start, or a reservation.

    Attributes
    ----------
    job_id : int
        0 for a reservation.
    name : str
    start_s : float
        Epoch seconds.
    nodes : str
        In the notation of Slurm, such as ``n[1-4]``.
    """

    job_id: int
    name: str
    start_s: float
    nodes: str


_COLUMNS = (
    ("NodeList", 256), ("StateLong", 32), ("Gres", 1024), ("CPUs", 12), ("Memory", 16),
    ("Available", 12), ("Time", 24), ("GresUsed", 1024), ("CPUsState", 48), ("AllocMem", 16),
)  # fmt: skip
"""Columns and their widths, to which longer text is cut."""


def idle_command(partition: str) -> list[str]:
    """Return the sinfo(1) command that asks for all nodes of a partition."""
    words = ["sinfo", "--noheader", "--Node", f"--partition={partition}"]
    return [*words, "--Format=" + ",".join(f"{name}:{width}|" for name, width in _COLUMNS)]


def parse_idle(text: str) -> dict[str, Idle]:
    """Parse nodes, one on each line, by name."""
    found = {}
    for words in rows(text, len(_COLUMNS) + 1):
        name, said, gres, cpus, memory, partition, limit, used, by_state, allocated, _ = words
        if not name or not said:
            continue
        word = said.lower().rstrip(_FLAGS)
        flags = said[len(word) :]
        # A partition that is down or drained accepts jobs, but starts none.
        may = not _ASLEEP & set(flags) and "*" not in flags and partition in {"up", ""}
        if may and word == "mixed":
            rest = _room_beside(used, by_state, _number(memory), _number(allocated))
        else:
            rest = None
        if rest is not None:
            cpus, memory = map(str, rest)
        found[name] = Idle(
            name,
            may and (word in IDLE or rest is not None),
            # The flag "-": backfill keeps the node for a job.
            planned=word == "planned" or "-" in flags,
            gpus=gres_count(gres),
            kind=gres_kind(gres),
            cpus=_number(cpus),
            memory_mb=_number(memory),
            limit_s=parse_time_limit(limit) or math.inf,
            lost=word == "down" or "*" in flags,
            shared=rest is not None,
        )
    return found


def _room_beside(used: str, by_state: str, memory_mb: int, used_mb: int) -> tuple[int, int] | None:
    """Return CPUs and memory for a lease beside jobs without GPUs on less than half of a node.

    As much again as they use is left free, so that further ones do not preempt the lease.

    Parameters
    ----------
    used : str
        The generic resources in use (``GresUsed`` of sinfo).
    by_state : str
        CPUs that are allocated, idle, other, and all (``CPUsState`` of sinfo).
    memory_mb, used_mb : int
        All memory, and that of jobs.

    Returns
    -------
    (int, int) or None
        None if jobs use GPUs, or half of the node.
    """
    # GPUs without a type may be printed as "gpu:(null):0(IDX:N/A)".
    plain = used.replace("(null):", "")
    if not _GPUS.search(plain) or gres_count(plain):
        return None
    cpus = [_number(each) for each in by_state.split("/")]
    if len(cpus) != 4 or 2 * cpus[0] >= cpus[3] or 2 * used_mb >= memory_mb:
        return None
    free, free_mb = cpus[1], memory_mb - used_mb
    least, least_mb = max(1, free // 2), free_mb // 2
    return max(least, free - cpus[0]), max(least_mb, free_mb - used_mb)


def gres_count(gres: str) -> int:
    """Return the number of GPUs in a list of generic resources.

    Examples
    --------
    >>> gres_count("gpu:a100:4(S:0,1),mps:400"), gres_count("gpu:2,gpu:v100:2"), gres_count("")
    (4, 4, 0)
    """
    return sum(map(int, _GPUS.findall(gres)))


def planned_command(mark: str = "") -> list[str]:
    """Return the squeue(1) command that asks for pending jobs and their expected starts.

    It is for use with :func:`~hpcext.batch.slurm.epoch_times`.

    Parameters
    ----------
    mark : str
        As :func:`~hpcext.batch.slurm.tables.new_mark` makes it, since names are anybody's.
    """
    return ["squeue", "--noheader", "--states=PENDING", "--start", table("%i|%S|%Y|%j", mark)]


def parse_planned(text: str, mark: str = "") -> tuple[Planned, ...]:
    """Parse rows ``ID|EPOCH|NODES|NAME``, except those of jobs without an expected start.

    Parameters
    ----------
    text, mark : str
    """
    found = []
    for ident, start, nodes, name in rows(text, 4, mark):
        # Arrays and heterogeneous jobs have a longer id: 7_[1-3], 7+0.
        number, at = whole(re.split("[_+]", ident, maxsplit=1)[0]), epoch(start)
        if number is not None and at is not None and nodes and not nodes.startswith("("):
            found.append(Planned(number, name, at, nodes))
    return tuple(found)


def due_command(mark: str = "") -> list[str]:
    """Return the squeue(1) command that asks for the reason and the name of each pending job."""
    return ["squeue", "--noheader", "--states=PENDING", table("%r|%j", mark)]


def parse_due(text: str, mark: str = "") -> bool:
    """Return whether a job other than a lease waits for nodes, from rows ``REASON|NAME``.

    Its expected start is not used, because while leases are preempted for it, Slurm may have any
    plan for it, or none.

    Parameters
    ----------
    text, mark : str
    """
    return any(why in _FOR_NODES and not LEASE.match(name) for why, name in rows(text, 2, mark))


def reserved_command() -> list[str]:
    """Return the scontrol(1) command that asks for all reservations, for use with epoch times."""
    return ["scontrol", "--oneliner", "show", "reservation"]


def parse_reserved(text: str) -> tuple[Planned, ...]:
    """Parse ``KEY=VALUE ...`` on each line; without reservations, scontrol prints a sentence."""
    found = []
    for said in map(facts, lines_of(text)):
        start, nodes = epoch(said.get("StartTime", "")), said.get("Nodes", "")
        if start is not None and nodes and not nodes.startswith("("):
            found.append(Planned(0, said.get("ReservationName", ""), start, nodes))
    return tuple(found)


def held_command(job_name: str) -> list[str]:
    """Return the squeue(1) command that asks for our jobs of a name, for use with epoch times."""
    words = ["squeue", "--noheader", "--me", "--states=all", f"--name={job_name}"]
    return [*words, "--format=%i|%T|%N|%e|%r|%k"]


def others_command(partition: str, mark: str = "") -> list[str]:
    """Return the squeue(1) command that asks for all jobs in a partition, for use with epoch times.

    Ended jobs are included for MinJobAge. ``%n`` are the requested nodes.

    Parameters
    ----------
    partition, mark : str
    """
    words = ["squeue", "--noheader", f"--partition={partition}", "--states=all"]
    return [*words, table("%T|%N|%n|%u|%V|%S|%e|%j|%k", mark)]


def parse_others(text: str, mark: str = "") -> tuple[Other, ...]:
    """Return the leases of harvesters in the output of :func:`others_command`.

    Each row is ``STATE|NODE|NODE|USER|EPOCH|EPOCH|EPOCH|NAME|COMMENT``: the node that a job has,
    the requested one, submission, begin and end. Leases that ended without a node are left out.

    Parameters
    ----------
    text, mark : str
    """
    found = []
    for words in rows(text, 9, mark):
        # Name and comment may be anything in jobs that are no leases.
        said, node, asked, user, submitted, start, end, name, comment = words
        if not LEASE.match(name) or whole(comment) is None:
            continue
        now = state(said)
        lease = Other(name, user, node, True, epoch(start), None, epoch(submitted))
        if now in WAITING:
            found.append(lease._replace(node=asked, begun=False, since_s=None))
        elif now in THERE or now == UNKNOWN:
            # Its end is its time limit, which is not an end yet.
            found.append(lease)
        elif node and (until_s := epoch(end)) is not None:
            found.append(lease._replace(until_s=until_s))
    return tuple(found)


def withdraw_command(job_name: str) -> list[str]:
    """Return the scancel(1) command that cancels our pending jobs of a name."""
    return ["scancel", "--me", f"--jobname={job_name}", "--state=PENDING"]


def parse_held(text: str) -> tuple[Held, ...]:
    """Parse our jobs, ``ID|STATE|NODE|EPOCH|REASON|COMMENT`` on each line."""
    found = []
    for ident, said, node, end, why, comment in rows(text, 6):
        if (number := whole(ident)) is not None:
            found.append(Held(number, comment, state(said), node, epoch(end), why))
    return tuple(found)


def ends(planned: Iterable[Planned], names: Mapping[str, Iterable[str]]) -> dict[str, float]:
    """Return when the first planned job or reservation begins on each node, in epoch seconds.

    Parameters
    ----------
    planned : iterable of Planned
    names : Mapping[str, iterable of str]
        A list of nodes in the notation of Slurm → their names.
    """
    found: dict[str, float] = {}
    for each in planned:
        for node in names.get(each.nodes, ()):
            found[node] = min(each.start_s, found.get(node, each.start_s))
    return found


def planned_ends(but: str = "") -> dict[str, float]:
    """Return when nodes are needed for other jobs or reservations, by Slurm's plan.

    Parameters
    ----------
    but : str
        The name of jobs that do not count. Leases do not count, either: one that waits for a node
        yields to all other jobs.

    Returns
    -------
    dict of str to float
        Node → epoch seconds.

    Raises
    ------
    BatchError
        Slurm does not answer.
    """
    mark = new_mark()
    text = runner.run(planned_command(mark), environ=epoch_times())
    jobs = (job for job in parse_planned(text, mark) if job.name != but)
    planned = [job for job in jobs if not LEASE.match(job.name)]
    planned += parse_reserved(runner.run(reserved_command(), environ=epoch_times()))
    lists = {each.nodes for each in planned}
    return ends(
        planned, {each: parse_hostnames(runner.run(hostnames_command(each))) for each in lists}
    )


def _number(text: str) -> int:
    # A node with more than its configuration states is printed as "24+".
    return whole(text.rstrip("+")) or 0
