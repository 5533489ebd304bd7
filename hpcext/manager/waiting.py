"""Waiting for the outcome of a request to a manager, as its journal tells it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple

from hpcext.batch.standing import Is
from hpcext.core.errors import HpcextError, NoManagerError
from hpcext.core.reasons import reason
from hpcext.core.values import Job, State
from hpcext.core.world import World
from hpcext.manager import spool, standing
from hpcext.manager.views.reading import Follower
from hpcext.manager.views.report import display_state
from hpcext.text import counted, listed

LOOK_S = 0.2
"""Seconds between two looks while waiting."""

LEFT = 4
"""Exit status of a manager that ended before its jobs did, without a signal to end."""


class RequestOutcome(NamedTuple):
    """The outcome of a request.

    Attributes
    ----------
    status : int
        0 if the request has been fulfilled, otherwise an exit status.
    text : str
    """

    status: int
    text: str


Look = Callable[[World], "RequestOutcome | None"]
"""A function that returns the outcome of a request by now; None for nothing yet."""


def wait(
    directory: Path,
    look: Look,
    *,
    timeout_s: float,
    ended: Callable[[World], RequestOutcome] | None = None,
) -> RequestOutcome:
    """Wait for the outcome of a request.

    Parameters
    ----------
    directory : pathlib.Path
        The pilot's.
    look : callable
    timeout_s : float
        May be infinite.
    ended : callable, optional
        The outcome if the manager ends, if that is expected.

    Raises
    ------
    HpcextError
        It did not come in time, or the manager ended before it came.
    """
    follower, until_s = Follower(directory), time.monotonic() + timeout_s
    while True:
        late, alive = time.monotonic() >= until_s, follower.alive()
        # A new follower reads what a manager wrote last: the old one may be resting.
        world = (follower if alive else Follower(directory)).engine().world
        if found := look(world):
            return found
        if not alive and ended:
            return ended(world)
        if not alive:
            raise NoManagerError("the manager ended before that happened", where=str(directory))
        if late:
            what = f"not done after {timeout_s:g} s; the request stays in force"
            raise HpcextError(what, do="hpcext status and hpcext why say what it waits for")
        time.sleep(LOOK_S)


# What became of each verb.


def comes_true(condition: Callable[[], bool], within_s: float, look_s: float = 0.05) -> bool:
    """Wait for a condition; return whether it came true in time.

    Parameters
    ----------
    condition : callable
    within_s : float
    look_s : float
        Seconds between two looks.
    """
    deadline_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(look_s)
    return True


def of_suspend(job: Job) -> RequestOutcome | None:
    """Return the outcome of a suspension: the job holds nothing, and is on hold."""
    if job.on_hold and job.state is State.PENDING:
        if not job.attempt:
            return RequestOutcome(0, f"{job.name} is suspended: it has not started yet")
        if not job.step:
            # One without a session: its steps are not known.
            return RequestOutcome(0, f"{job.name} is suspended")
        lost = job.step - job.saved_step
        step = f"at step {job.saved_step}" + (f"; {counted(lost, 'step')} lost" if lost > 0 else "")
        return RequestOutcome(0, f"{job.name} is suspended {step}")
    return None if job.on_hold or job.hold_deferred else _came_to_nothing(job)


def of_resume(job: Job) -> RequestOutcome | None:
    """Return the outcome of resuming: the job runs, or has completed."""
    if job.on_hold or job.cancelling:
        return _came_to_nothing(job)
    return _runs(job) if job.state is State.RUNNING else None


def of_resize(job: Job, gpus: int) -> RequestOutcome | None:
    """Return the outcome of a resize: the job runs on these GPUs; 0 stands for any it may have."""
    asked = job.sizes == (gpus,) if gpus else not job.stated
    if not asked or job.on_hold or job.hold_deferred or job.cancelling:
        return _came_to_nothing(job)
    has = job.has == gpus if gpus else job.held == job.goal
    return _runs(job) if job.state is State.RUNNING and has else None


def of_cancel(job: Job) -> RequestOutcome | None:
    """Return the outcome of a cancellation: the job is cancelled."""
    return RequestOutcome(0, f"{job.name} is cancelled") if job.state is State.CANCELLED else None


def _runs(job: Job) -> RequestOutcome:
    nodes = f" of {len(job.held)} nodes" if len(job.held) > 1 else ""
    return RequestOutcome(0, f"{job.name} runs on {counted(len(job.gpus), 'GPU')}{nodes}")


def _came_to_nothing(job: Job) -> RequestOutcome:
    why = f": {reason(job)}" if reason(job) else ""
    return RequestOutcome(1, f"{job.name} is {display_state(job)}{why}")


def of_job(job_id: str, look: Callable[[Job], RequestOutcome | None]) -> Look:
    """Return a look at the job of this id; once it has ended there is nothing more to come."""

    def of_world(world: World) -> RequestOutcome | None:
        job = world.jobs[job_id]
        found = look(job)
        return found if found or not job.state.final else _came_to_nothing(job)

    return of_world


def of_submit(job_ids: Collection[str]) -> Look:
    """Return a look whether all of these jobs have ended."""

    def of_world(world: World) -> RequestOutcome | None:
        jobs = [world.jobs[job_id] for job_id in job_ids]
        if not all(job.state.final for job in jobs):
            return None
        if lost := [job for job in jobs if not job.done]:
            return RequestOutcome(
                1, f"not completed: {listed(f'{job.id} ({job.name})' for job in lost)}"
            )
        return RequestOutcome(0, f"{counted(len(jobs), 'job')} completed")

    return of_world


def of_drain(world: World) -> RequestOutcome:
    """Return the outcome of a drain: the manager has ended."""
    return RequestOutcome(status_of(world), left_in(world) or "all jobs have ended")


# How a manager ends.


def status_of(world: World) -> int:
    """Return the exit status of a manager that was not told to end by a signal."""
    jobs = world.jobs.values()
    if any(not job.state.final for job in jobs):
        return LEFT
    return 1 if any(not job.done for job in jobs) else 0


def shell_status(code: int) -> int:
    """Return an exit code of a process, negative for a signal, as shells report it."""
    return code if code >= 0 else 128 - code


def left_in(world: World) -> str:
    """Return how many jobs have not ended, and how many never ran, as words; empty for none."""
    left = world.unfinished()
    never = sum(not job.attempt for job in left)
    parts = [f"{never} never ran"] if never else []
    if begun := len(left) - never:
        parts.append(f"{begun} began and {'is' if begun == 1 else 'are'} not done")
    return f"jobs are left: {', '.join(parts)}" if left else ""


def asked(directory: Path, verb: str, **words: Any) -> dict[str, Any]:
    """Ask a manager; if the pilot is over, do not advise to start one.

    Parameters
    ----------
    directory : pathlib.Path
        Of the pilot.
    verb : str
        What is asked for, such as ``suspend``.
    **words : object
        What the verb needs.

    Raises
    ------
    HpcextError
        As of :func:`hpcext.manager.spool.ask`.
    """
    try:
        return spool.ask(directory, verb, **words)
    except NoManagerError as error:
        if not _is_over(directory):
            found = standing.of_pilot(directory)
            if found.state is Is.RUNS:
                # It has ended, or begun, since it was asked for.
                raise
            # One that ended before it answered may have done what was asked: that is told, too.
            what = error.what if found.state.ended else found.what
            raise NoManagerError(what, where=str(directory), do=found.do) from None
        do = "hpcext run JOBS.toml begins another" if verb == "submit" else "hpcext status shows it"
        raise NoManagerError(
            "this pilot is over: its jobs have all ended", where=str(directory), do=do
        ) from None


def _is_over(directory: Path) -> bool:
    """Return whether nobody manages a pilot, and nothing is left for a manager to do."""
    if spool.manager_of(directory) is not None:
        return False
    with contextlib.suppress(HpcextError):
        world = Follower(directory).engine().world
        return bool(world.jobs) and not len(world.queue)
    return False
