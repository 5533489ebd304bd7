"""The nodes of a simulated machine, and the attempts that occupy their GPUs."""

from __future__ import annotations

import collections
import functools
from collections.abc import Iterable, Mapping, Set

from hpcext.core.values import Alloc, Node


@functools.lru_cache(maxsize=65536)
def node_of(gpu: str) -> str:
    """Return the node of a GPU ``HOST:INDEX``."""
    return gpu.rpartition(":")[0]


@functools.lru_cache(maxsize=1024)
def nodes_of(gpus: tuple[str, ...]) -> Mapping[str, int]:
    """Return the number of these GPUs on each node."""
    return collections.Counter([node_of(gpu) for gpu in gpus])


def excess(alloc: Alloc, used: Alloc) -> Alloc:
    """Return the GPUs per node of an allocation in excess of those in use.

    Parameters
    ----------
    alloc, used : Mapping[str, int]
        GPUs by node.
    """
    return {node: more for node, gpus in alloc.items() if (more := gpus - used.get(node, 0)) > 0}


class Floor:
    """The occupancy of GPUs. An attempt is identified by the operation that started it.

    Parameters
    ----------
    nodes : iterable of Node
        The initial nodes.

    Attributes
    ----------
    offered : int
        The number of GPUs of all nodes.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._nodes = {node.name: node for node in nodes}
        self.offered = sum(node.gpus for node in self._nodes.values())
        self._taken: dict[str, dict[str, int]] = {}  # node → occupied GPU → its attempt
        self._spread: dict[str, set[int]] = {}  # node → attempts on it and on other nodes

    def join(self, node: Node) -> None:
        """Add a node, or change its number of GPUs."""
        before = self._nodes.get(node.name)
        self._nodes[node.name] = node
        self.offered += node.gpus - (before.gpus if before else 0)

    def lose(self, names: Iterable[str]) -> dict[int, set[str]]:
        """Remove nodes; return the lost GPUs of each attempt, in the order of their start."""
        struck = collections.defaultdict[int, set[str]](set)
        for name in names:
            before = self._nodes.pop(name, None)
            self.offered -= before.gpus if before else 0
            for gpu, op in self._taken.get(name, {}).items():
                struck[op].add(gpu)
        return dict(sorted(struck.items()))

    def pick(self, job: str, alloc: Alloc) -> tuple[str, ...]:
        """Return the free GPUs with the lowest numbers.

        Parameters
        ----------
        job : str
            For the message.
        alloc : Alloc
            GPUs by node.

        Raises
        ------
        RuntimeError
            There are too few: an attempt was started on GPUs that another one occupies.
        """
        picked: list[str] = []
        for name, gpus in alloc.items():
            known = self._nodes[name].gpus if name in self._nodes else 0
            taken = self._taken.get(name, ())
            free = [gpu for i in range(known) if (gpu := f"{name}:{i}") not in taken]
            if len(free) < gpus:
                raise RuntimeError(f"job {job}: {gpus} GPUs of {name}, {len(free)} free")
            picked += free[:gpus]
        return tuple(picked)

    def occupy(self, op: int, had: tuple[str, ...], has: tuple[str, ...]) -> list[int]:
        """Move an attempt from some GPUs to others.

        Parameters
        ----------
        op : int
            The operation that started the attempt.
        had, has : tuple of str
            Its GPUs before and from now on, as ``HOST:INDEX``.

        Returns
        -------
        list of int
            The other attempts on several nodes with which it shared, or now shares, a node.
        """
        before, after = set(had), set(has)
        for gpu in before - after:
            node = node_of(gpu)
            here = self._taken[node]
            del here[gpu]
            if not here:
                del self._taken[node]
        for gpu in after - before:
            self._taken.setdefault(node_of(gpu), {})[gpu] = op
        return self._spread_out(op, _several(had), _several(has))

    def crowded(self, nodes: Iterable[str]) -> bool:
        """Return whether an attempt on these several nodes shares one with another such attempt."""
        names = tuple(nodes)
        return len(names) > 1 and any(len(self._spread.get(name, ())) > 1 for name in names)

    def kind(self, nodes: Iterable[str]) -> str:
        """Return the kind of the GPUs of these nodes, which are alike."""
        return next((self._nodes[name].kind for name in nodes if name in self._nodes), "")

    def _spread_out(self, op: int, before: Set[str], after: Set[str]) -> list[int]:
        """Record the nodes of an attempt on several nodes; return the others on these nodes."""
        near: set[int] = set()
        for name in before - after:
            here = self._spread[name]
            here.discard(op)
            near |= here
            if not here:
                del self._spread[name]
        for name in after - before:
            here = self._spread.setdefault(name, set())
            near |= here
            here.add(op)
        near.discard(op)
        return sorted(near)


def _several(gpus: tuple[str, ...]) -> Set[str]:
    """Return the nodes of GPUs if they are several, else none."""
    nodes = nodes_of(gpus)
    return nodes.keys() if len(nodes) > 1 else frozenset()
