"""``hpcext trials``: show the outcome of a sweep's trials, the best first."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcext.cli import plot
from hpcext.cli.output import Output
from hpcext.config import load_settings
from hpcext.core.errors import InputError
from hpcext.core.reasons import reason
from hpcext.core.trials import Trial
from hpcext.core.values import Job, Record
from hpcext.core.world import World
from hpcext.manager import directory as pilots
from hpcext.manager.unmeasured import unmeasured
from hpcext.manager.views import reading
from hpcext.manager.views.report import display_state
from hpcext.render import canvas, style
from hpcext.render.style import LIGHT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TRIALS = "hpcext.trials/1"

INCHES_HIGH = 3.6

NAMED = 5
"""The number of best trials with a colour and a name in the plot; others are grey."""


class TrialResult(NamedTuple):
    """A trial, and its outcome so far."""

    job: Job
    trial: Trial
    record: Record

    @property
    def value(self) -> float | None:
        """Its metric as last reported; None before the first report, or if it is not a number."""
        return self.record.metrics.get(self.trial.metric)


def add(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "trials",
        help="show the results of the trials of a sweep, the best first",
        epilog="example: hpcext trials train --plot loss.svg",
    )
    parser.add_argument("pilot", metavar="PILOT", help="directory, id or name")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw the metric over the steps to this file"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=show)


def show(args: argparse.Namespace, out: Output) -> int:
    """Print a table for each sweep, or one document; draw them if asked to."""
    if args.plot is not None:
        plot.check(args.plot)
    directory = pilots.find(args.pilot, load_settings().state_dir)
    sweeps = _sweeps(reading.read(directory).world)
    if not sweeps:
        raise InputError("no trials in it", where=args.pilot, do="hpcext sweep makes some")
    if args.plot is not None:
        _plot([tried for tried in sweeps if tried[0].trial.metric], args.plot)
    if args.json:
        out.document({"schema": TRIALS, "sweeps": [_document(tried) for tried in sweeps]})
        return 0
    for tried in sweeps:
        _table(tried, directory, out)
    return 0


def _sweeps(world: World) -> list[list[TrialResult]]:
    """Return the trials of each sweep, the best first."""
    found: dict[tuple[object, ...], list[TrialResult]] = {}
    for job in world.jobs.values():
        if job.trial is not None:
            tried = TrialResult(job, job.trial, world.records[job.id])
            found.setdefault(job.trial.rules, []).append(tried)
    return [
        sorted(each, key=lambda tried: tried.trial.score(tried.value)) for each in found.values()
    ]


def _rungs(tried: Sequence[TrialResult]) -> list[int]:
    return sorted({rung for each in tried for rung in each.record.rungs})


def _table(tried: Sequence[TrialResult], directory: Path, out: Output) -> None:
    """Print the settings and rungs of each trial, and where the checkpoint of the best one is."""
    rules, rungs = tried[0].trial, _rungs(tried)
    keys = list(dict.fromkeys(key for each in tried for key in each.trial.settings))
    metric = [rules.metric] if rules.metric else []
    rows = [
        (
            each.job.id,
            display_state(each.job),
            *(each.trial.settings.get(key, "") for key in keys),
            *(_number(each.record.rungs, rung) for rung in rungs),
            *(["" if each.value is None else f"{each.value:.4g}"] if metric else []),
            str(each.job.step or ""),
        )
        for each in tried
    ]
    out.line(f"sweep {rules.sweep}: {_rules(rules)}")
    out.table(("id", "state", *keys, *(f"@{rung}" for rung in rungs), *metric, "step"), rows)
    missing = (unmeasured(each.job, each.record) for each in tried)
    if said := next(filter(None, missing), ""):
        out.note(said)
    best = tried[0]
    if best.value is not None:
        where = directory / "jobs" / best.job.id / "checkpoint"
        out.line(f"best: {best.job.name}; its checkpoint is in {where}")


def _rules(rules: Trial) -> str:
    if not rules.metric:
        return "its trials are not compared"
    by = f"by the {'least' if rules.goal == 'min' else 'largest'} {rules.metric}"
    if rules.first is None:
        return by
    steps = f"{rules.first}, {rules.first * rules.factor}, ..."
    return f"{by}; one of {rules.factor} goes on at step {steps}"


def _number(rungs: Any, rung: int) -> str:
    if rung not in rungs:
        return ""
    return "no number" if rungs[rung] is None else f"{rungs[rung]:.4g}"


def _document(tried: Sequence[TrialResult]) -> dict[str, Any]:
    rules = tried[0].trial
    return {
        "sweep": rules.sweep,
        "metric": rules.metric or None,
        "goal": rules.goal,
        "first": rules.first,
        "factor": rules.factor,
        "trials": [
            {
                "id": each.job.id,
                "name": each.job.name,
                "state": display_state(each.job),
                "why": reason(each.job),
                "settings": dict(each.trial.settings),
                "step": each.job.step,
                "value": each.value,
                "rungs": [{"step": k, "value": v} for k, v in sorted(each.record.rungs.items())],
                "curve": [{"step": point.step, "value": point.loss} for point in each.record.curve],
            }
            for each in tried
        ],
    }


def _plot(sweeps: Sequence[Sequence[TrialResult]], path: Path) -> None:
    """Draw the metric of each trial by step, in one plot for each sweep."""
    if not sweeps:
        raise InputError("no metric to draw", where="--plot", do="hpcext sweep --metric NAME")

    def draw(figure: Figure) -> None:
        every = figure.subplots(len(sweeps), squeeze=False)[:, 0]
        for axes, tried in zip(every, sweeps, strict=True):
            _curves(axes, tried)

    plot.write(path, INCHES_HIGH * len(sweeps), draw)


def _curves(axes: Axes, tried: Sequence[TrialResult]) -> None:
    """Draw one sweep: a line for each trial, and the steps at which they are compared."""
    # The best ones are drawn last, on top of the others.
    for place in reversed(range(len(tried))):
        curve = tried[place].record.curve
        steps, values = [each.step for each in curve], [each.loss for each in curve]
        named = place < NAMED
        colour, dash = style.look(place) if named else (style.RULE, ())
        label = canvas.cut(tried[place].job.name) if named else ""
        axes.plot(
            steps, values, marker=".", color=LIGHT[colour], label=label,
            dashes=dash or (None, None),
        )  # fmt: skip
    for rung in _rungs(tried):
        axes.axvline(rung, color=LIGHT[style.MUTED], linewidth=0.8)
    axes.set_title(tried[0].trial.sweep, loc="left")
    axes.set_xlabel("Step")
    axes.set_ylabel(tried[0].trial.metric)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1])
