"""Logs of batch jobs in the Standard Workload Format.

The format: https://www.cs.huji.ac.il/labs/parallel/workload/swf.html. A line is a job with 18
numbers, -1 where one is not known; lines that begin with ``;`` are the header.
"""

from __future__ import annotations

import heapq
import math
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from hpcext.core.errors import InputError
from hpcext.sim.traces.lines import parsed, place, read_lines, write_lines
from hpcext.text import clean, shown

FIELDS = 18
MOST_LINE_BYTES = 64 << 10
REORDER = 100_000
"""Jobs that are held back until one that was submitted earlier can no longer come."""

MOST = 1e15
"""Of any number; and seconds are exact below it."""

UNKNOWN = -1
FAILED, COMPLETED, PARTIAL, PARTIAL_END, PARTIAL_FAILED, CANCELLED = range(6)
"""What a status means; PARTIAL and the two after it are parts of a job that the log lists apart."""

_HEADER = re.compile(r";\s*([A-Za-z][\w ]*?)\s*:\s*(.*?)\s*\Z")


class SwfJob(NamedTuple):
    """A job of a log; -1 where something is not known.

    Attributes
    ----------
    number : int
    submit_s : float
        From the beginning of the log, or as the log has it.
    wait_s, run_s : float
    procs : int
        Processors that it had.
    procs_requested : int
    walltime_s : float
        How long it asked for.
    status : int
        1 completed, 0 failed, 5 cancelled.
    user, group, queue, partition : int
    """

    number: int
    submit_s: float
    wait_s: float = UNKNOWN
    run_s: float = UNKNOWN
    procs: int = UNKNOWN
    procs_requested: int = UNKNOWN
    walltime_s: float = UNKNOWN
    status: int = UNKNOWN
    user: int = UNKNOWN
    group: int = UNKNOWN
    queue: int = UNKNOWN
    partition: int = UNKNOWN

    @property
    def wanted(self) -> int:
        """Processors: those that it asked for, else those that it had."""
        return self.procs_requested if self.procs_requested > 0 else self.procs


PLACES = (0, 1, 2, 3, 4, 7, 8, 10, 11, 12, 14, 15)
"""Where the fields of :class:`SwfJob` are in a line, from 0."""


def read_header(path: Path) -> dict[str, str]:
    """What the header says, as ``{"MaxNodes": "4360"}``.

    Raises
    ------
    InputError
        As :func:`read_swf`, for the header.
    """
    found = {}
    for _, line in read_lines(path, MOST_LINE_BYTES):
        if line.strip() and not line.startswith(";"):
            break
        if match := _HEADER.match(line):
            found[match[1]] = match[2]
    return found


def header_count(header: Mapping[str, str], key: str) -> int | None:
    """A positive number of the header, as that of ``MaxNodes``; None if it does not say it."""
    found = re.match(r"[0-9]{1,9}\b", header.get(key, ""))
    return int(found[0]) or None if found else None


def read_swf(path: Path, *, reorder: int | None = REORDER) -> Iterator[SwfJob]:
    """Read a log, one job at a time, in the order of submission.

    Logs that are written when jobs end are not in that order. So many jobs as `reorder` says are
    held back; a job that comes later than that is an error. Jobs that were submitted at the same
    time keep the order of the file. Parts of a job that are listed apart (statuses 2 to 4) are left
    out: the job has a line of its own.

    Parameters
    ----------
    path : pathlib.Path
        Compressed with gzip or not.
    reorder : int or None
        0: the log has to be in order. None: as it is, whatever the order.

    Yields
    ------
    SwfJob

    Raises
    ------
    InputError
        Names the line that is damaged or out of order.
    """
    if reorder is None:
        return (job for _, job in _numbered(path))
    return in_order(_numbered(path), path, reorder)


def _numbered(path: Path) -> Iterator[tuple[int, SwfJob]]:
    """The jobs of a log, each with the number of its line."""
    number = 0
    for number, job in parsed(path, _parse, MOST_LINE_BYTES):
        if not PARTIAL <= job.status <= PARTIAL_FAILED:
            yield number, job
    if not number:
        raise InputError("no jobs in it", where=clean(str(path)))


def _parse(lines: Iterable[str]) -> Iterator[SwfJob]:
    return (parse_job(line) for line in lines if line[:1] not in {"", ";"} and not line.isspace())


def in_order(
    jobs: Iterable[tuple[int, SwfJob]], path: Path, reorder: int = REORDER
) -> Iterator[SwfJob]:
    """Jobs by their submission, where they are nearly so; `jobs` with the numbers of their lines.

    Raises
    ------
    InputError
        One was submitted before one that had to be given away already, as `reorder` are held back.
    """
    held: list[tuple[float, int, SwfJob]] = []
    last_s = -math.inf
    for number, job in jobs:
        if job.submit_s < last_s:
            raise _too_late(path, number, job, reorder)
        item = (job.submit_s, number, job)
        if len(held) < reorder:
            heapq.heappush(held, item)
            continue
        item = heapq.heappushpop(held, item) if reorder else item
        last_s = item[0]
        yield item[2]
    while held:
        yield heapq.heappop(held)[2]


