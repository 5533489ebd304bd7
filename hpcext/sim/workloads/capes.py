"""The jobs of Capes et al., *Dynamic Scheduling of MPI-based Distributed Deep Learning Training
Jobs*, 2019: equal ones, ResNet-110 on CIFAR-10 (Table 2), which come at random (section 7).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence

from hpcext.core.estimate import Estimate
from hpcext.core.values import Job
from hpcext.sim.physics import Physics

MINUTES = {1: 368.0, 2: 232.0, 4: 126.0, 8: 84.0}
"""Table 2: GPUs → minutes of a whole training."""

EPOCHS = 160.0
"""Of a training (Table 2). Only its time counts here, so that the unit of work is free."""

SPEED: Mapping[int, float] = {gpus: EPOCHS / (60 * minutes) for gpus, minutes in MINUTES.items()}
"""GPUs → epochs per second."""

RESTART_S = 10.0
"""Section 6: checkpoint, stop, reallocation and restart together."""

JOBS = {"extreme": 206, "moderate": 114, "none": 44}
GAPS_S = {"extreme": 250.0, "moderate": 500.0, "none": 1000.0}
"""Section 7: how many jobs came, and the mean time between two."""

WINDOW_S = sum(JOBS.values()) / sum(1 / gap for gap in GAPS_S.values())
"""The time, the same for all three, in which that many were to be expected: 52,000 s."""

STATED = Estimate(stated=SPEED, work=EPOCHS, up_s=RESTART_S, down_s=RESTART_S)
"""Of a job that says all that is known of it, as *precompute* wants it."""

PHYSICS = Physics(SPEED, EPOCHS, suspend_s=RESTART_S)
"""All of the restart is in its first half, so that a job's first start costs nothing."""


def arrivals_s(contention: str, seed: int) -> list[float]:
    """When jobs come: a Poisson process, of which it is known how many came in the window."""
    source = random.Random(f"capes/{contention}/{seed}")
    return sorted(source.uniform(0.0, WINDOW_S) for _ in range(JOBS[contention]))


def capes_jobs(when_s: Sequence[float], known: Estimate = STATED) -> Iterator[tuple[Job, Physics]]:
    """A job for each of some instants, on up to eight GPUs of one node.

    Parameters
    ----------
    when_s : sequence of float
        Ascending.
    known : Estimate
        What each states of itself.
    """
    for number, submitted_s in enumerate(when_s, start=1):
        job = Job(
            str(number), f"job{number}", number, tuple(MINUTES), max(MINUTES), nodes=(1, 1),
            submitted_s=submitted_s, estimate=known,
        )  # fmt: skip
        yield job, PHYSICS
