"""BFTrainer: the division that gains most until the next event (Liu et al., Eq. 16).

Each job gains its objective for the time in which nothing is expected to change, ``T_fwd``, less
what a change of its size costs it: seconds without progress, at the speed that it has now. The
paper solves this as a mixed-integer programme (:mod:`hpcext.policies.milp`); its optimum is one of
counts, which is found exactly here (:mod:`hpcext.policies.apportion`).

What the paper leaves open, and what is done here: the unit is a GPU instead of a node, and a speed
is the multiple of the job's own on one GPU, so that jobs in different units can be added; a job
that does not run pays nothing for its start, as in Eq. 16.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable
from typing import Annotated

import msgspec
import numpy as np

from hpcext.core.values import Job, Snapshot, Target, total
from hpcext.policies.divide import On, Values, divide, speeds
from hpcext.scaling.estimator import Sizes, rate_alone

CHANGE_S = 10.0
"""What a change of size is believed to cost a job of which nobody knows better."""

Objective = Callable[[Job, Sizes, str], Values]
"""What a job is worth per second, by what it gets of a kind of GPUs."""


class Options(msgspec.Struct, frozen=True):
    """What can be chosen.

    Attributes
    ----------
    objective : str
        ``efficiency``: speed as a multiple of the job's own on one GPU, the paper's normalised
        throughput. ``throughput``: work per second; the paper found that it starves whom a GPU
        makes slow (section 5.2.1). ``priority``: efficiency, of which a unit of a job's priority
        makes ten. Or ``MODULE.FUNCTION``, an :data:`Objective` of the user's own. A job's weight
        multiplies each.
    forward_s : float
        ``T_fwd``; a longer one gained the paper no more (section 5.1, Fig. 9).
    """

    objective: str = "efficiency"
    forward_s: Annotated[float, msgspec.Meta(gt=0, le=1e9)] = 120.0

    def __post_init__(self) -> None:
        # Here rather than when it is needed: a name that is wrong must not start a pilot.
        objective_of(self.objective)


def allocate(now: Snapshot, options: Options) -> Target:
    """Give each job its part of the division that gains most."""
    objective = objective_of(options.objective)
    return divide(now, functools.partial(_gain, objective, options.forward_s))


def _gain(objective: Objective, forward_s: float, job: Job, sizes: Sizes, on: On) -> Values:
    """Eq. 16, for one job. To change the kind of its GPUs costs what the dearer change does."""
    has, known = total(job.goal), job.estimate
    up_s = CHANGE_S if known.up_s is None else known.up_s
    down_s = CHANGE_S if known.down_s is None else known.down_s
    cost_s: Values = np.select([sizes.gpus > has, sizes.gpus < has], [up_s, down_s], 0.0)
    if has and on.kind != on.has:
        cost_s = np.where(sizes.gpus > 0, max(up_s, down_s), down_s)
    here = Sizes(np.array([has]), np.array([len(job.goal or ())]))
    lost = float(objective(job, here, on.has)[0])
    return job.weight * (forward_s * objective(job, sizes, on.kind) - lost * cost_s)


def _throughput(job: Job, sizes: Sizes, kind: str) -> Values:
    """Work per second; of a job of which none is known, one on each GPU."""
    return speeds(job, sizes, kind) * (rate_alone(job.estimate) or 1.0)


def _priority(job: Job, sizes: Sizes, kind: str) -> Values:
    """Efficiency, of which a unit of priority makes ten."""
    return speeds(job, sizes, kind) * math.pow(10.0, job.priority)


OBJECTIVES: dict[str, Objective] = {
    "efficiency": speeds,
    "throughput": _throughput,
    "priority": _priority,
}


@functools.cache
def objective_of(name: str) -> Objective:
    """One of :data:`OBJECTIVES`, or a function that is found where Python finds modules.

    Raises
    ------
    ValueError
        There is none.
    """
    if name in OBJECTIVES:
        return OBJECTIVES[name]
    module, _, function = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError):
        raise ValueError(f"no {name!r}; {', '.join(OBJECTIVES)}, or MODULE.FUNCTION") from None
    if not callable(found):
        raise ValueError(f"{name} is no function")
    return found  # type: ignore[no-any-return]
