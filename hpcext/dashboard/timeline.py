"""The timeline of GPUs: which job had which one when, and how each span began and ended."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from hpcext.core.values import Job, Role, Segment
from hpcext.core.world import World


class Span(msgspec.Struct, frozen=True):
    """A span of time in which a job had a GPU.

    Attributes
    ----------
    gpu : str
        ``HOST:INDEX``.
    job : str
        The id of the job.
    start_s : float
    end_s : float or None
        None while it lasts.
    role : str
    began : {"started", "resumed", "resized", "promoted", "demoted"}
    ended : str
        "suspended", "resized", "interrupted" (the job ran again, and had not saved at this end), or
        the final state of the job; empty while the span lasts.
    """

    gpu: str
    job: str
    start_s: float
    end_s: float | None
    role: str
    began: str
    ended: str


def spans(world: World) -> tuple[Span, ...]:
    """Return the spans of all jobs, in the order of jobs and then of time."""
    return tuple(span for job in world.jobs.values() for span in _of(world, job))


def _of(world: World, job: Job) -> Iterator[Span]:
    segments = world.records[job.id].segments
    for index, part in enumerate(segments):
        before = segments[index - 1] if index else None
        after = segments[index + 1] if index + 1 < len(segments) else None
        role = part.role.value if part.role else ""
        began, ended = _began(part, before), _ended(part, after, job)
        for gpu in part.gpus:
            yield Span(gpu, job.id, part.start_s, part.end_s, role, began, ended)


def _began(part: Segment, before: Segment | None) -> str:
    if before is None:
        return "started"
    if part.role is not before.role and part.role is not None and before.role is not None:
        # As MARBLE calls it, whether by a restart or in place.
        return "promoted" if part.role is Role.PRIMARY else "demoted"
    return "resized" if part.rescaled else "resumed"


def _ended(part: Segment, after: Segment | None, job: Job) -> str:
    if part.end_s is None:
        return ""
    if after is not None and after.rescaled:
        return "resized"
    if part.suspend_s is not None:
        return "suspended"
    return job.state.value if after is None and job.state.final else "interrupted"
