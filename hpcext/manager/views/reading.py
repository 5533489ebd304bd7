"""The present state of a pilot or a harvester, as other programs than its manager read it.

The journal is the truth, with or without a manager; all views of a pilot read it here.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec

from hpcext.batch.standing import Is, Standing
from hpcext.core.engine import Engine
from hpcext.core.errors import HpcextError
from hpcext.core.history.node_time import NodeTime
from hpcext.core.world import World
from hpcext.manager import directory as pilots
from hpcext.manager import journal, spool, standing
from hpcext.manager.directory import Pilot
from hpcext.manager.tail import Tail

REPLAY_SHARE = 20
"""How many times as long as it read a follower rests: a replay costs time."""


RECENT_S = 86_400.0
"""Seconds for which an ended pilot is of interest in a view of all pilots."""

MOST_REST_S = 600.0
"""The longest time, in seconds, until a batch system that knows of no manager is asked again."""


class Reading(msgspec.Struct, frozen=True):
    """The state of a pilot when it was read.

    Attributes
    ----------
    directory : pathlib.Path
    pilot : Pilot
    engine : Engine
        The state of its manager's engine after the last fact of the journal. Do not step it.
    node_time : NodeTime
        The use of the nodes' time until `now_s`.
    policy : str
    began_at : float
        Seconds of Unix time; all other instants are seconds since.
    now_s : float
        Now if a manager runs; else the last instant of the journal.
    alive : bool
        Whether a manager runs it, or may do so.
    standing : Standing
        Details about that: its batch job may be stopped, or unknown.
    """

    directory: Path
    pilot: Pilot
    engine: Engine
    node_time: NodeTime
    policy: str
    began_at: float
    now_s: float
    alive: bool
    standing: Standing = Standing(Is.RUNS)

    @property
    def world(self) -> World:
        """Nodes, jobs and their records."""
        return self.engine.world


class Follower:
    """A reader of one pilot that replays what its journal has grown by.

    Parameters
    ----------
    directory : pathlib.Path
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._journal = directory / "journal.jsonl"
        self._seen: tuple[int, int] | None = None
        self._manager: spool.Manager | None = None
        self._met: tuple[int, int] | None = None
        self._unmanaged: Standing | None = None
        self._rest_s = spool.ASK_BATCH_S
        self._meet_again_s = 0.0
        self._again_at_s = 0.0
        self._tail = Tail(self._journal)
        self._past: tuple[Pilot, Engine] | None = None

    def read(self) -> Reading:
        """Read its present state, or that of a moment ago if reading takes long.

        Raises
        ------
        HpcextError
            It is no pilot, somebody else's, or its journal cannot be read.
        """
        pilot_, engine = self._read()
        alive, tail = self.alive(), self._tail
        began_at = tail.header.began_at
        now_s = max(tail.now_s, time.time() - began_at) if alive else tail.now_s
        node_time = copy.deepcopy(tail.node_time)
        node_time.passed(engine.world, now_s)
        return Reading(
            self._directory,
            pilot_,
            engine,
            node_time,
            tail.header.policy,
            began_at,
            now_s,
            alive,
            self._standing(engine),
        )

    def alive(self) -> bool:
        """Return whether a manager runs it; a batch system is not asked at every call."""
        met, now_s = identity(self._directory / spool.MANAGER_FILE), time.monotonic()
        if met != self._met:
            self._met, self._rest_s, self._meet_again_s = met, spool.ASK_BATCH_S, now_s
        if self._manager is None and now_s >= self._meet_again_s:
            # Ask ever less often: the batch system itself may have been away.
            self._rest_s = min(2 * self._rest_s, MOST_REST_S)
            self._meet_again_s = now_s + self._rest_s
            self._manager, self._unmanaged = spool.manager_of(self._directory), None
        if self._manager is not None and not self._manager.alive():
            self._manager = None
        return self._manager is not None

    def _standing(self, engine: Engine) -> Standing:
        """Return what is known of its manager; it is asked as seldom as :meth:`alive`."""
        if self._manager is not None:
            return spool.doubt_of(self._manager)
        if not len(engine.world.queue):
            return Standing(Is.OVER)
        if self._unmanaged is None:
            self._unmanaged = standing.of_jobs(self._directory)
        return self._unmanaged

    def recent(self) -> bool:
        """Return whether a manager runs it, or did within a day, without reading it."""
        try:
            written = self._journal.stat().st_mtime
        except OSError:
            return False
        return time.time() - written < RECENT_S or self.alive()

    def begun(self) -> bool:
        """Return whether there is anything to read: it may wait in a queue."""
        return self._journal.exists()

    def engine(self) -> Engine:
        """Return the engine of :meth:`read` alone, without asking a batch system."""
        return self._read()[1]

    def _read(self) -> tuple[Pilot, Engine]:
        spool.check_private(self._directory)
        path, began_s = self._journal, time.monotonic()
        if self._past is not None and began_s < self._again_at_s:
            return self._past
        now = identity(path)
        if self._past is None or now != self._seen:
            self._tail.read()
            self._past = pilots.load(self._directory), self._tail.engine()
            self._seen = now
            ended_s = time.monotonic()
            self._again_at_s = ended_s + REPLAY_SHARE * (ended_s - began_s)
        return self._past


class Followers:
    """Pilots of this user, each with its follower.

    Parameters
    ----------
    state_dir : pathlib.Path
    named : collection of str
        Directories, ids or names; all pilots if empty.

    Raises
    ------
    NoManagerError
        There is no pilot of such a name.
    """

    def __init__(self, state_dir: Path, named: Collection[str] = ()) -> None:
        self._state_dir = state_dir
        self._named = [pilots.find(handle, state_dir) for handle in named]
        self._each: dict[Path, Follower] = {}

    def read(self, *, recent: bool = False) -> Iterator[Reading | HpcextError]:
        """Read them, by default newest first; yield the error of one that cannot be read.

        Parameters
        ----------
        recent : bool
            Of all pilots, only those that run, or did within a day.
        """
        found = self._named or [path for path, _ in pilots.known(self._state_dir)]
        self._each = {path: self._each.get(path) or Follower(path) for path in found}
        for follower in self._each.values():
            try:
                if self._named or not recent or follower.recent():
                    yield follower.read()
            except HpcextError as error:
                yield error


def read(directory: Path) -> Reading:
    """Read the present state of a pilot.

    Raises
    ------
    HpcextError
        As of :meth:`Follower.read`.
    """
    return Follower(directory).read()


def read_at(directory: Path, instant_s: float) -> Reading | None:
    """Read the state of a pilot at a past instant of its own.

    Returns
    -------
    Reading or None
        If its journal was compacted since, the state at the last kept instant before, `now_s`, of
        which there is one for each day. None if nothing is known any more.

    Raises
    ------
    HpcextError
        As of :meth:`Follower.read`.
    """
    spool.check_private(directory)
    path = directory / "journal.jsonl"
    past = journal.read(path)
    if instant_s < past.header.now_s:
        kept = journal.read_kept(path, instant_s)
        if kept is None:
            return None
        past, instant_s = kept, kept.now_s
    past, header = past.until(instant_s), past.header
    engine, counted = past.recount()
    counted.passed(engine.world, instant_s)
    return Reading(
        directory,
        pilots.load(directory),
        engine,
        counted,
        header.policy,
        header.began_at,
        instant_s,
        alive=False,
    )


def identity(path: Path) -> tuple[int, int] | None:
    """Return a value that changes when a file grows or is replaced; None without a file."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_ino, facts.st_size
