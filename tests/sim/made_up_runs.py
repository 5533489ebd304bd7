"""Runs made up for tests of what is said of runs."""

from __future__ import annotations

from hpcext.sim.evaluate.outcome import JobRow, SimulatedRun, Span


def job(
    name: str,
    submitted_s: float = 0.0,
    started_s: float | None = None,
    ended_s: float | None = None,
    state: str = "completed",
    **more: float,
) -> JobRow:
    """A job of one row; its id is its name."""
    return JobRow(name, name, state, submitted_s, started_s, ended_s, **more)  # type: ignore[arg-type]


def run(
    label: str,
    jobs: tuple[JobRow, ...] = (),
    spans: tuple[Span, ...] = (),
    seed: int = 0,
    **more: float,
) -> SimulatedRun:
    """A run of some jobs."""
    end_s = max((span.end_s for span in spans), default=0.0)
    return SimulatedRun(label, "a workload", "4 GPUs", label, seed, end_s, jobs, spans, **more)  # type: ignore[arg-type]


def span(start_s: float, end_s: float, *gpus: float, waiting: float = 0.0) -> Span:
    """A span with so many GPUs offered, held, training."""
    offered, held, training = gpus
    return Span(start_s, end_s, offered, held, training, held, waiting)
