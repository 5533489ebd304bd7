"""The report as one page of HTML that needs nothing else: no network, no script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from hpcext import __version__
from hpcext.sim.comparison import Delay, Row, Watts, compared
from hpcext.sim.measures import MEASURES, Measure
from hpcext.sim.metrics import Over, by_label
from hpcext.sim.outcome import Run
from hpcext.sim.report import charts, markup
from hpcext.sim.words import (
    UNKNOWN,
    Scale,
    change,
    count,
    measured,
    scale_of,
    spread,
    time_scale,
)
from hpcext.text import listed

FILES = ("jobs.csv", "spans.csv", "summary.csv", "summary.json")
"""What is written beside the page."""

HEADLINES = (
    "jct_mean_s",
    "jct_p99_s",
    "wait_mean_s",
    "makespan_s",
    "utilisation",
    "efficiency",
    "rho_p99",
    "unfinished",
)
"""What a reader looks for first."""

_MEASURES = {measure.key: measure for measure in MEASURES}
_PLAIN = Scale(1.0, "")


class About(msgspec.Struct, frozen=True):
    """What a report says besides its figures.

    Attributes
    ----------
    title : str
    assumed : tuple of str
        What was assumed, in sentences.
    stated : dict of str to str
        What else a reader must know to make the same again: options, digests of files.
    watts : Watts or None
        Of one GPU; with it the page has the energy.
    """

    title: str = "Simulated runs"
    assumed: tuple[str, ...] = ()
    stated: dict[str, str] = {}
    watts: Watts | None = None


def page(runs: Iterable[Run], about: About) -> str:
    """The report of some runs.

    Parameters
    ----------
    runs : iterable of Run
        The first label is the baseline.
    about : About

    Raises
    ------
    InputError
        matplotlib is not installed; two runs have the same label and seed.
    """
    groups = by_label(runs)
    every = list(groups.values())
    rows = compared((run for group in every for run in group), about.watts)
    parts = [
        _head(rows, about),
        _glance(rows),
        _against(rows, about.watts),
        charts.completion(every),
        charts.use(rows),
        charts.efficiency(rows),
        charts.allocation(every),
        charts.fairness(every),
        _delayed(rows),
        _all_figures(rows),
        _made(rows, about),
    ]
    return markup.page(about.title, (part for part in parts if part))


def _head(rows: Sequence[Row], about: About) -> str:
    seeds = sorted({seed for row in rows for seed in row.seeds})
    jobs = max((over.mean for row in rows if (over := row.figures["jobs"])), default=0.0)
    words = (
        f"{len(rows)} {'policy' if len(rows) == 1 else 'policies'}, {jobs:,.0f} jobs, "
        f"{len(seeds)} {'seed' if len(seeds) == 1 else 'seeds'}: what happened on a virtual clock."
    )
    return (
        f"<header><h1>{markup.text(about.title)}</h1>"
        f"{markup.paragraph(words if rows else 'There is no run.', 'lede')}</header>"
    )


def _glance(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    shown = [_MEASURES[key] for key in HEADLINES if any(row.figures[key] for row in rows)]
    scales = {m.key: scale_of(m, [row.figures[m.key] for row in rows]) for m in shown}
    columns = ["Policy", *(_titled(m.title, scales[m.key]) for m in shown)]
    lines = [
        [row.label]
        + [measured(m, row.figures[m.key], scales[m.key], len(row.seeds)) for m in shown]
        for row in rows
    ]
    several = any(len(row.seeds) > 1 for row in rows)
    caption = "The figures looked for first" + (
        ": mean over the seeds ± standard deviation." if several else "."
    )
    return markup.section("glance", "At a glance", markup.table(caption, columns, lines))


def _against(rows: Sequence[Row], watts: Watts | None) -> str:
    others = [row for row in rows[1:] if row.pairs]
    energy = watts is not None
    if not (others or (energy and rows)):
        return ""
    columns = ["Policy", "Mean JCT", "Makespan", "Work done"]
    columns += ["GPU-hours trained more", "GPU-hours freed", "Jobs delayed"]
    columns += ["Energy (kWh)", "Energy saved (kWh)"] if energy else []
    lines = []
    for row in others if not energy else rows:
        cells = [change(row.ratios.get(key)) for key in ("jct_mean_s", "makespan_s", "done")]
        cells += [spread(row.gained_gpu_h, _PLAIN), spread(row.freed_gpu_h, _PLAIN)]
        cells += [count(row.delayed)]
        cells += [spread(row.energy_kwh, _PLAIN), spread(row.saved_kwh, _PLAIN)] if energy else []
        lines.append([row.label, *cells])
    baseline = rows[0].label
    notes = [
        "Each run is compared with the baseline's run of the same seed, and JCT over the jobs that "
        "completed in both. Trained more: GPU-hours in which jobs made progress, beyond the "
        "baseline's. Freed: GPU-hours of the machine less until the last job ended, where all "
        "ended in both. Delayed: jobs that completed later than in the baseline, "
        "or not at all."
    ]
    if watts is not None:
        notes.append(
            f"Energy until each run ends, at {watts.busy:g} W for a GPU on which a job makes "
            f"progress and {watts.idle:g} W for every other one."
        )
    return markup.section(
        "against",
        f"Against {baseline}",
        markup.table(f"Change against {baseline}, the baseline.", columns, lines),
        *(markup.paragraph(note, "note") for note in notes),
    )


def _delayed(rows: Sequence[Row]) -> str:
    late = [row for row in rows[1:] if row.longest]
    if not late:
        return ""
    longest_s = max((d.delay_s for row in late for d in row.longest if d.delay_s), default=0.0)
    scale = time_scale(longest_s)
    tables = []
    for row in late:
        lines = [
            [delay.job, delay.name, str(delay.seed), _delay(delay, scale)] for delay in row.longest
        ]
        columns = ["Job", "Name", "Seed", _titled("Later by", scale)]
        caption = f"{row.label}: the jobs that were delayed most."
        tables.append(markup.table(caption, columns, lines))
    return markup.section("delayed", "Jobs delayed", *tables)


def _all_figures(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    lines = []
    for measure in MEASURES:
        values = [row.figures[measure.key] for row in rows]
        if any(values):
            lines.append(_figures_line(measure, values, rows))
    columns = ["Figure", *(row.label for row in rows), "What it is"]
    caption = "Every figure: mean over the seeds ± standard deviation."
    note = "Quantiles are numpy's, method “linear”. What is said of GPUs is weighted by time."
    return markup.section(
        "figures",
        "All figures",
        markup.table(caption, columns, lines, what=True),
        markup.paragraph(note, "note"),
    )


def _figures_line(
    measure: Measure, values: Sequence[Over | None], rows: Sequence[Row]
) -> list[str]:
    scale = scale_of(measure, values)
    cells = [
        measured(measure, value, scale, len(row.seeds))
        for value, row in zip(values, rows, strict=True)
    ]
    return [_titled(measure.title, scale), *cells, measure.help]


def _made(rows: Sequence[Row], about: About) -> str:
    entries = {
        "Workload": _unique(row.workload for row in rows),
        "Source": _unique(row.source for row in rows),
        "Policies": _unique(row.policy for row in rows),
        "Seeds": [listed(map(str, sorted({seed for row in rows for seed in row.seeds})), 50)],
        **{name: [value] for name, value in about.stated.items()},
        "Made by": [f"hpcext {__version__}, simulate"],
    }
    assumed = markup.bullets(about.assumed) if about.assumed else ""
    files = ", ".join(f'<a href="{name}">{name}</a>' for name in FILES)
    return markup.section(
        "made",
        "How it was made",
        markup.terms({name: words for name, words in entries.items() if any(words)}),
        "<h3>What was assumed</h3>" + assumed if assumed else "",
        f"<p>The figures behind this page: {files}.</p>",
    )


def _delay(delay: Delay, scale: Scale) -> str:
    if delay.delay_s is None:
        return "not completed"
    return spread(Over(delay.delay_s, None, 1), scale)


def _titled(title: str, scale: Scale) -> str:
    return f"{title} ({scale.unit})" if scale.unit and "GPU-" not in title else title


def _unique(words: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(words)) or [UNKNOWN]
