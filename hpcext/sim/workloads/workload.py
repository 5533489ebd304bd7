"""Workloads, and the setting for which their jobs are made."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from hpcext.core.estimate import Estimate
from hpcext.core.values import Job
from hpcext.profiles import Profiles
from hpcext.sim.replay.physics import Physics

Jobs = Iterable[tuple[Job, Physics]]

_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}")


class Workload(NamedTuple):
    """The jobs to simulate.

    Attributes
    ----------
    text : str
        Their name in a report.
    jobs : callable
        Given a seed, yields each job and its physics in the order of submission; a new stream each
        time.
    files : tuple of Path
        Files from which they are read.
    report_s : float or None
        Seconds between reports of progress; None: only when an attempt stops training.
    measured : bool
        Whether they are measured trainings (:mod:`hpcext.sim.workloads.applications`), whose
        allowed changes depend on the policy.
    """

    text: str
    jobs: Callable[[int], Jobs]
    files: tuple[Path, ...] = ()
    report_s: float | None = None
    measured: bool = False


class Costs(NamedTuple):
    """Costs common to all jobs, besides those of a workload; None: as the workload has it.

    Attributes
    ----------
    launch_s : float or None
        Seconds from the start action until an attempt runs.
    checkpoint_s : float or None
        Training time between periodic checkpoints.
    interference : float or None
        Share of its speed that a job on several nodes loses where another one is on one of them.
    rescale : float
        Factor on the cost of changes of size.
    """

    launch_s: float | None = None
    checkpoint_s: float | None = None
    interference: float | None = None
    rescale: float = 1.0


class Setting(NamedTuple):
    """The setting for which jobs are made.

    Attributes
    ----------
    gpus : int
        GPUs of the widest node.
    nodes : int or None
        Nodes of the machine; None if they come and go.
    per_node : int or None
        Processors of a node, if a log counts processors.
    policy : str
        The policy under which they will run.
    learn : bool
        Whether policies do not know the speeds that jobs state, and learn them from reports.
    oracle : bool
        Whether policies know the true speeds and work.
    elastic : bool
        Whether jobs of a job file that state their number of nodes can change it while they train.
    costs : Costs
    profiles : Profiles or None
        The store in which a job file's ``scaling = "NAME"`` is looked up.
    data : Path or None
        The folder of recorded data.
    users : bool
        Whether jobs belong to users, and their ids are ``USER/ID``.
    """

    gpus: int = 1
    nodes: int | None = None
    per_node: int | None = None
    policy: str = ""
    learn: bool = False
    oracle: bool = False
    elastic: bool = False
    costs: Costs = Costs()
    profiles: Profiles | None = None
    data: Path | None = None
    users: bool = False


def of_user(user: str, job_id: str) -> str:
    """Return the id of a job that belongs to a user."""
    return f"{user}/{job_id}"


def user_of(job_id: str) -> str:
    """Return the user to whom a job belongs; empty if it belongs to none."""
    return job_id.rpartition("/")[0]


def user_name(text: str) -> str | None:
    """Return the name of a user; None if it cannot be one."""
    return text if _USER.fullmatch(text) else None


def changed(jobs: Jobs, setting: Setting) -> Iterator[tuple[Job, Physics]]:
    """Apply a setting to jobs: its costs, and what policies know."""
    costs = setting.costs
    given = {
        name: value
        for name in ("launch_s", "checkpoint_s", "interference")
        if (value := getattr(costs, name)) is not None
    }
    for job, physics in jobs:
        changes: dict[str, float] = dict(given)
        if costs.rescale != 1.0:
            for name in ("resume_s", "suspend_s", "rescale_up_s", "rescale_down_s"):
                changes[name] = costs.rescale * getattr(physics, name)
        known = _known(job.estimate, physics, setting)
        yield replace(job, estimate=known), replace(physics, **changes) if changes else physics


def _known(known: Estimate, physics: Physics, setting: Setting) -> Estimate:
    if setting.learn:
        return replace(known, stated={}, by_kind={}, up_s=None, down_s=None)
    if setting.costs.rescale != 1.0:
        ways = {"up_s": known.up_s, "down_s": known.down_s}
        told = {key: each * setting.costs.rescale for key, each in ways.items() if each is not None}
        known = replace(known, **told)
    if setting.oracle and isinstance(physics.speed, Mapping):
        known = replace(known, stated=physics.speed, by_kind={}, work=physics.work)
    return known
