"""The gain by balanced batches on real workers under unequal CPU quotas, beside the paper's.

``benchmarks/balance.py`` and ``benchmarks/balance_tensorflow.py`` measure it, with ``--quotas``,
and document how. Here the measurements are data, because a reproduction starts no trainings.
"""

from __future__ import annotations

import importlib.resources

import msgspec

from hpcext.papers.study import Row, Table, figure

MEASURED = "measured.json"

BSP, IDEAL = "x BSP", "x ideal"


class MethodResult(msgspec.Struct, frozen=True):
    """The measurements of a training by one method.

    Attributes
    ----------
    ms : float
        Mean milliseconds of an iteration.
    of_ideal, of_ideal_second_half, of_plain : float
        `ms` as a multiple of the ideal iteration's, over all iterations and over the second half,
        and of plain training's.
    straggler_gap : float
        The time by which the fastest worker is done before the slowest, as a share of the slowest
        one's time.
    """

    ms: float
    of_ideal: float
    of_ideal_second_half: float
    of_plain: float
    straggler_gap: float


class Run(msgspec.Struct, frozen=True):
    """The measurements of one run, with its conditions."""

    name: str
    date: str
    hardware: str
    load_average: float
    iterations: int
    ideal_ms: float
    exchange_ms: float
    ways: dict[str, MethodResult]


PAPER = {"static": 0.46, "changing": 0.42}
"""The paper's iteration time as a multiple of plain BSP's: 54 % shorter on unequal GPUs (abstract;
against the second best in its Figure 6), 58 % shorter on a shared CPU cluster (section 5.3,
ResNet-32)."""

WHY = (
    "the gain depends on how unequal the workers are: here 0.6, 0.4, 0.25 and 0.15 of a core; "
    "what counts is the distance to the ideal"
)


def measured() -> list[Run]:
    """Return all runs."""
    text = importlib.resources.files(__package__).joinpath(MEASURED).read_bytes()
    return msgspec.json.decode(text, type=list[Run])


def tables() -> tuple[Table, ...]:
    """Return a table for each run."""
    return tuple(
        Table(
            f"Real workers, {run.name}",
            (
                *_rows(run, "affine", "lines (ours)"),
                *_rows(run, "speeds", "Algorithm 1"),
                Row(
                    "gap between slowest and fastest worker, plain BSP",
                    run.ways["plain"].straggler_gap,
                ),
            ),
            f"{run.date}, {run.iterations} iterations, {run.hardware}, load average "
            f"{run.load_average:.1f}; ideal {run.ideal_ms:.0f} ms, plain BSP "
            f"{run.ways['plain'].ms:.0f} ms",
        )
        for run in measured()
    )


def _rows(run: Run, name: str, title: str) -> list[Row]:
    way = run.ways[name]
    paper = PAPER["changing" if "changing" in run.name else "static"]
    return [
        figure(f"{title}: time of an iteration", way.of_plain, paper, BSP, WHY),
        Row(f"{title}: the same", way.of_ideal, None, IDEAL),
        Row(f"{title}: the same, second half", way.of_ideal_second_half, None, IDEAL),
        Row(f"{title}: gap between slowest and fastest worker", way.straggler_gap),
    ]
