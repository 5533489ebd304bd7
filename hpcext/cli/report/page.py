"""The account of GPU time as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpcext import __version__
from hpcext.cli.report import saved as report_saved
from hpcext.cli.report.view import HEADINGS, figures, lost_steps, lost_time, sentences
from hpcext.core.values import Segment
from hpcext.manager.views.accounting import COUNTS, REASONS, PilotAccount
from hpcext.manager.views.reading import Reading
from hpcext.numerals import whole
from hpcext.render import markup, plots, style
from hpcext.render.plots import Plot, Stretch
from hpcext.render.words import number, time_scale

MOST_ROWS = 64
"""The largest number of GPUs in a timeline."""

MOST_STRETCHES = 2000
"""The largest number of bars in a timeline; with more they would be too thin to see."""

NOTE = (
    "GPU-hours. Held: what the batch system, or the machine, gave to hpcext; of nodes that are "
    "wanted back, until they were. Trained: what led to a checkpoint or to the end of its job, or "
    "is younger than the last checkpoint of a job that trains. The columns from trained to lost "
    "add up to held. Slots of machines without GPUs count as GPUs."
)


def page(parts: Sequence[PilotAccount], document: Mapping[str, Any]) -> str:
    """Return the page.

    Parameters
    ----------
    parts : sequence of PilotAccount
    document : Mapping
        The account that :func:`hpcext.manager.views.accounting.account` made of these parts.

    Raises
    ------
    InputError
        matplotlib is not installed.
    """
    (total,) = document["users"]
    since = document["since"] or "the beginning of each pilot"
    title = f"GPU time of {total['user']}"
    told = f"{len(parts)} pilots; from {since} to {document['until']}."
    body = [
        f"<header><h1>{markup.text(title)}</h1>{markup.paragraph(told, 'lede')}</header>",
        markup.section(
            "pilots",
            "By pilot",
            _table("GPU-hours of each pilot, and of all.", "Pilot", [*_pilots(document)]),
            markup.bullets(sentences(total)),
            markup.paragraph(NOTE, "note"),
        ),
        *([_saved(document)] if report_saved.is_estimated(document) else []),
        *(
            _pilot(index, part, said)
            for index, (part, said) in enumerate(zip(parts, document["pilots"], strict=True))
        ),
        markup.paragraph(f"Made by hpcext {__version__}, report.", "note"),
    ]
    return markup.page(title, body)


def _pilots(document: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for pilot in document["pilots"]:
        yield (pilot["id"], *figures(pilot))
    for total in document["users"]:
        yield (f"all of {total['user']}", *figures(total))


def _saved(document: Mapping[str, Any]) -> str:
    columns = ("Pilot", *(f"{each[0].upper()}{each[1:]}" for each in report_saved.HEADINGS))
    rows, caption = [*report_saved.rows(document)], "GPU-hours held, and estimated of jobs alone."
    return markup.section(
        "saved",
        "Saved by sharing: an estimate",
        markup.table(caption, columns, rows) if rows else "",
        markup.bullets((*report_saved.reasons(document), *report_saved.NOTES)),
    )


def _table(caption: str, what: str, rows: Sequence[Sequence[str]]) -> str:
    return markup.table(caption, (what, *(heading.capitalize() for heading in HEADINGS)), rows)


def _pilot(index: int, part: PilotAccount, said: Mapping[str, Any]) -> str:
    jobs = said["jobs"]
    happened = [
        (
            each["name"],
            each["state"],
            *(f"{each[key]:,}" for key in COUNTS if key != "lost_steps"),
            " and ".join(filter(None, (lost_steps(each), lost_time(each)))),
        )
        for each in jobs
    ]
    reasons = {words: [f"{number(said[key])} GPU-hours"] for key, words in REASONS.items()}
    return markup.section(
        f"pilot-{index}",
        said["id"],
        _timeline(index, part),
        _table("GPU-hours of each job.", "Job", [(each["name"], *figures(each)) for each in jobs]),
        markup.table(
            "What happened to each job, how often.",
            ("Job", "State", "Starts", "Suspensions", "Resized in place", "Lost steps"),
            happened,
        ),
        "<h3>Why there were starts, suspensions, resizes and lost work</h3>",
        markup.terms(reasons),
    )


def _timeline(index: int, part: PilotAccount) -> str:
    """Return a plot of which job had which GPU, and when."""
    now, begin_s = part.now, part.from_s
    rows = sorted({gpu for _, each in _segments(now, begin_s) for gpu in each.gpus}, key=_order)
    if not rows:
        return ""
    shown = {gpu: row for row, gpu in enumerate(rows[:MOST_ROWS])}
    scale = time_scale(now.now_s - begin_s)
    colours = {job: style.CURVES[at % len(style.CURVES)] for at, job in enumerate(now.world.jobs)}
    stretches = [
        Stretch(
            shown[gpu],
            max(0.0, each.start_s - begin_s) / scale.divisor,
            ((now.now_s if each.end_s is None else each.end_s) - begin_s) / scale.divisor,
            colours[job],
            job,
        )
        for job, each in _segments(now, begin_s)
        for gpu in each.gpus
        if gpu in shown
    ]
    words = "Which job had which GPU; the numbers are ids of jobs."
    if len(rows) > MOST_ROWS or len(stretches) > MOST_STRETCHES:
        words += f" The first {MOST_ROWS} GPUs, and the last {MOST_STRETCHES} pieces."
    plot = Plot(f"timeline-{index}", f"GPUs by job: {now.pilot.id}", words)
    svg = plots.timeline(
        plot,
        list(shown),
        stretches[-MOST_STRETCHES:],
        (now.now_s - begin_s) / scale.divisor,
        f"Time since {'the beginning' if part.before is None else 'then'} ({scale.unit})",
    )
    entries = [
        (f"{job.id}: {job.name}", colours[job.id], None)
        for job in list(now.world.jobs.values())[:MOST_ROWS]
    ]
    return markup.figure(svg, words, before=markup.legend(entries))


def _segments(now: Reading, begin_s: float) -> Iterator[tuple[str, Segment]]:
    """Yield the segments of each job that lie after an instant, with the job's id."""
    for job, record in now.world.records.items():
        for each in record.segments:
            if each.end_s is None or each.end_s > begin_s:
                yield job, each


def _order(gpu: str) -> tuple[str, int]:
    host, _, index = gpu.rpartition(":")
    return host, whole(index) or 0
