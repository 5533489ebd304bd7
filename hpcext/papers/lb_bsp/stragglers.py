"""Rules for batch sizes on recorded batch times of real workers, some of which straggle.

The recordings are of Alibaba's cluster-trace-gpu-v2020: ``stragglers/job_*.csv`` of the data, with
the time of each worker's batch in each iteration. A worker's time is taken as proportional to its
samples.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path

from hpcext.core.errors import InputError
from hpcext.papers.study import Row, Table
from hpcext.scaling.balance import FREE, IterationRecord, Line, even, level
from hpcext.scaling.balance.rules import RULES

FOLDER, PATTERN = "stragglers", "job_*.csv"

BATCH = 100
"""Samples of a worker without balancing: their times are recorded without their number."""

MEMORY = 0.5

NAMES = {
    "affine": "lines (ours)",
    "best": "the best of late (ours)",
    "speeds": "Algorithm 1, the last speeds",
    "leader": "Algorithm 2",
}

Times = Sequence[Sequence[float]]
"""Seconds of each worker in each iteration."""


def read(path: Path) -> Times:
    """Read a recording; iterations in which a worker has no time are left out.

    Parameters
    ----------
    path : pathlib.Path

    Raises
    ------
    InputError
        It is not such a file.
    """
    found: dict[int, dict[int, float]] = {}
    try:
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                of_iteration = found.setdefault(int(row["time"]), {})
                time_s = float(row["batch_time_norm"])
                if not 0 < time_s < math.inf:
                    raise ValueError(f"a batch that took {time_s}")
                of_iteration[int(row["worker"])] = time_s
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise InputError(f"not a recording of batch times ({error})", where=str(path)) from None
    workers = set[int]().union(*found.values())
    if not workers:
        raise InputError("has no batch times", where=str(path))
    return [
        [of_iteration[worker] for worker in sorted(workers)]
        for _, of_iteration in sorted(found.items())
        if len(of_iteration) == len(workers)
    ]


def of_plain(name: str, times: Times) -> float:
    """Return the time of all iterations by a rule, as a multiple of that with equal batches.

    Parameters
    ----------
    name : str
        Of a rule.
    times : sequence of sequence of float
        With equal batches.
    """
    workers = len(times[0])
    rule = RULES[name](even(BATCH * workers, workers), FREE, ())
    taken = 0.0
    for equal in times:
        sizes = rule.sizes
        mine = tuple(time_s * size / BATCH for time_s, size in zip(equal, sizes, strict=True))
        speeds = tuple(size / time_s for size, time_s in zip(sizes, mine, strict=True))
        taken += max(mine)
        rule.see(IterationRecord(sizes, mine, (MEMORY,) * workers, speeds))
    return taken / sum(map(max, times))


def known_ahead(times: Times) -> float:
    """Return the same for divisions by the times of the very iteration, which nobody knows.

    Parameters
    ----------
    times : sequence of sequence of float
        With equal batches.
    """
    total, workers, taken = BATCH * len(times[0]), len(times[0]), 0.0
    for equal in times:
        lines = [Line(0.0, time_s / BATCH) for time_s in equal]
        sizes = level(lines, total, [1] * workers, [total] * workers)
        taken += max(line.at(size) for line, size in zip(lines, sizes, strict=True))
    return taken / sum(map(max, times))


def tables(data: Path | None) -> tuple[Table, ...]:
    """Return a table for each recording.

    Parameters
    ----------
    data : pathlib.Path or None
        The folder of recorded data; without it there is none.
    """
    paths = sorted((data / FOLDER).glob(PATTERN)) if data is not None else []
    return tuple(_table(path) for path in paths)


def _table(path: Path) -> Table:
    times = read(path)
    rows = [Row(said, of_plain(name, times), None, "x BSP") for name, said in NAMES.items()]
    return Table(
        f"{len(times[0])} recorded workers ({path.stem}): time of {len(times)} iterations",
        (*rows, Row("speeds known ahead", known_ahead(times), None, "x BSP")),
        "the study of this data is not the paper's",
    )


ASSUMED = ("on recorded batch times, a worker's time is proportional to its samples",)
