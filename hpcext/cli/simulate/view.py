"""A comparison of simulated runs as text on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from hpcext.cli.output import Output
from hpcext.sim.evaluate import tables
from hpcext.sim.evaluate.comparison import Row

SHOWN = ("completed", *tables.HEADLINES)
"""The measures in the table; the report and the document have all."""


def show(out: Output, rows: Sequence[Row]) -> None:
    """Print the figures of each row, and how they differ from those of the first."""
    if not rows:
        out.line("no run")
        return
    out.table(*tables.headlines(rows, SHOWN))
    columns, lines = tables.against(rows)
    if lines:
        out.line("")
        out.line(f"against {rows[0].label}:")
        out.table(columns, lines)
