"""BFTrainer: the division with the largest gain until the next event (Liu et al., Eq. 16).

The gain of a job is its objective over the time in which no change is expected, ``T_fwd``, less the
cost of a change of its size: seconds without progress, at its present speed. The paper solves
this as a mixed-integer programme (:mod:`hpcext.policies.solve.milp`); its optimum depends on counts
only, and is found exactly here (:mod:`hpcext.policies.solve.apportion`).

Choices that the paper leaves open: the unit is a GPU instead of a node, and a speed is a multiple
of the job's own on one GPU, so that jobs in different units can be added; a job that does not run
pays nothing for its start, as in Eq. 16.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Sequence
from typing import Annotated, Literal, NamedTuple

import msgspec
import numpy as np

from hpcext.core.values import Job, Snapshot, Target, total
from hpcext.policies.bftrainer.limits import constraints, read_limits
from hpcext.policies.placement.candidates import Candidate, Gpus, On, Values, speeds
from hpcext.policies.placement.divide import Parallel, Plan, Worth, best, divide, settle, valued
from hpcext.policies.solve.counting import solve_counts
from hpcext.policies.solve.milp import Trainer, solve_map
from hpcext.policies.solve.solvers import SearchLimit, find_solver
from hpcext.scaling.estimator import GpuCounts, rate_alone
from hpcext.scaling.identity import by_identity
from hpcext.text import did_you_mean, shown

CHANGE_S = 10.0
"""Assumed cost, in seconds, of a change of size for a job whose cost is not known."""

MOST = 100.0
"""The priority from which on more of it, or less below its negative, makes no difference: sums of
values would be no numbers, and a hundred jobs of lower priority count for nothing anyway."""

Objective = Callable[[Job, GpuCounts, str], Values]
"""The value of a job per second for each of its sizes on a kind of GPUs."""


class Options(msgspec.Struct, frozen=True):
    """The options of this policy.

    Attributes
    ----------
    objective : str
        ``efficiency``: speed as a multiple of the job's own on one GPU, the paper's normalised
        throughput. ``throughput``: work per second; the paper found that it starves jobs that are
        slow per GPU (section 5.2.1). ``priority``: efficiency times ten for each unit of a job's
        priority, from -100 to 100. Or ``MODULE.FUNCTION``, an :data:`Objective` of the user's own.
        A job's weight multiplies each.
    forward_s : float
        ``T_fwd``; a longer one gained the paper no more (section 5.1, Fig. 9).
    solver : {"exact", "counting", "milp"}
        The exact division; the same problem as an integer programme over counts, which can respect
        limits; or the paper's own programme over allocation maps, slow and for comparison.
    limits : str
        Absolute path of a file of limits (:mod:`hpcext.policies.bftrainer.limits`), for `counting`.
    parallel : int or None
        Largest number of jobs that run at once, the first of the queue: ``Pjmax`` (section 5.3).
    nodes : int
        Nodes of a programme's search tree, after which the best division so far is taken.
    """

    objective: str = "efficiency"
    forward_s: Annotated[float, msgspec.Meta(gt=0, le=1e9)] = 120.0
    solver: Literal["exact", "counting", "milp"] = "exact"
    limits: str = ""
    parallel: Parallel | None = None
    nodes: Annotated[int, msgspec.Meta(ge=1)] = 10_000

    def __post_init__(self) -> None:
        # Checked here, not when it is used: a pilot with wrong options must not start.
        objective_of(self.objective)
        if self.limits:
            read_limits(self.limits)
        if self.solver != "exact":
            find_solver()
        if self.limits and self.solver == "milp":
            raise ValueError("limits need solver=counting; the paper's program has none")


def allocate(now: Snapshot, options: Options) -> Target:
    """Give each job its part of the division with the largest gain."""
    worth = functools.partial(gain, objective_of(options.objective), options.forward_s)
    if options.solver == "milp":
        return settle(
            now,
            functools.partial(_paper, worth, options),
            parallel=options.parallel,
            fill=False,
        )
    if options.limits or options.solver == "counting":
        decide = functools.partial(_counting, worth, options, now)
        return settle(now, decide, parallel=options.parallel, fill=False)
    return divide(now, worth, parallel=options.parallel)


def _counting(
    worth: Worth, options: Options, now: Snapshot, asks: Sequence[Candidate], gpus: Gpus
) -> Plan:
    """Find the best division that the limits of a file allow.

    If no division reaches all minimums in the limits, the minimums are ignored. All GPUs are taken
    to be alike.
    """
    limits = read_limits(options.limits) if options.limits else ()
    wanted = constraints(limits, asks, now)
    allowed = [each._replace(least=None) for each in wanted if each.most is not None]
    solve = functools.partial(solve_counts, limit=SearchLimit(options.nodes))
    try:
        return best(worth, asks, gpus, functools.partial(solve, constraints=wanted))
    except ValueError:
        return best(worth, asks, gpus, functools.partial(solve, constraints=allowed))


def _paper(worth: Worth, options: Options, asks: Sequence[Candidate], gpus: Gpus) -> Plan:
    """Solve the paper's own programme, with each GPU as one of its nodes.

    The programme knows a minimum and a maximum, and all numbers between: a number that a job cannot
    have is lowered until it can. All GPUs are treated as alike.
    """
    units = sum(gpus.values())
    trainers, current = [], np.zeros((len(asks), units), dtype=np.bool_)
    begin = 0
    for row, ask in enumerate(asks):
        (job, shapes, *_), sizes = ask, ask.sizes
        up_s, down_s = changes_s(job)
        values = job.weight * objective_of(options.objective)(job, sizes, ask.has)
        speeds_ = dict(zip(sizes.gpus.tolist(), values.tolist(), strict=True))
        trainers.append(Trainer(min(shapes), max(shapes), speeds_, up_s, down_s))
        has = total(job.goal)
        if min(shapes) <= has <= max(shapes) and begin + has <= units:
            current[row, begin : begin + has] = True
            begin += has
    answer = solve_map(trainers, current, options.forward_s, SearchLimit(options.nodes))
    counts = [ask.most(count) for ask, count in zip(asks, answer.counts, strict=True)]
    return valued(worth, asks, gpus, counts)._replace(bound=answer.bound)


class _Terms(NamedTuple):
    """The arguments of a gain besides the job and its sizes."""

    objective: Objective
    forward_s: float
    on: On


_terms = functools.lru_cache(maxsize=1024)(_Terms)


def gain(objective: Objective, forward_s: float, job: Job, sizes: GpuCounts, on: On) -> Values:
    """Return the gain of one job by Eq. 16 for each of its sizes; cached between events.

    Parameters
    ----------
    objective : Objective
    forward_s : float
        ``T_fwd``.
    job : Job
    sizes : GpuCounts
    on : On
        Kind of the GPUs, and of the present ones.
    """
    return _gains(job, sizes, _terms(objective, forward_s, on))


@by_identity
def _gains(job: Job, sizes: GpuCounts, terms: _Terms) -> Values:
    """Compute Eq. 16; another kind of GPU costs as much as the more costly change of size."""
    objective, forward_s, on = terms
    has = total(job.goal)
    up_s, down_s = changes_s(job)
    gained = objective(job, sizes, on.kind)
    gains = (job.weight * forward_s) * gained
    gains.setflags(write=False)
    if not has:
        return gains
    moves = on.kind != on.has
    at = int(np.searchsorted(sizes.gpus, has))
    same = at < len(gains) and sizes.gpus[at] == has and sizes.nodes[at] == len(job.goal or ())
    if same and not moves:
        lost = float(gained[at])
    else:
        here = GpuCounts(np.array([has]), np.array([len(job.goal or ())]))
        lost = float(objective(job, here, on.has)[0])
    if moves:
        costs_s = np.where(sizes.gpus > 0, max(up_s, down_s), down_s)
    else:
        costs_s = np.full(len(gains), up_s)
        costs_s[:at] = down_s
        costs_s[at : at + 1][sizes.gpus[at : at + 1] == has] = 0.0
    gains = gains - (job.weight * lost) * costs_s
    gains.setflags(write=False)
    return gains


def changes_s(job: Job) -> tuple[float, float]:
    """Return the seconds that a job loses when it grows, and when it shrinks."""
    known = job.estimate
    up_s = CHANGE_S if known.up_s is None else known.up_s
    down_s = CHANGE_S if known.down_s is None else known.down_s
    return up_s, down_s


def _throughput(job: Job, sizes: GpuCounts, kind: str) -> Values:
    """Return work per second; if unknown, one unit per GPU and second."""
    return speeds(job, sizes, kind) * (rate_alone(job.estimate) or 1.0)


def _priority(job: Job, sizes: GpuCounts, kind: str) -> Values:
    """Return efficiency times ten for each unit of priority, up to `MOST` of them."""
    return speeds(job, sizes, kind) * math.pow(10.0, min(max(job.priority, -MOST), MOST))


OBJECTIVES: dict[str, Objective] = {
    "efficiency": speeds,
    "throughput": _throughput,
    "priority": _priority,
}


@functools.cache
def objective_of(name: str) -> Objective:
    """Return one of :data:`OBJECTIVES`, or import a function.

    Parameters
    ----------
    name : str
        A key of :data:`OBJECTIVES`, or ``MODULE.FUNCTION``.

    Raises
    ------
    ValueError
        There is no such objective.
    """
    if name in OBJECTIVES:
        return OBJECTIVES[name]
    module, _, function = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError, RecursionError):
        near = did_you_mean(name, OBJECTIVES) or f"{', '.join(OBJECTIVES)}, or MODULE.FUNCTION"
        raise ValueError(f"unknown objective {shown(name)}; {near}") from None
    if not callable(found):
        raise ValueError(f"{shown(name)} is not a function")
    return found  # type: ignore[no-any-return]
