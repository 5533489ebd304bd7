"""A check that a training survives a suspension: it is started, suspended, and resumed.

The training records its state and its losses (:mod:`hpcext.training.rehearsal`). Those after the
resumption are compared with those of the suspended training, which goes on for a few steps.

The first job of a file runs as under ``hpcext run``, in a directory of its own, which is removed
afterwards with its checkpoints.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from hpcext import protocol
from hpcext.config import Settings
from hpcext.core.saving import lost
from hpcext.core.values import Job, Record
from hpcext.doctor import own_checkpoint
from hpcext.doctor.checkup import CheckOptions, Finding
from hpcext.doctor.keeper import END_S, PILOT
from hpcext.doctor.rehearsed import compared, read_attempt
from hpcext.doctor.rehearsed import steps as steps_after
from hpcext.doctor.trial import EndedError, TrialManager, grace_needed, parts, steps
from hpcext.jobfile import read_jobs
from hpcext.jobspec import JobSpec
from hpcext.manager.refine import profiles_for

BEGIN_S = 180.0
"""Seconds to wait for the first step of a training, which imports, compiles and reads data."""

TRAIN_S = 10.0
"""Seconds of training before the suspension."""

MOST_S = 7200.0
"""Seconds for the whole check; each wait in it has a limit, of which the job file states one."""

_NO_SESSION = (
    "add one to its script, as docs/ shows for each framework; or, if it saves by its own means, "
    "say how: checkpoint, docs/native.md"
)
_TOO_SOON = "the job ended before it could be suspended"


def check(asked: CheckOptions) -> Iterator[Finding]:
    """Rehearse a suspension, if a job file is given."""
    if asked.jobs is None:
        return
    first = jobs_of(asked.jobs, asked.settings)[0]
    if first.nodes.min > 1:
        says = f"{first.name} needs {first.nodes.min} nodes"
        yield Finding("job", "note", says, "try it in a pilot, and suspend it there")
        return
    directory = Path(tempfile.mkdtemp(prefix="hpcext-doctor-"))
    trial = TrialManager(_manager(asked.jobs, first, directory), directory, first.name)
    try:
        yield from _rehearse(trial, first)
    except EndedError as error:
        line = trial.log()
        says = f"{first.name} {error.what}" + (f": {line}" if line else "")
        if error.failed:
            yield Finding("job", "wrong", says, "mend this, and try again")
        elif error.trained or first.checkpoint is not None:
            yield Finding("job", "wrong", says, "let it run on, longer than a minute", _TOO_SOON)
        else:
            do = f"if it has no session, {_NO_SESSION}; if it has one, let it train on for a minute"
            yield Finding("job", "wrong", f"{says}; it has completed no step", do, _TOO_SOON)
    finally:
        trial.end()


def jobs_of(path: Path, settings: Settings | None) -> tuple[JobSpec, ...]:
    """Read a job file as a manager does, so that the errors are the same.

    Parameters
    ----------
    path : pathlib.Path
    settings : Settings or None
        None if they cannot be read.

    Raises
    ------
    InputError
        It cannot be read, or not be run.
    """
    if settings is None:
        return read_jobs(path)
    return read_jobs(
        path,
        container_runtime=settings.container_runtime,
        profiles=profiles_for(settings.state_dir / "profiles"),
    )


def _manager(jobs: Path, first: JobSpec, directory: Path) -> list[str]:
    """Return the command of a manager that runs one job at a time, in the order of the file."""
    gpus = first.gpus.min * first.nodes.min
    words = ["run", str(jobs), "--gpus", str(gpus), "--policy", "exclusive"]
    # Jobs inherit the environment of the manager.
    rehearsal = ["env", f"{protocol.REHEARSAL_VARIABLE}=1"]
    return [*rehearsal, sys.executable, "-m", "hpcext", *words, "--dir", str(directory / PILOT)]


def _rehearse(trial: TrialManager, first: JobSpec) -> Iterator[Finding]:
    trial.wait(END_S, lambda job, _: job.state.active)
    trial.hold_others()
    if first.checkpoint is not None:
        yield from own_checkpoint.rehearse(trial, first, train_s=TRAIN_S)
        return
    job, record = trial.wait(BEGIN_S, lambda job, record: job.run.registered and steps(record) > 0)
    if not job.run.registered:
        says = f"{first.name} has no session after {BEGIN_S:g} s, so it can only be ended"
        yield Finding(
            "job",
            "wrong",
            says,
            _NO_SESSION,
        )
        yield from _notes(first, record)
        return
    if not steps(record):
        says = f"{first.name} has completed no step in {BEGIN_S:g} s"
        yield Finding("job", "wrong", says, "let it make shorter steps, or run it in a pilot")
        return
    yield Finding("job", "ok", f"{first.name} completes steps: {job.step} so far")
    trial.run_for(TRAIN_S)
    began = time.monotonic()
    trial.ask("suspend")
    job, record = trial.wait(
        first.suspend_timeout_s + END_S, lambda job, _: job.on_hold and not job.state.active
    )
    attempt = job.attempt
    before = read_attempt(trial.attempt(job.id, attempt))
    went_on_s = before["went_on_s"] if before else 0.0
    took_s = time.monotonic() - began - went_on_s
    if not record.suspends:
        says = f"{first.name} was not suspended in {took_s:.0f} s, and its last steps are lost"
        yield Finding("job", "wrong", says, "check its suspend_timeout_s, and its log")
        return
    step = job.step
    into = parts(_without(went_on_s, record.segments[-1].suspend_s))
    says = f"{first.name} was suspended at step {step} in {took_s:.1f} s{into}"
    yield Finding("job", "ok", says, grace_needed(took_s))
    trial.ask("resume")
    again = steps_after(before)

    def goes_on(job: Job, record: Record) -> bool:
        there = steps_after(read_attempt(trial.attempt(job.id, job.attempt))) >= again
        return job.run.registered and job.step > step and there

    job, record = trial.wait(BEGIN_S, goes_on)
    if job.step <= step:
        says = f"{first.name} has completed no step in {BEGIN_S:g} s since it was resumed"
        yield Finding("job", "wrong", says, "check its log")
    elif record.lost_steps:
        says = f"{first.name} restarted from an earlier step: {lost(record)} were lost"
        yield Finding("job", "wrong", says, "save with the session, at the step that it names")
    else:
        into = parts(record.segments[-1].resume_s)
        yield Finding(
            "job", "ok", f"{first.name} continues where it was, and no step is lost{into}"
        )
        yield from compared(first.name, before, read_attempt(trial.attempt(job.id, job.attempt)))
    yield from _notes(first, record)


def _without(went_on_s: float, seconds: Mapping[str, float] | None) -> dict[str, float]:
    """Return the parts of a suspension without the steps that only a rehearsal makes in it."""
    # They come after the request and before the state is written.
    return {
        name: max(0.0, each - went_on_s) if name == "agree_s" else each
        for name, each in (seconds or {}).items()
    }


def _notes(first: JobSpec, record: Record) -> Iterator[Finding]:
    """Yield the warnings of the training itself as findings."""
    for note in record.notes:
        yield Finding("job", "wrong", f"{first.name} says: {note}")
