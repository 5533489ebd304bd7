"""The files beside the runs in their folder: the page, and the figures in it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hpcext import __version__
from hpcext.core.errors import refused
from hpcext.documents import write_file
from hpcext.render.csv import as_csv
from hpcext.sim.evaluate.comparison import Row, compared
from hpcext.sim.evaluate.measures import MEASURES
from hpcext.sim.evaluate.metrics import by_label, figures
from hpcext.sim.evaluate.outcome import JobRow, SimulatedRun, Span
from hpcext.sim.evaluate.users import UserSummary
from hpcext.sim.report.page import USERS, About, page

PAGE = "report.html"
SUMMARY = "hpcext.summary/1"


def write(folder: Path, runs: Sequence[SimulatedRun], about: About) -> Path:
    """Write the page, and jobs.csv, spans.csv, summary.csv and summary.json beside it.

    If users share the nodes, there is users.csv, too.

    Parameters
    ----------
    folder : Path
        An existing folder.
    runs : sequence of SimulatedRun
        Those of one label together; the first label is the baseline.
    about : About

    Returns
    -------
    Path
        The page.

    Raises
    ------
    InputError
        matplotlib is not installed (nothing was written), or two runs have the same label and seed.
    HpcextError
        A file cannot be written.
    """
    ordered = [run for group in by_label(runs).values() for run in group]
    rows = compared(ordered, about.watts)
    # The page first, because it may fail without matplotlib; the other files do not need it.
    made = {
        PAGE: page(ordered, about, rows).encode(),
        "jobs.csv": as_csv(_job_lines(ordered)),
        "spans.csv": as_csv(_span_lines(ordered)),
        "summary.csv": as_csv(_summary_lines(ordered)),
        # Not by msgspec, which cannot encode bytes of a command line that are not UTF-8.
        "summary.json": json.dumps(summary(rows, about), indent=2).encode() + b"\n",
    }
    if about.users:
        made[USERS] = as_csv(_user_lines(about.users))
    for name, data in made.items():
        try:
            write_file(folder / name, data, mode=0o644)
        except OSError as error:
            raise refused(error, str(folder / name)) from None
    return folder / PAGE


def summary(rows: Sequence[Row], about: About) -> dict[str, Any]:
    """Return the tables of the page as a document; schema hpcext.summary/1."""
    return {
        "schema": SUMMARY,
        "version": __version__,
        "title": about.title,
        "assumed": about.assumed,
        "stated": about.stated,
        "watts": None if about.watts is None else about.watts._asdict(),
        "baseline": rows[0].label if rows else None,
        "measures": [measure._asdict() for measure in MEASURES],
        "policies": [_plain(row) for row in rows],
        **({"users": [_plain(user) for user in about.users]} if about.users else {}),
    }


def _plain(row: Row | UserSummary) -> dict[str, Any]:
    return {name: msgspec.to_builtins(value) for name, value in msgspec.structs.asdict(row).items()}


def _job_lines(runs: Iterable[SimulatedRun]) -> Iterator[Sequence[object]]:
    yield ("label", "seed", *JobRow.__struct_fields__, "jct_s")
    for run in runs:
        for row in run.jobs:
            yield (run.label, run.seed, *msgspec.structs.astuple(row), row.jct_s)


def _span_lines(runs: Iterable[SimulatedRun]) -> Iterator[Sequence[object]]:
    yield ("label", "seed", *Span.__struct_fields__)
    for run in runs:
        for span in run.spans:
            yield (run.label, run.seed, *msgspec.structs.astuple(span))


def _user_lines(users: Iterable[UserSummary]) -> Iterator[Sequence[object]]:
    yield UserSummary.__struct_fields__
    for user in users:
        yield msgspec.structs.astuple(user)


def _summary_lines(runs: Iterable[SimulatedRun]) -> Iterator[Sequence[object]]:
    yield (
        "label", "policy", "workload", "source", "seed", "end_s", "events", "decisions",
        *(measure.key for measure in MEASURES),
    )  # fmt: skip
    for run in runs:
        own = figures(run)
        yield (
            run.label, run.policy, run.workload, run.source, run.seed, run.end_s, run.events,
            run.decisions, *(getattr(own, measure.key) for measure in MEASURES),
        )  # fmt: skip
