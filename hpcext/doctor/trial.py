"""A manager that a check starts, watches and ends, with one job of interest."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hpcext.core.errors import HpcextError
from hpcext.core.values import Job, Record, State
from hpcext.doctor import keeper
from hpcext.doctor.kept import Kept, last_line
from hpcext.manager import spool
from hpcext.text import clean

LOOK_S = 0.2


class EndedError(HpcextError):
    """An error because the job ended before the awaited event.

    Parameters
    ----------
    job : Job
    record : Record
    """

    def __init__(self, job: Job, record: Record) -> None:
        super().__init__(f"{job.state.value}, exit status {record.exit_code}")
        self.failed = job.state is State.FAILED
        self.trained = steps(record) > 0


class TrialManager:
    """A manager that a keeper runs and ends.

    Parameters
    ----------
    command : sequence of str
        The command of the manager, for the pilot in ``DIRECTORY/pilot``.
    directory : pathlib.Path
        It is removed at the end.
    name : str
        The name of the watched job.
    jobs : sequence of str
        Jobs of batch systems that are cancelled at the end, as ``SYSTEM:NAME``.
    """

    def __init__(
        self, command: Sequence[str], directory: Path, name: str, jobs: Sequence[str] = ()
    ) -> None:
        self.pilot = directory / keeper.PILOT
        self._directory = directory
        self._name = name
        self._kept = Kept(command, directory, jobs)

    def wait(self, within_s: float, holds: Callable[[Job, Record], bool]) -> tuple[Job, Record]:
        """Wait until a condition holds or the time is over; return the job and its record then.

        Parameters
        ----------
        within_s : float
            Seconds to wait at most.
        holds : callable
            Tells from the job and its record whether the condition holds.

        Raises
        ------
        HpcextError
            The job or the manager has ended, or the manager has not begun in time.
        """
        deadline = time.monotonic() + within_s
        while True:
            late = time.monotonic() > deadline
            world = keeper.world(self._directory)
            found = [job for job in world.jobs.values() if job.name == self._name] if world else []
            if world and found:
                job, record = found[0], world.records[found[0].id]
                if holds(job, record) or late:
                    return job, record
                if job.state.final:
                    raise EndedError(job, record)
            if late:
                raise HpcextError(f"its manager did not start within {within_s:g} s")
            self.check()
            time.sleep(LOOK_S)

    def run_for(self, seconds: float) -> None:
        """Let the job run for some seconds; raise HpcextError if it ends, or the manager."""
        until = time.monotonic() + seconds
        self.wait(seconds, lambda *_: time.monotonic() > until)

    def check(self) -> None:
        """Raise HpcextError if the manager has ended."""
        if self._kept.ended():
            said = last_line(self._directory / keeper.OUTPUT)
            raise HpcextError(f"its manager failed: {said or 'it printed nothing'}")

    def ask(self, verb: str) -> None:
        """Send a request to suspend or to resume the job."""
        spool.ask(self.pilot, verb, job=self._name)

    def hold_others(self) -> None:
        """Suspend the other jobs, so that none starts on the GPUs of the suspended one."""
        world = keeper.world(self._directory)
        for job in world.jobs.values() if world else ():
            if job.name != self._name:
                spool.ask(self.pilot, "suspend", job=job.id)

    def attempt(self, job: str, number: int) -> Path:
        """Return the directory of an attempt of a job.

        Parameters
        ----------
        job : str
            Its id.
        number : int
            The number of the attempt.
        """
        return self.pilot / "jobs" / job / f"attempt-{number:04d}"

    def output_line(self, words: str) -> str:
        """Return the first line of the manager's output with some words; empty if there is none."""
        return next((clean(line) for line in self._kept.output() if words in line), "")

    def log(self) -> str:
        """Return the last line that the job has printed; empty if there is none."""
        for path in sorted(self.pilot.glob("jobs/*/log.txt")):
            line = last_line(path)
            # A job that has printed nothing has the heading of its attempt alone.
            if line and not line.startswith("--- attempt "):
                return line
        return ""

    def end(self) -> None:
        """Have the keeper end everything, and wait for it."""
        self._kept.end()


def steps(record: Record) -> int:
    """Return how many steps all attempts of a job have made."""
    return sum(part.steps for part in record.segments)


def parts(seconds: Mapping[str, float] | None) -> str:
    """Return the measured parts of a duration in parentheses; empty if there are none.

    Parameters
    ----------
    seconds : Mapping of str to float, or None
        Part → its seconds.
    """
    known = (seconds or {}).items()
    said = ", ".join(f"{name.removesuffix('_s')} {each:.1f}" for name, each in known)
    return f" ({said} s)" if said else ""


def grace_needed(took_s: float) -> str:
    """Return advice on the time that a preemption must leave for a suspension of this duration."""
    return f"where it is preempted, GraceTime or KillWait must be longer than {math.ceil(took_s)} s"
