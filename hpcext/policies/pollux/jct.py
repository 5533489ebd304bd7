"""Pollux's rules, changed for shorter completion times (``objective=jct``).

Speed-ups are relative to a fair share, as in the paper, and so is their division. What differs:

- A change of GPUs must pay off within `LASTS_S`. By the paper's factor, a change counts the less
  the
  older a job is, although the next event may undo it.
- A job begins with up to a node, and is given up to four times what it had: two explorations
  instead of six up to 64 GPUs, each of which is a restart.
- The weight of a job falls with the GPU-time that it has had (as in Tiresias): of jobs whose end is
  unknown, new ones are the likeliest to end soon. That counts in steps (also as in Tiresias), so
  that of equal jobs none is suspended for another after each minute that it trains.
- The power of the mean is 0: proportional fairness.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from hpcext.core.values import Job, Snapshot
from hpcext.policies.placement.candidates import Candidate, On, Values
from hpcext.policies.pollux.fitness import allowed, changed, cost_s
from hpcext.policies.total_time import doubled
from hpcext.scaling.estimator import GpuCounts

LASTS_S = 120.0
"""Seconds for which a division is expected to last."""

TIMES = 4
"""A job is given at most this many times the GPUs that it ever had."""

SERVED_GPU_S = 4 * 3600.0
"""GPU-time after which the square of a job's weight is half of what it was."""


FIRST_GPU_S = SERVED_GPU_S / 16
"""GPU-time up to which jobs are equally new."""


def newest(now: Snapshot) -> Snapshot:
    """Lower the weights of jobs by the GPU-time that they have had, from their reports."""
    return replace(now, jobs=tuple(map(_aged, now.jobs)))


def _aged(job: Job) -> Job:
    gpu_s = math.fsum(each.gpus * each.seconds for each in job.estimate.observed)
    served = doubled(max(FIRST_GPU_S, gpu_s))
    return replace(job, weight=job.weight * math.sqrt(SERVED_GPU_S / (SERVED_GPU_S + served)))


def explored(asks: Sequence[Candidate]) -> list[Candidate]:
    """Limit jobs to the sizes that their largest one so far allows."""
    return allowed(asks, TIMES, node=True)


def lasting(job: Job, sizes: GpuCounts, now_s: float, delay_s: float, on: On) -> Values:
    """Return the part of its speed-up that a re-allocated job keeps over `LASTS_S`.

    The parameters are those of :func:`~hpcext.policies.pollux.fitness.realloc`.
    """
    if not job.goal:
        return np.ones(len(sizes.gpus))
    return changed(job, sizes, on, LASTS_S / (LASTS_S + cost_s(job, delay_s)))
