"""Traces of sites with LSF: past jobs by ``bhist -l`` or ``bacct -l``.

Both print a block for each job: a line that begins with ``Job <ID>``, then a line for each event
with its time. Lines are broken after 80 columns, at any place, and continue after blanks; with
``-UF`` they are not broken. ``bhist`` also prints the run limit. For the formats see the LSF
Command Reference, bhist and bacct; lines of LSF 8 (``Dispatched to <host>``) are read as well.
"""

from __future__ import annotations

import calendar
import datetime
import fnmatch
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from hpcext.core.errors import InputError
from hpcext.sim.traces.slurm import Row
from hpcext.sim.traces.swf import CANCELLED, COMPLETED, FAILED, UNKNOWN, SwfJob
from hpcext.text import listed, shown

BHIST = "LSB_DISPLAY_YEAR=y bhist -a -l -UF -u all -n 0"
BACCT = "LSB_DISPLAY_YEAR=y bacct -l -UF -u all"
"""Commands whose output :func:`parse_lsf` reads."""

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MONTHS = tuple(calendar.month_abbr)[1:]

MOST_TEXT = 4 << 20
"""Longest event in broken lines, in characters: enough for the hosts of the largest machines."""

_JOB = re.compile(r"Job <([0-9]{1,12})(?:\[([0-9]{1,9})\])?>")
_EVENT = re.compile(
    rf"({'|'.join(DAYS)}) ({'|'.join(MONTHS)}) ([ 0-9][0-9]) "
    r"([0-9]{2}):([0-9]{2}):([0-9]{2})(?: ([0-9]{4}))?: (.*)"
)
_LIMIT = re.compile(r"\s*([0-9]{1,9}(?:\.[0-9]{1,6})?) min\b")
# Blanks are removed before matching, because a line may be broken anywhere.
_HOSTS = re.compile(
    r"(?:Allocated[0-9]+Slot\(s\)onHost\(s\)"
    r"|(?:Dispatched|Started)(?:[0-9]+Task\(s\))?(?:to|on)(?:Host\(s\)|[0-9]+Hosts/Processors)?)"
    r"((?:<[^<>]*>)+)"
)
_HOST = re.compile(r"<(?:([0-9]{1,9})\*)?([^<>]+)>")
_KILLED = re.compile(r"TERM_(?:OWNER|ADMIN|FORCE_OWNER|FORCE_ADMIN)")


class Event(NamedTuple):
    """An event of a job; its text is without blanks."""

    time_s: int
    text: str


class _Clock:
    """The conversion of times without a year: each is as near as possible to the one before."""

    def __init__(self, year: int | None) -> None:
        self._year = year
        self._last: datetime.date | None = None

    def seconds(self, found: re.Match[str]) -> int:
        """Return seconds since 1970, as if the time were UTC."""
        day, month, date, hour, minute, second, year, _ = found.groups()
        numbers = (MONTHS.index(month) + 1, int(date))
        try:
            when = self._date(int(year) if year else None, *numbers)
            at = datetime.datetime(when.year, *numbers, int(hour), int(minute), int(second))
        except ValueError:
            raise InputError(f"no such time: {shown(found[0][:25])}") from None
        if DAYS[when.weekday()] != day:
            fits = [y for y in range(when.year - 12, when.year + 13) if _falls_on(y, numbers, day)]
            years = listed(map(str, fits), most=30)
            what = f"{when.isoformat()} is not a {day}"
            raise InputError(what, do=f"give --year; {day} {month} {int(date)} occurs in {years}")
        self._last = when
        return calendar.timegm(at.timetuple())

    def _date(self, year: int | None, month: int, day: int) -> datetime.date:
        if year is not None:
            return datetime.date(year, month, day)
        if self._last is None:
            if self._year is None:
                do = "give the year of the first job with --year, or export with LSB_DISPLAY_YEAR=y"
                raise InputError("the times have no year", do=do)
            return datetime.date(self._year, month, day)
        last = self._last
        near = [
            datetime.date(each, month, day)
            for each in (last.year, last.year - 1, last.year + 1)
            if (month, day) != (2, 29) or calendar.isleap(each)
        ]
        if not near:
            raise ValueError(day)
        return min(near, key=lambda each: abs(each - last))


