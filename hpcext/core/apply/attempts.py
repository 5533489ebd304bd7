"""The effect of what an attempt does, from its start to its end.

Each function takes the `world`, the time `now_s` by the engine's clock, in seconds, and the `fact`.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from hpcext.core import deferred, rescaling, saving, silence
from hpcext.core.aftermath import after, never_ran
from hpcext.core.apply import suspects
from hpcext.core.estimate import Estimate, Observed
from hpcext.core.facts import (
    Ended,
    Noted,
    NotSaved,
    Outcome,
    Progressed,
    Registered,
    Rescaled,
    Silent,
    Started,
)
from hpcext.core.history import records
from hpcext.core.values import NO_RUN, Cause, Job, Run, State, total
from hpcext.core.world import NOTHING, World


def started(world: World, now_s: float, fact: Started) -> Cause:
    """Note that an attempt runs, and on which GPUs."""
    job = world.current(fact.job, fact.op)
    if job is None or job.gpus:
        return NOTHING
    job = world.change(job, gpus=fact.gpus)
    if job.state is State.STARTING:
        job = world.enter(job, State.RUNNING, now_s)
    world.records[job.id] = records.started(world.records[job.id], now_s, job)
    return Cause.STARTED


def registered(world: World, now_s: float, fact: Registered) -> Cause:
    """Note that an attempt has a session, and what that can do."""
    job = world.current(fact.job, fact.op)
    if job is None:
        return NOTHING
    can = {"in_place": fact.in_place, "elastic": fact.elastic}
    if job.run.registered and not (job.run.native and not fact.native):
        # That it can change its size may become clear later; not once it has failed to.
        if fact.in_place and not job.run.in_place and not job.run.resize:
            world.change_run(job, **can)
        return NOTHING
    if not fact.native:
        world.records[job.id] = records.registered(world.records[job.id], now_s, job, fact)
    run = replace(job.run, registered=True, native=fact.native, **can)
    more = deferred.registered(job)
    world.change(job, run=run, step=fact.step, saved_step=fact.step, **more)
    cause = Cause.REQUEST if job.hold_deferred else NOTHING
    return cause | (Cause.REGISTERED if world.unsettled else NOTHING)


def rescaled(world: World, now_s: float, fact: Rescaled) -> Cause:
    """Note how a change of size in place ended."""
    job = world.current(fact.job, fact.op)
    if job is not None and job.run.resize_interrupted and job.run.late is None:
        # This answer counts only if the suspension that was requested in between is declined.
        world.change_run(job, late=rescaling.late(job, fact))
    changes = rescaling.answered(job, fact) if job else None
    if job is None or changes is None:
        return NOTHING
    job = world.enter(job, State.RUNNING, now_s, **changes)
    record = world.records[job.id]
    # Not what it had: of that it may have lost a node in the meantime.
    if not record.segments or job.gpus != record.segments[-1].gpus:
        world.records[job.id] = records.rescaled(record, now_s, job, fact)
    return NOTHING if fact.ok and not world.unsettled else Cause.RESCALED


def progressed(world: World, now_s: float, fact: Progressed) -> Cause:
    """Note how far an attempt has come, and how fast it is."""
    job = world.current(fact.job, fact.op)
    if job is None:
        return NOTHING
    estimate = _estimate(world, job, now_s, fact)
    before = world.records[job.id]
    world.records[job.id] = record = records.progressed(before, fact, job.trial)
    if fact.resume_s and (cost := records.resizing_cost(record)):
        estimate = estimate.paid(*cost)
    run = _heard(job, now_s, fact)
    unwatched = silence.look_s(job) is None
    job = world.change(job, step=fact.step, saved_step=fact.saved_step, estimate=estimate, run=run)
    well = (
        suspects.went_well(world, job) if record.segments and record.segments[-1].steps else NOTHING
    )
    # There is an instant to wake at from now on, as after a start.
    watched = unwatched and silence.look_s(job) is not None
    cause = Cause.PROGRESS | (Cause.STARTED if watched else NOTHING) | well
    if job.trial is None:
        return cause
    new = {rung: had for rung, had in record.rungs.items() if rung not in before.rungs}
    return cause | world.judge(job, job.trial, new)


def _heard(job: Job, now_s: float, fact: Progressed) -> Run:
    """Return what is known of an attempt that does steps."""
    run = job.run
    if fact.step_s is None and run.step_s is None:
        return run
    # What was found to hang does no more than say something, unless it does a step.
    still = run.silence if run.silence and fact.step <= run.silence.step else None
    return replace(run, step_s=fact.step_s, heard_s=now_s, silence=still)


def silent(world: World, now_s: float, fact: Silent) -> Cause:
    """Note that an attempt seems to hang; it is ended if its user wants that."""
    job = world.current(fact.job, fact.op)
    found = silence.found(job, now_s) if job is not None else None
    if job is None or found is None:
        return NOTHING
    world.records[job.id] = records.silent(world.records[job.id])
    job = world.change_run(job, silence=found)
    if job.hang == silence.RESTART:
        # Overdue at once: nobody there answers a suspension.
        world.enter(job, State.STOPPING, now_s, deadline_s=now_s)
    return NOTHING


def _estimate(world: World, job: Job, now_s: float, fact: Progressed) -> Estimate:
    """Return a job's estimate with what a report adds to it."""
    # A job is on GPUs of one kind.
    node = next((world.nodes[name] for name in job.held if name in world.nodes), None)
    # The speed on a seat depends on the neighbours, so it says nothing about the job.
    seated = node is not None and node.seats
    kind = None if seated else node.kind if node else ""
    loss = fact.metrics.get("loss")
    estimate = job.estimate.reached(fact.step, fact.done, loss, fact.goodput, kind)
    if not fact.rate or job.state is not State.RUNNING or kind is None:
        return estimate
    batch = job.estimate.batch(fact.step, fact.done)
    seen = Observed(total(job.held), len(job.held), fact.rate, batch, kind=kind)
    return estimate.saw(now_s, job.since_s, seen)


