"""The idle hosts of LSF, and for how long they are idle: the counterpart of ``slurm/idle.py``.

bhosts(1) shows the use of hosts, bqueues(1) what a queue allows (``queues.py``), bslots(1) for how
long slots are free that LSF keeps for pending jobs, brsvs(1) what is reserved (``reserved.py``).
Without bslots, kept slots are left alone, because it is unknown how long they are free.

Summit's ``jobstat`` lists jobs without their hosts, so it does not show holes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from hpcext.batch.leasing import Idle
from hpcext.batch.lsf.engine import LsfEngine
from hpcext.batch.lsf.queues import LsfQueue
from hpcext.batch.lsf.reserved import Reserved
from hpcext.core.errors import BatchError
from hpcext.documents import decoded
from hpcext.numerals import whole
from hpcext.text import shown

_FIELDS = "host_name status ngpus ngpus_alloc max njobs run ssusp ususp rsv"
_UNIT_S = {"day": 86_400, "hour": 3600, "minute": 60, "second": 1}
_DURATION = re.compile(r"\b([0-9]{1,9})\s*(day|hour|minute|second)s?\b", re.I)
_TABLE = re.compile(r"\s*HOST_NAME\b")


GONE = {"unavail", "unreach"}
"""The states of a host that cannot be reached (bhosts(1), "Host status")."""


class Load(NamedTuple):
    """The use of a host, from bhosts.

    Attributes
    ----------
    name, status : str
    slots : int or None
        The number of its slots; None if it has no limit.
    used : int
        The slots of jobs that run or are suspended there.
    kept : int
        The slots that LSF keeps for pending jobs.
    gpus, gpus_used : int or None
        None if bhosts does not show them.
    """

    name: str
    status: str
    slots: int | None
    used: int
    kept: int
    gpus: int | None = None
    gpus_used: int | None = None

    @property
    def idle(self) -> bool:
        """Whether it takes jobs, and nobody uses any part of it.

        A host that is kept as a whole is ``closed_Full``, although nothing runs: RSV counts.
        """
        takes = self.status == "ok" or (self.status == "closed_Full" and self.kept > 0)
        return takes and self.used == 0 and not self.gpus_used


class LsfGpu(NamedTuple):
    """A GPU, from ``bhosts -gpu``: its model, and the number of jobs on it."""

    model: str
    jobs: int


class BackfillWindow(NamedTuple):
    """Slots that are free for jobs that end in time.

    Attributes
    ----------
    slots : int
        Their number.
    run_s : float
        For how long they are free, in seconds; infinite if nothing waits for them.
    hosts : Mapping[str, int]
        Host → slots there; empty if bslots was not asked for hosts.
    """

    slots: int
    run_s: float
    hosts: Mapping[str, int]


def hosts_command(engine: LsfEngine, hosts: Sequence[str] = ()) -> list[str]:
    """Return the bhosts(1) command that asks for hosts, by default for all.

    Condensed groups are shown by member (``-X``), and statuses in full: without ``-w`` or ``-o``
    all closed hosts look alike.

    Parameters
    ----------
    engine : LsfEngine
    hosts : sequence of str
        Names of hosts and groups; all if empty.
    """
    apart = ["-X"] if engine.takes("bhosts", "-X") else []
    if engine.takes("bhosts", "-o", "-json"):
        return ["bhosts", *apart, "-o", _FIELDS, "-json", *hosts]
    return ["bhosts", *apart, "-w", *hosts]


def parse_hosts(text: str) -> dict[str, Load]:
    """Parse the output of bhosts: JSON, whose values are all strings, or a table with a header.

    Missing values are ``""`` or ``-``.
    """
    found = {}
    for row in _records(text):
        name, status = row.get("HOST_NAME", ""), row.get("STATUS", "")
        if not name or not status:
            continue
        # NJOBS includes slots that are kept.
        kept = whole(row.get("RSV")) or 0
        parts = [whole(row.get(column)) for column in ("RUN", "SSUSP", "USUSP")]
        jobs = whole(row.get("NJOBS"))
        used = max(sum(filter(None, parts)), (jobs or 0) - kept)
        if jobs is None and None in parts:
            # Without these columns it is unknown whether nothing runs.
            used = max(used, 1)
        gpus, gpus_used = whole(row.get("NGPUS")), whole(row.get("NGPUS_ALLOC"))
        found[name] = Load(name, status, whole(row.get("MAX")), used, kept, gpus, gpus_used)
    return found


def gpus_command(hosts: Sequence[str] = ()) -> list[str]:
    """Return the bhosts(1) command that asks for the GPUs of hosts, with full names (``-w``)."""
    return ["bhosts", "-gpu", "-w", *hosts]


def parse_gpus(text: str) -> dict[str, tuple[LsfGpu, ...]]:
    """Parse the table of ``bhosts -gpu``, in which only the first line of a host names it."""
    found: dict[str, tuple[LsfGpu, ...]] = {}
    columns: list[str] = []
    host = ""
    for line in text.splitlines():
        words = line.split()
        if not words:
            continue
        if words[0] == "HOST_NAME":
            columns = words
            continue
        if not line[0].isspace():
            host = words[0]
        # Read from the right, because the name may be missing.
        row = dict(zip(reversed(columns), reversed(words), strict=False))
        jobs = whole(row.get("NJOBS"))
        if host and jobs is not None and whole(row.get("GPU_ID")) is not None:
            found[host] = (*found.get(host, ()), LsfGpu(row.get("MODEL", ""), jobs))
    return found


def windows_command() -> list[str]:
    """Return the bslots(1) command that asks for slots that are free for a while, by host."""
    return ["bslots", "-l"]


def parse_windows(text: str) -> tuple[BackfillWindow, ...]:
    """Parse blocks of ``SLOTS:``, ``RUNTIME:``, ``HOSTS: 12*name ...`` (with ``-l``), or a table.

    If there is no window, bslots prints a sentence.
    """
    found: list[BackfillWindow] = []
    block: dict[str, str] = {}
    key = ""
    for line in text.splitlines():
        head = re.match(r"\s*(SLOTS|RUNTIME|HOSTS):\s*(.*)", line)
        row = re.match(r"\s*([0-9]+)\s{2,}(\S.*)", line)
        if head:
            key = head[1]
            if key == "SLOTS" and block:
                found.append(_window(block))
                block = {}
            block[key] = head[2]
        elif block and key == "HOSTS":
            block[key] += f" {line}"
        elif row:
            found.append(_window({"SLOTS": row[1], "RUNTIME": row[2]}))
    return (*found, _window(block)) if block else tuple(found)


def _window(block: Mapping[str, str]) -> BackfillWindow:
    hosts: dict[str, int] = {}
    for word in block.get("HOSTS", "").split():
        said, star, name = word.partition("*")
        slots = whole(said) if star else None
        if slots is None:
            name, slots = word, 1
        hosts[name] = hosts.get(name, 0) + slots
    total = whole(block.get("SLOTS", "").strip())
    return BackfillWindow(
        sum(hosts.values()) if total is None else total,
        _duration_s(block.get("RUNTIME", "")),
        hosts,
    )


def _duration_s(text: str) -> float:
    if text.strip().upper() == "UNLIMITED":
        return math.inf
    parts = _DURATION.findall(text)
    if not parts:
        raise BatchError(f"bslots printed {shown(text.strip())}, not a duration")
    return float(sum(int(number) * _UNIT_S[unit.lower()] for number, unit in parts))


# What a harvester needs.


def idle_nodes(
    loads: Mapping[str, Load], gpus: Mapping[str, Sequence[LsfGpu]], queue: LsfQueue
) -> dict[str, Idle]:
    """Return hosts as a harvester needs them, by name; bhosts does not show their memory.

    Parameters
    ----------
    loads : Mapping of str to Load
        Host → its use.
    gpus : Mapping of str to sequence of LsfGpu
        Host → its GPUs, if they are known.
    queue : LsfQueue
        The queue of leases.
    """
    found = {}
    for name, load in loads.items():
        have = gpus.get(name, ())
        models = {gpu.model for gpu in have}
        found[name] = Idle(
            name,
            load.idle and queue.starts_jobs and not any(gpu.jobs for gpu in have),
            planned=load.kept > 0,
            gpus=len(have) if load.gpus is None else load.gpus,
            kind=models.pop() if len(models) == 1 else "",
            cpus=load.slots or 0,
            memory_mb=0,
            limit_s=queue.limit_s,
            lost=load.status in GONE,
        )
    return found


def ends(
    loads: Mapping[str, Load],
    windows: Iterable[BackfillWindow],
    reserved: Iterable[Reserved],
    now_s: float,
    *,
    backfill: bool,
) -> dict[str, float]:
    """Return when hosts are needed, if that is known: host → epoch seconds.

    Parameters
    ----------
    loads : Mapping[str, Load]
    windows : iterable of BackfillWindow
        The output of bslots; none if there is no bslots.
    reserved : iterable of Reserved
    now_s : float
        Epoch seconds.
    backfill : bool
        Whether jobs of the queue may use slots that are kept for others. If not, or if no window
        covers all of a host, a kept host is needed now.
    """
    found: dict[str, float] = {}
    offered: dict[str, float] = {}
    for window in windows:
        for name, slots in window.hosts.items():
            load = loads.get(name)
            if load is not None and slots >= (load.slots or 1):
                offered[name] = max(window.run_s, offered.get(name, 0.0))
    for name, load in loads.items():
        if load.kept and not backfill:
            found[name] = now_s
        elif name in offered or load.kept:
            found[name] = now_s + offered.get(name, 0.0)
    for each in reserved:
        for name in each.hosts:
            found[name] = min(each.start_s, found.get(name, math.inf))
    return {name: end for name, end in found.items() if end < math.inf}


def _records(text: str) -> list[dict[str, str]]:
    if text.lstrip().startswith("{"):
        try:
            rows = decoded(text)["RECORDS"]
            return [{str(key): str(value) for key, value in row.items()} for row in rows]
        except (ValueError, LookupError, TypeError, AttributeError):
            raise BatchError(f"bhosts printed {shown(text.strip())}, not JSON") from None
    columns: list[str] = []
    found = []
    for line in text.splitlines():
        words = [word.strip() for word in line.split("|")] if "|" in line else line.split()
        if _TABLE.match(line):
            columns = words
        elif words:
            found.append(dict(zip(columns, words, strict=False)))
    if not columns:
        raise BatchError(f"bhosts printed {shown(text.strip())}, not a list of hosts")
    return found
