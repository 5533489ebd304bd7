"""Takes away what pilots have left: whole pilots, or what they need no more of their files.

What may go is decided here, and how it goes:

- never a pilot that a manager runs, or of which something may still run: its lock is taken, its job
  is asked for, and a batch system that does not answer has not said no;
- never what another pilot's jobs need: their checkpoints may lie here, or be named in a command;
- never through a link, to another file system, or a file of somebody else;
- a removal that was begun is finished by the next one. It begins with one rename, after which the
  directory is no pilot, and needs no room on the disk.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from hpcext import backends, documents, protocol
from hpcext.batch.jobs import Seen
from hpcext.batch.standing import Is
from hpcext.core.errors import BatchError, HpcextError, InputError, NoManagerError
from hpcext.executors.attempt.directory import ATTEMPTS, CHECKPOINT
from hpcext.launch import agent
from hpcext.launch.tree import boot_id
from hpcext.manager import locks, spool, standing, tickets
from hpcext.manager import pilot as pilots
from hpcext.manager.directory import Pilot, host
from hpcext.manager.submissions import Submissions
from hpcext.manager.views.reading import Follower
from hpcext.text import are, counted
from hpcext.training import checkpoint

Keep = Literal["last", "all", "none"]

LOCK, PILOT = "manager.lock", "pilot.json"

REMOVED = "removed.json"
"""What ``pilot.json`` is called when the removal of its pilot has begun."""

GOING = ".removed-"
"""What the names of directories begin with that are being emptied, and are nothing any more."""

DEEPEST = 100
"""Directories below each other that are gone into; deeper ones are brought up first."""

SUBMITTED_S = 600.0
"""A pilot that is so young and has no job of a batch system may be getting one."""

_FULL = {errno.ENOSPC, errno.EDQUOT}


class Size(NamedTuple):
    """What lies in a place.

    Attributes
    ----------
    bytes : int
        On the disk; what has several names there counts once.
    files : int
    """

    bytes: int = 0
    files: int = 0

    def __add__(self, other: object) -> Size:
        if not isinstance(other, Size):
            return NotImplemented
        return Size(self.bytes + other.bytes, self.files + other.files)


class Plan(NamedTuple):
    """What is to go of a pilot.

    Attributes
    ----------
    directory : pathlib.Path
    id : str
    parts : tuple of pathlib.Path
        Empty: all of it.
    size : Size
    left : int
        Jobs that are not done, and could go on.
    """

    directory: Path
    id: str
    parts: tuple[Path, ...]
    size: Size
    left: int


class Kept(NamedTuple):
    """A pilot that stays as it is, and why."""

    id: str
    why: str


# Sizes.


def size_of(paths: Iterable[Path]) -> Size:
    """What places hold, without what links lead to; what cannot be looked at is left out."""
    seen: set[tuple[int, int]] = set()
    found = Size()
    stack = list(paths)
    while stack:
        path = stack.pop()
        with contextlib.suppress(OSError):
            facts = path.lstat()
            if facts.st_nlink > 1 and not stat.S_ISDIR(facts.st_mode):
                if (facts.st_dev, facts.st_ino) in seen:
                    continue
                seen.add((facts.st_dev, facts.st_ino))
            found += Size(facts.st_blocks * 512, 1)
            if stat.S_ISDIR(facts.st_mode):
                with os.scandir(path) as entries:
                    stack += [Path(entry.path) for entry in entries]
    return found


# What may go.


class Needs:
    """What the jobs of all pilots need that may lie in another one.

    Parameters
    ----------
    state_dir : pathlib.Path
    """

    def __init__(self, state_dir: Path) -> None:
        self._of = {path: _needs(path) for path, _ in pilots.known(state_dir)}

    def forget(self, directory: Path) -> None:
        """A pilot is no more."""
        self._of.pop(directory, None)

    def who(self, place: Path) -> str:
        """The pilot that needs something in a place, and is not itself there; empty: none."""
        inside = f"{os.path.realpath(place)}{os.sep}"
        for path, (places, words) in self._of.items():
            own = f"{os.path.realpath(path)}{os.sep}"
            if inside.startswith(own):
                continue
            if any(f"{each}{os.sep}".startswith(inside) for each in (own, *places)):
                return path.name
            names = "|".join(re.escape(each) for each in {inside[:-1], str(place)})
            # Not a longer name that begins alike.
            named = re.compile(rf"(?:{names})(?![\w.-])")
            if any(map(named.search, words)):
                return path.name
        return ""


def _needs(directory: Path) -> tuple[set[str], set[str]]:
    """Where the checkpoints of a pilot's jobs really are, and words of jobs that name places."""
    own = f"{os.path.realpath(directory)}{os.sep}"
    places: set[str] = set()
    for job in _entries(directory / "jobs"):
        for each in (job / CHECKPOINT, *_entries(job / CHECKPOINT)):
            real = os.path.realpath(each)
            if not f"{real}{os.sep}".startswith(own):
                places.add(real)
    words: set[str] = set()
    with contextlib.suppress(HpcextError):
        submissions = Submissions(directory / "submissions")
        for job_id in _unfinished(directory, submissions):
            spec = submissions.spec(job_id)
            every = (*spec.command, *spec.env.values(), spec.workdir)
            words |= {os.path.join(spec.workdir, word) for word in every if os.sep in word}
            words |= {os.path.normpath(each) for each in words}
    return places, words


