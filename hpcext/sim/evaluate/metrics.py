"""The figures of a simulated run, and of several seeds together.

Quantiles are those of :func:`numpy.quantile` with ``method="linear"``. Figures of GPUs are weighted
by time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from hpcext.core.errors import InputError
from hpcext.core.values import State
from hpcext.sim.evaluate.measures import MEASURES, Figures
from hpcext.sim.evaluate.outcome import JobRow, SimulatedRun, Span

HOUR_S = 3600.0

Floats = npt.NDArray[np.float64]

_FINAL = frozenset(state.value for state in State if state.final)


def figures(run: SimulatedRun) -> Figures:
    """Return the figures of a run."""
    ended = [row for row in run.jobs if row.state in _FINAL]
    completed = sum(row.state == State.COMPLETED for row in ended)
    lost = math.fsum(row.lost for row in run.jobs)
    return Figures(
        jobs=len(run.jobs),
        completed=completed,
        failed=len(ended) - completed,
        unfinished=len(run.jobs) - len(ended),
        never_started=sum(row.started_s is None for row in run.jobs),
        makespan_s=_makespan_s(run.jobs),
        rescales_per_job=_ratio(sum(row.rescales for row in run.jobs), len(run.jobs)),
        suspends_per_job=_ratio(sum(row.suspends for row in run.jobs), len(run.jobs)),
        used_gpu_h=math.fsum(row.gpu_s for row in run.jobs) / HOUR_S,
        idle_gpu_s=math.fsum(row.idle_gpu_s for row in run.jobs),
        ideal_share=None if run.ideal is None else _ratio(run.done, run.ideal),
        done=run.done,
        lost=lost,
        lost_share=_ratio(lost, run.done + lost),
        **jobwise(run.jobs),
        **_machine(run.spans),
    )


def jobwise(rows: Sequence[JobRow]) -> dict[str, float | None]:
    """Return the figures of jobs that started or completed: JCT, wait, fairness.

    They are comparable between runs only if the jobs are the same.
    """
    jct_s = [row.jct_s for row in rows if row.jct_s is not None]
    wait_s = [row.started_s - row.submitted_s for row in rows if row.started_s is not None]
    rho = fairness(rows)
    return {
        "jct_max_s": max(jct_s, default=None),
        **_quantiles("jct", jct_s),
        **_quantiles("wait", wait_s),
        "rho_mean": float(rho.mean()) if len(rho) else None,
        "rho_p99": quantile(rho, 0.99),
        "rho_max": float(rho.max()) if len(rho) else None,
        "rho_over_1": float((rho > 1).mean()) if len(rho) else None,
    }


def quantile(values: Sequence[float] | Floats, share: float) -> float | None:
    """Return the value below which a share (0 to 1) of the values lies; None if there are none."""
    if not len(values):
        return None
    return float(np.quantile(np.asarray(values, np.float64), share, method="linear"))


def fairness(rows: Iterable[JobRow]) -> Floats:
    """Return the finish-time fairness of completed jobs with a known fair time (Pollux §5.3.1)."""
    pairs = ((row.jct_s, row.fair_s) for row in rows)
    return np.array([jct / fair for jct, fair in pairs if jct is not None and fair])


def integral(spans: Iterable[Span], field: str, until_s: float = math.inf) -> float:
    """Return a field of the spans, integrated over time up to an instant.

    Parameters
    ----------
    spans : iterable of Span
    field : str
        Name of an attribute of :class:`Span`.
    until_s : float
    """
    return math.fsum(
        getattr(span, field) * (min(span.end_s, until_s) - span.start_s)
        for span in spans
        if span.start_s < until_s
    )


def last_end_s(rows: Iterable[JobRow]) -> float | None:
    """Return the end of the last job; None if there is no job, or one is unfinished."""
    last: float | None = None
    for row in rows:
        if row.ended_s is None or row.state not in _FINAL:
            return None
        last = row.ended_s if last is None else max(last, row.ended_s)
    return last


class Over(msgspec.Struct, frozen=True):
    """A figure over several seeds.

    Attributes
    ----------
    mean : float
    spread : float or None
        Standard deviation (of a sample: n - 1); None for one seed.
    seeds : int
        Number of seeds for which the figure is known.
    """

    mean: float
    spread: float | None
    seeds: int


def over(values: Iterable[float | None]) -> Over | None:
    """Return mean and spread of the known values; None if there are none."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    mean = math.fsum(known) / len(known)
    if len(known) == 1:
        return Over(mean, None, 1)
    return Over(mean, float(np.std(known, ddof=1)), len(known))


def by_label(runs: Iterable[SimulatedRun]) -> dict[str, tuple[SimulatedRun, ...]]:
    """Group runs by their labels, in order of appearance; those of one label by seed.

    Raises
    ------
    InputError
        Two runs have the same label and seed.
    """
    groups: dict[str, dict[int, SimulatedRun]] = {}
    for run in runs:
        seeds = groups.setdefault(run.label, {})
        if run.seed in seeds:
            raise InputError(f"there are two runs {run.label!r} with seed {run.seed}")
        seeds[run.seed] = run
    return {label: tuple(seeds[seed] for seed in sorted(seeds)) for label, seeds in groups.items()}


def over_seeds(every: Sequence[Figures]) -> dict[str, Over | None]:
    """Summarise each measure over the runs of one label."""
    return {measure.key: over(getattr(one, measure.key) for one in every) for measure in MEASURES}


def _quantiles(what: str, values_s: Sequence[float]) -> Mapping[str, float | None]:
    values = np.asarray(values_s)
    return {
        f"{what}_mean_s": float(values.mean()) if len(values) else None,
        f"{what}_median_s": quantile(values, 0.5),
        f"{what}_p90_s": quantile(values, 0.9),
        f"{what}_p99_s": quantile(values, 0.99),
    }


def _makespan_s(rows: Sequence[JobRow]) -> float | None:
    end_s = last_end_s(rows)
    return None if end_s is None else end_s - min(row.submitted_s for row in rows)


def _machine(spans: Sequence[Span]) -> dict[str, float | None]:
    lasted_s = math.fsum(span.end_s - span.start_s for span in spans)
    offered, held, training, running, waiting = (
        integral(spans, field) for field in ("offered", "held", "training", "running", "waiting")
    )
    return {
        "offered_gpu_h": offered / HOUR_S,
        "training_gpu_h": training / HOUR_S,
        "utilisation": _ratio(held, offered),
        "training_share": _ratio(training, offered),
        "efficiency": _ratio(training, held),
        "mean_running": _ratio(running, lasted_s),
        "mean_waiting": _ratio(waiting, lasted_s),
    }


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
