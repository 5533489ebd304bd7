"""The outcome of a simulated run, as values that can be written, compared and plotted."""

from __future__ import annotations

import msgspec


class JobRow(msgspec.Struct, frozen=True):
    """The outcome of one job.

    Attributes
    ----------
    job, name, state : str
        `state` as :class:`~hpcext.core.values.State` names it, at the end of the run.
    submitted_s : float
    started_s, ended_s : float or None
        Times at which it first got GPUs and at which it ended; None if that did not happen.
    gpu_s : float
        GPU-seconds that it held.
    idle_gpu_s : float
        GPU-seconds in which it made no progress: starting, saving, changing its size.
    work, lost : float
        All of its work, and work that was lost and repeated.
    attempts, suspends, rescales : int
    fair_s : float or None
        Seconds that it would have taken alone on its fair share of the machine
        (:mod:`hpcext.sim.evaluate.fair`), the reference of finish-time fairness. Known for jobs
        that completed and did not depend on others, on a machine whose nodes stay.
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
        """Job completion time, from submission to the end; None if it did not complete."""
        if self.ended_s is None or self.state != "completed":
            return None
        return self.ended_s - self.submitted_s


class Span(msgspec.Struct, frozen=True):
    """A stretch of time, and the mean state over it.

    Attributes
    ----------
    start_s, end_s : float
    offered, held, training : float
        GPUs that existed, that jobs held, and on which they made progress.
    running, waiting : float
        Jobs that held GPUs, and submitted jobs that did not.
    """

    start_s: float
    end_s: float
    offered: float
    held: float
    training: float
    running: float
    waiting: float


class Bin(msgspec.Struct, frozen=True):
    """Predictions of about the same probability, and their outcome.

    Attributes
    ----------
    nodes : int
        Number of predictions.
    expected : float
        Expected number of nodes that stay: the sum of the probabilities.
    stayed : int
        Number of nodes that stayed.
    """

    nodes: int
    expected: float
    stayed: int


class Reliability(msgspec.Struct, frozen=True):
    """The predicted probability that nodes stay for a time, and the outcome.

    Attributes
    ----------
    horizon_s : float
    bins : tuple of Bin
        Bins of the probability: equal parts of 0 to 1, from the bottom.
    squares : float
        Sum of the squared differences between the probability and the outcome, 1 for nodes that
        stayed.
    """

    horizon_s: float
    bins: tuple[Bin, ...]
    squares: float

    @property
    def nodes(self) -> int:
        """The number of predictions."""
        return sum(each.nodes for each in self.bins)

    @property
    def stayed(self) -> float:
        """The share of nodes that stayed."""
        return sum(each.stayed for each in self.bins) / self.nodes

    @property
    def brier(self) -> float:
        """The mean squared difference of probability and outcome (Brier 1950, halved)."""
        return self.squares / self.nodes

    @property
    def base_brier(self) -> float:
        """The Brier score if the overall share of nodes that stayed were predicted for each node.

        The score of a model that can distinguish nodes is lower.
        """
        return self.stayed * (1 - self.stayed)

    @property
    def error(self) -> float:
        """The expected calibration error: the mean distance of predictions from outcomes."""
        return sum(abs(each.expected - each.stayed) for each in self.bins) / self.nodes


class UserRow(msgspec.Struct, frozen=True):
    """What a user had of a partition that several users share.

    Attributes
    ----------
    user : str
    weight, priority : float
    limit : int or None
        As the administrator has set them.
    wanted_node_s : float
        Node-seconds that the user's trainings could have used.
    entitled_node_s : float
        Those that the weights entitle the user to, given what each wanted at each instant.
    had_node_s : float
    entitled, had : tuple of float
        The mean number of nodes in each stretch of the run, for a plot.
    """

    user: str
    weight: float
    priority: float
    limit: int | None
    wanted_node_s: float
    entitled_node_s: float
    had_node_s: float
    entitled: tuple[float, ...] = ()
    had: tuple[float, ...] = ()


class SimulatedRun(msgspec.Struct, frozen=True):
    """One simulated run.

    Attributes
    ----------
    label : str
        The name of the runs that differ in their seed alone and are summarised together, such as
        ``pollux:p=-1``; it is unique in a comparison.
    workload, source, policy : str
        Names as they were given.
    seed : int
    end_s : float
        End of the observed time: the end of the last job, or that of the trace.
    jobs : tuple of JobRow
        Jobs in the order of their submission.
    spans : tuple of Span
        All of the run, in order; a few thousand at most.
    events, decisions : int
        Number of instants at which the engine was stepped, and number of decisions of the policy.
    done : float
        Work done by all jobs, without lost work.
    ideal : float or None
        Work that the same GPUs would have done in the same time if their number had been constant;
        None if unknown. A_s of BFTrainer §4.1, the denominator of its utilisation efficiency.
    stays : tuple of Reliability
        For nodes that come and go: how long they stay, predicted and observed.
    division : str
        If several users share the nodes: how these are divided among them.
    users : tuple of UserRow
        Those users.
    edges_s : tuple of float
        The beginnings of the stretches in `users`, and the end of the last one.
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
    stays: tuple[Reliability, ...] = ()
    division: str = ""
    users: tuple[UserRow, ...] = ()
    edges_s: tuple[float, ...] = ()

    @property
    def finished(self) -> bool:
        """Whether every job came to an end of its own, of whatever kind."""
        return all(row.ended_s is not None for row in self.jobs)
