"""What users had who shared nodes, by how these were divided among them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from hpcext.core.values import State
from hpcext.render.words import UNKNOWN, number, time_scale
from hpcext.sim.evaluate.metrics import HOUR_S, by_label
from hpcext.sim.evaluate.outcome import JobRow, SimulatedRun
from hpcext.sim.evaluate.tables import Table
from hpcext.sim.workloads.workload import user_of

WEIGHTS, EQUAL, ALONE = "weights", "equal", "alone"
"""Divisions: by an administrator's weights; in equal parts; none, as if all were one user."""

ALL = "all"
"""The name of the last line."""


class UserSummary(msgspec.Struct, frozen=True):
    """What a user had in the runs of one label, in the mean over the seeds.

    Attributes
    ----------
    label, user : str
    weight, priority : float
    limit : int or None
    jobs, completed : float
        Their numbers.
    wait_mean_s : float or None
        Of the jobs that started; None if none did.
    wanted_node_h, entitled_node_h, had_node_h : float
        As in :class:`~hpcext.sim.evaluate.outcome.UserRow`.
    difference : float or None
        Share by which the user had more (above 0) or less than the weights entitle to; None if that
        is nothing.
    equal_node_h, alone_node_h : float or None
        What the user had in equal parts, and where all jobs were those of one user.
    """

    label: str
    user: str
    weight: float
    priority: float
    limit: int | None
    jobs: float
    completed: float
    wait_mean_s: float | None
    wanted_node_h: float
    entitled_node_h: float
    had_node_h: float
    difference: float | None
    equal_node_h: float | None = None
    alone_node_h: float | None = None


def of_users(runs: Iterable[SimulatedRun]) -> tuple[UserSummary, ...]:
    """Summarise the users of each label whose nodes were divided by weights.

    Parameters
    ----------
    runs : iterable of SimulatedRun
        Runs of one policy belong together, in all divisions.
    """
    groups = list(by_label(runs).values())
    others: dict[tuple[str, str], dict[str, float]] = {}
    for group in groups:
        if group[0].division in {EQUAL, ALONE}:
            others[_base(group[0]), group[0].division] = _had(group)
    found = []
    for group in groups:
        if group[0].division == WEIGHTS:
            equal, alone = (others.get((_base(group[0]), each), {}) for each in (EQUAL, ALONE))
            found += [_summary(group, user, equal, alone) for user in _had(group)]
    return tuple(found)


def farthest(users: Iterable[UserSummary]) -> UserSummary | None:
    """Return the user whose node time differs most from that of the weights, relative to it."""
    known = [each for each in users if each.difference is not None]
    return max(known, key=lambda each: abs(each.difference or 0.0), default=None)


def table(users: Sequence[UserSummary]) -> Table:
    """Return a line for each user of a label, and one of all together."""
    time = time_scale(max((each.wait_mean_s or 0.0 for each in users), default=0.0))
    columns: dict[str, Callable[[UserSummary], str]] = {
        "User": lambda each: each.user,
        "Weight": lambda each: f"{each.weight:g}" if each.weight else "",
    }
    if any(each.priority for each in users):
        columns["Priority"] = lambda each: f"{each.priority:g}" if each.weight else ""
    if any(each.limit is not None for each in users):
        columns["Limit"] = lambda each: "" if each.limit is None else str(each.limit)
    columns |= {
        "Jobs": lambda each: f"{each.jobs:g}",
        "Completed": lambda each: f"{each.completed:g}",
        f"Wait ({time.unit})": lambda each: (
            UNKNOWN if each.wait_mean_s is None else number(each.wait_mean_s / time.divisor)
        ),
        "Wanted": lambda each: _hours(each.wanted_node_h),
        "Fair share": lambda each: _hours(each.entitled_node_h),
        "Had": lambda each: _hours(each.had_node_h),
        "Difference": lambda each: (
            UNKNOWN if each.difference is None else f"{100 * each.difference:+.1f} %"
        ),
        "In equal parts": lambda each: _hours(each.equal_node_h),
        "As one user": lambda each: _hours(each.alone_node_h),
    }
    lines = (*users, *_all(users))
    return Table(
        tuple(columns), tuple(tuple(cell(each) for cell in columns.values()) for each in lines)
    )


def _hours(node_h: float | None) -> str:
    return UNKNOWN if node_h is None else f"{node_h:,.2f}"


def _all(users: Sequence[UserSummary]) -> list[UserSummary]:
    if len(users) < 2:
        return []
    sums = {
        name: math.fsum(getattr(each, name) or 0.0 for each in users)
        for name in (
            "jobs", "completed", "wanted_node_h", "entitled_node_h", "had_node_h",
            "equal_node_h", "alone_node_h",
        )
    }  # fmt: skip
    entitled = sums["entitled_node_h"]
    return [
        UserSummary(
            label=users[0].label,
            user=ALL,
            weight=0.0,
            priority=0.0,
            limit=None,
            wait_mean_s=None,
            difference=sums["had_node_h"] / entitled - 1 if entitled else None,
            **sums,
        )
    ]


def _summary(
    group: Sequence[SimulatedRun],
    user: str,
    equal: Mapping[str, float],
    alone: Mapping[str, float],
) -> UserSummary:
    rows = [row for run in group for row in run.users if row.user == user]
    jobs = [row for run in group for row in run.jobs if user_of(row.job) == user]
    runs, first = len(group), rows[0]
    wanted, entitled, had = (
        math.fsum(getattr(row, f"{name}_node_s") for row in rows) / runs / HOUR_S
        for name in ("wanted", "entitled", "had")
    )
    return UserSummary(
        label=group[0].label,
        user=user,
        weight=first.weight,
        priority=first.priority,
        limit=first.limit,
        jobs=len(jobs) / runs,
        completed=sum(row.state == State.COMPLETED for row in jobs) / runs,
        wait_mean_s=_wait_s(jobs),
        wanted_node_h=wanted,
        entitled_node_h=entitled,
        had_node_h=had,
        difference=had / entitled - 1 if entitled else None,
        equal_node_h=equal.get(user),
        alone_node_h=alone.get(user),
    )


def _wait_s(jobs: Iterable[JobRow]) -> float | None:
    waits = [row.started_s - row.submitted_s for row in jobs if row.started_s is not None]
    return math.fsum(waits) / len(waits) if waits else None


def _had(group: Sequence[SimulatedRun]) -> dict[str, float]:
    """Return the node-hours that users had, in the mean over the seeds."""
    found: dict[str, float] = defaultdict(float)
    for run in group:
        for row in run.users:
            found[row.user] += row.had_node_s / HOUR_S / len(group)
    return dict(found)


def _base(run: SimulatedRun) -> str:
    """Return the label without the division."""
    return run.label.rpartition(", ")[0]