def _entries(directory: Path) -> list[Path]:
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        return [Path(entry.path) for entry in entries]
    return []


def _unfinished(directory: Path, submissions: Submissions) -> list[str]:
    """Jobs of a pilot that may still run; all of them, where that cannot be read."""
    try:
        follower = Follower(directory)
        if follower.begun():
            return [job.id for job in follower.engine().world.unfinished()]
    except HpcextError:
        pass
    return [job.id for job in submissions.jobs]


def plan_whole(directory: Path, needs: Needs) -> Plan:
    """What goes when a pilot is removed.

    Raises
    ------
    HpcextError
        It may not go; says why.
    """
    pilot = pilots.load(directory)
    _refuse_if_used(directory, pilot, needs)
    return Plan(directory, pilot.id, (), size_of([directory]), left_of(directory))


def left_of(directory: Path) -> int:
    """How many jobs of a pilot are not done."""
    return len(_unfinished(directory, Submissions(directory / "submissions")))


def plan(
    state_dir: Path, *, older_than_s: float, keep: Keep, now: float
) -> tuple[list[Plan], list[Kept]]:
    """What goes of the pilots that are over for longer than a while, and what else is so old.

    Parameters
    ----------
    state_dir : pathlib.Path
    older_than_s : float
        Seconds since anything was written in its journal.
    keep : {"last", "all", "none"}
        Which checkpoints stay. With ``last`` and ``all`` the account of the pilot stays too: what
        it was, what happened, and logs.
    now : float
        Epoch.
    """
    needs, going, kept = Needs(state_dir), [], []
    for directory, pilot in pilots.known(state_dir):
        if now - touched_at(directory, pilot) < older_than_s:
            continue
        try:
            if directory == (state_dir / tickets.NAME).resolve():
                raise InputError("trainer tickets use it")
            left = left_of(directory)
            if left:
                what = f"{counted(left, 'job')} of it {are(left)} not done"
                raise InputError(what, do=f"hpcext pilot rm {pilot.id} removes it all the same")
            if keep == "none":
                found = plan_whole(directory, needs)
                # An older one may be needed by this one alone.
                needs.forget(directory)
            else:
                _refuse_if_running(directory, pilot)
                parts = tuple(part for part in parts_of(directory, keep) if not needs.who(part))
                found = Plan(directory, pilot.id, parts, size_of(parts), 0)
            if found.parts or keep == "none":
                going.append(found)
        except HpcextError as error:
            kept.append(Kept(pilot.id, "; ".join(filter(None, (error.what, error.do)))))
    return going, kept


def touched_at(directory: Path, pilot: Pilot) -> float:
    """When something was last written in the journal of a pilot, or in its description."""
    times = [pilot.began_at]
    for name in ("journal.jsonl", PILOT):
        with contextlib.suppress(OSError):
            times.append((directory / name).lstat().st_mtime)
    return max(times)


def parts_of(directory: Path, keep: Keep) -> Iterator[Path]:
    """What the jobs of a pilot that is over have left and nobody reads any more.

    Attempts, checkpoints that were never whole, what an earlier removal has begun with, and with
    ``last`` all checkpoints but the newest of each job that verifies.
    """
    for job in sorted(_entries(directory / "jobs")):
        if not _is_own_directory(job):
            continue
        yield from sorted(path for path in job.glob(ATTEMPTS) if _is_own_directory(path))
        yield from sorted(path for path in _entries(job) if path.name.startswith(GOING))
        place = job / CHECKPOINT
        # A link leads to where a user has put his checkpoints: those are his.
        if not _is_own_directory(place):
            continue
        began = (GOING, ".draft-")
        yield from sorted(path for path in _entries(place) if path.name.startswith(began))
        if keep == "last":
            yield from _older(place)


