"""What came of one simulated run, as values that can be written, compared and drawn."""

from __future__ import annotations

import msgspec


class JobRow(msgspec.Struct, frozen=True):
    """What became of one job.

    Attributes
    ----------
    job, name, state : str
        `state` as :class:`~hpcext.core.values.State` names it, at the end of the run.
    submitted_s : float
    started_s, ended_s : float or None
        When it was first given anything, and when it was done; None where that did not happen.
    gpu_s : float
        GPU-seconds that it held.
    idle_gpu_s : float
        Those of them in which it made no progress: starting, saving, changing its size.
    work, lost : float
        What it had to do in all, and what it did and had to do again.
    attempts, suspends, rescales : int
    fair_s : float or None
        Seconds that it would have taken alone on its fair share of the machine
        (:mod:`hpcext.sim.fair`): what finish-time fairness compares with. Known of jobs that
        completed and waited for no other one, on a machine that stays.
    """

    job: str
    name: str
    state: str
    submitted_s: float
    started_s: float | None = None
    ended_s: float | None = None
    gpu_s: float = 0.0
    idle_gpu_s: float = 0.0
    work: float = 0.0
    lost: float = 0.0
    attempts: int = 0
    suspends: int = 0
    rescales: int = 0
    fair_s: float | None = None

    @property
    def jct_s(self) -> float | None:
        """Job completion time: from submission to the end; None for one that did not complete."""
        if self.ended_s is None or self.state != "completed":
            return None
        return self.ended_s - self.submitted_s


class Span(msgspec.Struct, frozen=True):
    """A stretch of time, and what was so in the mean over it.

    Attributes
    ----------
    start_s, end_s : float
    offered, held, training : float
        GPUs that there were, that jobs held, and on which they made progress.
    running, waiting : float
        Jobs that held something, and those that were submitted and did not.
    """

    start_s: float
    end_s: float
    offered: float
    held: float
    training: float
    running: float
    waiting: float


class Run(msgspec.Struct, frozen=True):
    """One simulated run.

    Attributes
    ----------
    label : str
        What tells it from the other runs of one comparison, as ``pollux:p=-1``. Runs of one label
        differ in their seed alone, and are summed up together.
    workload, source, policy : str
        As they were given.
    seed : int
    end_s : float
        Until when it was looked at: the end of the last job, or that of the trace.
    jobs : tuple of JobRow
        By the time of their submission.
    spans : tuple of Span
        All of the run, one behind the other; at most a few thousand of them.
    events, decisions : int
        How many instants the engine was stepped at, and how often the policy was asked.
    done : float
        Work done by all jobs, what was lost not counted.
    ideal : float or None
        Work that the same GPUs would have done in the same time had they been as many throughout,
        where that is known: A_s of BFTrainer §4.1, with which its utilisation efficiency compares.
    """

    label: str
    workload: str
    source: str
    policy: str
    seed: int
    end_s: float
    jobs: tuple[JobRow, ...]
    spans: tuple[Span, ...]
    events: int = 0
    decisions: int = 0
    done: float = 0.0
    ideal: float | None = None
