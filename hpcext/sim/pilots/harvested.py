"""The utilisation efficiency of a real harvester, past or present: U of BFTrainer §4.1.

It is the work that its trainers have done, divided by the work that they would have done on as many
nodes that stay, without costs (:mod:`hpcext.sim.evaluate.ideal`). Their speeds are stated and
measured ones; if these are not enough, the result says what is missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from hpcext.core.errors import InputError
from hpcext.core.estimate import Estimate
from hpcext.core.values import Job, State
from hpcext.jobspec import JobSpec
from hpcext.policies import find_policy
from hpcext.scaling.estimator import GpuCounts, rate_alone, speedups
from hpcext.sim.evaluate.ideal import Stay, staying
from hpcext.sim.replay.physics import Physics
from hpcext.sim.replay.run import SimulationOptions

AWAY = 0.05
"""Largest share of the time without a manager. The progress in that time is known, but not the
number of nodes."""

Curve = dict[int, float]


class Offered(NamedTuple):
    """The nodes that came and went.

    Attributes
    ----------
    nodes : float
        Their mean number.
    gpus : int
        GPUs of each.
    lasted_s, away_s : float
        Seconds for which a manager observed them, and for which none did.
    """

    nodes: float
    gpus: int
    lasted_s: float
    away_s: float = 0.0


class UtilisationEfficiency(msgspec.Struct, frozen=True):
    """The use of nodes that come and go, relative to nodes that stay.

    Attributes
    ----------
    value : float or None
        U; None if it is unknown.
    why : str
        The reason if it is unknown.
    done, ideal : float or None
        Work of all trainers, actual and on nodes that stay; in their unit.
    unit : str
        ``steps`` or ``samples``.
    nodes : float
        N_eq: the equivalent number of nodes that stay.
    """

    value: float | None = None
    why: str = ""
    done: float | None = None
    ideal: float | None = None
    unit: str = ""
    nodes: float = 0.0


def utilisation_efficiency(
    jobs: Sequence[Job], spec: Callable[[str], JobSpec], policy: str, offered: Offered
) -> UtilisationEfficiency:
    """Return U of a harvester so far.

    Parameters
    ----------
    jobs : sequence of Job
        All jobs that it was ever given.
    spec : callable
        Returns the specification of a job by its id.
    policy : str
    offered : Offered
    """
    # Failed and cancelled jobs count with the work that they did, if any.
    jobs = [job for job in jobs if job.estimate.done or not _given_up(job)]
    units = {spec(job.id).work_unit for job in jobs}
    if why := _unknown(jobs, units, offered):
        return UtilisationEfficiency(why=why, nodes=offered.nodes)
    curves = {job.id: _curve(job, spec(job.id), jobs) for job in jobs}
    for job in jobs:
        if not curves[job.id]:
            return UtilisationEfficiency(
                why=f"no speed of {job.name} is known", nodes=offered.nodes
            )
    done = math.fsum(job.estimate.done for job in jobs)
    kept = frozenset(curves)
    told = sorted(jobs, key=lambda job: (job.submitted_s, job.order))
    ended = all(job.state.final for job in jobs)
    stay = Stay(offered.nodes, offered.gpus, offered.lasted_s, ended)
    free = [_free(job, curves[job.id], kept) for job in told]
    try:
        ideal = staying(stay, free, find_policy(policy), policy, SimulationOptions())
    except (RuntimeError, InputError) as error:
        return UtilisationEfficiency(
            why=f"the same jobs on nodes that stay cannot be simulated: {error}",
            nodes=offered.nodes,
        )
    if not ideal:
        why = f"{offered.nodes:.2f} nodes that stay could not have trained them"
        return UtilisationEfficiency(why=why, nodes=offered.nodes)
    return UtilisationEfficiency(done / ideal, "", done, ideal, units.pop(), offered.nodes)


def _unknown(jobs: Sequence[Job], units: set[str], offered: Offered) -> str:
    """Return the reason why U is unknown whatever the speeds are; empty if there is none."""
    if not jobs or not any(job.estimate.done for job in jobs):
        return "no trainer has done any work yet"
    if offered.away_s > AWAY * (offered.lasted_s + offered.away_s):
        return f"no manager ran for {offered.away_s:.0f} s of the time"
    if len(units) > 1:
        return "some trainers count their work in steps, others in samples"
    kinds = {each.kind for job in jobs for each in job.estimate.observed}
    if len(kinds) > 1:
        return "the trainers ran on several kinds of GPU"
    for job in jobs:
        if _work(job) is None:
            return f"the total work of {job.name} is not stated"
    return ""


def _given_up(job: Job) -> bool:
    return job.state in {State.FAILED, State.CANCELLED}


def _work(job: Job) -> float | None:
    """Return all of a job's work; for a job that has ended, the work that it did."""
    known = job.estimate
    return known.done or None if job.state.final else known.work


def _curve(job: Job, spec: JobSpec, jobs: Sequence[Job]) -> Curve:
    """Return work per second by total GPUs, for all sizes of the job; empty if unknown."""
    known = job.estimate
    if not known.observed:
        # Users state the shape in any unit; a job of the same shape that has run gives the speed.
        alike = (each for each in jobs if each.estimate.observed)
        other = next((each for each in alike if each.estimate.stated == known.stated), None)
        if known.stated and other is not None:
            known = other.estimate
        elif spec.relative:
            return {}
    fewest, most = job.nodes or (1, 1)
    places = {size * nodes: nodes for nodes in range(fewest, most + 1) for size in job.sizes}
    sizes = GpuCounts(np.array([*places]), np.array([*places.values()]))
    kind = known.observed[0].kind if known.observed else ""
    times, one = speedups(known, sizes, kind), rate_alone(known)
    if times is None or not one:
        return {}
    curve = {gpus: one * float(each) for gpus, each in zip(places, times, strict=True)}
    return curve if all(0 < speed < math.inf for speed in curve.values()) else {}


def _free(job: Job, curve: Curve, kept: frozenset[str]) -> tuple[Job, Physics]:
    """Return the same job at its beginning, and its physics without any cost."""
    work = _work(job)
    assert work is not None
    fresh = Job(
        job.id,
        job.name,
        job.order,
        job.sizes,
        job.optimal,
        nodes=job.nodes,
        priority=job.priority,
        weight=job.weight,
        after=tuple(need for need in job.after if need in kept),
        submitted_s=job.submitted_s,
        estimate=Estimate(stated=curve, work=work, up_s=0.0, down_s=0.0),
    )
    return fresh, Physics(curve, work, checkpoint_s=0.0, elastic=True)
