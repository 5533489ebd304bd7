"""The history of a job, one fact at a time: a record in, a record out."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from hpcext.core import silence
from hpcext.core.aftermath import never_ran
from hpcext.core.facts import Ended, Noted, Outcome, Progressed, Registered, Rescaled
from hpcext.core.history.losses import add
from hpcext.core.trials import Trial
from hpcext.core.values import Job, Loss, Record, Segment

NOTABLE_S = 1.0
"""Seconds of lost work of which a user is told by itself; less is counted only."""


def started(record: Record, now_s: float, job: Job) -> Record:
    """Begin a segment on ``job.gpus``, or complete the one whose GPUs were not known yet.

    Parameters
    ----------
    record : Record
    now_s : float
        The clock of the engine, in seconds.
    job : Job
        With the GPUs that it runs on.
    """
    last = record.segments[-1] if record.segments else None
    if last and last.end_s is None and not last.gpus:
        return _last(record, gpus=job.gpus)
    segment = Segment(now_s, job.gpus, job.role, from_step=job.saved_step)
    # If a note of the previous attempt still holds, this attempt sends it again.
    return replace(record, segments=(*record.segments, segment), notes=())


def noted(record: Record, fact: Noted) -> Record:
    """Add the notes and metrics of an attempt."""
    metrics = {**record.metrics, **fact.metrics}
    return replace(record, notes=fact.notes, metrics=metrics)


def registered(record: Record, now_s: float, job: Job, fact: Registered) -> Record:
    """Note the step at which a session goes on; what it does again is lost.

    This is where lost steps are counted, and nowhere else.

    Parameters
    ----------
    record : Record
    now_s : float
        The clock of the engine, in seconds.
    job : Job
        As it was before.
    fact : Registered
    """
    lost = max(0, job.step - fact.step)
    exact = record.lost_exact + (lost if job.step_known else 0)
    record = _last(record, from_step=fact.step, steps=0)
    told = record.loss
    if lost and not (told and told.from_step <= fact.step and told.steps >= lost):
        # More than the end of its last attempt was to cost.
        newest = job.saved_step if job.saved_step > fact.step else job.step
        why = f"it found no whole checkpoint of step {newest}"
        told = Loss(now_s, lost, job.step_known, fact.step, why)
    return replace(record, lost_steps=record.lost_steps + lost, lost_exact=exact, loss=told)


def progressed(record: Record, fact: Progressed, trial: Trial | None = None) -> Record:
    """Add a report.

    Parameters
    ----------
    record : Record
    fact : Progressed
    trial : Trial or None
        What the trial of a comparison has come to; None for other jobs.
    """
    if trial is not None:
        record = _tried(record, fact, trial)
    if record.segments:
        steps = max(0, fact.step - record.segments[-1].from_step)
        record = _last(record, steps=steps)
    if fact.resume_s and record.segments:
        # It is reported once the first step is done; the size may have changed by then.
        segments, first = list(record.segments), _first(record)
        segments[first] = replace(segments[first], resume_s=fact.resume_s)
        record = replace(record, segments=tuple(segments))
    metrics = {**record.metrics, **fact.metrics}
    for name in fact.diverged:
        metrics.pop(name, None)
    return replace(record, metrics=metrics)


def _tried(record: Record, fact: Progressed, trial: Trial) -> Record:
    """Add the metric of a trial, by step and at rungs."""
    now = {**fact.metrics, **dict.fromkeys(fact.diverged)}
    rungs = trial.reached(fact.step, now, fact.rungs, max(record.rungs, default=0))
    value, curve = fact.metrics.get(trial.metric), record.curve
    for rung, had in rungs.items():
        if had is not None and rung < fact.step and (not curve or rung > curve[-1].last):
            curve = add(curve, rung, had)
    # A report repeats what was said last; only what is new was measured at this step.
    if value is not None and value != record.metrics.get(trial.metric):
        curve = add(curve, fact.step, value)
    return replace(record, rungs={**record.rungs, **rungs}, curve=curve)


def silent(record: Record) -> Record:
    """Count that an attempt was found to hang."""
    return replace(record, hangs=record.hangs + 1)


def rescaled(record: Record, now_s: float, job: Job, fact: Rescaled) -> Record:
    """Begin a segment on the new GPUs, ``job.gpus``.

    Parameters
    ----------
    record : Record
    now_s : float
        The clock of the engine, in seconds.
    job : Job
        With its new GPUs.
    fact : Rescaled
    """
    segment = Segment(
        now_s, job.gpus, job.role, from_step=job.step, rescaled=True, stall_s=fact.stall_s
    )
    record = _last(record, end_s=now_s)
    rescales = record.rescales + fact.ok
    return replace(record, segments=(*record.segments, segment), rescales=rescales)


def ended(record: Record, now_s: float, job: Job, fact: Ended) -> Record:
    """End an attempt; of the job, `step` is the last one that is known to be done.

    Parameters
    ----------
    record : Record
    now_s : float
        The clock of the engine, in seconds.
    job : Job
        As it was when the attempt ended.
    fact : Ended
    """
    loss = _loss(record, now_s, job, fact)
    if record.segments and record.segments[-1].end_s is None:
        if not (job.gpus or job.run.registered) and never_ran(job, fact):
            # It had none of the GPUs that were to become known. The next attempt has its own time.
            record = replace(record, segments=record.segments[:-1])
        else:
            record = _last(record, end_s=now_s, suspend_s=fact.suspend_s)
            if job.run.registered:
                record = _last(record, steps=max(0, job.step - record.segments[-1].from_step))
    suspended = fact.outcome is Outcome.SUSPENDED
    suspends = record.suspends + suspended
    own_saves = _own_saves(record, fact)
    if _native(job, fact):
        record = _lose(record, fact)
    elif loss is not None and loss.seconds is not None:
        record = replace(record, lost_s=record.lost_s + loss.seconds)
    return replace(
        record,
        suspends=suspends,
        own_saves=own_saves,
        exit_code=fact.exit_code,
        loss=loss or record.loss,
    )


def bereft(record: Record, before: Record, job: Job) -> Record:
    """Expect to hear yet how an attempt ended that lost its last node.

    On a shared file system, what it wrote at its end may be seen only later.

    Parameters
    ----------
    record, before : Record
        The latter as it was before the attempt was given up.
    job : Job
        As it was then.
    """
    if job.run.registered and not job.run.native:
        return record  # Its next session knows what was lost.
    return replace(record, unread=(job.op, record.lost_s - before.lost_s))


def heard_late(record: Record, now_s: float, fact: Ended, *, waits: bool) -> tuple[Record, bool]:
    """Count what an attempt says of its end, after its last node was lost.

    Parameters
    ----------
    record : Record
    now_s : float
        The clock of the engine, in seconds.
    fact : Ended
    waits : bool
        Whether its job waits for GPUs, and so has not begun again.

    Returns
    -------
    record : Record
    completed : bool
        Whether its job is complete.
    """
    op, counted_s = record.unread
    completed = fact.outcome is Outcome.COMPLETED
    if fact.op != op or (not waits if completed else fact.lost_s is None):
        # What runs again has lost what it was taken to have lost, though it had completed.
        return record, False
    # What it was taken to have lost is not told any more.
    earlier = None if counted_s else record.loss
    record = replace(record, lost_s=record.lost_s - counted_s, unread=(0, 0.0))
    if completed:
        return replace(record, exit_code=fact.exit_code, loss=earlier), True
    return replace(
        _lose(record, fact),
        suspends=record.suspends + (fact.outcome is Outcome.SUSPENDED),
        own_saves=_own_saves(record, fact),
        loss=_own_loss(now_s, fact) or earlier,
    ), False


def _lose(record: Record, fact: Ended) -> Record:
    """Count what a command that saves by its own means has lost."""
    if fact.lost_s is None or fact.outcome is Outcome.COMPLETED:
        return record
    exact_s = record.lost_s_exact + (fact.lost_s if fact.lost_exact else 0.0)
    return replace(record, lost_s=record.lost_s + fact.lost_s, lost_s_exact=exact_s)


def _own_saves(record: Record, fact: Ended) -> int:
    """Return how many attempts saved by their own means, with this one."""
    # Where nobody can say what a suspended command has saved, it did what its user says it does.
    believed = fact.outcome is Outcome.SUSPENDED and not fact.lost_exact
    return record.own_saves + (fact.saved or believed)


def _native(job: Job, fact: Ended) -> bool:
    """Return whether a command saves by its own means; one may end before that was reported."""
    return job.run.native or (fact.lost_s is not None and not job.run.registered)


def _loss(record: Record, now_s: float, job: Job, fact: Ended) -> Loss | None:
    """Return what the end of an attempt costs, as it looks before the next one has begun."""
    if _native(job, fact):
        return _own_loss(now_s, fact)
    if not job.run.registered:
        return _whole_loss(record, now_s, job, fact)
    steps = job.step - job.saved_step
    saved = fact.outcome in {Outcome.COMPLETED, Outcome.SUSPENDED}
    if saved or steps <= 0:
        return None
    how = fact.why or f"exit code {fact.exit_code}"
    if job.run.silence and job.run.kills:
        how = f"it hung: {silence.what(job)}"
    why = f"cannot save: {job.run.unsaved.why}" if job.run.unsaved else how
    return Loss(now_s, steps, job.step_known, job.saved_step, why)


def _whole_loss(record: Record, now_s: float, job: Job, fact: Ended) -> Loss | None:
    """Return the same of a command without a session that others have ended."""
    gone = fact.outcome in {Outcome.EVICTED, Outcome.LOST}
    killed = fact.outcome is Outcome.FAILED and job.run.kills
    # One that had a session before goes on from there, and had only begun to.
    if not (gone or killed) or job.step or job.saved_step or never_ran(job, fact):
        return None
    began = record.segments[-1] if record.segments else None
    if began is None or began.end_s is not None or now_s - began.start_s < NOTABLE_S:
        return None
    why = "it has no session that could save it"
    return Loss(now_s, 0, False, 0, why, seconds=now_s - began.start_s, anew=True)


def _own_loss(now_s: float, fact: Ended) -> Loss | None:
    """Return the same of a command that saves by its own means."""
    if fact.lost_s is None or fact.outcome is Outcome.COMPLETED or fact.lost_s < NOTABLE_S:
        return None
    suspended = "suspended between two of its own checkpoints"
    if fact.anew:
        suspended = "it was suspended, and nothing of it could be saved"
    why = suspended if fact.outcome is Outcome.SUSPENDED else fact.why
    return Loss(
        now_s,
        0,
        fact.lost_exact,
        0,
        why or f"exit code {fact.exit_code}",
        seconds=fact.lost_s,
        anew=fact.anew,
    )


def left_behind(record: Record, node: str, attempt: int) -> Record:
    """Note that an attempt may still run on a node that was lost.

    Parameters
    ----------
    record : Record
    node : str
        The name of the lost node.
    attempt : int
    """
    return replace(record, orphans=(*record.orphans, (node, attempt)))


def cleared(record: Record, node: str, attempt: int | None = None) -> Record:
    """Note that an attempt, or all of them, have ended on a node that was lost.

    Parameters
    ----------
    record : Record
    node : str
        The name of the lost node.
    attempt : int or None
        None stands for all of them.
    """
    left = [each for each in record.orphans if each[0] != node or attempt not in {None, each[1]}]
    return replace(record, orphans=tuple(left)) if len(left) < len(record.orphans) else record


def saved_anything(record: Record, job: Job) -> bool:
    """Return whether the current attempt saved a checkpoint newer than that it resumed from."""
    return bool(job.gpus) and job.saved_step > record.segments[_first(record)].from_step


def resizing_cost(record: Record) -> tuple[int, float] | None:
    """Return what the last change of size by a suspension and a resumption cost.

    Returns
    -------
    gained : int
        GPUs more than before; below zero: fewer.
    cost_s : float
        Seconds that the two took, without the wait between them. None where not both are known.
    """
    first = _first(record)
    if first < 1:
        return None
    before, now = record.segments[first - 1], record.segments[first]
    if not before.suspend_s or not now.resume_s:
        return None
    cost_s = sum(before.suspend_s.values()) + sum(now.resume_s.values())
    return len(now.gpus) - len(before.gpus), cost_s


def _first(record: Record) -> int:
    """Return the index of the first segment of the last attempt; -1 if there are none."""
    first = len(record.segments) - 1
    while first > 0 and record.segments[first].rescaled:
        first -= 1
    return first


def _last(record: Record, **changes: Any) -> Record:
    """Change the last segment, if there is one."""
    if not record.segments:
        return record
    *before, last = record.segments
    return replace(record, segments=(*before, replace(last, **changes)))
