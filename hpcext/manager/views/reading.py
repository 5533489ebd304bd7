"""A pilot or a harvester as it is now, read by others than its manager.

The journal is the truth, with or without a manager; whoever shows a pilot reads it here.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from hpcext.batch.standing import Is, Standing
from hpcext.core.engine import Engine
from hpcext.core.errors import HpcextError
from hpcext.core.history.node_time import NodeTime
from hpcext.core.world import World
from hpcext.manager import journal, pilot, spool, standing
from hpcext.manager.directory import Pilot

REPLAY_SHARE = 20
"""A follower rests so many times as long as it read: a replay is not free."""


RECENT_S = 86_400.0
"""What ended within so long is of interest to whoever looks at all pilots."""

MOST_REST_S = 600.0
"""A batch system that knows of no manager is asked again after so long at the latest."""


class Reading(msgspec.Struct, frozen=True):
    """What a pilot was when it was read.

    Attributes
    ----------
    directory : pathlib.Path
    pilot : Pilot
    engine : Engine
        As its manager's was after the last fact of the journal. Not to be stepped.
    node_time : NodeTime
        What the nodes' time went into until `now_s`.
    policy : str
    began_at : float
        Seconds of Unix time; all other instants are seconds since.
    now_s : float
        Now where a manager runs; else the last instant of the journal.
    alive : bool
        A manager runs it, or may do so.
    standing : Standing
        What is known of that: its batch job may be stopped, or not be known.
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
    """Reads one pilot again and again, and replays its journal only when that has grown.

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
        self._past: tuple[Pilot, Engine, NodeTime, journal.Past] | None = None

    def read(self) -> Reading:
        """What it is now, or was a moment ago where reading takes long.

        Raises
        ------
        HpcextError
            It is no pilot, somebody else's, or its journal cannot be read.
        """
        pilot_, engine, counted, past = self._read()
        alive = self.alive()
        began_at = past.header.began_at
        now_s = max(past.now_s, time.time() - began_at) if alive else past.now_s
        node_time = copy.deepcopy(counted)
        node_time.passed(engine.world, now_s)
        return Reading(
            self._directory,
            pilot_,
            engine,
            node_time,
            past.header.policy,
            began_at,
            now_s,
            alive,
            self._standing(engine),
        )

    def alive(self) -> bool:
        """Whether a manager runs it; a batch system is not asked at every call."""
        met, now_s = identity(self._directory / spool.MANAGER_FILE), time.monotonic()
        if met != self._met:
            self._met, self._rest_s, self._meet_again_s = met, spool.ASK_BATCH_S, now_s
        if self._manager is None and now_s >= self._meet_again_s:
            # Seldom and more seldom: it may have been the batch system that was away.
            self._rest_s = min(2 * self._rest_s, MOST_REST_S)
            self._meet_again_s = now_s + self._rest_s
            self._manager, self._unmanaged = spool.manager_of(self._directory), None
        if self._manager is not None and not self._manager.alive():
            self._manager = None
        return self._manager is not None

    def _standing(self, engine: Engine) -> Standing:
        """What is known of its manager; as seldom asked as :meth:`alive`."""
        if self._manager is not None:
            return spool.doubt_of(self._manager)
        if not len(engine.world.queue):
            return Standing(Is.OVER)
        if self._unmanaged is None:
            self._unmanaged = standing.of_jobs(self._directory)
        return self._unmanaged

    def recent(self) -> bool:
        """Whether a manager runs it, or did within a day; without reading it."""
        try:
            written = self._journal.stat().st_mtime
        except OSError:
            return False
        return time.time() - written < RECENT_S or self.alive()

    def begun(self) -> bool:
        """Whether there is anything to read: it may wait in a queue."""
        return self._journal.exists()

    def engine(self) -> Engine:
        """The engine of :meth:`read` alone, without asking a batch system for the manager."""
        return self._read()[1]

    def _read(self) -> tuple[Pilot, Engine, NodeTime, journal.Past]:
        spool.check_private(self._directory)
        path, began_s = self._journal, time.monotonic()
        if self._past is not None and began_s < self._again_at_s:
            return self._past
        now = identity(path)
        if self._past is None or now != self._seen:
            past = journal.read(path)
            engine, node_time = past.recount()
            self._past = pilot.load(self._directory), engine, node_time, past
            self._seen = now
            ended_s = time.monotonic()
            self._again_at_s = ended_s + REPLAY_SHARE * (ended_s - began_s)
        return self._past


class Followers:
    """The pilots of this user, each followed.

    Parameters
    ----------
    state_dir : pathlib.Path
    """

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._each: dict[Path, Follower] = {}

    def read(self, *, recent: bool = False) -> Iterator[Reading | HpcextError]:
        """All of them, newest first; what is wrong where one cannot be read.

        Parameters
        ----------
        recent : bool
            Only those that run, or did within a day.
        """
        found = [path for path, _ in pilot.known(self._state_dir)]
        self._each = {path: self._each.get(path) or Follower(path) for path in found}
        for follower in self._each.values():
            try:
                if not recent or follower.recent():
                    yield follower.read()
            except HpcextError as error:
                yield error


def read(directory: Path) -> Reading:
    """What a pilot is now.

    Raises
    ------
    HpcextError
        As of :meth:`Follower.read`.
    """
    return Follower(directory).read()


def read_at(directory: Path, instant_s: float) -> Reading | None:
    """What a pilot was at an instant of its own, in the past.

    Returns
    -------
    Reading or None
        Where its journal was compacted since: what is known of an earlier instant, `now_s`, of
        which there is one for each day. None: of none any more.

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
        pilot.load(directory),
        engine,
        counted,
        header.policy,
        header.began_at,
        instant_s,
        alive=False,
    )


def identity(path: Path) -> tuple[int, int] | None:
    """What changes when a file is added to or replaced; None where there is none."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_ino, facts.st_size