def _older(place: Path) -> list[Path]:
    """Checkpoints that are older than the newest one that verifies."""
    committed = [path for _, path in checkpoint.committed(place) if _is_own_directory(path)]
    for index, path in enumerate(committed[:-1]):
        with contextlib.suppress(checkpoint.CheckpointError, OSError):
            checkpoint.verify(path)
            return committed[index + 1 :]
    return []


def _is_own_directory(path: Path) -> bool:
    with contextlib.suppress(OSError):
        facts = path.lstat()
        return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid()
    return False


def _refuse_if_used(directory: Path, pilot: Pilot, needs: Needs) -> None:
    _refuse_if_running(directory, pilot)
    if other := needs.who(directory):
        raise InputError(
            f"pilot {other} needs what is in it", where=pilot.id, do=f"remove {other} first"
        )


def _refuse_if_running(directory: Path, pilot: Pilot) -> None:
    """Refuse a pilot of which something may still run, in a batch system or without a manager."""
    spool.check_private(directory)
    with _claimed(directory):
        pass
    _refuse_if_in_batch(directory, pilot)
    if not pilot.batch and pilot.harvest is None:
        _refuse_if_trains(directory, pilot)


def _refuse_if_in_batch(directory: Path, pilot: Pilot) -> None:
    """Refuse one whose job, or one of whose leases, is there or cannot be asked for."""
    asked: dict[str, set[protocol.JobId]] = {}
    system, job_id = spool.batch_job_of(directory)
    if job_id is not None:
        asked.setdefault(system, set()).add(job_id)
    if pilot.batch:
        job_id = backends.submitted(pilot.batch).job_of(directory)
        if job_id is not None:
            asked.setdefault(pilot.batch, set()).add(job_id)
        elif time.time() - pilot.began_at < SUBMITTED_S:
            raise NoManagerError("it is perhaps being submitted", where=pilot.id)
    for path in sorted(directory.glob(f"leases/*/{agent.LEASE_FILE}")):
        try:
            if pilot.harvest is None:
                raise ValueError("no terms")
            job_id = int(documents.read_json(path, agent.LEASE)["job_id"])
        except documents.UNFIT:
            do = f"hpcext run --resume {directory} finds out, and gives it back"
            what = "what became of a lease of it is not known"
            raise NoManagerError(what, where=pilot.id, do=do) from None
        asked.setdefault(pilot.harvest.system, set()).add(job_id)
    for system, ids in asked.items():
        try:
            seen = backends.find(system).jobs().seen(sorted(ids, key=str))
        except (BatchError, InputError) as error:
            what = f"{backends.title(system)} does not say whether its job has ended ({error.what})"
            raise NoManagerError(what, where=pilot.id) from None
        for each in sorted(ids, key=str):
            _refuse_if_there(directory, pilot, system, each, seen.get(each))


def _refuse_if_there(
    directory: Path, pilot: Pilot, system: str, job_id: protocol.JobId, seen: Seen | None
) -> None:
    """Refuse one whose job is there, or may be."""
    name = backends.title(system)
    found = backends.find(system).standing(job_id, seen)
    if found.state is Is.UNKNOWN:
        raise NoManagerError(found.what, where=pilot.id, do=found.do)
    if not found.state.ended:
        state = seen.state if seen is not None else ""
        what = f"its job {job_id} of {name} is there ({state})"
        raise NoManagerError(what, where=pilot.id, do="cancel it first")
    if found.state is Is.FORGOTTEN and (ran := _ran_last(directory)):
        what = (
            f"neither {name} nor its accounting knows job {job_id}, in which {ran} ran when it was "
            "last heard of"
        )
        raise NoManagerError(what, where=pilot.id, do=f"{standing.how_to_go_on(directory)}")


def _ran_last(directory: Path) -> str:
    """A job that ran when its pilot's journal ended; empty where none did, or nothing says so."""
    with contextlib.suppress(HpcextError):
        busy = Follower(directory).engine().world.queue.busy()
        return next((job.name for job in busy), "")
    return ""


