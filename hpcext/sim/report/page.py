"""The report as one self-contained page of HTML: no network, no script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from hpcext import __version__
from hpcext.render import markup
from hpcext.render.words import UNKNOWN
from hpcext.sim.evaluate import tables
from hpcext.sim.evaluate.comparison import Row, Watts, compared
from hpcext.sim.evaluate.metrics import by_label
from hpcext.sim.evaluate.outcome import SimulatedRun
from hpcext.sim.evaluate.users import UserSummary
from hpcext.sim.report import charts, shares, stays
from hpcext.text import listed

FILES = ("jobs.csv", "spans.csv", "summary.csv", "summary.json")
"""Names of the files that are written beside the page."""

USERS = "users.csv"
"""The name of a further one, where users share nodes."""


class About(msgspec.Struct, frozen=True):
    """The contents of a report besides its figures.

    Attributes
    ----------
    title : str
    assumed : tuple of str
        The assumptions, in sentences.
    stated : dict of str to str
        All else that is needed to reproduce it: options, digests of files.
    watts : Watts or None
        Power of a GPU; if given, the page has the energy.
    users : tuple of UserSummary
        Users who share the nodes by weights, if any do.
    """

    title: str = "Simulated runs"
    assumed: tuple[str, ...] = ()
    stated: dict[str, str] = {}
    watts: Watts | None = None
    users: tuple[UserSummary, ...] = ()


def page(runs: Iterable[SimulatedRun], about: About, rows: Sequence[Row] | None = None) -> str:
    """Return the report of some runs.

    Parameters
    ----------
    runs : iterable of SimulatedRun
        The first label is the baseline.
    about : About
    rows : sequence of Row, optional
        The result of :func:`~hpcext.sim.evaluate.comparison.compared` for them, if available.

    Raises
    ------
    InputError
        matplotlib is not installed, or two runs have the same label and seed.
    """
    groups = by_label(runs)
    every = list(groups.values())
    if rows is None:
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
        shares.section(every),
        stays.section(every),
        _all_figures(rows),
        _delayed(rows),
        _made(rows, about),
    ]
    return markup.page(about.title, (part for part in parts if part))


def _head(rows: Sequence[Row], about: About) -> str:
    seeds = sorted({seed for row in rows for seed in row.seeds})
    jobs = max((over.mean for row in rows if (over := row.figures["jobs"])), default=0.0)
    words = (
        f"{len(rows)} {'policy' if len(rows) == 1 else 'policies'}, {jobs:,.0f} jobs, "
        f"{len(seeds)} {'seed' if len(seeds) == 1 else 'seeds'}: results of a simulation."
    )
    return (
        f"<header><h1>{markup.text(about.title)}</h1>"
        f"{markup.paragraph(words if rows else 'There is no run.', 'lede')}</header>"
    )


def _glance(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    several = any(len(row.seeds) > 1 for row in rows)
    caption = "The main figures" + (
        ": mean over the seeds ± standard deviation." if several else "."
    )
    table = markup.table(caption, *tables.headlines(rows))
    return markup.section("glance", "At a glance", table)


def _against(rows: Sequence[Row], watts: Watts | None) -> str:
    table = tables.against(rows)
    if not table.lines:
        return ""
    baseline = rows[0].label
    notes = [
        "Each run is compared with the baseline's run of the same seed; JCT is compared over the "
        "jobs that completed in both. Trained more: additional GPU-hours in which jobs made "
        "progress. Freed: GPU-hours of the machine that were saved until the last job ended, if "
        "all jobs ended in both. Delayed: jobs that completed later than in the baseline, or not "
        "at all."
    ]
    if watts is not None:
        notes.append(
            f"Energy until each run ends, with {watts.busy:g} W for a GPU on which a job makes "
            f"progress and {watts.idle:g} W for any other."
        )
    return markup.section(
        "against",
        f"Against {baseline}",
        markup.table(f"Change against {baseline}, the baseline.", *table),
        *(markup.paragraph(note, "note") for note in notes),
    )


def _delayed(rows: Sequence[Row]) -> str:
    late = [row for row in rows[1:] if row.longest]
    if not late:
        return ""
    captions = {row.label: f"{row.label}: the most delayed jobs." for row in late}
    return markup.section(
        "delayed",
        "Jobs delayed",
        *(markup.table(captions[row.label], *tables.delayed(row), words=(1,)) for row in late),
    )


def _all_figures(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    table = tables.everything(rows)
    caption = "Every figure: mean over the seeds ± standard deviation."
    note = "Quantiles are numpy's, method “linear”. Figures of GPUs are weighted by time."
    return markup.section(
        "figures",
        "All figures",
        markup.table(caption, *table),
        markup.terms(tables.definitions(rows), "note"),
        markup.paragraph(note, "note"),
    )


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
    names = FILES + ((USERS,) if about.users else ())
    files = ", ".join(f'<a href="{name}">{name}</a>' for name in names)
    return markup.section(
        "made",
        "How it was made",
        markup.terms({name: words for name, words in entries.items() if any(words)}),
        "<h3>What was assumed</h3>" + assumed if assumed else "",
        f"<p>The figures behind this page: {files}.</p>",
    )


def _unique(words: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(words)) or [UNKNOWN]
