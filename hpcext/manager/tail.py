"""A journal that is read while its manager writes it: only what was added is replayed."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from hpcext import documents
from hpcext.core.engine import Engine
from hpcext.core.history.node_time import Meter, NodeTime
from hpcext.manager import journal
from hpcext.manager.journal import Header

_FIRST_BYTES, _LAST_BYTES = 4096, 256
"""Bytes at the beginning and the end of what was read. If both are still there, so is all between
them: the first line has the instant of the compaction that wrote it, and each step its own."""


class Tail:
    """The state to which a journal leads so far.

    Parameters
    ----------
    path : pathlib.Path

    Attributes
    ----------
    header : Header
    now_s : float
        The last instant that was recorded.
    node_time : NodeTime
        Until then; it changes with the next :meth:`read`.
    """

    header: Header
    now_s: float
    node_time: NodeTime

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size, self._first, self._last, self._lines = 0, b"", b"", 0
        self._engine: Engine | None = None

    def read(self) -> None:
        """Take in what was added since the last call, or all, if the journal was replaced.

        Raises
        ------
        JournalError
            There is no journal, or a complete line in it was not written by a manager.
        """
        try:
            with open(documents.open_own(self._path), "rb") as file:
                if not (self._engine and self._is_there(file)):
                    self._begin(file)
                self._add(file)
        except OSError as error:
            raise journal.unreadable(error.strerror or str(error), self._path) from None
        except ValueError as error:
            raise journal.unreadable(str(error), self._path) from None

    def engine(self) -> Engine:
        """Return a new engine in that state, to look at and not to step."""
        assert self._engine is not None
        return Engine(saved=self._engine.world.save())

    def _is_there(self, file: BinaryIO) -> bool:
        """Go to the end of what was read; return False if something else is there now."""
        if file.read(len(self._first)) != self._first:
            return False
        file.seek(self._size - len(self._last))
        return file.read(len(self._last)) == self._last

    def _begin(self, file: BinaryIO) -> None:
        file.seek(0)
        first = file.readline()
        self._engine = None
        # Half a line is none.
        first = first if first.endswith(b"\n") else b""
        self.header = journal.parse_header(first, self._path)
        self._first, self._last = first[:_FIRST_BYTES], first[-_LAST_BYTES:]
        self._size, self._lines = len(first), 1
        self.now_s = self.header.now_s
        begun = journal.Past(self.header, (), self._size)
        self._engine, self.node_time = begun.recount()
        self._meter = Meter(self._engine.world, self.node_time)

    def _add(self, file: BinaryIO) -> None:
        data = file.read()
        # What follows the last whole line is being written.
        data = data[: data.rfind(b"\n") + 1]
        entries = journal.parse_entries(data, self._lines, self._path)
        engine = self._engine
        assert engine is not None
        for entry in entries:
            engine.step(entry.now_s, entry.facts)
            self._meter.watch(entry.now_s, entry.facts)
            self.now_s = entry.now_s
        self._size += len(data)
        self._lines += len(entries)
        self._last = (self._last + data)[-_LAST_BYTES:]
