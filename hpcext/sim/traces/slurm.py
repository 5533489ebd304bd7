"""Traces of sites with Slurm: past jobs by sacct, idle nodes by repeated sinfo."""

from __future__ import annotations

import calendar
import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from hpcext.core.errors import InputError
from hpcext.numerals import whole
from hpcext.sim.traces.swf import CANCELLED, COMPLETED, FAILED, UNKNOWN, SwfJob
from hpcext.text import did_you_mean, listed, shown

SACCT = (
    "SLURM_TIME_FORMAT=%s sacct --allusers --allocations --parsable2 --starttime=2026-01-01 "
    "--format=JobIDRaw,Submit,Eligible,Start,ElapsedRaw,TimelimitRaw,NNodes,State,UID,Partition"
)
"""The command whose output :func:`parse_sacct` reads; sacct(1)."""

SINFO = (
    "while sleep 10; do date +time=%s; sinfo --noheader --Node --format='%N %T'; done > nodes.txt"
)
"""The command whose output :func:`parse_sinfo` reads; sinfo(1)."""

NEEDED = ("JobIDRaw", "Submit", "ElapsedRaw", "NNodes", "State")
KNOWN = (*NEEDED, "Eligible", "Start", "TimelimitRaw", "UID", "Partition")

ENDED = {
    "completed": COMPLETED,
    "cancelled": CANCELLED,
    "boot_fail": FAILED,
    "deadline": FAILED,
    "failed": FAILED,
    "launch_failed": FAILED,
    "node_fail": FAILED,
    "out_of_memory": FAILED,
    "preempted": FAILED,
    "timeout": FAILED,
}
"""States of a job that has ended; https://slurm.schedmd.com/job_state_codes.html."""

UNENDED = frozenset(
    {
        "completing", "configuring", "pending", "requeue_fed", "requeue_hold", "requeued",
        "resizing", "revoked", "running", "signaling", "special_exit", "stage_out", "stopped",
        "suspended",
    }
)  # fmt: skip

IDLE = frozenset({"idle", "plnd", "planned", "idle+planned", "idle-"})
"""States of a node on which a job could start now; NODE STATE CODES in sinfo(1). Nodes whose state
has a suffix are excluded: ``*`` does not answer, ``~`` is powered off, ``$`` is in maintenance."""

MOST_NODES_KNOWN = 1_000_000

_STAMP = re.compile(r"time=([0-9]{1,12}(?:\.[0-9]{1,9})?)\Z")
_NODE = re.compile(r"(\S{1,255})\s+(\S{1,64})\Z")


class Row(NamedTuple):
    """A job of a log, or the reason why it is left out."""

    job: SwfJob | None
    why: str = ""


def parse_sacct(lines: Iterable[str]) -> Iterator[Row]:
    """Parse the output of :data:`SACCT`.

    The processors of a job are its nodes. A job that was held, or depended on another one, counts
    as submitted when it became eligible, because it was not in the queue before.

    Parameters
    ----------
    lines : iterable of str
        The first one names the columns; unknown columns are ignored.

    Yields
    ------
    Row
        In the order of the lines; submission times are seconds since 1970.

    Raises
    ------
    InputError
        A line is not one of sacct's; the caller adds its number.
    """
    rows = iter(lines)
    columns = _columns(next(rows, ""))
    partitions: dict[str, int] = {}
    for line in rows:
        if not line:
            continue
        cells = line.split("|")
        if len(cells) != len(columns):
            raise InputError(f"{len(cells)} columns", valid=f"{len(columns)}, as in the first line")
        row = dict(zip(columns, cells, strict=True))
        if "." in row["JobIDRaw"]:
            yield Row(None, "a step instead of a job: use sacct --allocations")
        else:
            yield _job(row, partitions)


def _columns(line: str) -> list[str]:
    columns = line.split("|")
    missing = [name for name in NEEDED if name not in columns]
    if missing:
        raise InputError(
            f"no column {listed(missing)} in {shown(line)}",
            valid=f"the output of sacct --parsable2 with {listed(KNOWN)}",
            do=did_you_mean(missing[0], columns),
        )
    return columns


