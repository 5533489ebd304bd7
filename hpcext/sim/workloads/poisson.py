"""Jobs with independent random arrivals."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from hpcext.core.values import Job
from hpcext.sim.replay.physics import Physics


def poisson_jobs(
    models: Sequence[tuple[Job, Physics]], count: int, mean_s: float, seed: int
) -> Iterator[tuple[Job, Physics]]:
    """Yield jobs with random arrivals, each like one of equally likely models.

    Parameters
    ----------
    models : sequence of (Job, Physics)
        They wait for no other job.
    count : int
    mean_s : float
        Mean seconds between two jobs, and before the first one: exponentially distributed.
    seed : int
    """
    source = random.Random(f"poisson/{seed}")
    when_s = 0.0
    for number in range(1, count + 1):
        when_s += source.expovariate(1 / mean_s)
        job, physics = source.choice(models)
        name = f"{job.name}-{number}"
        yield replace(job, id=str(number), name=name, order=number, submitted_s=when_s), physics
