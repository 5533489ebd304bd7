"""The journal: all facts that the engine received, in their order; replayed on restart.

A file of JSON lines. The first is a :class:`Header`, which may carry the world as it was when the
journal was last compacted; each further line is one :class:`Entry`: an instant and the facts of one
step. A line is written and flushed before anything is done about its facts. The answers of the
policy are among them, so decisions are known without it.

Journals of the first schema, of release 0.1.0, do not have these: for them the policy is asked
again, and answers as it did if it is the same. The manager that goes on with such a journal
compacts it first.
"""

from __future__ import annotations

import contextlib
import copy
import os
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from hpcext import private
from hpcext.core.engine import Engine
from hpcext.core.errors import UNREADABLE, JournalError
from hpcext.core.facts import Fact, Progressed
from hpcext.core.history.node_time import Meter, NodeTime
from hpcext.core.saved import Saved
from hpcext.core.values import Run
from hpcext.documents import draft, is_later, not_of, read_own, sync_directory
from hpcext.manager import kept_worlds

SCHEMA: Final = "hpcext.journal/2"
UNDECIDED: Final = "hpcext.journal/1"
"""The earlier schema, which has no decisions."""

COMPACT_AFTER = 2000
"""Entries after which the journal is compacted, to bound its size and the time of a restart."""

COMPACT_BYTES = 32 << 20
"""The size after which it is compacted, if that is also the size of the world before the entries.

Entries may be large if many jobs wait.
"""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first line.

    Attributes
    ----------
    began_at : float
        Epoch seconds of the manager's instant 0.
    policy : str
    now_s : float
        Instant of the last step before `saved`.
    saved : Saved or None
    node_time : NodeTime or None
        Until `now_s`.
    """

    schema: Literal["hpcext.journal/1", "hpcext.journal/2"] = SCHEMA
    began_at: float
    policy: str
    now_s: float = 0.0
    saved: Saved | None = None
    node_time: NodeTime | None = None


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One step: its instant, and its facts."""

    now_s: float
    facts: tuple[Fact, ...]


_encoder = msgspec.json.Encoder()
_entry = msgspec.json.Decoder(Entry)


class Past(msgspec.Struct, frozen=True):
    """The content of a journal.

    Attributes
    ----------
    header : Header
    entries : tuple of Entry
    size : int
        Bytes of whole lines; what follows was being written when the manager died.
    begun : int
        Bytes of the first line.
    """

    header: Header
    entries: tuple[Entry, ...]
    size: int
    begun: int = 0

    @property
    def now_s(self) -> float:
        """The last instant that was recorded."""
        return self.entries[-1].now_s if self.entries else self.header.now_s

    def until(self, instant_s: float) -> Past:
        """Return the part up to an instant, which must not be before the header's."""
        entries = tuple(entry for entry in self.entries if entry.now_s <= instant_s)
        return msgspec.structs.replace(self, entries=entries)

    @property
    def undecided(self) -> bool:
        """Whether it is an older release's, without decisions."""
        return self.header.schema == UNDECIDED

    def begin(self) -> Engine:
        """Return an engine as it was before the first entry."""
        if not self.undecided:
            return Engine(saved=self.header.saved)
        from hpcext.policies import find_policy  # noqa: PLC0415  (slow, and seldom needed)

        return Engine(find_policy(self.header.policy), self.header.saved)

    def replay(self) -> Engine:
        """Return an engine that has received all facts of the journal.

        Its actions were given already, or are given again by :meth:`Engine.outstanding`.
        """
        return self.recount()[0]

    def recount(self) -> tuple[Engine, NodeTime]:
        """Return the same engine, and what the nodes' time went into."""
        engine, before = self.begin(), self.header.node_time
        # Of what an older release compacted nothing is known.
        past_s = self.header.now_s
        time = NodeTime(past_s, past_s) if before is None else copy.deepcopy(before)
        meter = Meter(engine.world, time)
        for entry in self.entries:
            engine.step(entry.now_s, entry.facts)
            meter.watch(entry.now_s, entry.facts)
        return engine, time


