"""The section of the page on how long nodes stay: predictions, and outcomes."""

from __future__ import annotations

from collections.abc import Sequence

from hpcext.render import markup, style
from hpcext.render.plots import Plot
from hpcext.render.words import UNKNOWN
from hpcext.sim.evaluate.calibration import BINS, EVERY_S, pooled
from hpcext.sim.evaluate.outcome import Bin, Reliability, SimulatedRun
from hpcext.sim.report import run_plots
from hpcext.sim.report.charts import Group

TITLE = "How long nodes stay"

_WORDS = (
    f"Every {EVERY_S / 60:g} minutes the survival model predicted for each node the probability "
    "that it stays for the given time, knowing only the nodes that had left by then. The policy "
    "does not matter; predictions are counted until the last change of nodes."
)
_PLOT = (
    "Share of nodes that stayed, by the predicted probability. Below the diagonal fewer stayed "
    "than predicted. Large points stand for many predictions."
)
_NOTE = (
    "Brier score: mean squared difference between the probability and the outcome, 1 or 0. Base "
    "rate: the score if the share that stayed, known only afterwards, had been predicted for every "
    "node. Calibration error: mean distance over the bins between the predicted and the observed "
    "share. Nodes leave in groups, so there are far fewer independent events than predictions."
)


def section(every: Sequence[Group]) -> str:
    """Return the section of the page; empty if nodes stay or were not observed long enough."""
    found = pooled(run.stays for run in _longest(every))
    if not found:
        return ""
    return markup.section(
        "stays",
        TITLE,
        markup.paragraph(_WORDS),
        markup.figure(_plot(found), _PLOT, before=_legend(found)),
        _summary(found),
        _bins(found),
        markup.paragraph(_NOTE, "note"),
    )


def horizon(seconds: float) -> str:
    """Return a length of time in minutes, as text."""
    return f"{seconds / 60:g} min"


def _longest(every: Sequence[Group]) -> list[SimulatedRun]:
    """Return for each set of nodes the run that observed it longest."""
    longest: dict[tuple[str, int], SimulatedRun] = {}
    for run in (run for group in every for run in group):
        before = longest.get((run.source, run.seed))
        if before is None or _predictions(run) > _predictions(before):
            longest[run.source, run.seed] = run
    return list(longest.values())


def _predictions(run: SimulatedRun) -> int:
    return sum(each.nodes for each in run.stays)


def _plot(found: Sequence[Reliability]) -> str:
    told = "; ".join(
        f"{horizon(each.horizon_s)}: {100 * each.stayed:.1f} % stayed, calibration error "
        f"{100 * each.error:.1f} %"
        for each in found
    )
    plot = Plot("stays-plot", f"{TITLE}: predicted and observed", f"{_PLOT} {told}.")
    return run_plots.reliability(plot, [each.bins for each in found])


def _legend(found: Sequence[Reliability]) -> str:
    words = [f"after {horizon(each.horizon_s)}" for each in found]
    return markup.legend([(word, *style.look(index)) for index, word in enumerate(words)])


def _summary(found: Sequence[Reliability]) -> str:
    columns = (
        "After", "Predictions", "Predicted (%)", "Stayed (%)", "Brier score", "Base rate's score",
        "Calibration error (%)",
    )  # fmt: skip
    return markup.table(
        "Quality of the predictions.",
        columns,
        [
            (
                horizon(each.horizon_s),
                f"{each.nodes:,}",
                f"{100 * sum(part.expected for part in each.bins) / each.nodes:.1f}",
                f"{100 * each.stayed:.1f}",
                f"{each.brier:.4f}",
                f"{each.base_brier:.4f}",
                f"{100 * each.error:.1f}",
            )
            for each in found
        ],
    )


def _bins(found: Sequence[Reliability]) -> str:
    width = 100 // BINS
    lines = [
        (f"{width * at} to {width * (at + 1)} %", *(_cell(each.bins[at]) for each in found))
        for at in range(BINS)
    ]
    return markup.table(
        "The figures of the plot: share of nodes that stayed, predicted → observed, and the number "
        "of nodes.",
        ("Predicted", *(f"After {horizon(each.horizon_s)}" for each in found)),
        lines,
    )


def _cell(part: Bin) -> str:
    if not part.nodes:
        return UNKNOWN
    predicted, seen = 100 * part.expected / part.nodes, 100 * part.stayed / part.nodes
    return f"{predicted:.1f} → {seen:.1f} % ({part.nodes:,})"
