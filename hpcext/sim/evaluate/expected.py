"""The expected schedule of a job file, if every job is as fast as the file states."""

from __future__ import annotations

from collections.abc import Sequence

from hpcext.admission import admit
from hpcext.core.values import Node
from hpcext.jobspec import JobSpec
from hpcext.policies import find_policy
from hpcext.sim.evaluate.outcome import SimulatedRun
from hpcext.sim.replay.physics import Physics
from hpcext.sim.replay.run import Named, Scenario, run


def expected(specs: Sequence[JobSpec], nodes: Sequence[Node], policy: str) -> SimulatedRun | None:
    """Simulate the schedule of jobs that state their speed and their work.

    Parameters
    ----------
    specs : sequence of JobSpec
        `after` names jobs among them. `scaling` is read as work per second, `rescale_up_s` and
        `rescale_down_s` as the seconds of a resumption and a suspension.
    nodes : sequence of Node
    policy : str
        Its name and options.

    Returns
    -------
    SimulatedRun or None
        None if a job does not state its scaling or its work, or can never run on these nodes.

    Raises
    ------
    HpcextError
        The policy failed, or its answer was refused.
    """
    if not all(spec.scaling and spec.work for spec in specs):
        return None
    jobs = admit(specs, 1, {})
    coming = [(job, physics_of(spec)) for job, spec in zip(jobs, specs, strict=True)]
    result = run(Scenario(coming, tuple(nodes)), find_policy(policy), Named(policy))
    return result if result.finished else None


def physics_of(spec: JobSpec, *, elastic: bool = False) -> Physics:
    """Return the physics of a job that behaves as its file states.

    Parameters
    ----------
    spec : JobSpec
        It states scaling and work.
    elastic : bool
        Whether it changes its nodes while it trains, if it states on how many it runs.
    """
    spread = elastic and spec.nodes.max > 1
    return Physics(
        speed=spec.scaling,
        work=spec.work or 0.0,
        resume_s=spec.rescale_up_s,
        suspend_s=spec.rescale_down_s,
        elastic=spread,
        rescale_up_s=spec.rescale_up_s if spread else 0.0,
        rescale_down_s=spec.rescale_down_s if spread else 0.0,
    )