def read(path: Path) -> Past:
    """Read a journal; changes nothing.

    Raises
    ------
    JournalError
        There is no journal, or a complete line in it was not written by a manager.
    """
    try:
        data = read_own(path)
    except OSError as error:
        raise unreadable(error.strerror or str(error), path) from None
    except ValueError as error:
        raise unreadable(str(error), path) from None
    size, begun = data.rfind(b"\n") + 1, data.find(b"\n") + 1
    header = parse_header(data[:begun], path)
    return Past(header, parse_entries(data[begun:size], 1, path), size, begun)


def parse_header(line: bytes, path: Path) -> Header:
    """Parse the first line of the journal at a path, for which errors name it.

    Raises
    ------
    JournalError
        There is none, or it is damaged, or of a later release.
    """
    if not line:
        raise JournalError("is empty", where=str(path), do="start a new pilot")
    try:
        document = msgspec.json.decode(line)
        if is_later(document, SCHEMA):
            raise JournalError(not_of(document, SCHEMA), where=str(path), do="go on with that one")
        return _header(document)
    except UNREADABLE as error:
        raise _damaged(1, error, path) from None


def parse_entries(lines: bytes, before: int, path: Path) -> tuple[Entry, ...]:
    """Parse whole lines that follow others.

    Parameters
    ----------
    lines : bytes
    before : int
        The number of lines before them.
    path : pathlib.Path
        Of the journal, for an error.

    Raises
    ------
    JournalError
        One is damaged.
    """
    entries: list[Entry] = []
    try:
        for line in lines.splitlines():
            entries.append(_entry.decode(line))
    except UNREADABLE as error:
        raise _damaged(before + len(entries) + 1, error, path) from None
    return tuple(entries)


def unreadable(why: str, path: Path) -> JournalError:
    """Return the error that a journal cannot be read."""
    return JournalError(f"cannot be read: {why}", where=str(path))


def _damaged(number: int, error: Exception, path: Path) -> JournalError:
    return JournalError(
        f"line {number} is damaged ({error})",
        where=str(path),
        do="nothing was changed; running jobs go on, and checkpoints are in jobs/*/checkpoint",
    )


def _header(document: Any) -> Header:
    """Make the header of a document, also of one that release 0.1.0 wrote.

    That had what is known of a job's current attempt among the job's own values, and two of them
    under other names.
    """
    names = {each: each for each in Run.__struct_fields__}
    names.update(maimed="degraded", asked="resize_to")
    saved = document.get("saved") if isinstance(document, dict) else None
    jobs = saved.get("jobs") if isinstance(saved, dict) else None
    for job in jobs if isinstance(jobs, list) else ():
        if isinstance(job, dict) and (known := job.keys() & names.keys()):
            job["run"] = {names[each]: job.pop(each) for each in known}
    return msgspec.convert(document, Header, str_keys=True)


def read_kept(path: Path, instant_s: float) -> Past | None:
    """Return the last kept world of a compacted journal that is not after an instant."""
    for document in kept_worlds.until(path, instant_s):
        with contextlib.suppress(*UNREADABLE):
            return Past(_header(document), (), 0)
    return None


