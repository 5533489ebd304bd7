"""The tables of a comparison as text, the same in a report and on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hpcext.render.words import Scale, time_scale
from hpcext.sim.evaluate.comparison import Delay, Row
from hpcext.sim.evaluate.measures import MEASURES, Measure
from hpcext.sim.evaluate.metrics import Over
from hpcext.sim.evaluate.words import change, count, measured, scale_of, spread

HEADLINES = (
    "jct_mean_s",
    "jct_p99_s",
    "wait_mean_s",
    "makespan_s",
    "utilisation",
    "efficiency",
    "ideal_share",
    "rho_p99",
    "unfinished",
)
"""The main measures."""

_MEASURES = {measure.key: measure for measure in MEASURES}
_PLAIN = Scale(1.0, "")


class Table(NamedTuple):
    """A table: its headings, and lines with a cell for each."""

    columns: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]


def headlines(rows: Sequence[Row], keys: Sequence[str] = HEADLINES) -> Table:
    """Return some figures, with a line for each label and a column for each known measure.

    Parameters
    ----------
    rows : sequence of Row
    keys : sequence of str
        The measures, by their keys.
    """
    shown = [_MEASURES[key] for key in keys if any(row.figures[key] for row in rows)]
    scales = _scales(shown, rows)
    return Table(
        ("Policy", *(_titled(m.title, scales[m.key]) for m in shown)),
        tuple((row.label, *(_cell(m, row, scales) for m in shown)) for row in rows),
    )


def against(rows: Sequence[Row]) -> Table:
    """Compare each label with the first one; the table is empty if there is nothing to compare.

    If the energy is known, it is included, with a line for the baseline as well.
    """
    energy = any(row.energy_kwh for row in rows)
    columns = [
        "Policy",
        "Mean JCT",
        "Makespan",
        "Work done",
        "GPU-hours trained more",
        "GPU-hours freed",
        "Jobs delayed",
    ]
    if energy:
        columns += ["Energy (kWh)", "Energy saved (kWh)"]
    return Table(
        tuple(columns), tuple(_compared(row, energy) for row in rows if row.pairs or energy)
    )


def everything(rows: Sequence[Row]) -> Table:
    """Return all known figures, with a line for each figure and a column for each label."""
    shown = [each for each in MEASURES if any(row.figures[each.key] for row in rows)]
    scales = _scales(shown, rows)
    return Table(
        ("Figure", *(row.label for row in rows)),
        tuple(
            (_titled(m.title, scales[m.key]), *(_cell(m, row, scales) for row in rows))
            for m in shown
        ),
    )


def definitions(rows: Sequence[Row]) -> dict[str, tuple[str, ...]]:
    """Return the definition of each known figure by its title."""
    return {
        each.title: (each.help,) for each in MEASURES if any(row.figures[each.key] for row in rows)
    }


def delayed(row: Row, most: int = 8) -> Table:
    """Return the jobs of a label that were delayed most.

    Parameters
    ----------
    row : Row
    most : int
        Largest number of jobs.
    """
    longest = row.longest[:most]
    scale = time_scale(max((each.delay_s for each in longest if each.delay_s), default=0.0))
    return Table(
        ("Job", "Name", "Seed", _titled("Later by", scale)),
        tuple((each.job, each.name, str(each.seed), _later(each, scale)) for each in longest),
    )


def _compared(row: Row, energy: bool) -> tuple[str, ...]:
    cells = [change(row.ratios.get(key)) for key in ("jct_mean_s", "makespan_s", "done")]
    cells += [spread(row.gained_gpu_h, _PLAIN), spread(row.freed_gpu_h, _PLAIN)]
    cells += [count(row.delayed)]
    if energy:
        cells += [spread(row.energy_kwh, _PLAIN), spread(row.saved_kwh, _PLAIN)]
    return (row.label, *cells)


def _scales(measures: Sequence[Measure], rows: Sequence[Row]) -> dict[str, Scale]:
    return {each.key: scale_of(each, [row.figures for row in rows]) for each in measures}


def _cell(measure: Measure, row: Row, scales: dict[str, Scale]) -> str:
    return measured(measure, row.figures[measure.key], scales[measure.key], len(row.seeds))


def _later(delay: Delay, scale: Scale) -> str:
    if delay.delay_s is None:
        return "not completed"
    return spread(Over(delay.delay_s, None, 1), scale)


def _titled(title: str, scale: Scale) -> str:
    """Return a title with its unit, unless that is part of its text."""
    return f"{title} ({scale.unit})" if scale.unit and "GPU-" not in title else title
