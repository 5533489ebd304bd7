"""A comparison of simulated runs as text on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from hpcext.cli.output import Output
from hpcext.sim.evaluate import tables
from hpcext.sim.evaluate import users as of_users
from hpcext.sim.evaluate.comparison import Row
from hpcext.sim.evaluate.users import UserSummary

SHOWN = ("completed", *tables.HEADLINES)
"""The measures in the table; the report and the document have all."""


def show(out: Output, rows: Sequence[Row], users: Sequence[UserSummary] = ()) -> None:
    """Print the figures of each row, how they differ from those of the first, and what users had.

    Parameters
    ----------
    out : Output
    rows : sequence of Row
    users : sequence of UserSummary
    """
    if not rows:
        out.line("no run")
        return
    out.table(*tables.headlines(rows, SHOWN))
    columns, lines = tables.against(rows)
    if lines:
        out.line("")
        out.line(f"against {rows[0].label}:")
        out.table(columns, lines)
    for label in dict.fromkeys(user.label for user in users):
        mine = [user for user in users if user.label == label]
        out.line("")
        out.line(f"{label}, node-hours of users:")
        out.table(*of_users.table(mine))
        if (user := of_users.farthest(mine)) is not None:
            share = abs(user.difference or 0.0)
            out.line(f"farthest from the fair share: {user.user}, by {100 * share:.1f} %")
