"""The plots of runs: the use of nodes over time, and the calibration of predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hpcext.render import style
from hpcext.render.plots import Plot, drawn
from hpcext.render.style import LIGHT
from hpcext.render.words import Scale
from hpcext.sim.evaluate.outcome import Bin, SimulatedRun
from hpcext.sim.report.thin import thinned

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEAST_POINT, MOST_POINT = 6.0, 150.0
"""Area of the smallest mark in square points, and the addition for a mark of all predictions."""


class Most(NamedTuple):
    """The upper ends of the axes of an allocation."""

    end_s: float
    gpus: float
    waiting: float


def allocation(plot: Plot, run: SimulatedRun, time: Scale, most: Most) -> str:
    """Plot GPUs offered, held and training over time, and below them the waiting jobs.

    Parameters
    ----------
    plot : Plot
    run : SimulatedRun
    time : Scale
    most : Most
        Upper ends of the axes, equal for all runs of a page so that they can be compared.
    """
    edges, offered, held, training, waiting = thinned(
        run.spans, ("offered", "held", "training", "waiting")
    )
    edges = edges / time.divisor

    def draw(figure: Figure) -> None:
        above, below = figure.subplots(2, sharex=True, height_ratios=(3.2, 1))
        for values, colour in (
            (offered, style.OFFERED),
            (held, style.HELD),
            (training, style.TRAINING),
        ):
            above.stairs(values[:-1], edges, fill=True, color=LIGHT[colour], linewidth=0)
        above.stairs(offered[:-1], edges, color=LIGHT[style.MUTED], linewidth=0.8, baseline=None)
        below.stairs(waiting[:-1], edges, fill=True, color=LIGHT[style.WAITING], linewidth=0)
        above.set_ylim(0, 1.05 * most.gpus or 1)
        above.set_ylabel("GPUs")
        below.set_ylim(0, max(1.0, 1.1 * most.waiting))
        below.set_ylabel("Waiting")
        below.set_xlim(0, most.end_s / time.divisor or 1)
        below.set_xlabel(f"Time ({time.unit})")
        figure.align_ylabels()

    return drawn(plot, 3.0, draw)


def reliability(plot: Plot, series: Sequence[Sequence[Bin]]) -> str:
    """Plot observed against predicted shares in percent; they agree on the diagonal.

    Parameters
    ----------
    plot : Plot
    series : sequence of sequence of Bin
        A line for each, whose position determines its style. The size of a point grows with its
        part of the predictions of its line; empty bins are left out.
    """

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.plot([0, 100], [0, 100], color=LIGHT[style.MUTED], linewidth=1)
        for index, bins in enumerate(series):
            shown = [each for each in bins if each.nodes]
            nodes = np.array([each.nodes for each in shown])
            x = 100 * np.array([each.expected for each in shown]) / nodes
            y = 100 * np.array([each.stayed for each in shown]) / nodes
            colour, dash = style.look(index)
            areas = LEAST_POINT + MOST_POINT * nodes / nodes.sum()
            axes.plot(x, y, color=LIGHT[colour], zorder=2 + bool(dash), dashes=dash or (None, None))
            axes.scatter(x, y, areas, LIGHT[colour], zorder=3, linewidth=0)
        axes.set_xlim(0, 100)
        axes.set_ylim(0, 102)
        axes.set_xlabel("Predicted: nodes that stay (%)")
        axes.set_ylabel("Seen (%)")

    return drawn(plot, 4.2, draw)