def _job(row: Mapping[str, str], partitions: dict[str, int]) -> Row:
    state = row["State"].partition(" ")[0].lower()  # CANCELLED by 1000
    submit_s = _instant(row, "Submit")
    if state in UNENDED or submit_s is None:
        return Row(None, f"{state}: it has not ended" if state in UNENDED else "never submitted")
    if state not in ENDED:
        return Row(None, f"unknown state {shown(state)}")
    begin_s = max(submit_s, _instant(row, "Eligible") or submit_s)
    start_s, run_s = _instant(row, "Start"), _count(row, "ElapsedRaw")
    begin_s = begin_s if start_s is None else max(submit_s, min(begin_s, start_s))
    limit = row.get("TimelimitRaw", "")
    nodes = _count(row, "NNodes")
    partition = row.get("Partition", "")
    job = SwfJob(
        number=_count(row, "JobIDRaw"),
        submit_s=begin_s,
        wait_s=UNKNOWN if start_s is None else start_s - begin_s,
        run_s=run_s,
        procs=nodes if run_s else UNKNOWN,
        procs_requested=nodes or UNKNOWN,
        # Minutes, or a word such as UNLIMITED.
        walltime_s=60 * _count(row, "TimelimitRaw") if whole(limit) is not None else UNKNOWN,
        status=ENDED[state],
        user=_count(row, "UID") if row.get("UID") else UNKNOWN,
        partition=partitions.setdefault(partition, len(partitions) + 1) if partition else UNKNOWN,
    )
    return Row(job)


def _count(row: Mapping[str, str], name: str) -> int:
    count = whole(row[name], 12)
    if count is None:
        raise InputError(f"{name} {shown(row[name])}", valid="a whole number")
    return count


def _instant(row: Mapping[str, str], name: str) -> float | None:
    """Return seconds since 1970; a time without a zone counts as UTC."""
    cell = row.get(name, "")
    if cell in {"", "Unknown", "None", "N/A"}:
        return None
    if (since_1970 := whole(cell, 12)) is not None:
        return float(since_1970)
    try:
        return float(calendar.timegm(time.strptime(cell, "%Y-%m-%dT%H:%M:%S")))
    except ValueError:
        valid = "seconds since 1970, or a time such as 2026-01-31T23:59:59"
        raise InputError(f"{name} {shown(cell)}", valid=valid) from None


class IdleSample(NamedTuple):
    """The nodes that were idle at an observation, numbered in the order of first appearance."""

    time_s: float
    idle: frozenset[int]


def parse_sinfo(lines: Iterable[str], names: dict[str, int]) -> Iterator[IdleSample]:
    """Parse the output of :data:`SINFO`.

    Parameters
    ----------
    lines : iterable of str
        ``time=SECONDS``, followed by a line ``NODE STATE`` for each node, any number of times.
    names : dict
        Number of each node by name; new nodes are added.

    Yields
    ------
    IdleSample
        The first one is at 0 s.

    Raises
    ------
    InputError
        A line is neither, or a time is earlier than the one above it.
    """
    first_s = now_s = math.nan
    idle: set[int] = set()
    for line in lines:
        if stamp := _STAMP.match(line.strip()):
            new_s = float(stamp[1])
            if new_s < now_s:
                raise InputError(f"time {new_s:.15g} after {now_s:.15g}", do="sort the records")
            if not math.isnan(now_s):
                yield IdleSample(now_s - first_s, frozenset(idle))
            first_s = new_s if math.isnan(first_s) else first_s
            now_s, idle = new_s, set()
        elif node := _NODE.match(line.strip()):
            if math.isnan(now_s):
                raise InputError("a node before the first time", valid=f"the output of: {SINFO}")
            if len(names) >= MOST_NODES_KNOWN:
                raise InputError(f"more than {MOST_NODES_KNOWN} nodes")
            number = names.setdefault(node[1], len(names))
            if node[2].lower() in IDLE:
                idle.add(number)
        elif line.strip():
            raise InputError(shown(line), valid=f"the output of: {SINFO}")
    if not math.isnan(now_s):
        yield IdleSample(now_s - first_s, frozenset(idle))
