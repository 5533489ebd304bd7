"""Classes of nodes in the settings of a broker: which nodes are of which class."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from hpcext.broker.by_class import NONE, Layout
from hpcext.checks import at, integer, known_keys, string, wrong
from hpcext.core.errors import InputError
from hpcext.harvest.leave import MOST_NODES
from hpcext.numerals import whole
from hpcext.text import clean, counted, shown

MOST_CLASSES = 64
"""The most classes of a site."""

_HOSTLIST = 'a hostlist such as "gpu[001-016],gpu020"'
_KEYS = ("nodes", "kind")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?\Z")
_WORD = re.compile(r"([^\s\[\],]+)(?:\[([^\[\]]+)\]([^\s\[\],]*))?\Z")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")


class NodeClass(NamedTuple):
    """A class of nodes, in which users may have limits.

    Attributes
    ----------
    name : str
    nodes : frozenset of str
        Those of the class; empty if they are told by their kind.
    kind : str
        Of GPUs, as the batch system names it; empty if nodes are told by their names.
    """

    name: str
    nodes: frozenset[str] = frozenset()
    kind: str = ""

    def fits(self, node: str, kind: str) -> bool:
        """Return whether a node with a kind of GPU is of this class."""
        return kind == self.kind if self.kind else node in self.nodes


def layout(
    classes: tuple[NodeClass, ...],
    kinds: Mapping[str, str],
    without: Mapping[str, str] = MappingProxyType({}),
) -> Layout:
    """Return nodes in classes, each in the first one of the file that fits.

    Parameters
    ----------
    classes : tuple of NodeClass
    kinds : Mapping[str, str]
        Node → the kind of its GPUs.
    without : Mapping[str, str]
        Node → the user who has it without leave.
    """
    if not classes:
        return Layout()
    found = {
        node: next((each.name for each in classes if each.fits(node, kind)), NONE)
        for node, kind in kinds.items()
    }
    names = (*(each.name for each in classes), NONE)
    had: dict[str, Counter[str]] = {name: Counter() for name in names}
    for node, user in without.items():
        had[found.get(node, NONE)][user] += 1
    return Layout(names, found, had)


def read(value: Any) -> tuple[NodeClass, ...]:
    """Read the tables of the file.

    Parameters
    ----------
    value : object
        What the file has.

    Raises
    ------
    InputError
        It is invalid.
    """
    if not isinstance(value, dict):
        raise wrong(value, "a table")
    if len(value) > MOST_CLASSES:
        raise InputError(f"{len(value)} classes", valid=f"at most {MOST_CLASSES}")
    found = []
    for name, table in value.items():
        if not _NAME.match(name):
            raise InputError(shown(name), valid="a name of letters, digits, '.', '_' and '-'")
        with at(clean(name)):
            found.append(_class(name, table))
    return tuple(found)


def _class(name: str, table: Any) -> NodeClass:
    if not isinstance(table, dict):
        raise wrong(table, "a table")
    known_keys(table, _KEYS)
    if len(table) != 1:
        said = "both nodes and kind" if table else "neither nodes nor kind"
        raise InputError(said, valid=f'nodes = {_HOSTLIST}, or kind = "a100"')
    if "kind" in table:
        with at("kind"):
            kind = string(table["kind"])
            if not kind.strip():
                raise InputError("an empty name", valid="the kind of GPU that nodes have")
            return NodeClass(name, kind=kind)
    with at("nodes"):
        return NodeClass(name, expand(string(table["nodes"])))


def read_limits(value: Any, known: Collection[str]) -> dict[str, int]:
    """Read the limits of a user by class.

    Parameters
    ----------
    value : object
        What the file has.
    known : collection of str
        The names of the classes.

    Raises
    ------
    InputError
        It is invalid, or names another class.
    """
    if not isinstance(value, dict):
        raise wrong(value, "a table such as { a100 = 4 }")
    found = {}
    for name, each in value.items():
        if name not in known:
            raise InputError(
                f"unknown class {shown(name)}",
                valid=", ".join(known) or "none, as the file has no table classes",
                do=f"add a table [classes.{clean(name)}]",
            )
        with at(clean(name)):
            found[name] = integer(each, 0, MOST_NODES)
    return found


def expand(text: str) -> frozenset[str]:
    """Return the names in a hostlist in the notation of Slurm, with one bracket in a name.

    Parameters
    ----------
    text : str

    Raises
    ------
    InputError
        It is none, or has too many names.

    Examples
    --------
    >>> sorted(expand("gpu[01-02,7],login1"))
    ['gpu01', 'gpu02', 'gpu7', 'login1']
    """
    names = []
    for word in _words(text):
        for name in _names(word, text):
            names.append(name)
            if len(names) > MOST_NODES:
                raise InputError(f"more than {counted(MOST_NODES, 'node')}", valid=_HOSTLIST)
    if not names:
        raise InputError("an empty hostlist", valid=_HOSTLIST)
    return frozenset(names)


def _words(text: str) -> Iterator[str]:
    """Yield what commas outside of brackets separate."""
    word: list[str] = []
    for part in text.split(","):
        word.append(part)
        # One that is never closed is refused by whoever looks at the word.
        if "[" not in word[0] or "]" in part:
            if joined := ",".join(word).strip():
                yield joined
            word = []
    if word:
        yield ",".join(word)


def _names(word: str, text: str) -> Iterator[str]:
    found = _WORD.match(word)
    if not found:
        raise InputError(shown(text), valid=_HOSTLIST)
    before, ranges, after = found.groups()
    if ranges is None:
        yield before
        return
    for each in ranges.split(","):
        for number in _numbers(each.strip(), text):
            yield f"{before}{number}{after}"


def _numbers(text: str, where: str) -> Iterator[str]:
    """Yield the numbers of a range, as wide as the first one is written."""
    found = _RANGE.match(text)
    first = whole(found[1]) if found else None
    last = first if not found or found[2] is None else whole(found[2])
    if not found or first is None or last is None or last < first:
        raise InputError(shown(where), valid=_HOSTLIST)
    for number in range(first, last + 1):
        yield str(number).zfill(len(found[1]))
