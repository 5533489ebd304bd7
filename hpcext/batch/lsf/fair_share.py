"""The fair share of LSF's users: dynamic priorities, as bqueues(1) and bhpart(1) print them.

LSF has no factor from 0 to 1. It has a dynamic priority for each user and group, shares over what
was used lately, in a tree: the first table is that of the queue, and a group in it may have a table
of its own. LSF compares priorities within a table alone, from the top down ("Hierarchical
user-based fair share"), because their sizes depend on the site's shares and weights. So a priority
counts here as a part of the largest one of its table, and what comes out for a user is multiplied
with what came out for the groups above.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpcext.batch.leasing import Association

_TITLE = re.compile(r"\s*SHARE_INFO_FOR:\s*(\S+)\s*\Z")
_NUMBER = re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,18})?\Z")
_NAME, _PRIORITY = "USER/GROUP", "PRIORITY"

NOBODY = frozenset({"all", "default", "others"})
"""Names of rows that stand for users without a row of their own (lsb.queues, FAIRSHARE)."""


def queue_shares_command(queue: str) -> list[str]:
    """Return the bqueues(1) command that asks for the share tree of a queue."""
    return ["bqueues", "-r", queue]


def partition_shares_command() -> list[str]:
    """Return the bhpart(1) command that asks for the share trees of all host partitions."""
    return ["bhpart", "-r"]


def parse_shares(text: str) -> tuple[Association, ...]:
    r"""Parse the tables ``SHARE_INFO_FOR`` of bqueues or bhpart; LSF has no accounts.

    A group without a table of its own is like a user: the output does not say which it is.

    Examples
    --------
    >>> head = "USER/GROUP SHARES PRIORITY STARTED\n"
    >>> top = f"SHARE_INFO_FOR: q/\n{head}ann 1 2.0 0\nteam 1 4.0 0\n"
    >>> for each in parse_shares(f"{top}SHARE_INFO_FOR: q/team/\n{head}bob 1 0.1 0\n"):
    ...     print(each.user, each.factor)
    ann 0.5
    bob 1.0
    """
    tables: dict[str, dict[str, float]] = {}
    for path, name, priority in _rows(text):
        tables.setdefault(path, {})[name] = priority
    above: dict[str, float] = {}
    found = []
    # A group before its members.
    for path in sorted(tables, key=lambda path: path.count("/")):
        factor = above.get(path) if "/" in path else 1.0
        if factor is None:
            # Of a group that no table has.
            continue
        largest = max(tables[path].values())
        for name, priority in tables[path].items():
            own = factor * (priority / largest if largest > 0 else 1.0)
            if f"{path}/{name}" in tables:
                above[f"{path}/{name}"] = own
            elif name not in NOBODY:
                found.append(Association(name, (), own))
    return tuple(found)


def _rows(text: str) -> Iterator[tuple[str, str, float]]:
    """Yield the table, the name and the priority of each row."""
    path = ""
    columns: list[str] = []
    for line in text.splitlines():
        words = line.split()
        if titled := _TITLE.match(line):
            path, columns = titled[1].strip("/"), []
        elif path and not columns:
            # The columns after these differ between releases.
            known = words[:1] == [_NAME] and _PRIORITY in words
            path, columns = (path, words) if known else ("", [])
        elif path and len(words) > (at := columns.index(_PRIORITY)) and _NUMBER.match(words[at]):
            yield path, words[0].rstrip("/"), max(0.0, float(words[at]))
        else:
            path = ""
