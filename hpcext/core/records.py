"""The history of a job, one fact at a time: a record in, a record out."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from hpcext.core.values import Ended, Job, Outcome, Progressed, Record, Registered, Segment


def started(record: Record, now_s: float, job: Job) -> Record:
    """An attempt runs, on ``job.gpus``: a new segment."""
    segment = Segment(now_s, job.gpus, job.role, from_step=job.saved_step)
    return replace(record, segments=(*record.segments, segment))


def registered(record: Record, job: Job, fact: Registered) -> Record:
    """Its session goes on at a step; what lies between it and the last one reported is lost."""
    lost = max(0, job.step - fact.step)
    record = _last(record, from_step=fact.step, steps=0)
    return replace(record, lost_steps=record.lost_steps + lost)


def progressed(record: Record, fact: Progressed) -> Record:
    """It went further."""
    if record.segments:
        steps = max(0, fact.step - record.segments[-1].from_step)
        record = _last(record, steps=steps, resume_s=fact.resume_s or record.segments[-1].resume_s)
    return replace(record, metrics={**record.metrics, **fact.metrics})


def ended(record: Record, now_s: float, job: Job, fact: Ended) -> Record:
    """It holds no GPUs any more."""
    if job.gpus:
        record = _last(record, end_s=now_s, suspend_s=fact.suspend_s)
    suspends = record.suspends + (fact.outcome is Outcome.SUSPENDED)
    return replace(record, suspends=suspends, exit_code=fact.exit_code)


def saved_anything(record: Record, job: Job) -> bool:
    """Whether the current attempt saved a checkpoint newer than the one it resumed from."""
    return bool(job.gpus) and job.saved_step > record.segments[-1].from_step


def _last(record: Record, **changes: Any) -> Record:
    """Change the last segment, if there is one."""
    if not record.segments:
        return record
    *before, last = record.segments
    return replace(record, segments=(*before, replace(last, **changes)))
