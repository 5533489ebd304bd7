"""Trainings that do no step for far longer than their steps take: when to look, and what to say.

How long steps take the training itself reports. It does no step either while it writes a checkpoint
or validates; whether it does, whoever looks can tell, and tells nothing then.
"""

from __future__ import annotations

from collections.abc import Iterable

from hpcext.core.values import Job, Silence, State

IGNORE, REPORT, RESTART = "ignore", "report", "restart"
HANG = (REPORT, RESTART, IGNORE)
"""What can be done about a training that seems to hang; the first is the default."""

TIMES_USUAL = 20.0
"""How many times the 99th percentile of its steps a silence has to last."""

TIMES_LONGEST = 3.0
"""The same of its longest step: a script may evaluate within every thousandth one."""


def limit_s(job: Job) -> float | None:
    """Return after how long a silence a job seems to hang; None if nothing tells."""
    if job.hang == IGNORE or job.run.step_s is None:
        return None
    usual_s, longest_s = job.run.step_s
    return max(job.hang_after_s, TIMES_USUAL * usual_s, TIMES_LONGEST * longest_s)


def look_s(job: Job) -> float | None:
    """Return when to look whether a job does something; None if there is no need to."""
    run = job.run
    if run.step_s is None or run.silence is not None or job.state is not State.RUNNING:
        return None
    limit = limit_s(job)
    return None if limit is None else max(run.heard_s, run.looked_s, job.since_s) + limit


def found(job: Job, now_s: float) -> Silence | None:
    """Return that a job seems to hang which was looked at; None if it has just been heard of."""
    limit = limit_s(job)
    heard_s = max(job.run.heard_s, job.since_s)
    if look_s(job) is None or limit is None or job.run.step_s is None or now_s < heard_s + limit:
        return None
    return Silence(heard_s, job.step, limit, job.run.step_s[0])


def next_look_s(jobs: Iterable[Job]) -> float | None:
    """Return when to look at the first of some jobs; None for never."""
    return min((at_s for job in jobs if (at_s := look_s(job)) is not None), default=None)


def said(job: Job) -> str:
    """Say that a job seems to hang; empty if it does not."""
    silence = job.run.silence
    if silence is None or not job.state.active:
        return ""
    return f"seems to hang: {what(job)}; its log has the stacks of its processes"


def what(job: Job) -> str:
    """Say how long a job that seems to hang has done no step, and what its steps took."""
    silence = job.run.silence
    if silence is None:
        return ""
    return (
        f"no step for {silence.limit_s:g} s after step {silence.step}, and 99 % of its steps "
        f"took at most {silence.usual_s:.3g} s"
    )