def _falls_on(year: int, numbers: tuple[int, int], day: str) -> bool:
    try:
        return DAYS[datetime.date(year, *numbers).weekday()] == day
    except ValueError:
        return False


class _Block:
    """The facts about one job so far."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.events: list[Event] = []
        self.limit_s: float = UNKNOWN


def parse_lsf(lines: Iterable[str], *, year: int | None = None, without: str = "") -> Iterator[Row]:
    """Parse the output of :data:`BHIST` or :data:`BACCT`.

    The processors of a job are its hosts. If a job was dispatched several times, the last one
    counts. The elements of an array have the id of the array.

    Parameters
    ----------
    lines : iterable of str
    year : int, optional
        Year of the first time, if LSF did not print it.
    without : str
        Pattern of hosts that are not nodes, such as ``batch*`` for launch hosts.

    Yields
    ------
    Row
        In the order of the output; submission times are seconds since 1970, in local time.

    Raises
    ------
    InputError
        Times are impossible, or have no year.
    """
    clock = _Clock(year)
    block: _Block | None = None
    open_, limit_next = False, False
    for line in lines:
        if found := _JOB.match(line):
            if block is not None:
                yield _row(block, without)
            block, open_, limit_next = _Block(int(found[1])), False, False
        elif block is None or not line.strip():
            open_ = False
        elif found := _EVENT.match(line):
            block.events.append(Event(clock.seconds(found), _unbroken(found[8])))
            open_ = True
        elif open_ and line.startswith(" " * 10):
            last = block.events[-1]
            if len(last.text) > MOST_TEXT:
                raise InputError(f"an event of more than {MOST_TEXT} characters")
            block.events[-1] = last._replace(text=last.text + _unbroken(line))
        elif limit_next and (found := _LIMIT.match(line)):
            block.limit_s = 60 * float(found[1])
        limit_next = line.split()[:1] == ["RUNLIMIT"]
    if block is not None:
        yield _row(block, without)


def _unbroken(text: str) -> str:
    return "".join(text.split())


def _row(block: _Block, without: str) -> Row:
    submits = [each for each in block.events if each.text.startswith("Submittedfromhost")]
    starts = [each for each in block.events if _HOSTS.search(each.text) and not _ends(each)]
    ends = [each for each in block.events if _ends(each)]
    if not submits:
        return Row(None, "no line says when it was submitted")
    if not ends:
        return Row(None, "it has not ended")
    submit_s, end = submits[0].time_s, ends[-1]
    status = COMPLETED if end.text.startswith(("Donesuccess", "Completed<done>")) else FAILED
    if status == FAILED and (not starts or _KILLED.search(end.text)):
        status = CANCELLED
    if not starts:
        return Row(SwfJob(block.number, submit_s, run_s=0, status=status))
    start = starts[-1]
    hosts = _hosts(start.text, without)
    job = SwfJob(
        number=block.number,
        submit_s=submit_s,
        wait_s=max(0, start.time_s - submit_s),
        run_s=max(0, end.time_s - start.time_s),
        procs=hosts,
        procs_requested=hosts,
        walltime_s=block.limit_s,
        status=status,
    )
    return Row(job)


def _ends(event: Event) -> bool:
    return event.text.startswith(("Donesuccess", "Exited", "Completed<"))


def _hosts(text: str, without: str) -> int:
    """Count the hosts of a job: the allocated ones, or else those it was dispatched to."""
    lists = _HOSTS.findall(text)
    names = {name for _, name in _HOST.findall(lists[-1])}
    return sum(not (without and fnmatch.fnmatchcase(name, without)) for name in names)
