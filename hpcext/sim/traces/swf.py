"""Logs of batch jobs in the Standard Workload Format.

For the format see https://www.cs.huji.ac.il/labs/parallel/workload/swf.html. A line is a job with
18 numbers, -1 for unknown ones; lines that begin with ``;`` are the header.
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
"""Number of jobs to hold back, since a job that was submitted earlier may follow."""

MOST = 1e15
"""Largest number: below it, seconds are exact."""

UNKNOWN = -1
FAILED, COMPLETED, PARTIAL, PARTIAL_END, PARTIAL_FAILED, CANCELLED = range(6)
"""Statuses; PARTIAL and the two after it are of parts of a job that are listed separately."""

_HEADER = re.compile(r";\s*([A-Za-z][\w ]*?)\s*:\s*(.*?)\s*\Z")


class SwfJob(NamedTuple):
    """A job of a log; -1 stands for unknown values.

    Attributes
    ----------
    number : int
    submit_s : float
        Submission, in seconds from the beginning of the log, or as the log has it.
    wait_s, run_s : float
    procs : int
        Processors that it had.
    procs_requested : int
    walltime_s : float
        Time limit that it requested.
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
        """The processors that it requested, or else those that it had."""
        return self.procs_requested if self.procs_requested > 0 else self.procs


PLACES = (0, 1, 2, 3, 4, 7, 8, 10, 11, 12, 14, 15)
"""Columns of the fields of :class:`SwfJob` in a line, from 0."""


def read_header(path: Path) -> dict[str, str]:
    """Return the header, such as ``{"MaxNodes": "4360"}``.

    Raises
    ------
    InputError
        As in :func:`read_swf`, for the header.
    """
    found = {}
    for _, line in read_lines(path, MOST_LINE_BYTES):
        if line.strip() and not line.startswith(";"):
            break
        if match := _HEADER.match(line):
            found[match[1]] = match[2]
    return found


def header_count(header: Mapping[str, str], key: str) -> int | None:
    """Return a positive number of the header, such as ``MaxNodes``; None if there is none."""
    found = re.match(r"[0-9]{1,9}\b", header.get(key, ""))
    return int(found[0]) or None if found else None


def read_swf(path: Path, *, reorder: int | None = REORDER) -> Iterator[SwfJob]:
    """Read a log, one job at a time, in the order of submission.

    Logs that are written when jobs end are not in that order, so `reorder` jobs are held back; a
    job that comes later than that is an error. Jobs that were submitted at the same time keep the
    order of the file. Parts of a job that are listed separately (statuses 2 to 4) are left out,
    because the job has a line of its own.

    Parameters
    ----------
    path : pathlib.Path
        Compressed with gzip or not.
    reorder : int or None
        0: the log must be in order. None: keep the order of the file.

    Yields
    ------
    SwfJob

    Raises
    ------
    InputError
        A line is damaged or out of order; the message names it.
    """
    if reorder is None:
        return (job for _, job in _numbered(path))
    return in_order(_numbered(path), path, reorder)


def _numbered(path: Path) -> Iterator[tuple[int, SwfJob]]:
    """Yield the jobs of a log, each with the number of its line."""
    number = 0
    for number, job in parsed(path, _parse, MOST_LINE_BYTES):
        if not PARTIAL <= job.status <= PARTIAL_FAILED:
            yield number, job
    if not number:
        raise InputError("it has no jobs", where=clean(str(path)))


def _parse(lines: Iterable[str]) -> Iterator[SwfJob]:
    return (parse_job(line) for line in lines if line[:1] not in {"", ";"} and not line.isspace())


def in_order(
    jobs: Iterable[tuple[int, SwfJob]], path: Path, reorder: int = REORDER
) -> Iterator[SwfJob]:
    """Sort jobs that are nearly in the order of submission.

    Parameters
    ----------
    jobs : iterable of (int, SwfJob)
        Jobs with the numbers of their lines.
    path : Path
        The file, for messages.
    reorder : int
        Number of jobs to hold back.

    Raises
    ------
    InputError
        A job was submitted before one that had already been yielded.
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
    after = f"a job at least {reorder} places before it" if reorder else "the job before it"
    what = f"job {job.number} was submitted earlier than {after}"
    return InputError(
        what,
        where=place(path, number),
        do="sort the log by submission, or give a larger --reorder",
    )


def parse_job(line: str) -> SwfJob:
    """Parse one line.

    Raises
    ------
    InputError
        It does not have 18 numbers, or one of them is impossible.
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
    """Return an int if the text is one: most numbers of the format are integers."""
    try:
        # Python refuses integers of more than 4,300 digits.
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
        Compressed if it ends in ``.gz``. The file is renamed into place when it is complete.
    jobs : iterable of SwfJob
        Jobs in the order of their submission.
    header : mapping
        Header, as returned by :func:`read_header`.
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
    """Statistics of the jobs of a log that ran; `jobs` and the span are those of all jobs.

    Attributes
    ----------
    jobs, ran : int
        Number of all jobs, and of those that ran.
    start_s, end_s : float
        First and last submission.
    procs, run_s, wait_s : float
        Means; that of the wait is over the jobs that state it.
    accuracy : float
        Mean run time as a share of the requested time, over the jobs that state it.
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
    """A tally of the jobs of a log while they are read."""

    def __init__(self) -> None:
        self._jobs = self._ran = self._waited = self._stated = 0
        self._start_s, self._end_s = math.inf, 0.0
        self._procs = self._run_s = self._wait_s = self._accuracy = self._proc_s = 0.0

    def __call__(self, jobs: Iterable[SwfJob]) -> Iterator[SwfJob]:
        """Yield the jobs, and count them."""
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
        """Return the statistics so far."""
        ran = max(1, self._ran)
        return SwfStats(
            self._jobs, self._ran, min(self._start_s, self._end_s), self._end_s,
            self._procs / ran, self._run_s / ran, self._wait_s / max(1, self._waited),
            self._accuracy / max(1, self._stated), self._proc_s,
        )  # fmt: skip


def swf_stats(jobs: Iterable[SwfJob]) -> SwfStats:
    """Return the statistics of a log, in one pass."""
    tally = SwfTally()
    deque(tally(jobs), maxlen=0)
    return tally.stats()
