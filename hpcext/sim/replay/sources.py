"""The nodes for simulated jobs: a machine that stays, or nodes that come and go."""

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
from hpcext.sim.replay.mainqueue import EASY, MainQueue
from hpcext.sim.traces.generate import find_machine, generate
from hpcext.sim.traces.idle import NodeChange, read_idle
from hpcext.sim.traces.swf import read_swf
from hpcext.text import shown

MOST_GPUS = 1_000_000
"""Largest number of GPUs: more than any machine has, and still quickly divided."""

VALID = "NxGPUS, or NxKIND:GPUS for each kind, such as 16x4 or 2xa100:4,4xv100:8"

_GROUP = re.compile(r"([0-9]{1,7})x(?:([A-Za-z][\w.-]{0,99}):)?([0-9]{1,7})")

Changes = Iterable[tuple[float, tuple[Fact, ...]]]


class NodeGroup(NamedTuple):
    """A group of equal nodes: their number, the GPUs of each, and their kind."""

    nodes: int
    gpus: int
    kind: str = ""


class Source(NamedTuple):
    """A source of nodes.

    Attributes
    ----------
    text : str
        Its name in a report.
    nodes : tuple of Node
        Nodes that are there from the beginning.
    changes : callable
        Given a seed, returns the nodes that come and go, in order of time; a new stream each time.
    files : tuple of Path
        Files that it reads.
    read : callable
        Reads these to the end, to find errors in them.
    """

    text: str
    nodes: tuple[Node, ...] = ()
    changes: Callable[[int], Changes] = lambda _: ()
    files: tuple[Path, ...] = ()
    read: Callable[[], Iterable[object]] = tuple


def read_nodes(text: str, where: str = "--nodes", valid: str = VALID) -> tuple[Node, ...]:
    """Parse nodes such as ``16x4``, or ``2xa100:4,4xv100:8`` for several kinds.

    Parameters
    ----------
    text : str
    where, valid : str
        The option, and valid values, for messages.

    Raises
    ------
    InputError
        The text is neither, or the machine is too large.
    """
    groups = []
    for part in text.split(","):
        found = _GROUP.fullmatch(part.strip())
        if found is None:
            raise InputError(shown(part), where=where, valid=valid)
        groups.append(NodeGroup(int(found[1]), int(found[3]), found[2] or ""))
    return numbered(groups, where, where)


def numbered(groups: Iterable[NodeGroup], nodes: str, gpus: str) -> tuple[Node, ...]:
    """Return the nodes of some groups, with numbered names.

    Parameters
    ----------
    groups : iterable of NodeGroup
    nodes, gpus : str
        The options for the number of nodes, and for the GPUs of each, for messages.

    Raises
    ------
    InputError
        There are no nodes, or too many.
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
    """Return a machine whose nodes never change."""
    return Source(f"nodes {text}", read_nodes(text))


def idle(text: str, *, gpus: int = 1, skip: int = 0, known: bool = False) -> Source:
    """Return the idle nodes of a trace, or of a generated machine (``summit:hours=48``).

    Parameters
    ----------
    text : str
        A file, or the name of a machine.
    gpus : int
        GPUs of a node.
    skip : int
        Changes to skip at the beginning.
    known : bool
        See :func:`facts`.

    Raises
    ------
    InputError
        There is no such file or machine.
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
    path: Path,
    nodes: int,
    *,
    gpus: int = 1,
    per_node: int = 1,
    known: bool = False,
    backfill: str = EASY,
) -> Source:
    """Return the holes of a main queue that runs the jobs of a log by FCFS with backfill.

    The nodes that are planned for the first waiting job are reported with them.

    Parameters
    ----------
    path : Path
        The log.
    nodes : int
    gpus : int
        GPUs of a node.
    per_node : int
        Processors of a node, as the log counts them.
    known : bool
        See :func:`facts`.
    backfill : {"easy", "conservative"}
    """

    def changes(_: int) -> Changes:
        queue = MainQueue(nodes, procs_per_node=per_node, backfill=backfill)
        return facts(queue.changes(read_swf(path), planned=True), gpus, known=known)

    how = "" if backfill == EASY else f" by {backfill} backfill"
    named = f"holes of {path} on {nodes} nodes{how}"
    return Source(named, changes=changes, files=(path,), read=lambda: read_swf(path))


def _hours(options: str) -> float:
    """Parse ``hours=N``; without it, there is no end."""
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
    changes: Iterable[NodeChange], gpus: int, skip: int = 0, *, known: bool = False
) -> Iterator[tuple[float, tuple[Fact, ...]]]:
    """Yield changes of idle nodes as facts; the first is at 0 s, with all before it.

    The end of an idle node that policies are told is the planned start on it in the main queue.
    When that changes, the fact about the node is repeated.

    Parameters
    ----------
    changes : iterable of NodeChange
    gpus : int
        GPUs of a node.
    skip : int
        Changes to skip at the beginning.
    known : bool
        Whether to state for each node when it will leave, which is really unknown: all changes are
        read before the first fact, and plans are ignored.

    Raises
    ------
    InputError
        The trace has no more changes than are skipped.
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
        raise InputError(f"{skip}: the trace has no more changes than this", where="--skip")


def _move(there: dict[int, float], change: NodeChange) -> None:
    """Update the idle nodes, and the beginnings of their idle times, by a change."""
    for number in change.left:
        there.pop(number, None)
    there.update(dict.fromkeys(change.joined, change.time_s))


class _Truth:
    """The true times at which nodes leave, whatever was planned."""

    def __init__(self, changes: Iterable[NodeChange]) -> None:
        self._ends: dict[tuple[int, float], float] = {}
        there: dict[int, float] = {}
        for change in changes:
            for number in change.left:
                if number in there:
                    self._ends[number, there[number]] = change.time_s
            _move(there, change)

    def moved(self, _: NodeChange, there: Container[int]) -> set[int]:
        """Return the nodes whose stated end has changed: none."""
        return set()

    def of(self, number: int, since_s: float) -> float:
        """Return when a node leaves; infinite if it does not in this trace."""
        return self._ends.get((number, since_s), math.inf)


class _Plan:
    """The times at which nodes must be given back, as planned by the main queue."""

    def __init__(self) -> None:
        self._ends: dict[int, float] = {}

    def moved(self, change: NodeChange, there: Container[int]) -> set[int]:
        """Record the new plan; return the idle nodes whose end has changed."""
        before, after = self._ends, dict[int, float]()
        if change.planned_s is not None:
            after = {each: change.planned_s for each in change.planned if each in there}
        self._ends = after
        if after == before:
            return set()
        both = before.keys() | after.keys()
        return {each for each in both if each in there and before.get(each) != after.get(each)}

    def of(self, number: int, _: float) -> float | None:
        """Return when a node must be given back, if a job is planned on it."""
        return self._ends.get(number)
