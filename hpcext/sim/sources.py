"""Where simulated jobs run: a machine that stays, or nodes that come and go."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from hpcext.core.errors import InputError
from hpcext.core.facts import Fact, NodeJoined, NodeLost
from hpcext.core.values import Node
from hpcext.sim.mainqueue import MainQueue
from hpcext.sim.traces.generate import find_machine, generate
from hpcext.sim.traces.idle import Change, read_idle
from hpcext.sim.traces.swf import read_swf
from hpcext.text import shown

MOST_GPUS = 1_000_000
"""More than any machine has, and still quickly divided."""

VALID = "NxGPUS, or NxKIND:GPUS for each kind, as 16x4 or 2xa100:4,4xv100:8"

_GROUP = re.compile(r"([0-9]{1,7})x(?:([A-Za-z][\w.-]{0,99}):)?([0-9]{1,7})")

Changes = Iterable[tuple[float, tuple[Fact, ...]]]


class Group(NamedTuple):
    """So many nodes that are alike: GPUs of each, and the kind of these."""

    nodes: int
    gpus: int
    kind: str = ""


class Source(NamedTuple):
    """Nodes that jobs may have.

    Attributes
    ----------
    text : str
        How a report names it.
    nodes : tuple of Node
        There from the beginning.
    changes : callable
        By a seed: nodes that come and go, in order of time; anew at each call.
    files : tuple of Path
        What it is read from.
    read : callable
        These to their end, for the faults in them.
    """

    text: str
    nodes: tuple[Node, ...] = ()
    changes: Callable[[int], Changes] = lambda _: ()
    files: tuple[Path, ...] = ()
    read: Callable[[], Iterable[object]] = tuple


def read_nodes(text: str, where: str = "--nodes", valid: str = VALID) -> tuple[Node, ...]:
    """Nodes as ``16x4``, or as ``2xa100:4,4xv100:8``, which says it for several kinds.

    Raises
    ------
    InputError
        It is neither, or what it says is too large.
    """
    groups = []
    for part in text.split(","):
        found = _GROUP.fullmatch(part.strip())
        if found is None:
            raise InputError(shown(part), where=where, valid=valid)
        groups.append(Group(int(found[1]), int(found[3]), found[2] or ""))
    return numbered(groups, where, where)


def numbered(groups: Iterable[Group], nodes: str, gpus: str) -> tuple[Node, ...]:
    """The nodes of some groups, with names that count up.

    Parameters
    ----------
    groups : iterable of Group
    nodes, gpus : str
        The options that say how many nodes, and how many GPUs each.

    Raises
    ------
    InputError
        There are none, or too many.
    """
    made: list[Node] = []
    for group in groups:
        for where, number in ((gpus, group.gpus), (nodes, group.nodes)):
            if not 1 <= number <= MOST_GPUS:
                raise InputError(str(number), where=where, valid=f"1 to {MOST_GPUS}")
        all_ = group.nodes * group.gpus + sum(node.gpus for node in made)
        if all_ > MOST_GPUS:
            raise InputError(f"{all_} GPUs in all", where=nodes, valid=f"at most {MOST_GPUS}")
        first = len(made) + 1
        names = (f"node{number}" for number in range(first, first + group.nodes))
        made += [Node(name, group.gpus, group.kind) for name in names]
    return tuple(made)


def fixed(text: str) -> Source:
    """A machine that stays as it is."""
    return Source(f"nodes {text}", read_nodes(text))


def idle(text: str, *, gpus: int = 1, skip: int = 0) -> Source:
    """The idle nodes of a trace, or of a machine of which one is made up (``summit:hours=48``).

    Parameters
    ----------
    text : str
        A file, or the name of a machine.
    gpus : int
        Of a node.
    skip : int
        So many changes lie before the beginning.

    Raises
    ------
    InputError
        There is no such file and no such machine.
    """
    path = Path(text)
    named = text + (f", from change {skip} on" if skip else "")
    if path.suffix in {".csv", ".gz"} or path.exists():
        return Source(
            f"idle nodes of {named}",
            changes=lambda _: facts(read_idle(path), gpus, skip),
            files=(path,),
            read=lambda: facts(read_idle(path), gpus, skip),
        )
    name, _, options = text.partition(":")
    machine, hours = find_machine(name), _hours(options)
    return Source(
        f"idle nodes like those of {named}",
        changes=lambda seed: facts(generate(machine, seed, hours), gpus, skip),
    )


def holes(path: Path, nodes: int, *, gpus: int = 1, per_node: int = 1) -> Source:
    """The holes that a main queue leaves: the jobs of a log by FCFS and EASY backfill.

    Parameters
    ----------
    path : Path
        The log.
    nodes : int
    gpus : int
        Of a node.
    per_node : int
        Processors of a node, of which the log counts.
    """

    def changes(_: int) -> Changes:
        queue = MainQueue(nodes, procs_per_node=per_node)
        return facts(queue.changes(read_swf(path)), gpus)

    named = f"holes of {path} on {nodes} nodes"
    return Source(named, changes=changes, files=(path,), read=lambda: read_swf(path))


def _hours(options: str) -> float:
    """Of ``hours=N``; without, no end."""
    if not options:
        return math.inf
    key, _, value = options.partition("=")
    try:
        hours = float(value) if key == "hours" else math.nan
    except ValueError:
        hours = math.nan
    if not 0 < hours < math.inf:
        raise InputError(shown(options), where="--idle", valid="hours=NUMBER")
    return hours


def facts(
    changes: Iterable[Change], gpus: int, skip: int = 0
) -> Iterator[tuple[float, tuple[Fact, ...]]]:
    """Changes of idle nodes as facts; the first one that counts is at 0 s, with all before it.

    Raises
    ------
    InputError
        All are skipped.
    """
    following = iter(changes)
    there: set[int] = set()
    for change in itertools.islice(following, skip):
        there.difference_update(change.left)
        there.update(change.joined)
    first_s = None
    for change in following:
        if first_s is None:
            first_s = change.time_s
            there.difference_update(change.left)
            there.update(change.joined)
            change = Change(first_s, tuple(sorted(there)), ())  # noqa: PLW2901
        lost = [NodeLost(f"n{number}") for number in change.left]
        new = [NodeJoined(Node(f"n{number}", gpus)) for number in change.joined]
        yield change.time_s - first_s, (*lost, *new)
    if skip and first_s is None:
        raise InputError(f"{skip}: the trace has no more changes than that", where="--skip")
