"""Plans of what may go of pilots, and the reasons why others stay."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from hpcext.core.errors import HpcextError, InputError
from hpcext.executors.attempt.directory import ATTEMPTS
from hpcext.executors.attempt.launch_file import CHECKPOINT
from hpcext.manager import directory as pilots
from hpcext.manager import tickets
from hpcext.manager.cleaning.in_use import refuse_if_running
from hpcext.manager.cleaning.needs import Needs, unfinished
from hpcext.manager.cleaning.places import (
    DRAFT,
    GOING,
    PILOT,
    DiskUse,
    entries,
    is_own_directory,
    size_of,
)
from hpcext.manager.directory import Pilot
from hpcext.manager.submissions import Submissions
from hpcext.text import are, counted
from hpcext.training import checkpoint

Keep = Literal["last", "all", "none"]


class RemovalPlan(NamedTuple):
    """The plan of what goes of a pilot.

    Attributes
    ----------
    directory : pathlib.Path
    id : str
    parts : tuple of pathlib.Path
        Empty for all of it.
    size : DiskUse
    left : int
        Jobs that are not done, and could go on.
    """

    directory: Path
    id: str
    parts: tuple[Path, ...]
    size: DiskUse
    left: int


class Kept(NamedTuple):
    """A pilot that stays as it is, and why."""

    id: str
    why: str


def plan_whole(directory: Path, needs: Needs) -> RemovalPlan:
    """Plan the removal of a whole pilot.

    Raises
    ------
    HpcextError
        The pilot may not be removed; the message says why.
    """
    pilot = pilots.load(directory)
    _refuse_if_used(directory, pilot, needs)
    return RemovalPlan(directory, pilot.id, (), size_of([directory]), left_of(directory))


def left_of(directory: Path) -> int:
    """Count the jobs of a pilot that are not done."""
    return len(unfinished(directory, Submissions(directory / "submissions")))


def plan(
    state_dir: Path, *, older_than_s: float, keep: Keep, now: float
) -> tuple[list[RemovalPlan], list[Kept]]:
    """Plan what goes of the pilots that are over for longer than a while, and say what stays.

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
                what = f"{counted(left, 'job')} {are(left)} not done"
                raise InputError(what, do=f"hpcext pilot rm {pilot.id} removes it anyway")
            if keep == "none":
                found = plan_whole(directory, needs)
                # An older one may be needed by this one alone.
                needs.forget(directory)
            else:
                refuse_if_running(directory, pilot)
                parts = tuple(part for part in parts_of(directory, keep) if not needs.who(part))
                found = RemovalPlan(directory, pilot.id, parts, size_of(parts), 0)
            if found.parts or keep == "none":
                going.append(found)
        except HpcextError as error:
            kept.append(Kept(pilot.id, "; ".join(filter(None, (error.what, error.do)))))
    return going, kept


def touched_at(directory: Path, pilot: Pilot) -> float:
    """Return when a pilot's journal or description was last written, epoch seconds."""
    times = [pilot.began_at]
    for name in ("journal.jsonl", PILOT):
        with contextlib.suppress(OSError):
            times.append((directory / name).lstat().st_mtime)
    return max(times)


def parts_of(directory: Path, keep: Keep) -> Iterator[Path]:
    """Yield the files of a finished pilot's jobs that nobody reads any more.

    Attempts, checkpoints that were never whole, what an earlier removal has begun with, and with
    ``last`` all checkpoints but the newest of each job that verifies.
    """
    for job in sorted(entries(directory / "jobs")):
        if not is_own_directory(job):
            continue
        yield from sorted(path for path in job.glob(ATTEMPTS) if is_own_directory(path))
        yield from sorted(path for path in entries(job) if path.name.startswith(GOING))
        place = job / CHECKPOINT
        # A link leads to where a user has put his checkpoints: those are his.
        if is_own_directory(place):
            yield from _parts_of_checkpoints(place, keep)


def _parts_of_checkpoints(place: Path, keep: Keep) -> Iterator[Path]:
    began = (GOING, DRAFT)
    yield from sorted(path for path in entries(place) if path.name.startswith(began))
    if keep == "last":
        yield from _older(place)
    for further in sorted(place.glob(f"{checkpoint.FURTHER}*")):
        if is_own_directory(further):
            yield from _parts_of_checkpoints(further, keep)


def _older(place: Path) -> list[Path]:
    """Return the checkpoints that are older than the newest one that verifies."""
    committed = [path for _, path in checkpoint.committed(place) if is_own_directory(path)]
    for index, path in enumerate(committed[:-1]):
        with contextlib.suppress(checkpoint.CheckpointError, OSError):
            checkpoint.verify(path)
            return committed[index + 1 :]
    return []


def _refuse_if_used(directory: Path, pilot: Pilot, needs: Needs) -> None:
    refuse_if_running(directory, pilot)
    if other := needs.who(directory):
        raise InputError(
            f"pilot {other} needs its files", where=pilot.id, do=f"remove {other} first"
        )