def not_saved(world: World, now_s: float, fact: NotSaved) -> Cause:
    """Note that an attempt cannot save, or can again; it may go on where it was to be suspended."""
    job = world.current(fact.job, fact.op)
    if job is None:
        return NOTHING
    must = saving.must_go(job, world.nodes, leaving=world.leaving)
    run = saving.heard(job, now_s, fact, must=must)
    declined = job.state is State.STOPPING and fact.declined > job.run.declined
    if not declined or job.run.kills or must:
        world.change(job, run=run)
        return NOTHING
    if not run.resize_interrupted:
        world.enter(job, State.RUNNING, now_s, deadline_s=None, run=run)
        return Cause.RESCALED
    deadline_s, late = now_s + job.suspend_timeout_s, run.late
    run = replace(run, resize_to=run.resize_interrupted, resize_interrupted={}, late=None)
    world.enter(job, State.RESCALING, now_s, deadline_s=deadline_s, run=run)
    if late is not None:
        rescaled(world, now_s, Rescaled(job.id, job.op, run.resize, *late))
    return Cause.RESCALED


def noted(world: World, now_s: float, fact: Noted) -> Cause:
    """Keep what an attempt tells its user."""
    job = world.current(fact.job, fact.op)
    if job is not None:
        world.records[job.id] = records.noted(world.records[job.id], fact)
        world.changed.note(job.id)
    return NOTHING


def ended(world: World, now_s: float, fact: Ended) -> Cause:
    """End a job's current attempt."""
    job = world.current(fact.job, fact.op)
    if job is None:
        return _heard_late(world, now_s, fact)
    return close(world, job, now_s, fact)


def _home(job: Job, fact: Ended) -> dict[str, Any]:
    """Return what changes of where a job can go on."""
    if fact.outcome is Outcome.SUSPENDED and fact.kept_s and len(job.held) == 1:
        (home,) = job.held
        elsewhere = job.goal is not None and set(job.goal) != {home}
        goal = {"goal": None} if elsewhere else {}
        return {"home": home, "home_work_s": fact.kept_s, "home_until_s": 0.0, **goal}
    if never_ran(job, fact):
        # What it had to go on from is as it was.
        return {}
    return {"home": "", "home_work_s": 0.0, "home_until_s": 0.0}


def _heard_late(world: World, now_s: float, fact: Ended) -> Cause:
    """Take in how an attempt ended, after its last node was lost."""
    if (job := world.jobs.get(fact.job)) is None:
        return NOTHING
    record, completed = records.heard_late(
        world.records[job.id], now_s, fact, waits=job.state is State.PENDING
    )
    world.records[job.id] = record
    if not completed:
        return NOTHING
    world.finish(job, now_s, State.COMPLETED, why=fact.why)
    return Cause.ENDED


def close(world: World, job: Job, now_s: float, fact: Ended) -> Cause:
    """Free what an attempt held, and say what becomes of its job.

    Parameters
    ----------
    world : World
    job : Job
        As it was when the attempt ended.
    now_s : float
        The clock of the engine, in seconds.
    fact : Ended
    """
    if job.run.registered:
        known = fact.step is not None or fact.outcome is Outcome.SUSPENDED
        job = replace(job, step=max(job.step, fact.step or 0), step_known=known)
    world.records[job.id] = record = records.ended(world.records[job.id], now_s, job, fact)
    progressed = records.saved_anything(record, job) or fact.saved
    hurried = world.ends_s is not None
    had = job
    fact, cause = suspects.of_broken_gpus(world, job, fact)
    state, changes = after(job, now_s, fact, progressed=progressed, hurried=hurried)
    killed = had.run.kills > 0 and fact.outcome is not Outcome.SUSPENDED
    changes = {"killed": killed, **_home(job, fact), **deferred.ended(job, state, changes)}
    job = world.change(job, held={}, gpus=(), deadline_s=None, op=0, run=NO_RUN, **changes)
    if state.final:
        world.finish(job, now_s, state, why=job.why)
    else:
        world.enter(job, state, now_s)
    return Cause.ENDED | cause | suspects.ended(world, had, fact)
