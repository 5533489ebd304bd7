"""Rules for trainings that cannot save, and words for what is lost."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from hpcext.core.facts import NotSaved
from hpcext.core.values import Job, Loss, Node, Record, Run, Unsaved

PAUSE_S, PAUSE_MAX_S = 5.0, 60.0
"""The pause after which a suspension that was declined is requested again: first, and longest."""

MUST_PAUSE_S = 2.0
"""The same for one that has to go: there may be room before its deadline."""

KILLING_S = 20.0
"""Seconds before the end of an allocation that are reserved for killing jobs that do not answer,
and for going back into the queue; at most a quarter of the time that is left."""

LEAST_S = 5.0
"""The least time in which running jobs may save themselves."""


def answer_by(now_s: float, timeout_s: float, ends_s: float | None) -> float:
    """Return the instant at which what has not answered a suspension is killed.

    Parameters
    ----------
    now_s : float
        When the suspension is requested.
    timeout_s : float
        How long it may take.
    ends_s : float or None
        When its allocation ends, if something has yet to be done before.
    """
    if ends_s is None:
        return now_s + timeout_s
    left_s = ends_s - now_s
    return now_s + min(timeout_s, max(LEAST_S, left_s - min(KILLING_S, left_s / 4)))


def must_go(job: Job, nodes: Mapping[str, Node], *, leaving: bool) -> bool:
    """Return whether a job is to let go of its GPUs even if it cannot save.

    Parameters
    ----------
    job : Job
    nodes : Mapping[str, Node]
        Those that there are.
    leaving : bool
        Whether the allocation ends.
    """
    there = {name: node.gpus for name, node in nodes.items()}
    wanted_back = any(gpus > there.get(name, 0) for name, gpus in job.held.items())
    return leaving or job.run.degraded or job.cancelling or wanted_back


def heard(job: Job, now_s: float, fact: NotSaved, *, must: bool) -> Run:
    """Return the state of an attempt after its report whether it can save.

    Parameters
    ----------
    job : Job
    now_s : float
    fact : NotSaved
    must : bool
        Whether it has to go even if it cannot save.
    """
    answers = fact.declined > job.run.declined
    before, again_s = job.run.unsaved, job.run.suspend_again_s
    run = replace(job.run, declined=max(job.run.declined, fact.declined))
    if not fact.why:
        return replace(run, unsaved=None, suspend_again_s=None)
    since_s, tries = (before.since_s, before.tries) if before else (now_s, 0)
    tries += answers
    if answers:
        pause_s = MUST_PAUSE_S if must else min(PAUSE_S * 2.0 ** min(tries - 1, 16), PAUSE_MAX_S)
        again_s = now_s + pause_s
    unsaved = Unsaved(fact.why, since_s, fact.waits, tries)
    return replace(run, unsaved=unsaved, suspend_again_s=again_s)


def said(job: Job) -> str:
    """Say that a job cannot save, and what it does; empty for one that can."""
    unsaved = job.run.unsaved
    if unsaved is None or not job.state.active:
        return ""
    if job.run.native:
        return f"cannot save: {unsaved.why}; goes on training, and is asked again if it is needed"
    does = (
        "its training is over, and it waits to write its last checkpoint"
        if unsaved.waits
        else "goes on training"
    )
    again = "" if job.run.suspend_again_s is None else "; to be suspended when it may have room"
    return f"cannot save: {unsaved.why}; {_newest(job.saved_step)}; {does}{again}"


def lost(record: Record) -> str:
    """Say how much of a job was done again, in steps or in time, as far as that is known."""
    steps = counted_lost(record.lost_steps, exact=lost_exactly(record))
    if not record.lost_s:
        return steps
    time = counted_lost_s(record.lost_s, exact=record.lost_s_exact >= record.lost_s)
    return f"{steps}, and {time}" if record.lost_steps else time


def has_lost(record: Record) -> bool:
    """Return whether any work of a job was done again."""
    return bool(record.lost_steps or record.lost_s)


def lost_exactly(record: Record) -> bool:
    """Return whether no more steps of a job were done again than were counted."""
    return record.lost_exact >= record.lost_steps


def counted_lost(steps: int, *, exact: bool) -> str:
    """Say how many steps were lost; "at least" so many where there may have been more."""
    return f"{steps:,}" if exact else f"at least {steps:,}"


def counted_lost_s(seconds: float, *, exact: bool) -> str:
    """Say how much time of work was lost; "at most" so much where nothing is known of it."""
    return f"{seconds:,.1f} s" if exact else f"at most {seconds:,.1f} s"


def loss_sentence(loss: Loss) -> str:
    """Say what was lost, why, and from where it goes on."""
    if loss.seconds is not None:
        time = counted_lost_s(loss.seconds, exact=loss.exact)
        whence = (
            "it begins anew"
            if loss.anew
            else "it goes on from its own newest checkpoint"
            if loss.exact
            else "its own checkpoints are not known"
        )
        return f"{time} of work are lost ({loss.why}): {whence}"
    steps = counted_lost(loss.steps, exact=loss.exact)
    newest = f"step {loss.from_step}" if loss.from_step else "the beginning"
    what = "step is" if loss.steps == 1 else "steps are"
    return f"{steps} {what} lost ({loss.why}): it goes on from {newest}"


def orphans(record: Record) -> list[str]:
    """Say what may still run on nodes that were lost, a sentence each."""
    return [
        f"attempt {attempt} may still run on {node}, which the allocation has lost: it cannot be "
        "ended there, and its results do not count"
        for node, attempt in record.orphans
    ]


def _newest(step: int) -> str:
    return f"newest checkpoint step {step}" if step else "no checkpoint yet"
