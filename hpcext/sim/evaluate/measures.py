"""The measures of a simulated run: figures, names and definitions."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class Figures(msgspec.Struct, frozen=True):
    """The figures of one run; None: unknown, or there is nothing to measure."""

    jobs: float
    completed: float
    failed: float
    unfinished: float
    jct_mean_s: float | None = None
    jct_median_s: float | None = None
    jct_p90_s: float | None = None
    jct_p99_s: float | None = None
    jct_max_s: float | None = None
    wait_mean_s: float | None = None
    wait_median_s: float | None = None
    wait_p90_s: float | None = None
    wait_p99_s: float | None = None
    never_started: float = 0.0
    rho_mean: float | None = None
    rho_p99: float | None = None
    rho_max: float | None = None
    rho_over_1: float | None = None
    rescales_per_job: float | None = None
    suspends_per_job: float | None = None
    makespan_s: float | None = None
    used_gpu_h: float = 0.0
    idle_gpu_s: float = 0.0
    offered_gpu_h: float | None = None
    training_gpu_h: float | None = None
    utilisation: float | None = None
    training_share: float | None = None
    efficiency: float | None = None
    ideal_share: float | None = None
    mean_running: float | None = None
    mean_waiting: float | None = None
    done: float = 0.0
    lost: float = 0.0
    lost_share: float | None = None


class Measure(NamedTuple):
    """The description of a figure.

    Attributes
    ----------
    key : str
        Field of :class:`Figures`.
    title : str
    unit : {"", "s", "h", "jobs", "share", "work"}
        How to show it: "" is a plain number, "h" hours of one GPU.
    help : str
        Its definition, in a sentence.
    better : {-1, 0, 1}
        Whether less or more of it is better, or neither.
    """

    key: str
    title: str
    unit: str
    help: str
    better: int = 0


_JCT = "From submission to the end, of the jobs that completed"
_WAIT = "From submission until the job first got a GPU, of the jobs that got one"
_RHO = "JCT over the time alone on a fair share, for completed jobs where that is known"

MEASURES: tuple[Measure, ...] = (
    Measure("jobs", "Jobs", "jobs", "Submitted in the run."),
    Measure("completed", "Completed", "jobs", "Jobs that did all their work.", 1),
    Measure("failed", "Failed", "jobs", "Jobs that failed or were cancelled.", -1),
    Measure("unfinished", "Unfinished", "jobs", "Neither completed nor failed at the end.", -1),
    Measure("jct_mean_s", "Mean JCT", "s", f"Job completion time (JCT). {_JCT}.", -1),
    Measure("jct_median_s", "Median JCT", "s", f"Half of the jobs are below it. {_JCT}.", -1),
    Measure("jct_p90_s", "90th percentile JCT", "s", f"{_JCT}.", -1),
    Measure("jct_p99_s", "99th percentile JCT", "s", f"{_JCT}.", -1),
    Measure("jct_max_s", "Longest JCT", "s", f"{_JCT}.", -1),
    Measure("wait_mean_s", "Mean wait", "s", f"{_WAIT}.", -1),
    Measure("wait_median_s", "Median wait", "s", f"{_WAIT}.", -1),
    Measure("wait_p90_s", "90th percentile wait", "s", f"{_WAIT}.", -1),
    Measure("wait_p99_s", "99th percentile wait", "s", f"{_WAIT}.", -1),
    Measure("never_started", "Never started", "jobs", "Jobs that were never given a GPU.", -1),
    Measure("rho_mean", "Mean finish-time fairness", "", f"{_RHO}.", -1),
    Measure("rho_p99", "99th percentile of finish-time fairness", "", f"{_RHO}.", -1),
    Measure("rho_max", "Worst finish-time fairness", "", f"{_RHO}.", -1),
    Measure(
        "rho_over_1", "Worse than fair", "share", "Jobs whose finish-time fairness is over 1.", -1
    ),
    Measure("rescales_per_job", "Rescales per job", "", "Changes of size, mean over all jobs."),
    Measure("suspends_per_job", "Suspends per job", "", "Suspensions, mean over all jobs."),
    Measure(
        "makespan_s",
        "Makespan",
        "s",
        "From the first submission to the last end; unknown if a job is unfinished.",
        -1,
    ),
    Measure(
        "used_gpu_h", "GPU-hours used", "h", "Held by jobs, whether they made progress or not."
    ),
    Measure(
        "idle_gpu_s",
        "Idle GPU-seconds",
        "s",
        "Held by jobs that made no progress: starting, saving, changing size.",
        -1,
    ),
    Measure("offered_gpu_h", "GPU-hours offered", "h", "Number of GPUs, times the time."),
    Measure("training_gpu_h", "GPU-hours training", "h", "GPU-hours in which jobs made progress."),
    Measure(
        "utilisation",
        "Utilisation",
        "share",
        "GPU time held by jobs, as a share of the time offered.",
        1,
    ),
    Measure(
        "training_share",
        "Training share",
        "share",
        "GPU time in which jobs made progress, as a share of the time offered.",
        1,
    ),
    Measure(
        "efficiency",
        "Efficiency",
        "share",
        "GPU time in which jobs made progress, as a share of the time they held.",
        1,
    ),
    Measure(
        "ideal_share",
        "Work of the ideal",
        "share",
        "Work done, as a share of what as many GPUs that never change would have done (U of "
        "BFTrainer).",
        1,
    ),
    Measure("mean_running", "Jobs running", "", "Jobs that held GPUs, mean over the time."),
    Measure(
        "mean_waiting",
        "Jobs waiting",
        "",
        "Submitted jobs that held no GPU, mean over the time.",
        -1,
    ),
    Measure("done", "Work done", "work", "By all jobs, without what was lost.", 1),
    Measure(
        "lost",
        "Work lost",
        "work",
        "Done, but to be repeated after an end without a checkpoint.",
        -1,
    ),
    Measure(
        "lost_share",
        "Work lost, share",
        "share",
        "Share of all work done that had to be repeated.",
        -1,
    ),
)
"""Every figure, in the order of tables."""