def _too_late(path: Path, number: int, job: SwfJob, reorder: int) -> InputError:
    after = f"one of {reorder} jobs or more before it" if reorder else "the one before it"
    what = f"job {job.number} was submitted earlier than {after}"
    return InputError(
        what, where=place(path, number), do="sort it by submission, or say a larger --reorder"
    )


def parse_job(line: str) -> SwfJob:
    """Read one line.

    Raises
    ------
    InputError
        It has not 18 numbers, or one of them cannot be.
    """
    cells = line.split()
    if len(cells) != FIELDS:
        raise InputError(f"{len(cells)} fields", valid=f"{FIELDS} numbers, -1 where one is unknown")
    numbers = [_number(cells[at]) for at in PLACES]
    for name, number in zip(SwfJob._fields, numbers, strict=True):
        least = 0 if name in {"number", "submit_s"} else UNKNOWN
        if not least <= number <= MOST:
            raise InputError(f"{name} {number:g}", valid=f"{least} to {MOST:.0e}")
        if number != int(number) and not name.endswith("_s"):
            raise InputError(f"{name} {number:g}", valid="a whole number")
    return SwfJob(*(int(each) if each == int(each) else each for each in numbers))  # type: ignore[arg-type]


def _number(cell: str) -> float:
    """An int where it is one: the format has hardly anything else."""
    try:
        # Python reads no integer of more than 4,300 digits.
        return int(cell) if len(cell) <= 20 else float(cell)
    except ValueError:
        pass
    try:
        return float(cell)
    except ValueError:
        raise InputError(shown(cell), valid="a number") from None


def write_swf(path: Path, jobs: Iterable[SwfJob], header: Mapping[str, object]) -> None:
    """Write a log.

    Parameters
    ----------
    path : pathlib.Path
        Compressed if it ends in ``.gz``. It is renamed into place when all is written.
    jobs : iterable of SwfJob
        By their submission.
    header : mapping
        As :func:`read_header` has it.
    """
    write_lines(path, _lines(jobs, header))


def _lines(jobs: Iterable[SwfJob], header: Mapping[str, object]) -> Iterator[str]:
    for key, value in header.items():
        yield f"; {key}: {clean(str(value))}"
    for job in jobs:
        cells = ["-1"] * FIELDS
        for at, value in zip(PLACES, job, strict=True):
            cells[at] = str(int(value)) if value == int(value) else repr(value)
        yield " ".join(cells)


class SwfStats(msgspec.Struct, frozen=True):
    """A log of jobs in figures; of the jobs that ran, but for `jobs` and the span.

    Attributes
    ----------
    jobs, ran : int
        In all, and those that ran.
    start_s, end_s : float
        First and last submission.
    procs, run_s, wait_s : float
        Means; of the last, of those that say it.
    accuracy : float
        Run time as a share of what was asked for, mean of those that say it.
    proc_s : float
        Processors times seconds.
    """

    jobs: int
    ran: int
    start_s: float
    end_s: float
    procs: float
    run_s: float
    wait_s: float
    accuracy: float
    proc_s: float


class SwfTally:
    """Looks at the jobs of a log as they pass."""

    def __init__(self) -> None:
        self._jobs = self._ran = self._waited = self._stated = 0
        self._start_s, self._end_s = math.inf, 0.0
        self._procs = self._run_s = self._wait_s = self._accuracy = self._proc_s = 0.0

    def __call__(self, jobs: Iterable[SwfJob]) -> Iterator[SwfJob]:
        """The same jobs, looked at."""
        for job in jobs:
            self._add(job)
            yield job

    def _add(self, job: SwfJob) -> None:
        self._jobs += 1
        self._start_s = min(self._start_s, job.submit_s)
        self._end_s = max(self._end_s, job.submit_s)
        if job.run_s <= 0 or job.wanted <= 0:
            return
        self._ran += 1
        self._procs += job.wanted
        self._run_s += job.run_s
        self._proc_s += job.wanted * job.run_s
        if job.wait_s >= 0:
            self._waited += 1
            self._wait_s += job.wait_s
        if job.walltime_s > 0:
            self._stated += 1
            self._accuracy += job.run_s / job.walltime_s

    def stats(self) -> SwfStats:
        """What was seen."""
        ran = max(1, self._ran)
        return SwfStats(
            self._jobs, self._ran, min(self._start_s, self._end_s), self._end_s,
            self._procs / ran, self._run_s / ran, self._wait_s / max(1, self._waited),
            self._accuracy / max(1, self._stated), self._proc_s,
        )  # fmt: skip


def swf_stats(jobs: Iterable[SwfJob]) -> SwfStats:
    """Look at a log, in one pass."""
    tally = SwfTally()
    deque(tally(jobs), maxlen=0)
    return tally.stats()
