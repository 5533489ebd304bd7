"""The parts of the page that have a plot, with the text around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hpcext.render import markup, plots, style
from hpcext.render.plots import Bar, Plot
from hpcext.render.words import UNKNOWN, number, time_scale
from hpcext.sim.evaluate.comparison import Row
from hpcext.sim.evaluate.metrics import Floats, Over
from hpcext.sim.evaluate.metrics import fairness as fairness_of
from hpcext.sim.evaluate.outcome import JobRow, SimulatedRun
from hpcext.sim.report import run_plots
from hpcext.sim.report.run_plots import Most
from hpcext.sim.report.thin import distribution

MOST_RUNS = 12
"""Largest number of plots of one kind; tables have all labels."""

Group = tuple[SimulatedRun, ...]


def completion(every: Sequence[Group]) -> str:
    """Plot the distribution of job completion times, for each label."""
    values = [_pooled(group, _jct_s) for group in every]
    longest = max((float(each.max()) for each in values if len(each)), default=None)
    if longest is None:
        return _without("jct", "Job completion time", "No job completed.") if every else ""
    time = time_scale(longest)
    of = [sum(len(run.jobs) for run in group) for group in every]
    return _curves(
        Plot("jct", "Job completion time", f"Job completion time ({time.unit})"),
        [each / time.divisor for each in values],
        of,
        [group[0].label for group in every],
        words="Share of all jobs that completed within a time, over all seeds. If a curve ends "
        "below 1, some jobs did not complete.",
    )


def fairness(every: Sequence[Group]) -> str:
    """Plot the distribution of finish-time fairness; empty if it is unknown."""
    values = [_pooled(group, fairness_of) for group in every]
    if not any(len(each) for each in values):
        return ""
    return _curves(
        Plot("fairness", "Fairness", "Finish-time fairness"),
        values,
        [len(each) for each in values],
        [group[0].label for group in every],
        words="Fairness is the job completion time over the time that the job would have taken "
        "alone on its fair share of the machine: below 1, sharing was better than fair. The curve "
        "shows the share of the completed jobs for which it is known, over all seeds.",
        mark=1.0,
    )


def use(rows: Sequence[Row]) -> str:
    """Plot the use of the GPU time that was offered."""
    known = [(row, held) for row in rows if (held := row.figures["utilisation"])]
    if not known:
        return _without("use", "Utilisation", "No GPU was offered.") if rows else ""
    bars = [_use(row, held) for row, held in known[: style.MOST_CURVES]]
    legend = markup.legend(
        [("training", style.TRAINING, None), ("held without progress", style.HELD, None)]
    )
    return _bars(
        Plot("use", "Utilisation", _told(bars)),
        bars,
        (style.TRAINING, style.HELD),
        "Share of the GPU time offered (%)",
        "The rest was offered but held by no job. Whiskers: standard deviation over the seeds.",
        legend=legend,
    )


def efficiency(rows: Sequence[Row]) -> str:
    """Plot the share of the held GPU time that made progress."""
    bars = []
    for row in rows[: style.MOST_CURVES]:
        if share := row.figures["efficiency"]:
            words = _percent(share)
            if lost := row.figures["lost_share"]:
                words += f", {_percent(lost)} of the work lost"
            bars.append(Bar(row.label, (share.mean,), share.mean, share.spread or 0.0, words))
    if not bars:
        return _without("efficiency", "Efficiency", "No job held a GPU.") if rows else ""
    return _bars(
        Plot("efficiency", "Efficiency", _told(bars)),
        bars,
        (style.TRAINING,),
        "Share of the GPU time held in which jobs made progress (%)",
        "The rest of the time went into starting, saving and changing size. Whiskers: standard "
        "deviation over the seeds.",
    )


def allocation(every: Sequence[Group]) -> str:
    """Plot the use of GPUs over time, for the first seed of each label."""
    firsts = [group[0] for group in every if _lasts(group[0])]
    shown = firsts[:MOST_RUNS]
    if not shown:
        return ""
    most = Most(
        max(run.spans[-1].end_s for run in shown),
        max(span.offered for run in shown for span in run.spans),
        max(span.waiting for run in shown for span in run.spans),
    )
    time = time_scale(most.end_s)
    figures = []
    for index, run in enumerate(shown):
        peak = max(span.waiting for span in run.spans)
        words = f"Seed {run.seed}; at most {peak:,.0f} jobs waited at once."
        told = f"GPUs offered, held and training over time, {run.label}. {words}"
        plot = Plot(f"allocation-{index}", f"Allocation over time: {run.label}", told)
        svg = run_plots.allocation(plot, run, time, most)
        figures.append(markup.figure(svg, words, run.label))
    legend = markup.legend(
        [
            ("training", style.TRAINING, None),
            ("held without progress", style.HELD, None),
            ("offered, held by no job", style.OFFERED, None),
            ("jobs waiting", style.WAITING, None),
        ]
    )
    left_out = len(firsts) - len(shown)
    more = f"{left_out} more are in spans.csv." if left_out else ""
    return markup.section(
        "allocation",
        "Allocation over time",
        markup.paragraph(f"The first seed of each policy, all on the same axes. {more}".strip()),
        legend,
        *figures,
    )


def _curves(
    plot: Plot,
    values: Sequence[Floats],
    of: Sequence[int],
    labels: Sequence[str],
    *,
    words: str,
    mark: float | None = None,
) -> str:
    """Plot distributions; the description of `plot` is the label of its axis."""
    labels = labels[: style.MOST_CURVES]
    shown = list(zip(labels, values, of, strict=False))
    told = "; ".join(
        f"{label}: median {number(float(np.median(each)))}" for label, each, _ in shown if len(each)
    )
    svg = plots.curves(
        Plot(f"{plot.name}-plot", f"{plot.title} by policy", f"{plot.description}. {told}."),
        [distribution(each, whole) for _, each, whole in shown],
        plot.description,
        "Share of jobs",
        mark,
    )
    legend = markup.legend([(label, *style.look(index)) for index, label in enumerate(labels)])
    if len(values) > len(labels):
        words += f" The first {len(labels)} of {len(values)} policies."
    return markup.section(plot.name, plot.title, markup.figure(svg, words, before=legend))


def _bars(
    plot: Plot,
    bars: Sequence[Bar],
    colours: Sequence[str],
    xlabel: str,
    words: str,
    *,
    legend: str = "",
) -> str:
    own = Plot(f"{plot.name}-plot", f"{plot.title} by policy", f"{xlabel}. {plot.description}")
    svg = plots.bars(own, bars, colours, xlabel)
    return markup.section(plot.name, plot.title, markup.figure(svg, words, before=legend))


def _use(row: Row, held: Over) -> Bar:
    training = row.figures["training_share"]
    progress = training.mean if training else 0.0
    words = f"{_percent(held)} held, {_percent(training)} training"
    parts = (progress, max(0.0, held.mean - progress))
    return Bar(row.label, parts, held.mean, held.spread or 0.0, words)


def _without(name: str, title: str, words: str) -> str:
    return markup.section(name, title, markup.paragraph(words))


def _lasts(run: SimulatedRun) -> bool:
    return any(span.end_s > span.start_s for span in run.spans)


def _told(bars: Sequence[Bar]) -> str:
    return "; ".join(f"{bar.label}: {bar.words}" for bar in bars) + "."


def _pooled(group: Group, values: Callable[[tuple[JobRow, ...]], Floats]) -> Floats:
    return np.concatenate([values(run.jobs) for run in group])


def _jct_s(rows: tuple[JobRow, ...]) -> Floats:
    return np.array([row.jct_s for row in rows if row.jct_s is not None], np.float64)


def _percent(value: Over | None) -> str:
    return UNKNOWN if value is None else f"{100 * value.mean:.1f} %"
