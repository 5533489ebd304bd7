"""Tables of a broker's file: what users have, alone and together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from hpcext.broker import classes
from hpcext.broker.division import Share
from hpcext.checks import at, integer, known_keys, number, wrong
from hpcext.harvest.leave import MOST_NODES
from hpcext.text import clean

TOGETHER = "together"
"""The key of the limit of all members of a group or an account."""

LIMITS = "limits"
"""The key of limits by class of nodes."""

_SHARE: Mapping[str, Callable[[Any], Any]] = {
    "weight": lambda value: number(value, 0, 1e6, above=True),
    "priority": lambda value: number(value, -1e6, 1e6),
    "limit": lambda value: integer(value, 0, MOST_NODES),
}


def read_share(value: Any, usual: Share, known: Collection[str] = ()) -> Share:
    """Read a table of what a user has.

    Parameters
    ----------
    value : object
        What the file has.
    usual : Share
        What the table does not say; of the limits by class, each one.
    known : collection of str
        Classes of nodes.

    Raises
    ------
    InputError
        It is invalid.
    """
    known_keys(table(value), (*_SHARE, LIMITS))
    said: dict[str, Any] = {}
    for name, each in value.items():
        with at(name):
            if name == LIMITS:
                said[name] = {**usual.limits, **classes.read_limits(each, known)}
            else:
                said[name] = _SHARE[name](each)
    return usual._replace(**said)


def read_shares(value: Any, usual: Share, known: Collection[str] = ()) -> dict[str, Share]:
    """Read tables of several users or groups by their names.

    Parameters
    ----------
    value, usual, known
        As for :func:`read_share`.

    Raises
    ------
    InputError
        One of them is invalid.
    """
    found = {}
    for name, each in table(value).items():
        with at(clean(name)):
            found[name] = read_share(each, usual, known)
    return found


def pooled(value: Any, kind: str, pools: dict[str, int]) -> dict[str, dict[str, Any]]:
    """Return tables without the limits of all members, which are put into `pools`.

    Parameters
    ----------
    value : object
        What the file has.
    kind : str
        What the names of the pools begin with.
    pools : dict of str to int

    Raises
    ------
    InputError
        A table or a limit is invalid.
    """
    found = {}
    for name, each in table(value).items():
        with at(clean(name)):
            rest = dict(table(each))
            if TOGETHER in rest:
                with at(TOGETHER):
                    pools[f"{kind}{name}"] = integer(rest.pop(TOGETHER), 0, MOST_NODES)
        found[name] = rest
    return found


def table(value: Any) -> dict[str, Any]:
    """Return a value of the file that must be a table."""
    if not isinstance(value, dict):
        raise wrong(value, "a table")
    return value
