"""The jobs of Capes et al. (2019): equal jobs with random arrivals.

The paper, *Dynamic Scheduling of MPI-based Distributed Deep Learning Training Jobs*, trains
ResNet-110 on CIFAR-10 (Table 2), with the arrivals of section 7.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence

from hpcext.core.estimate import Estimate
from hpcext.core.values import Job
from hpcext.sim.replay.physics import Physics

MINUTES = {1: 368.0, 2: 232.0, 4: 126.0, 8: 84.0}
"""Table 2: minutes of a whole training by number of GPUs."""

EPOCHS = 160.0
"""Epochs of a training (Table 2). The unit of work is arbitrary, since only times matter here."""

SPEED: Mapping[int, float] = {gpus: EPOCHS / (60 * minutes) for gpus, minutes in MINUTES.items()}
"""Epochs per second by number of GPUs."""

RESTART_S = 10.0
"""Seconds of checkpoint, stop, reallocation and restart together (section 6)."""

JOBS = {"extreme": 206, "moderate": 114, "none": 44}
GAPS_S = {"extreme": 250.0, "moderate": 500.0, "none": 1000.0}
"""Number of jobs, and mean seconds between two, by contention (section 7)."""

WINDOW_S = sum(JOBS.values()) / sum(1 / gap for gap in GAPS_S.values())
"""The time, common to all three, in which that many jobs are expected: 52,000 s."""

STATED = Estimate(stated=SPEED, work=EPOCHS, up_s=RESTART_S, down_s=RESTART_S)
"""The estimate of a job that states everything, as *precompute* needs it."""

PHYSICS = Physics(SPEED, EPOCHS, suspend_s=RESTART_S)
"""Physics with all of the restart in the suspension, so that the first start of a job is free."""


def arrivals_s(contention: str, seed: int) -> list[float]:
    """Draw the arrivals of a Poisson process, given their number in the window.

    Parameters
    ----------
    contention : str
        A key of :data:`JOBS`.
    seed : int

    Returns
    -------
    list of float
        Seconds, ascending.
    """
    source = random.Random(f"capes/{contention}/{seed}")
    return sorted(source.uniform(0.0, WINDOW_S) for _ in range(JOBS[contention]))


def capes_jobs(when_s: Sequence[float], known: Estimate = STATED) -> Iterator[tuple[Job, Physics]]:
    """Yield a job for each of some instants, on up to eight GPUs of one node.

    Parameters
    ----------
    when_s : sequence of float
        Instants of submission, ascending.
    known : Estimate
        The facts that each job states.
    """
    for number, submitted_s in enumerate(when_s, start=1):
        job = Job(
            str(number), f"job{number}", number, tuple(MINUTES), max(MINUTES), nodes=(1, 1),
            submitted_s=submitted_s, estimate=known,
        )  # fmt: skip
        yield job, PHYSICS
