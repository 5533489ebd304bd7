"""Where simulated jobs run: a machine that stays, or nodes that come and go."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Container, Iterable, Iterator
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


def idle(text: str, *, gpus: int = 1, skip: int = 0, known: bool = False) -> Source:
    """The idle nodes of a trace, or of a machine of which one is made up (``summit:hours=48``).

    Parameters
    ----------
    text : str
        A file, or the name of a machine.
    gpus : int
        Of a node.
    skip : int
        So many changes lie before the beginning.
    known : bool
        See :func:`facts`.

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
            changes=lambda _: facts(read_idle(path), gpus, skip, known=known),
            files=(path,),
            read=lambda: facts(read_idle(path), gpus, skip),
        )
    name, _, options = text.partition(":")
    machine, hours = find_machine(name), _hours(options)
    return Source(
        f"idle nodes like those of {named}",
        changes=lambda seed: facts(generate(machine, seed, hours), gpus, skip, known=known),
    )


def holes(
    path: Path, nodes: int, *, gpus: int = 1, per_node: int = 1, known: bool = False
) -> Source:
    """The holes that a main queue leaves: the jobs of a log by FCFS and EASY backfill.

    What is planned for the first waiting job is told with them.

    Parameters
    ----------
    path : Path
        The log.
    nodes : int
    gpus : int
        Of a node.
    per_node : int
        Processors of a node, of which the log counts.
    known : bool
        See :func:`facts`.
    """

    def changes(_: int) -> Changes:
        queue = MainQueue(nodes, procs_per_node=per_node)
        return facts(queue.changes(read_swf(path), planned=True), gpus, known=known)

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
    changes: Iterable[Change], gpus: int, skip: int = 0, *, known: bool = False
) -> Iterator[tuple[float, tuple[Fact, ...]]]:
    """Changes of idle nodes as facts; the first one that counts is at 0 s, with all before it.

    What the main queue has planned on an idle node is the end that is told of it; when that
    changes, the node is told of again.

    Parameters
    ----------
    changes : iterable of Change
    gpus : int
        Of a node.
    skip : int
        So many changes lie before the beginning.
    known : bool
        Each node is said to leave when it will, which nobody can know: all changes are read before
        the first one is told. Plans are not looked at then.

    Raises
    ------
    InputError
        All are skipped.
    """
    ends: _Truth | _Plan = _Plan()
    if known:
        changes = list(changes)
        ends = _Truth(changes)
    following = iter(changes)
    there: dict[int, float] = {}
    for change in itertools.islice(following, skip):
        _move(there, change)
    first_s = None
    for change in following:
        _move(there, change)
        if first_s is None:
            first_s = change.time_s
            change = change._replace(joined=tuple(sorted(there)), left=())  # noqa: PLW2901
        again = ends.moved(change, there).difference(change.joined)
        new = []
        for number in (*change.joined, *sorted(again)):
            since_s = there[number]
            end_s = ends.of(number, since_s)
            end_s = None if end_s is None else end_s - first_s
            new.append(NodeJoined(Node(f"n{number}", gpus, "", since_s - first_s, end_s)))
        lost = [NodeLost(f"n{number}") for number in change.left]
        yield change.time_s - first_s, (*lost, *new)
    if skip and first_s is None:
        raise InputError(f"{skip}: the trace has no more changes than that", where="--skip")


def _move(there: dict[int, float], change: Change) -> None:
    """Nodes that are idle, and since when, after a change."""
    for number in change.left:
        there.pop(number, None)
    there.update(dict.fromkeys(change.joined, change.time_s))


class _Truth:
    """When each node leaves, whatever was planned."""

    def __init__(self, changes: Iterable[Change]) -> None:
        self._ends: dict[tuple[int, float], float] = {}
        there: dict[int, float] = {}
        for change in changes:
            for number in change.left:
                if number in there:
                    self._ends[number, there[number]] = change.time_s
            _move(there, change)

    def moved(self, _: Change, there: Container[int]) -> set[int]:
        """Nodes of which something else holds than was told: none."""
        return set()

    def of(self, number: int, since_s: float) -> float:
        """When it leaves; infinite: not in this trace."""
        return self._ends.get((number, since_s), math.inf)


class _Plan:
    """When nodes are to be given back, as far as the main queue has planned."""

    def __init__(self) -> None:
        self._ends: dict[int, float] = {}

    def moved(self, change: Change, there: Container[int]) -> set[int]:
        """Take in what is planned now: the idle nodes of which it is something else than before."""
        before, after = self._ends, dict[int, float]()
        if change.planned_s is not None:
            after = {each: change.planned_s for each in change.planned if each in there}
        self._ends = after
        if after == before:
            return set()
        both = before.keys() | after.keys()
        return {each for each in both if each in there and before.get(each) != after.get(each)}

    def of(self, number: int, _: float) -> float | None:
        """When it is to be given back, if something is planned on it."""
        return self._ends.get(number)