def _refuse_if_trains(directory: Path, pilot: Pilot) -> None:
    """Refuse one whose manager was killed, while what it had started goes on."""
    for path in directory.glob(f"jobs/*/{ATTEMPTS}/{protocol.SUPERVISOR_FILE}"):
        if (path.parent / protocol.EXIT_FILE).exists():
            continue
        do = f"hpcext run --resume {directory} takes it over"
        try:
            said = documents.read_json(path, protocol.SUPERVISOR)
            process = protocol.Process(int(said["pid"]), int(said["start"]))
        except documents.UNFIT:
            continue
        if said.get("boot_id") == boot_id():
            if process.alive():
                what = f"job {path.parent.parent.name} of it still runs (pid {process.pid})"
                raise NoManagerError(what, where=pilot.id, do=do)
        elif _ran_on(directory) not in {"", host()}:
            what = f"job {path.parent.parent.name} of it may still run on {_ran_on(directory)}"
            raise NoManagerError(what, where=pilot.id, do=do)


def _ran_on(directory: Path) -> str:
    """The machine of the last manager; empty where nothing says so."""
    try:
        return str(documents.read_json(directory / spool.MANAGER_FILE, spool.MANAGER)["host"])
    except documents.UNFIT:
        return ""


@contextlib.contextmanager
def _claimed(directory: Path) -> Iterator[None]:
    """Be the only one who manages a pilot.

    Raises
    ------
    NoManagerError
        A manager does.
    """
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(locks.held(directory / LOCK))
        except locks.LockedError:
            raise NoManagerError(
                "a manager runs it", where=directory.name, do="hpcext drain lets it end"
            ) from None
        except OSError as error:
            # There is no room for the file of a lock; so no manager has it, or could.
            if error.errno not in _FULL or os.path.lexists(directory / LOCK):
                raise
        yield


# How it goes.


def remove(plan: Plan, state_dir: Path) -> int:
    """Carry a plan out.

    Returns
    -------
    int
        Files that stay, since they are somebody else's, or on another file system.

    Raises
    ------
    HpcextError
        Somebody runs it by now, or something cannot be removed: the next removal goes on.
    """
    try:
        with _claimed(plan.directory):
            if plan.parts:
                return sum(_remove_part(part) for part in plan.parts)
            os.replace(plan.directory / PILOT, plan.directory / REMOVED)
            return _finish(plan.directory, state_dir / "pilots" / plan.id)
    except OSError as error:
        raise _stuck(error, plan.directory) from None


def finish(state_dir: Path) -> list[str]:
    """Finish removals that were begun and interrupted; the names of what is gone now.

    Raises
    ------
    HpcextError
        Something cannot be removed.
    """
    gone: list[str] = []
    register = state_dir / "pilots"
    for entry in sorted(_entries(register)):
        try:
            if _finished(entry, register):
                gone.append(entry.name.removeprefix(GOING))
        except OSError as error:
            raise _stuck(error, entry) from None
    return gone


def _finished(entry: Path, register: Path) -> bool:
    """Finish one, if its removal was begun."""
    directory = Path(os.path.realpath(entry))
    begun = (directory / REMOVED).is_file() and not os.path.lexists(directory / PILOT)
    if begun and _is_own_directory(directory):
        try:
            with _claimed(directory):
                return _finish(directory, entry) == 0
        except NoManagerError:
            # Another process of ours is at it.
            return False
    if not entry.name.startswith(GOING):
        return False
    if _is_own_directory(directory) and not set(os.listdir(directory)) - {LOCK}:
        _close(directory, entry)
    elif os.path.lexists(directory):
        return False
    else:
        entry.unlink(missing_ok=True)
    return True


def _finish(directory: Path, entry: Path) -> int:
    """Empty what is no pilot any more, then take its place in the list of pilots away."""
    left = empty(directory, keep={REMOVED, LOCK})
    if left:
        return left
    going = entry.with_name(f"{GOING}{entry.name.removeprefix(GOING)}")
    if os.path.lexists(entry) and entry != going:
        os.rename(entry, going)
        if directory == Path(os.path.realpath(entry.parent)) / entry.name:
            directory = Path(os.path.realpath(going))
    (directory / REMOVED).unlink(missing_ok=True)
    _close(directory, going)
    return 0


def _close(directory: Path, entry: Path) -> None:
    """Take away a directory that has nothing but a lock, and what leads to it."""
    (directory / LOCK).unlink(missing_ok=True)
    directory.rmdir()
    if entry.is_symlink():
        entry.unlink()


