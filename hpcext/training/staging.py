"""Periodic checkpoints beside the training: a copy in host memory, and a thread that writes it.

A step is held for the copying only. The copy lives in memory that is kept from save to save,
because the first touch of fresh memory costs more than the copying does; so this doubles what the
state takes of host memory. Where there is not that much room, the state is written directly.
"""

from __future__ import annotations

import os
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hpcext.numerals import whole

_Path = tuple[Any, ...]
_SPARE_BYTES = 64 << 20


class Copier:
    """Copies trees of plain values and arrays; each copy takes the memory of the one before.

    Subclasses know other kinds of arrays.
    """

    def __init__(self) -> None:
        self._before: dict[_Path, Any] = {}
        self._after: dict[_Path, Any] = {}
        self._known: dict[Any, Any] = {}

    def copy(self, tree: Any) -> Any:
        """A copy that shares nothing with the tree, except what cannot change.

        The same array at two places of the tree is one array in the copy too.

        Raises
        ------
        MemoryError
            There is not enough room for it.
        """
        self._after, self._known = {}, {}
        fresh = sum(
            self.size(array)
            for path, array in self._arrays(tree, ())
            if not self.fits(self._before.get(path), array)
        )
        # Asked, because a batch system kills the job that takes more than it may, without asking.
        if fresh and fresh + _SPARE_BYTES > room_bytes():
            raise MemoryError(f"no room for {fresh >> 20} MiB")
        copy = self._walk(tree, ())
        self._before = self._after
        self._after, self._known = {}, {}
        self.wait()
        return copy

    def forget(self) -> None:
        """Give the memory back."""
        self._before = {}

    # -- what an array is

    def is_array(self, value: Any) -> bool:
        """Whether a value has content that must be copied."""
        return isinstance(value, np.ndarray)

    def size(self, array: Any) -> int:
        """Bytes of its content."""
        return int(array.nbytes)

    def identity(self, array: Any) -> Any:
        """The same for two arrays that are one and the same memory."""
        layout = array.__array_interface__
        return layout["data"], array.shape, array.strides, array.dtype.str

    def fits(self, before: Any, array: Any) -> bool:
        """Whether an earlier copy has the memory for this one."""
        return before is not None and (before.shape, before.dtype) == (array.shape, array.dtype)

    def fresh(self, array: Any) -> Any:
        """New memory for a copy."""
        return np.empty_like(array, subok=False)

    def fill(self, copy: Any, array: Any) -> None:
        """Copy the content; may go on until :meth:`wait`."""
        np.copyto(copy, array)

    def wait(self) -> None:
        """The copying is done when this returns."""

    # -- the tree

    def _walk(self, value: Any, path: _Path) -> Any:
        if self.is_array(value):
            return self._copied(value, path)
        if isinstance(value, Mapping):
            return like(value, {key: self._walk(v, (*path, key)) for key, v in value.items()})
        if isinstance(value, list | tuple):
            items = (self._walk(item, (*path, place)) for place, item in enumerate(value))
            return list(items) if isinstance(value, list) else tuple(items)
        return set(value) if isinstance(value, set) else value

    def _copied(self, array: Any, path: _Path) -> Any:
        identity = self.identity(array)
        copy = self._known.get(identity)
        if copy is None:
            before = self._before.get(path)
            copy = before if self.fits(before, array) else self.fresh(array)
            self.fill(copy, array)
            self._known[identity] = copy
            self._after[path] = copy
        return copy

    def _arrays(self, value: Any, path: _Path) -> Iterator[tuple[_Path, Any]]:
        """Every array of a tree once, as :meth:`_walk` meets them."""
        if self.is_array(value):
            if self._known.setdefault(self.identity(value), value) is value:
                yield path, value
        elif isinstance(value, Mapping):
            for key, item in value.items():
                yield from self._arrays(item, (*path, key))
        elif isinstance(value, list | tuple):
            for place, item in enumerate(value):
                yield from self._arrays(item, (*path, place))
        if not path:
            self._known = {}


def like(mapping: Mapping[Any, Any], items: dict[Any, Any]) -> Mapping[Any, Any]:
    """The items in a mapping of the same kind.

    Parameters
    ----------
    mapping : Mapping
    items : dict
    """
    if isinstance(mapping, Counter):
        return Counter(items)
    if not isinstance(mapping, OrderedDict):
        return items
    ordered = OrderedDict(items)
    # A module's state carries version numbers beside its items.
    if hasattr(mapping, "_metadata"):
        ordered._metadata = {key: dict(each) for key, each in mapping._metadata.items()}  # type: ignore[attr-defined]
    return ordered


class Writer:
    """Does one thing at a time in a thread of its own; an ordinary exit waits for it.

    A child process that is forked meanwhile does not have the thread, and nothing in it waits.

    Parameters
    ----------
    name : str
        Of the thread.
    """

    def __init__(self, name: str = "hpcext-checkpoint") -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, job: Callable[[], object]) -> None:
        """Begin something, when what was begun before has ended.

        Raises
        ------
        BaseException
            What went wrong with the one before.
        """
        self.wait()
        self._thread = threading.Thread(target=self._run, args=(job,), name=self._name)
        self._thread.start()

    def ended(self) -> bool:
        """Whether something was begun and has ended, so that :meth:`wait` does not wait."""
        return self._thread is not None and not self._thread.is_alive()

    def busy(self) -> bool:
        """Whether something is under way."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self) -> None:
        """Wait until nothing is under way; raises what went wrong with it."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, job: Callable[[], object]) -> None:
        try:
            job()
        except BaseException as error:
            self._error = error


def room_bytes() -> int:
    """Memory that this process may still take: of the machine, and of its control groups.

    Returns
    -------
    int
        Bytes; page cache that the kernel would give up counts as room.
    """
    return min([_machine_room(), *_group_rooms()])


def _machine_room() -> int:
    for line in _text("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 1 << 62


def _group_rooms() -> Iterator[int]:
    """Room in the control group of this process and those above it, cgroups(7), either version."""
    for line in _text("/proc/self/cgroup").splitlines():
        _, controllers, name = line.split(":", 2)
        if controllers == "":
            root, limit, usage = "/sys/fs/cgroup", "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            root, limit = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
            usage = "memory.usage_in_bytes"
        else:
            continue
        group = Path(root + name)
        while len(group.parts) >= len(Path(root).parts):
            # "max", or more digits than a number has, is no limit.
            most, now = (whole(_text(group / name).strip()) for name in (limit, usage))
            if most is not None and now is not None:
                yield most - now + _cached(group / "memory.stat")
            group = group.parent


def _cached(path: Path) -> int:
    pairs = dict(line.split() for line in _text(path).splitlines())
    return int(pairs.get("total_inactive_file", pairs.get("inactive_file", 0)))


def _text(path: str | os.PathLike[str]) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""