class Journal:
    """An open journal; only the holder of the pilot's lock may have one.

    Parameters
    ----------
    path : pathlib.Path
    header : Header
        Written if there is no journal yet.
    """

    def __init__(self, path: Path, header: Header) -> None:
        self.path = path
        self.header = header
        self._lines: list[bytes] = []
        self._lasting = False
        self._named = True
        if path.exists():
            past = read(path)
            self.header, self.count = past.header, len(past.entries)
            self._fd = private.open_log(path)
            self._size, self._begun = past.size, past.begun
            os.ftruncate(self._fd, self._size)
        else:
            self._begin(header)

    def past(self) -> Past:
        """Return its contents so far; an older release's journal is first rewritten with decisions.

        Raises
        ------
        JournalError
            It cannot be read, or not be rewritten.
        """
        past = read(self.path)
        if not past.undecided:
            return past
        engine, time = past.recount()
        try:
            self.compact(past.now_s, engine.world.save(), time)
        except OSError as error:
            raise JournalError(
                f"was written by an older release and cannot be rewritten: {error.strerror}",
                where=str(self.path),
                do="free some space; running jobs go on meanwhile",
            ) from None
        return read(self.path)

    def append(self, now_s: float, facts: tuple[Fact, ...]) -> None:
        """Record one step, and write it; raise errors as :meth:`commit` does."""
        self.note(now_s, facts)
        self.commit()

    def note(self, now_s: float, facts: tuple[Fact, ...]) -> None:
        """Record one step; :meth:`commit` writes it."""
        self._lines.append(_encoder.encode(Entry(now_s, facts)) + b"\n")
        self._lasting |= not all(isinstance(fact, Progressed) for fact in facts)

    def commit(self) -> None:
        """Write what was recorded, and wait for the disk unless it is mere progress.

        Raises
        ------
        JournalError
            It could not be written (a full disk); the file is as it was, and the next call tries
            again.
        """
        if not self._lines:
            return
        data = b"".join(self._lines)
        try:
            written = os.write(self._fd, data)
            if written != len(data):
                raise OSError("the disk is full")
            if self._lasting:
                os.fdatasync(self._fd)
                self._sync_name()
        except OSError as error:
            # Half a line must not stay: the next one would continue it.
            os.ftruncate(self._fd, self._size)
            reason = error.strerror or str(error)
            raise JournalError(
                f"cannot be written: {reason}",
                where=str(self.path),
                do="free some space; jobs go on, and decisions wait",
            ) from None
        self._size += len(data)
        self.count += len(self._lines)
        self._lines, self._lasting = [], False

    @property
    def behind(self) -> bool:
        """Whether something was recorded that is not written yet."""
        return bool(self._lines)

    @property
    def long(self) -> bool:
        """Whether it is time to compact it."""
        grown = self._size - self._begun
        return self.count >= COMPACT_AFTER or grown >= max(COMPACT_BYTES, self._begun)

    def compact(self, now_s: float, saved: Saved, node_time: NodeTime | None = None) -> None:
        """Replace the journal by the world that it leads to.

        Parameters
        ----------
        now_s : float
            The clock of the engine, in seconds.
        saved : Saved
            The world, and what recovery needs beside it.
        node_time : NodeTime or None
            None if it is not measured.

        Raises
        ------
        OSError
            The old journal is untouched.
        """
        header = msgspec.structs.replace(
            self.header, schema=SCHEMA, now_s=now_s, saved=saved, node_time=node_time
        )
        old = self._fd
        self._begin(header)
        self.header = header
        os.close(old)
        kept_worlds.keep(self.path, now_s, _encoder.encode(header))

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _begin(self, header: Header) -> None:
        data = _encoder.encode(header) + b"\n"
        new = draft(self.path)
        # Open before it has its name: the journal that it replaces is nobody's after that.
        fd = private.open_log(new)
        try:
            with open(fd, "wb", closefd=False) as file:
                file.write(data)
            os.fsync(fd)
            os.replace(new, self.path)
        except OSError as error:
            os.close(fd)
            with contextlib.suppress(OSError):
                os.unlink(new)
            error.filename = str(self.path)
            raise
        self._fd = fd
        self._size = self._begun = len(data)
        self.count, self._named = 0, False
        with contextlib.suppress(OSError):
            self._sync_name()

    def _sync_name(self) -> None:
        """Have it survive a crash of the machine that the file has its name."""
        if not self._named:
            sync_directory(self.path.parent)
            self._named = True
