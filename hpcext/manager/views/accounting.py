"""The account of what the GPU time of pilots went into: one document, schema hpcext.account/1.

Pure functions over readings. Node time is counted in :mod:`hpcext.core.history.node_time`, and
nowhere else; all nodes of a pilot offer as many GPUs, so that GPU time is a multiple of it.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from hpcext.batch.standing import Is
from hpcext.core.history.node_time import Cost, NodeTime, Tally, Use
from hpcext.core.values import Job, Record
from hpcext.manager.views.reading import Reading
from hpcext.manager.views.report import display_state

SCHEMA = "hpcext.account/1"
HOUR_S = 3600.0

FIGURES = {
    "held_gpu_h": "held",
    "training_gpu_h": "trained",
    "idle_gpu_h": "idle: no job had it",
    "starts_gpu_h": "starts and resumptions, until the first step",
    "suspends_gpu_h": "suspensions",
    "resizes_gpu_h": "changes of size in place",
    "lost_work_gpu_h": "work done again, or lost",
    "harvested_gpu_h": "harvested: jobs had it on idle nodes of others",
}
"""Figures by key, with their names; those between the first and the last add up to the first."""

REASONS = {
    "starting_gpu_h": "first starts",
    "preemption_gpu_h": "nodes that left",
    "rescaling_gpu_h": "decisions of the policy",
    "other_gpu_h": "requests and failures",
}
"""The same starts, suspensions, changes of size and lost work, by the reason for them."""

COUNTS = ("attempts", "suspends", "rescales", "lost_steps")
"""The numbers of events of jobs."""

EXACT = "lost_steps_exact"
"""Whether no more steps were lost than were counted."""

LOST_S, EXACT_S = "lost_s", "lost_s_exact"
"""Seconds of work that trainings without a session lost, and whether these are known exactly."""

NUMBERS = (*FIGURES, *REASONS, *COUNTS, LOST_S)


class PilotAccount(msgspec.Struct, frozen=True):
    """A pilot, for the part of its time that is accounted for.

    Attributes
    ----------
    now : Reading
    before : Reading or None
        At the beginning of that part; None if it begins with the pilot.
    """

    now: Reading
    before: Reading | None = None

    @property
    def from_s(self) -> float:
        """The beginning of the part, in seconds since the pilot began."""
        return self.before.now_s if self.before else 0.0


def account(
    parts: Iterable[PilotAccount], *, user: str, since: float | None, until: float
) -> dict[str, Any]:
    """Return what became of the GPU time of pilots, as a document.

    Parameters
    ----------
    parts : iterable of PilotAccount
    user : str
        Whose they are.
    since : float or None
        Epoch seconds from which on was counted; None: from the beginning of each.
    until : float
        Epoch seconds.
    """
    pilots = [_pilot(part) for part in parts]
    return {
        "schema": SCHEMA,
        "since": None if since is None else _iso(since),
        "until": _iso(until),
        "users": [{"user": user, **added(pilots)}],
        "pilots": pilots,
    }


def added(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sums of the numbers of several rows."""
    sums = {key: round(sum(row[key] for row in rows), 6) for key in NUMBERS}
    exact = {
        EXACT: all(row.get(EXACT, not row["lost_steps"]) for row in rows),
        EXACT_S: all(row.get(EXACT_S, not row[LOST_S]) for row in rows),
    }
    return {**sums, **exact}


