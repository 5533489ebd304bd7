"""Advance reservations of LSF: their hosts, and when they begin (brsvs(1))."""

from __future__ import annotations

import re
import time
from typing import NamedTuple

from hpcext.core.errors import BatchError
from hpcext.numerals import whole
from hpcext.text import shown

_DAY_S = 86_400.0


class Reserved(NamedTuple):
    """An advance reservation: its name, its begin in epoch seconds, or now, and its hosts."""

    name: str
    start_s: float
    hosts: tuple[str, ...]


def reserved_command() -> list[str]:
    """Return the brsvs(1) command that asks for all advance reservations, with full names."""
    return ["brsvs", "-w"]


def parse_reserved(text: str, now_s: float) -> tuple[Reserved, ...]:
    """Parse rows of RSVID, TYPE, USER, NCPUS, RSV_HOSTS and TIME_WINDOW, and further rows of hosts.

    Parameters
    ----------
    text : str
    now_s : float
        The present instant, in epoch seconds: windows have no year, or recur each day or week
        (``*``).
    """
    found: list[Reserved] = []
    # With -w there are blanks around the slashes.
    for line in re.sub(r" +/ +", "/", text).splitlines():
        hosts = tuple(
            re.findall(r"(?<=\s)([^\s:/]+):(?:-|[0-9]+)(?:/(?:-|[0-9]+))?(?=\s|$)", f" {line}")
        )
        window = re.search(r"(?<=\s)([0-9:/]+)-([0-9:/]+)(\s*\*)?(?=\s|$)", line)
        if window and not line[:1].isspace():
            start = _next_start(window[1], window[2], bool(window[3]), now_s)
            found.append(Reserved(line.split()[0], start, hosts))
        elif found and hosts and line[:1].isspace():
            found[-1] = found[-1]._replace(hosts=found[-1].hosts + hosts)
    return tuple(found)


def _next_start(begin: str, end: str, again: bool, now_s: float) -> float:
    """Return when a window begins, or now if it has begun."""
    if not again and "/" in begin:
        start, over = _instant(begin, now_s), _instant(end, now_s)
        if over < start:
            # They are in different years, which neither of them states.
            year = time.localtime(now_s).tm_year
            if over < now_s - _DAY_S:
                over = _instant(f"{year + 1}/{end}", now_s)
            else:
                start = _instant(f"{year - 1}/{begin}", now_s)
        elif over < now_s - _DAY_S:
            start = _instant(f"{time.localtime(now_s).tm_year + 1}/{begin}", now_s)
        return max(start, now_s)
    first, last = _minute(begin), _minute(end)
    period = 7 * 1440 if begin.count(":") == 2 else 1440
    here = time.localtime(now_s)
    today = (here.tm_wday + 1) % 7 if period > 1440 else 0
    now = (today * 24 + here.tm_hour) * 60 + here.tm_min
    if (now - first) % period < ((last - first) % period or period):
        return now_s
    return now_s - here.tm_sec + (first - now) % period * 60


def _instant(text: str, now_s: float) -> float:
    """Parse ``[YEAR/]MONTH/DAY/HOUR/MINUTE``, in local time."""
    numbers = [n for part in text.split("/") if (n := whole(part, 4)) is not None]
    if len(numbers) == 4:
        numbers.insert(0, time.localtime(now_s).tm_year)
    if len(numbers) != 5:
        raise BatchError(f"brsvs printed {shown(text)}, not a time")
    year, month, day, hour, minute = numbers
    return time.mktime((year, month, day, hour, minute, 0, 0, 0, -1))


def _minute(text: str) -> int:
    """Return the minute of the day, or of the week from Sunday on: ``[DAY:]HOUR[:MINUTE]``."""
    parts = [n for n in map(whole, text.split(":")) if n is not None]
    if not 1 <= len(parts) <= 3:
        raise BatchError(f"brsvs printed {shown(text)}, not a time of day")
    days, hours, minutes = parts if len(parts) == 3 else (0, *[*parts, 0][:2])
    return (days * 24 + hours) * 60 + minutes
