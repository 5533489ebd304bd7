"""Nodes that an administrator has reserved for users, between two instants.

Whether a reservation holds is asked of the clock of the host at each look, and nothing is
remembered of it: if the clock is set, it holds as the clock then says.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from hpcext.broker.division import Reserved
from hpcext.checks import at, integer, known_keys, string, wrong
from hpcext.core.errors import InputError
from hpcext.harvest.leave import MOST_NODES
from hpcext.text import clean, shown

USER, GROUP, ACCOUNT = OWNERS = ("user", "group", "account")
"""Whom a reservation can be for: its key in the file."""

MOST = 256
"""The most reservations in a file."""

INSTANT = "a date and a time, as 2026-12-01T08:00:00"

_EXAMPLES = {"nodes": "16", "from": "2026-12-01T08:00:00", "to": "2026-12-01T18:00:00"}
"""The other keys, all of which there must be."""


class Reservation(NamedTuple):
    """Nodes for a user, or for all members of a group or an account together.

    Attributes
    ----------
    kind : {"user", "group", "account"}
    name : str
        Of that.
    nodes : int
    begins_at, ends_at : float
        Seconds since the epoch.
    """

    kind: str
    name: str
    nodes: int
    begins_at: float
    ends_at: float

    def holds(self, at_s: float) -> bool:
        """Return whether it is in force at an instant since the epoch."""
        return self.begins_at <= at_s < self.ends_at

    def of(self, users: Iterable[str], at_s: float) -> Reserved:
        """Return what is reserved for these users; the instant is that of now."""
        until = when(self.ends_at, at_s)
        return Reserved(self.nodes, frozenset(users), self.ends_at, until)

    @property
    def owner(self) -> str:
        """The name of whom it is for, as ``group physics``."""
        return f"{self.kind} {self.name}"


def when(at_s: float, now_s: float) -> str:
    """Return an instant as local time, without the date if that is today's.

    Parameters
    ----------
    at_s, now_s : float
        Seconds since the epoch.
    """
    then, now = time.localtime(at_s), time.localtime(now_s)
    return time.strftime("%H:%M" if then[:3] == now[:3] else "%Y-%m-%d %H:%M", then)


def next_change(reservations: Iterable[Reservation], at_s: float) -> float | None:
    """Return the next instant at which one begins or ends; None if there is none."""
    edges = (edge for each in reservations for edge in (each.begins_at, each.ends_at))
    return min((edge for edge in edges if edge > at_s), default=None)


def read(value: Any) -> tuple[Reservation, ...]:
    """Read the tables ``[[reservations]]``.

    Parameters
    ----------
    value : object
        As TOML has it.

    Raises
    ------
    InputError
        It is not a list of reservations.
    """
    if not isinstance(value, list):
        raise wrong(value, "tables, each below [[reservations]]")
    if len(value) > MOST:
        raise InputError(f"{len(value)} of them", valid=f"at most {MOST}", do="remove old ones")
    found = []
    for number, table in enumerate(value, 1):
        with at(f"{number}"):
            found.append(_reservation(table))
    return tuple(found)


def check(reservations: Sequence[Reservation], most: Callable[[Reservation], int | None]) -> None:
    """Refuse reservations that can never be had, since those of one owner add up.

    Parameters
    ----------
    reservations : sequence of Reservation
    most : callable
        Returns the limit of the owner of a reservation; None if there is none.

    Raises
    ------
    InputError
        At some instant they are more than the limit of their owner, or more than any machine has.
    """
    for number, each in enumerate(reservations, 1):
        # The sum is largest at an instant at which one begins.
        there = [other for other in reservations if other.holds(each.begins_at)]
        own = sum(other.nodes for other in there if other.owner == each.owner)
        limit, sum_ = most(each), sum(other.nodes for other in there)
        with at(f"{number}"):
            if limit is not None and own > limit:
                raise InputError(
                    f"{own} nodes for {clean(each.owner)} at one time, whose limit is {limit}",
                    do="raise the limit, or reserve less",
                )
            if sum_ > MOST_NODES:
                raise InputError(f"{sum_} nodes at one time", valid=f"at most {MOST_NODES}")


def _reservation(table: Any) -> Reservation:
    if not isinstance(table, dict):
        raise wrong(table, "a table")
    known_keys(table, (*OWNERS, *_EXAMPLES))
    owners = [kind for kind in OWNERS if kind in table]
    if len(owners) != 1:
        raise InputError(
            "is for nobody" if not owners else f"has {' and '.join(owners)}",
            valid="one of user, group, account",
        )
    for key, example in _EXAMPLES.items():
        if key not in table:
            raise InputError(f"no {key}", valid=f"{key} = {example}")
    with at(owners[0]):
        if not string(table[owners[0]]):
            raise InputError("empty", valid="a name")
    with at("nodes"):
        nodes = integer(table["nodes"], 1, MOST_NODES)
    with at("from"):
        begins_at = instant(table["from"])
    with at("to"):
        ends_at = instant(table["to"])
        if ends_at <= begins_at:
            raise InputError(shown(str(table["to"])), valid="an instant after `from`")
    return Reservation(owners[0], table[owners[0]], nodes, begins_at, ends_at)


def instant(value: Any) -> float:
    """Return the seconds since the epoch of a date and time of TOML, or in a string.

    Without an offset from UTC it is the local time of the host. A date alone is its midnight.

    Parameters
    ----------
    value : object

    Raises
    ------
    InputError
        It is no instant.
    """
    if isinstance(value, str):
        try:
            value = datetime.datetime.fromisoformat(value)
        except ValueError:
            raise InputError(shown(value), valid=INSTANT) from None
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        value = datetime.datetime.combine(value, datetime.time())
    if not isinstance(value, datetime.datetime):
        raise wrong(value, INSTANT)
    try:
        return value.timestamp()
    except (ValueError, OverflowError):
        raise InputError(shown(str(value)), valid=INSTANT) from None
