"""Whether a training survives a suspension here: it is begun, suspended, and begun again.

It runs as ``hpcext run`` would have it, the first one of its file, in a directory of its own that
is removed afterwards, checkpoints and all.
"""

from __future__ import annotations

import contextlib
import math
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from hpcext.core.errors import HpcextError, JournalError
from hpcext.core.values import Job, Record
from hpcext.core.world import World
from hpcext.doctor.checkup import Asked, Finding
from hpcext.jobfile import JobSpec, read_jobs
from hpcext.manager import journal, spool
from hpcext.policies import find_policy
from hpcext.text import clean

BEGIN_S = 180.0
"""So long a training may take to its first step: it imports, compiles, reads its data."""

TRAIN_S = 10.0
"""So long it trains before it is suspended, unless it ends before."""

END_S = 60.0
"""So long all of it may take to be ended, at most."""

MOST_S = 7200.0
"""All of it ends before: each wait has its limit, of which a job states one."""

_LOOK_S = 0.2
_LOG_BYTES = 4096


class _Ended(HpcextError):
    """The job is over before what was waited for."""


class _Trial:
    """A manager of a file, of whose first job it is asked."""

    def __init__(self, path: Path, first: JobSpec, directory: Path) -> None:
        self._directory = directory / "pilot"
        self._name = first.name
        self._said = directory / "said.txt"
        gpus = first.gpus.min * first.nodes.min
        with self._said.open("wb") as said:
            # One job at a time, in the order of the file.
            self._manager = subprocess.Popen(
                [sys.executable, "-m", "hpcext", "run", str(path), "--gpus", str(gpus),
                 "--policy", "exclusive", "--dir", str(self._directory)],
                stdin=subprocess.DEVNULL, stdout=said, stderr=said,
            )  # fmt: skip

    def wait(self, within_s: float, holds: Callable[[Job, Record], bool]) -> tuple[Job, Record]:
        """Wait until something holds of the job, at most so long; what is known of it then.

        Raises
        ------
        HpcextError
            The job has ended, or the manager.
        """
        deadline = time.monotonic() + within_s
        while True:
            gone = self._manager.poll() is not None
            world = self._world()
            found = [job for job in world.jobs.values() if job.name == self._name] if world else []
            if world and found:
                job, record = found[0], world.records[found[0].id]
                if holds(job, record) or time.monotonic() > deadline:
                    return job, record
                if job.state.final:
                    raise _Ended(f"{job.state.value}, exit status {record.exit_code}")
            if gone or time.monotonic() > deadline:
                raise HpcextError(
                    f"hpcext run failed: {_last_line(self._said) or 'it said nothing'}"
                )
            time.sleep(_LOOK_S)

    def ask(self, verb: str) -> None:
        """Suspend the job, or resume it."""
        spool.ask(self._directory, verb, job=self._name)

    def hold_others(self) -> None:
        """None of them may begin where the first one is suspended."""
        world = self._world()
        for job in world.jobs.values() if world else ():
            if job.name != self._name:
                spool.ask(self._directory, "suspend", job=job.id)

    def log(self) -> str:
        """The last line that the job has printed."""
        for path in sorted(self._directory.glob("jobs/*/log.txt")):
            if line := _last_line(path):
                return line
        return ""

    def end(self) -> None:
        """End all jobs, and the manager."""
        with contextlib.suppress(HpcextError):
            world = self._world()
            for job in world.jobs.values() if world else ():
                if not job.state.final:
                    spool.ask(self._directory, "cancel", job=job.id)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._manager.wait(END_S)
        self._manager.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._manager.wait(END_S)
        self._manager.kill()
        self._manager.wait()

    def _world(self) -> World | None:
        with contextlib.suppress(JournalError):
            past = journal.read(self._directory / "journal.jsonl")
            return past.replay(find_policy(past.header.policy)).world
        return None


def check(asked: Asked) -> Iterator[Finding]:
    """Do it, if a file is given."""
    if asked.jobs is None:
        return
    # As a manager reads it, so that its errors are the same.
    first = read_jobs(asked.jobs)[0]
    if first.nodes.min > 1:
        says = f"{first.name} needs {first.nodes.min} nodes"
        yield Finding("job", "note", says, "try it in a pilot, and suspend it there")
        return
    with tempfile.TemporaryDirectory(prefix="hpcext-doctor-") as name:
        trial = _Trial(asked.jobs, first, Path(name))
        try:
            yield from _tried(trial, first)
        except _Ended as error:
            line = clean(trial.log())
            says = f"{first.name} {error.what}" + (f": {line}" if line else "")
            yield Finding("job", "wrong", says, "the job ended before it could be suspended")
        finally:
            trial.end()


def _tried(trial: _Trial, first: JobSpec) -> Iterator[Finding]:
    trial.wait(END_S, lambda job, _: job.state.active)
    trial.hold_others()
    job, record = trial.wait(BEGIN_S, lambda job, record: job.registered and _steps(record) > 0)
    if not job.registered:
        says = f"{first.name} has no session after {BEGIN_S:g} s, so it can only be ended"
        yield Finding(
            "job", "wrong", says, "give its script one, as docs/ has it for each framework"
        )
        return
    if not _steps(record):
        says = f"{first.name} has made no step in {BEGIN_S:g} s"
        yield Finding("job", "wrong", says, "let it make shorter steps, or run it in a pilot")
        return
    yield Finding("job", "ok", f"{first.name} makes steps: {job.step} so far")
    until = time.monotonic() + TRAIN_S
    trial.wait(TRAIN_S, lambda *_: time.monotonic() > until)
    began = time.monotonic()
    trial.ask("suspend")
    job, record = trial.wait(
        first.suspend_timeout_s + END_S, lambda job, _: job.on_hold and not job.state.active
    )
    took_s = time.monotonic() - began
    if not record.suspends:
        says = f"{first.name} was not suspended in {took_s:.0f} s, and its last steps are lost"
        yield Finding("job", "wrong", says, "see its suspend_timeout_s, and what its log says")
        return
    step = job.step
    parts = _parts(record.segments[-1].suspend_s)
    says = f"{first.name} was suspended at step {step} in {took_s:.1f} s{parts}"
    limits = (
        f"where it is preempted, GraceTime or KillWait must be longer than {math.ceil(took_s)} s"
    )
    yield Finding("job", "ok", says, limits)
    trial.ask("resume")
    job, record = trial.wait(BEGIN_S, lambda job, record: job.registered and job.step > step)
    if job.step <= step:
        says = f"{first.name} has made no step in {BEGIN_S:g} s since it was resumed"
        yield Finding("job", "wrong", says, "see what its log says")
    elif record.lost_steps:
        says = f"{first.name} began again at an earlier step: {record.lost_steps} were lost"
        yield Finding("job", "wrong", says, "save with the session, at the step that it says")
    else:
        parts = _parts(record.segments[-1].resume_s)
        yield Finding("job", "ok", f"{first.name} goes on where it was, and no step is lost{parts}")


def _steps(record: Record) -> int:
    return sum(part.steps for part in record.segments)


def _parts(seconds: Mapping[str, float] | None) -> str:
    """What the time went into, as the manager measured it."""
    known = (seconds or {}).items()
    said = ", ".join(f"{name.removesuffix('_s')} {each:.1f}" for name, each in known)
    return f" ({said} s)" if said else ""


def _last_line(path: Path) -> str:
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LOG_BYTES))
        lines = file.read().decode(errors="replace").strip().splitlines()
        return clean(lines[-1]) if lines else ""
    return ""
