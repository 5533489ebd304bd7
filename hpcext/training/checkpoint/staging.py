"""Checkpoints that are written beside the training: a copy in host memory, and a thread.

A step is delayed only by the copying. The memory of the copy is kept for the next checkpoint,
because the first use of fresh memory costs more than the copying. So the state takes twice its host
memory. If there is too little, it is written directly.
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
    """A copier of trees of plain values and arrays; each copy reuses the memory of the last one.

    Subclasses handle other kinds of arrays.
    """

    def __init__(self) -> None:
        self._before: dict[_Path, Any] = {}
        self._after: dict[_Path, Any] = {}
        self._known: dict[Any, Any] = {}

    def copy(self, tree: Any) -> Any:
        """Return a copy that shares nothing with the tree, except immutable values.

        An array that occurs twice in the tree is one array in the copy as well.

        Raises
        ------
        MemoryError
            There is not enough memory.
        """
        self._after, self._known = {}, {}
        fresh = sum(
            self.size(array)
            for path, array in self._arrays(tree, ())
            if not self.fits(self._before.get(path), array)
        )
        # Checked first, because a batch system kills a job that exceeds its memory without warning.
        if fresh and fresh + _SPARE_BYTES > room_bytes():
            raise MemoryError(f"no room for {fresh >> 20} MiB")
        copy = self._walk(tree, ())
        self._before = self._after
        self._after, self._known = {}, {}
        self.wait()
        return copy

    def forget(self) -> None:
        """Free the memory of the copy, and of one that could not be completed."""
        self._before, self._after, self._known = {}, {}, {}

    # -- arrays

    def is_array(self, value: Any) -> bool:
        """Return whether a value has content that must be copied."""
        return isinstance(value, np.ndarray)

    def size(self, array: Any) -> int:
        """Return the size of an array's content in bytes."""
        return int(array.nbytes)

    def identity(self, array: Any) -> Any:
        """Return a key that is equal for two arrays that share the same memory."""
        layout = array.__array_interface__
        return layout["data"], array.shape, array.strides, array.dtype.str

    def fits(self, before: Any, array: Any) -> bool:
        """Return whether an earlier copy has suitable memory for this array."""
        return before is not None and (before.shape, before.dtype) == (array.shape, array.dtype)

    def fresh(self, array: Any) -> Any:
        """Allocate memory for a copy; raise MemoryError if there is not enough."""
        return np.empty_like(array, subok=False)

    def fill(self, copy: Any, array: Any) -> None:
        """Copy the content of an array; this may be asynchronous until :meth:`wait`."""
        np.copyto(copy, array)

    def wait(self) -> None:
        """Wait until all content is copied."""

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
        """Yield every array of a tree once, in the order of :meth:`_walk`."""
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
    """Return the items in a mapping of the same kind.

    Parameters
    ----------
    mapping : Mapping
        Its type is kept, and so are the version numbers in a module's state.
    items : dict
    """
    if isinstance(mapping, Counter):
        return Counter(items)
    if not isinstance(mapping, OrderedDict):
        return items
    ordered = OrderedDict(items)
    # The state of a module has version numbers besides its items.
    if hasattr(mapping, "_metadata"):
        ordered._metadata = {key: dict(each) for key, each in mapping._metadata.items()}  # type: ignore[attr-defined]
    return ordered


class Writer:
    """A thread that runs one job at a time; a normal exit waits for it.

    A child process that is forked meanwhile does not have the thread, and does not wait.

    Parameters
    ----------
    name : str
        Name of the thread.
    """

    def __init__(self, name: str = "hpcext-checkpoint") -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, job: Callable[[], object]) -> None:
        """Start a job, after the previous one has ended.

        Raises
        ------
        BaseException
            The error of the previous job.
        """
        self.wait()
        self._thread = threading.Thread(target=self._run, args=(job,), name=self._name)
        self._thread.start()

    def ended(self) -> bool:
        """Return whether a job was started and has ended, so that :meth:`wait` does not block."""
        return self._thread is not None and not self._thread.is_alive()

    def busy(self) -> bool:
        """Return whether a job is running."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self) -> None:
        """Wait for the running job, and raise its error."""
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
    """Return the memory that this process may still take, by the machine and its control groups.

    Returns
    -------
    int
        Bytes; page cache that the kernel would release counts as free.
    """
    return min([_machine_room(), *_group_rooms()])


def _machine_room() -> int:
    for line in _text("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 1 << 62


def _group_rooms() -> Iterator[int]:
    """Yield the free memory in each control group of this process, cgroups(7), v1 or v2."""
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
            # "max", or more digits than a number has, means no limit.
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
