"""The pilot that is meant if none is named: the newest to look at, the only one to change."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from hpcext.allocation import JobId
from hpcext.batch.standing import Is
from hpcext.core.errors import HpcextError, InputError, NoManagerError
from hpcext.core.world import World
from hpcext.manager import directory as pilots
from hpcext.manager import orphans, spool, standing
from hpcext.manager.directory import find_or_none
from hpcext.manager.submissions import Submissions
from hpcext.manager.views.reading import Follower
from hpcext.text import clean, counted, listed, shown

MOST_EXAMINED = 10
"""The number of newest pilots of one file in which trainings without a manager are looked for."""


def newest(state_dir: Path) -> Path:
    """Return the pilot that was begun last.

    Raises
    ------
    NoManagerError
        There is no such pilot.
    """
    found = pilots.known(state_dir)
    if not found:
        raise NoManagerError("there is no pilot yet", do="hpcext run JOBS.toml starts one")
    return found[0][0]


def only_running(state_dir: Path) -> Path:
    """Return the one pilot that has a manager.

    Raises
    ------
    NoManagerError
        None has.
    InputError
        Several have.
    """
    found = running(state_dir)
    if not found:
        raise NoManagerError(
            "no pilot is running, so name the one that you mean", do="hpcext pilot list"
        )
    if len(found) > 1:
        raise InputError(
            f"{len(found)} pilots are running, so name the one that you mean",
            valid=listed(path.name for path in found),
        )
    return found[0]


def running(state_dir: Path, among: Sequence[Path] | None = None) -> list[Path]:
    """Return the pilots that have a manager, newest first, also if their job is stopped.

    A batch system is asked once for all of them.

    Parameters
    ----------
    state_dir : pathlib.Path
    among : sequence of pathlib.Path, optional
        The pilots to look at, newest first; by default all.

    Raises
    ------
    NoManagerError
        Of some it is not known.
    """
    here: list[Path] = []
    asked: dict[str, dict[JobId, Path]] = {}
    known = among if among is not None else [path for path, _ in pilots.known(state_dir)]
    for path in known:
        system, job_id = spool.batch_job_of(path)
        if job_id is None:
            here += [path] if spool.manager_of(path) else []
        else:
            asked.setdefault(system, {})[job_id] = path
    for system, places in asked.items():
        for job_id, found in spool.standings(system, places).items():
            path = places[job_id]
            # A pilot whose jobs have all ended has nothing to change.
            if found.state is Is.UNKNOWN and _may_have_left(path):
                raise NoManagerError(
                    f"it is unknown which pilots are running: {found.what}",
                    do="name the one that you mean; hpcext pilot list shows them",
                )
            here += [path] if found.state in {Is.RUNS, Is.STOPPED} else []
    return [path for path in known if path in here]


def _may_have_left(directory: Path) -> bool:
    try:
        return bool(_left(directory))
    except HpcextError:
        return True


def to_look_at(words: tuple[str | None, str | None], state_dir: Path) -> tuple[Path, str]:
    """Return the pilot and the job that up to two words mean, for a verb that shows jobs.

    Two words are PILOT and JOB. One word is a job of the newest pilot, or else a pilot; none means
    the newest pilot.

    Returns
    -------
    pilot : pathlib.Path
    job : str
        Empty if no word is one.

    Raises
    ------
    HpcextError
        There is no such thing, or the word may mean either of two.
    """
    first, second = words
    if first is None or second is not None:
        return (pilots.find(first, state_dir) if first else newest(state_dir)), second or ""
    named = find_or_none(first, state_dir)
    latest = None
    with contextlib.suppress(NoManagerError):
        latest = newest(state_dir)
        if _has(latest, first):
            if named in {None, latest}:
                return latest, first
            raise InputError(
                f"{shown(first)} is both a job of the newest pilot, {latest.name}, and a pilot",
                do=f"give {latest.name} {first}, or {first} and one of its jobs",
            )
    if named is not None:
        return named, ""
    try:
        return pilots.find(first, state_dir), ""
    except NoManagerError as error:
        if latest is None:
            raise
        what = f"{error.what}, and the newest pilot has no such job"
        raise NoManagerError(what, valid=error.valid, do=error.do) from None


def to_change(job: str, state_dir: Path) -> Path:
    """Return the only pilot that runs, which must have the job, if one is named.

    Raises
    ------
    HpcextError
        None runs, several do, or the word is not a job but a pilot.
    """
    directory = only_running(state_dir)
    if job and not _has(directory, job) and find_or_none(job, state_dir) is not None:
        raise InputError(f"{clean(job)} is a pilot", do="name one of its jobs, too")
    return directory


def named_to_change(handle: str, state_dir: Path) -> tuple[Path, bool]:
    """Return the pilot that a directory, an id or a name means, for a verb that changes it.

    Returns
    -------
    pilot : pathlib.Path
        Of several pilots of a name the one that runs, or else the newest.
    chosen : bool
        Whether it was chosen because it runs.

    Raises
    ------
    HpcextError
        There is none, or several of that name run.
    """
    found = pilots.find_all(handle, state_dir)
    if len(found) == 1:
        return found[0], False
    here = running(state_dir, found)
    if len(here) > 1:
        raise InputError(
            f"{len(here)} pilots of the name {clean(handle)} are running, so name the one that you "
            "mean",
            valid=listed(path.name for path in here),
        )
    return (here[0], True) if here else (found[0], False)


def only_job(world: World) -> str:
    """Return the id of the only job.

    Raises
    ------
    InputError
        There are several, or none.
    """
    if len(world.jobs) != 1:
        names = listed(dict.fromkeys(job.name for job in world.jobs.values()), most=20)
        raise InputError("no job is named", valid=names or "the pilot has no jobs")
    return next(iter(world.jobs))


def same_file(file: Path, state_dir: Path) -> str:
    """Return what to say of an unfinished pilot of the same file when another is begun; or nothing.

    Only the newest one is examined: more would take as long as reading all their journals. But
    trainings that go on without a manager are looked for in some that are older, too.
    """
    path = str(file.absolute())
    found = [(place, each) for place, each in pilots.known(state_dir) if each.file == path]
    if not found:
        return ""
    for directory, each in found[:MOST_EXAMINED]:
        runs = spool.manager_of(directory) is None and orphans.still_running(directory, each)
        if runs:
            return (
                f"pilot {each.id} of the same file has lost its manager, but {runs}, and this one "
                f"may use the same GPUs; hpcext run --resume {each.id} takes it over"
            )
    directory, last = found[0]
    try:
        left, how = _left(directory), standing.of_pilot(directory)
    except HpcextError:
        return ""
    if not how.state.ended:
        do = f"hpcext attach {last.id} follows it, hpcext submit {last.id} adds jobs to it"
        runs = "is already running" if how.state is Is.RUNS else f"has not ended: {how.what}"
        return f"pilot {last.id} of the same file {runs}, and this is a new one; {do}"
    if not left:
        return ""
    do = f"hpcext {'pilot resubmit' if last.batch else 'run --resume'} {last.id} goes on with it"
    return (
        f"pilot {last.id} of the same file ended with {counted(left, 'job')} left, and this one "
        f"starts from the beginning; {do}"
    )


def _left(directory: Path) -> int:
    """Return the number of jobs of a pilot that are not done: all, if it waits in a queue."""
    follower = Follower(directory)
    if not follower.begun():
        return len(Submissions(directory / "submissions").jobs)
    return sum(1 for _ in follower.engine().world.unfinished())


def _has(directory: Path, job: str) -> bool:
    """Return whether a pilot has a job of this id or name, without reading its journal."""
    submitted = Submissions(directory / "submissions")
    return any(job in {each.id, each.name} for each in submitted.jobs)