def _remove_part(path: Path) -> int:
    """Take a directory away; from the beginning on it is not what it was."""
    going = path if path.name.startswith(GOING) else path.with_name(f"{GOING}{path.name}")
    try:
        if path != going:
            os.rename(path, going)
        if not stat.S_ISDIR(going.lstat().st_mode):
            going.unlink()
            return 0
        left = empty(going)
        if not left:
            going.rmdir()
    except FileNotFoundError:
        return 0
    return left


def empty(directory: Path, keep: Iterable[str] = ()) -> int:
    """Remove all in a directory that is ours; no link is followed, no other file system entered.

    Returns
    -------
    int
        What stays: files of others, and places where other file systems begin.
    """
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        cleaner = _Cleaner(fd)
        return cleaner.run(frozenset(keep))
    finally:
        os.close(fd)


class _Cleaner:
    """Empties one directory, however deep the ones in it are."""

    def __init__(self, top: int) -> None:
        self._top = top
        self._device = os.fstat(top).st_dev
        self._numbers = itertools.count()
        self._brought_up = False

    def run(self, keep: frozenset[str]) -> int:
        """Until nothing more can go."""
        while True:
            self._brought_up = False
            left = self._empty(self._top, keep, 0)
            if not self._brought_up:
                return left

    def _empty(self, fd: int, keep: frozenset[str], depth: int) -> int:
        with os.scandir(fd) as entries:
            found = [(entry.name, entry.stat(follow_symlinks=False)) for entry in entries]
        return sum(
            self._remove(fd, name, facts, depth) for name, facts in found if name not in keep
        )

    def _remove(self, fd: int, name: str, facts: os.stat_result, depth: int) -> int:
        """Remove an entry; how much of it stays."""
        if facts.st_uid != os.geteuid() or facts.st_dev != self._device:
            return 1
        if not stat.S_ISDIR(facts.st_mode):
            _unlink(fd, name, facts)
            return 0
        if depth == DEEPEST:
            # Descriptors are few, and so are the calls that a program may have under way.
            up = f"{GOING}{os.getpid()}-{time.time_ns()}-{next(self._numbers)}"
            os.rename(name, up, src_dir_fd=fd, dst_dir_fd=self._top)
            self._brought_up = True
            return 0
        below = _open_below(fd, name)
        try:
            left = self._empty(below, frozenset(), depth + 1)
        finally:
            os.close(below)
        if not left:
            os.rmdir(name, dir_fd=fd)
        return left


def _open_below(fd: int, name: str) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    below = -1
    with contextlib.suppress(PermissionError):
        below = os.open(name, flags, dir_fd=fd)
    if below < 0:
        # A directory of ours that we have closed to ourselves; a link is not followed here, for
        # it was none a moment ago, and nobody else can write where we are.
        os.chmod(name, 0o700, dir_fd=fd)
        below = os.open(name, flags, dir_fd=fd)
    if os.fstat(below).st_mode & 0o700 != 0o700:
        os.fchmod(below, 0o700)
    return below


def _unlink(fd: int, name: str, facts: os.stat_result) -> None:
    """Remove a name; on some full file systems only a file that was made empty before can go."""
    try:
        os.unlink(name, dir_fd=fd)
    except OSError as error:
        if error.errno not in _FULL or not stat.S_ISREG(facts.st_mode) or facts.st_nlink > 1:
            raise
        flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_TRUNC | os.O_CLOEXEC
        os.close(os.open(name, flags, dir_fd=fd))
        os.unlink(name, dir_fd=fd)


def _stuck(error: OSError, directory: Path) -> HpcextError:
    return HpcextError(
        f"cannot be removed: {error.strerror}",
        where=str(error.filename or directory),
        do="what is left of it goes with the next hpcext prune, or hpcext pilot rm",
    )


def doing(plans: Sequence[Plan], state_dir: Path, tell: Callable[[str], None]) -> list[Plan]:
    """Carry plans out; what cannot be is told, and does not keep the others."""
    done: list[Plan] = []
    needs: Needs | None = None
    for each in plans:
        try:
            if needs is not None and (other := needs.who(each.directory)):
                raise InputError(f"pilot {other} needs what is in it", where=each.id)
            left = remove(each, state_dir)
        except HpcextError as error:
            tell(str(error))
            # It stays, and so does what it needs.
            needs = Needs(state_dir)
            continue
        if left:
            tell(f"{each.id}: {counted(left, 'file')} of others or of other file systems left")
        done.append(each)
    return done