def _pilot(part: PilotAccount) -> dict[str, Any]:
    now = part.now
    before = part.before.node_time if part.before else NodeTime()
    gpus, harvester = len(now.pilot.gpus), now.pilot.harvest is not None
    jobs = [
        _job(job, part, before.jobs.get(job.id, Tally()), gpus, harvester)
        for job in now.world.jobs.values()
    ]
    held_s = now.node_time.held_s - before.held_s
    spent = _less(now.node_time.spent, before.spent)
    # Which of them a job had is the jobs' to say.
    cost = {cost: sum(row[f"{cost.value}_gpu_h"] for row in jobs) for cost in Cost}
    return {
        "id": now.pilot.id,
        "name": now.pilot.name,
        "began": _iso(now.began_at),
        "counted_from": _iso(now.began_at + part.from_s),
        "counted_s": round(now.now_s - part.from_s, 1),
        "away_s": round(now.node_time.away_s - before.away_s, 1),
        # None: its batch system does not say it.
        "running": None if now.standing.state is Is.UNKNOWN else now.alive,
        "policy": now.policy,
        "harvester": harvester,
        "logical": now.pilot.logical,
        "gpus_per_node": gpus,
        "held_gpu_h": _hours(held_s * gpus),
        **_by_use(spent, gpus),
        **{f"{each.value}_gpu_h": round(hours, 6) for each, hours in cost.items()},
        "harvested_gpu_h": _harvested(held_s - spent.get(Use.WAITING, 0.0), gpus, harvester),
        **{key: sum(row[key] for row in jobs) for key in (*COUNTS, LOST_S)},
        EXACT: all(row[EXACT] for row in jobs),
        EXACT_S: all(row[EXACT_S] for row in jobs),
        "jobs": jobs,
    }


def _job(job: Job, part: PilotAccount, before: Tally, gpus: int, harvester: bool) -> dict[str, Any]:
    tally = part.now.node_time.jobs.get(job.id, Tally())
    cost = _less(tally.cost, before.cost)
    had_s = tally.node_s - before.node_s
    return {
        "id": job.id,
        "name": job.name,
        "state": display_state(job),
        "steps": job.step,
        "held_gpu_h": _hours(had_s * gpus),
        **_by_use(_less(tally.spent, before.spent), gpus),
        **{f"{each.value}_gpu_h": _hours(cost.get(each, 0.0) * gpus) for each in Cost},
        "harvested_gpu_h": _harvested(had_s, gpus, harvester),
        **_happened(job, part),
    }


def _by_use(spent: Mapping[Use, float], gpus: int) -> dict[str, float]:
    keys = {Use.WAITING: "idle"}
    return {f"{keys.get(use, use.value)}_gpu_h": _hours(spent.get(use, 0.0) * gpus) for use in Use}


def _harvested(node_s: float, gpus: int, harvester: bool) -> float:
    """Return the GPU-hours that were harvested: all that a harvester has, and none of a pilot's."""
    return _hours(node_s * gpus) if harvester else 0.0


def _happened(job: Job, part: PilotAccount) -> dict[str, float]:
    record, before = part.now.world.records[job.id], Record()
    now, then = _counts(job, record), dict.fromkeys(COUNTS, 0)
    if part.before is not None and job.id in part.before.world.jobs:
        before = part.before.world.records[job.id]
        then = _counts(part.before.world.jobs[job.id], before)
    more = {key: now[key] - then[key] for key in COUNTS}
    lost_s = record.lost_s - before.lost_s
    return {
        **more,
        EXACT: record.lost_exact - before.lost_exact >= more["lost_steps"],
        LOST_S: round(lost_s, 3),
        EXACT_S: record.lost_s_exact - before.lost_s_exact >= lost_s,
    }


def _counts(job: Job, record: Record) -> dict[str, int]:
    values = (job.attempt, record.suspends, record.rescales, record.lost_steps)
    return dict(zip(COUNTS, values, strict=True))


def _less(now: Mapping[Any, float], before: Mapping[Any, float]) -> dict[Any, float]:
    return {key: seconds - before.get(key, 0.0) for key, seconds in now.items()}


def _hours(seconds: float) -> float:
    # Sums of what was added and taken away again are zero but for rounding.
    return round(seconds / HOUR_S, 6) + 0.0


def _iso(at: float) -> str:
    instant = datetime.datetime.fromtimestamp(at, datetime.timezone.utc)
    return instant.isoformat(timespec="seconds")
