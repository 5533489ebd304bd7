"""A check that a command that saves by its own means does so on request, and goes on later."""

from __future__ import annotations

import time
from collections.abc import Iterator

from hpcext.core.saving import counted_lost_s
from hpcext.core.values import Job, Record, State
from hpcext.doctor.checkup import Finding
from hpcext.doctor.keeper import END_S
from hpcext.doctor.trial import TrialManager, grace_needed, parts
from hpcext.jobspec import JobSpec

NOTICEABLE_S = 1.0
"""Seconds of work between the checkpoint and the end that may be lost without a note."""


def rehearse(trial: TrialManager, first: JobSpec, *, train_s: float) -> Iterator[Finding]:
    """Start a job, suspend it, and resume it; check what was lost.

    Parameters
    ----------
    trial : TrialManager
    first : JobSpec
        The job.
    train_s : float
        Seconds of training before the suspension, and again after it.
    """
    name = first.name
    job, _ = trial.wait(END_S, lambda job, _: job.run.registered)
    trial.run_for(train_s)
    began = time.monotonic()
    trial.ask("suspend")
    job, record = trial.wait(
        first.suspend_timeout_s + END_S, lambda job, _: job.on_hold and not job.state.active
    )
    if job.attempt and record.segments and not record.suspends:
        says = (
            f"{name} did not save in {first.suspend_timeout_s:g} s in the way that its checkpoint "
            f"states, and {_lost(record)} of work were lost"
        )
        yield Finding("job", "wrong", says, "check its checkpoint, its suspend_timeout_s, its log")
        return
    took_s = time.monotonic() - began
    into = parts(record.segments[-1].suspend_s)
    as_it_is = first.checkpoint is not None and first.checkpoint.transparent
    how = "as it is" if as_it_is else "by its own means"
    says = f"{name} was suspended {how} in {took_s:.1f} s{into}"
    yield Finding("job", "ok", says, grace_needed(took_s))
    yield _loss(name, record)
    trial.ask("resume")
    attempt = job.attempt
    until = time.monotonic() + END_S + train_s
    runs_since: list[float] = []

    def goes_on(job: Job, record: Record) -> bool:
        if job.attempt > attempt and job.state is State.RUNNING:
            runs_since.append(time.monotonic())
        ran = bool(runs_since) and time.monotonic() >= runs_since[0] + train_s
        return ran or job.state.final or job.failures > 0 or time.monotonic() > until

    job, record = trial.wait(END_S + train_s, goes_on)
    if job.failures or job.state is State.FAILED:
        says = f"{name} failed when it was begun again: {job.why}"
        yield Finding("job", "wrong", says, "check its log, and resume of its checkpoint")
    elif not runs_since and job.state is not State.COMPLETED:
        yield Finding("job", "wrong", f"{name} was not begun again", "check its log")
    else:
        does = "is complete" if job.state is State.COMPLETED else f"runs on after {train_s:g} s"
        if as_it_is:
            yield Finding("job", "ok", f"{name} was resumed, and {does}")
            return
        says = f"{name} was begun again with the same command, and {does}"
        yield Finding("job", "ok", says, "see in its log whether it continues from its checkpoint")


def _lost(record: Record) -> str:
    return counted_lost_s(record.lost_s, exact=record.lost_s_exact >= record.lost_s)


def _loss(name: str, record: Record) -> Finding:
    if record.lost_s < NOTICEABLE_S:
        return Finding("job", "ok", f"{name} lost no work by that")
    if record.lost_s_exact < record.lost_s:
        says = f"it is unknown what {name} lost by that: {_lost(record)} of work"
        return Finding("job", "note", says, "state its checkpoints: checkpoint = {file = ...}")
    if record.loss is not None and record.loss.anew:
        says = f"{name} lost all of its work by that, {_lost(record)}, and begins anew"
        do = "the finding transparent says why it cannot be suspended as it is"
        return Finding("job", "wrong", says, do)
    says = f"{name} lost {_lost(record)} of work by that, since its newest checkpoint"
    return Finding("job", "note", says, "have it save more often, or at a signal")
