"""The part of the page on users who share nodes: what each had, and the plot of it over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hpcext.render import markup, style
from hpcext.render.plots import Plot, drawn
from hpcext.render.style import LIGHT
from hpcext.render.words import time_scale
from hpcext.sim.evaluate import users as of
from hpcext.sim.evaluate.metrics import Floats
from hpcext.sim.evaluate.outcome import SimulatedRun, UserRow

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = (*style.CURVES[:4], style.HELD)
"""Of the users in the plot, the last one of all others together."""

WORDS = (
    "Fair share: the node-hours that the weights entitle a user to, given what all users wanted at "
    "each instant, were nodes divisible. Had: nodes on which the engine had trainers of the user. "
    "A user whose trainers cannot use their part, because they need more nodes at least, has less. "
    "In equal parts: without a broker, harvesters divide nodes so. As one user: no division."
)


def section(every: Sequence[Sequence[SimulatedRun]]) -> str:
    """Return the section; empty if no nodes are divided among users by weights."""
    groups = [group for group in every if group[0].division == of.WEIGHTS]
    if not groups:
        return ""
    summaries = of.of_users(run for group in every for run in group)
    parts = []
    for index, group in enumerate(groups):
        label, run = group[0].label, group[0]
        mine = [each for each in summaries if each.label == label]
        parts.append(markup.table(f"{label}: node-hours by user.", *of.table(mine)))
        if len(run.edges_s) > 1:
            parts.append(_figure(index, run))
    return markup.section("users", "Users", markup.paragraph(WORDS, "note"), *parts)


def _figure(index: int, run: SimulatedRun) -> str:
    rows = _largest(run.users)
    legend = [(row.user, colour, None) for row, colour in zip(rows, COLOURS, strict=False)]
    shares = "; ".join(f"{row.user} {row.had_node_s / 3600:,.1f}" for row in rows)
    words = f"Seed {run.seed}. Areas: nodes that users had. Lines: their fair shares."
    plot = Plot(
        f"users-{index}",
        f"Nodes by user: {run.label}",
        f"Nodes that users had over time, {run.label}. Node-hours: {shares}.",
    )
    svg = shares_over_time(plot, rows, run.edges_s)
    return markup.figure(svg, words, run.label, markup.legend(legend))


def _largest(rows: Sequence[UserRow]) -> list[UserRow]:
    """Return the users who had most, and the others as one, of which there may be many."""
    ordered = sorted(rows, key=lambda row: (-row.had_node_s, row.user))
    most = len(COLOURS)
    if len(ordered) <= most:
        return ordered
    rest = ordered[most - 1 :]
    others = UserRow(
        f"{len(rest)} others",
        0.0,
        0.0,
        None,
        sum(row.wanted_node_s for row in rest),
        sum(row.entitled_node_s for row in rest),
        sum(row.had_node_s for row in rest),
        tuple(map(sum, zip(*(row.entitled for row in rest), strict=True))),
        tuple(map(sum, zip(*(row.had for row in rest), strict=True))),
    )
    return [*ordered[: most - 1], others]


def shares_over_time(plot: Plot, rows: Sequence[UserRow], edges_s: Sequence[float]) -> str:
    """Plot nodes of users over time, one above the other, and lines at their fair shares.

    Parameters
    ----------
    plot : Plot
    rows : sequence of UserRow
        As many as there are colours, at most.
    edges_s : sequence of float
        The edges of the stretches of the rows.
    """
    time = time_scale(edges_s[-1])
    edges = np.array(edges_s) / time.divisor
    had, entitled = (_stacked([getattr(row, name) for row in rows]) for name in ("had", "entitled"))

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        # From the top down: each area covers what is below its own.
        for values, colour in reversed(list(zip(had, COLOURS, strict=False))):
            axes.stairs(values, edges, fill=True, color=LIGHT[colour], linewidth=0)
        for values in entitled:
            axes.stairs(values, edges, color=LIGHT[style.INK], linewidth=0.6, baseline=None)
        most = max((float(each.max()) for each in (*had, *entitled)), default=0.0)
        axes.set_ylim(0, 1.05 * most or 1)
        axes.set_xlim(0, edges[-1] or 1)
        axes.set_ylabel("Nodes")
        axes.set_xlabel(f"Time ({time.unit})")

    return drawn(plot, 3.0, draw)


def _stacked(series: Sequence[Sequence[float]]) -> Floats:
    return np.cumsum(np.array(series, np.float64), axis=0)
