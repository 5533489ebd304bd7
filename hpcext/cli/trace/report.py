"""The statistics of a trace or a log: as text, beside figures of a paper, or as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from hpcext.cli.output import Output
from hpcext.render.words import duration
from hpcext.sim.traces.fragments import IdleStats
from hpcext.sim.traces.swf import SwfStats
from hpcext.text import counted

PAPER = {
    "Summit": (68.1, 41.8, 31.5, 407, 0.086, 0.58, 0.10),
    "Theta": (None, 6.3, 6.2, 547, 0.125, None, None),
    "Mira": (None, 2.8, 2.4, 5071, 0.103, None, None),
}
"""The figures of BFTrainer: section 2.1 and Figure 1 (Summit, two weeks), and Table 1."""

FIGURES = (
    "changes an hour", "... in which nodes joined", "... in which nodes left",
    "idle nodes on average", "share of the machine", "fragments under 10 min",
    "... and of the node-time",
)  # fmt: skip


def print_idle(out: Output, path: Path, stats: IdleStats, more: str = "") -> None:
    """Print statistics of a trace, beside those that the paper has for three machines.

    Parameters
    ----------
    out : Output
    path : pathlib.Path
        The trace.
    stats : IdleStats
    more : str
        The end of the first line.
    """
    what = f"{path}: {counted(stats.events, 'change')} in {duration(stats.end_s - stats.start_s)}"
    out.line(f"{what}, {counted(stats.nodes, 'node')}{f'; {more}' if more else ''}")
    rows = zip(FIGURES, *map(_column, (_figures(stats), *PAPER.values())), strict=True)
    out.table(("figure", "here", *PAPER), list(rows))
    lengths = [each for each in stats.lengths if 5 <= each.minutes <= 240]
    if not stats.fragments:
        return
    out.table(
        ("fragments shorter than", *(f"{each.minutes} min" for each in lengths)),
        [
            ("by count", *(f"{each.by_count:.1%}" for each in lengths)),
            ("by node-time", *(f"{each.by_time:.1%}" for each in lengths)),
        ],
    )


def print_log(out: Output, path: Path, stats: SwfStats, procs: int | None) -> None:
    """Print statistics of a log.

    Parameters
    ----------
    out : Output
    path : pathlib.Path
    stats : SwfStats
    procs : int or None
        Processors of the machine, if known.
    """
    out.line(f"{path}: {counted(stats.jobs, 'job')} of {duration(stats.end_s - stats.start_s)}")
    out.table(("figure", "here"), _log_rows(stats, procs))


def _figures(stats: IdleStats) -> tuple[float | None, ...]:
    some = bool(stats.fragments)
    return (
        stats.per_hour(stats.events), stats.per_hour(stats.inc), stats.per_hour(stats.dec),
        stats.eq_nodes, stats.ratio, stats.short.by_count if some else None,
        stats.short.by_time if some else None,
    )  # fmt: skip


def _column(figures: tuple[float | None, ...]) -> list[str]:
    forms = ("{:.1f}", "{:.1f}", "{:.1f}", "{:.0f}", "{:.1%}", "{:.0%}", "{:.0%}")
    return [
        "" if figure is None else form.format(figure)
        for form, figure in zip(forms, figures, strict=True)
    ]


def idle_document(
    path: Path, stats: IdleStats, more: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """Return the statistics of a trace as a document.

    Parameters
    ----------
    path : pathlib.Path
        The trace.
    stats : IdleStats
    more : Mapping of str to float, optional
        Further figures.
    """
    hour = {
        name: stats.per_hour(count)
        for name, count in (("events", stats.events), ("inc", stats.inc), ("dec", stats.dec))
    }
    document: dict[str, Any] = {"schema": "hpcext.idle-trace/1", "file": str(path)}
    document.update(msgspec.to_builtins(stats))
    return document | {"ratio": stats.ratio, "per_hour": hour} | dict(more or {})


def log_document(path: Path, stats: SwfStats, procs: int | None) -> dict[str, Any]:
    """Return the statistics of a log as a document.

    Parameters
    ----------
    path : pathlib.Path
        The log.
    stats : SwfStats
    procs : int or None
        Processors of the machine, if known.
    """
    document: dict[str, Any] = {
        "schema": "hpcext.job-log/1",
        "file": str(path),
        "processors": procs,
    }
    document.update(msgspec.to_builtins(stats))
    return document | {"load": _load(stats, procs)}


def _load(stats: SwfStats, procs: int | None) -> float | None:
    """Return the share of a machine that the jobs occupy, over the time that the log covers."""
    span_s = stats.end_s - stats.start_s
    return stats.proc_s / (procs * span_s) if procs and span_s > 0 else None


def _log_rows(stats: SwfStats, procs: int | None) -> list[tuple[str, str]]:
    hours = (stats.end_s - stats.start_s) / 3600
    load = _load(stats, procs)
    return [
        ("jobs that ran", str(stats.ran)),
        ("jobs an hour", f"{stats.jobs / hours:.2f}" if hours else ""),
        ("processors of a job", f"{stats.procs:.1f}"),
        ("run time", duration(stats.run_s)),
        ("waiting time", duration(stats.wait_s)),
        ("run time / time asked for", f"{stats.accuracy:.0%}" if stats.accuracy else ""),
        ("processor-hours", f"{stats.proc_s / 3600:.0f}"),
        *([(f"load of {procs} processors", f"{load:.0%}")] if load is not None else []),
    ]
