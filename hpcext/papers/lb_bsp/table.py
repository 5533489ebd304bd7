"""Table 3 of LB-BSP: the errors of six predictors of a worker's speed, and their effect.

The speeds were recorded from trainings beside a varying load (``benchmarks/record_speeds.py``):
four workers, of which each predictor sees one, iteration after iteration. With its predictions,
batches are divided as in Algorithm 1, and an iteration takes as long as its slowest worker.
"""

from __future__ import annotations

import csv
import gzip
import importlib.resources
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hpcext.papers.study import Extent, Row, Table, figure, many
from hpcext.scaling.speed import Predictor, find_predictor
from hpcext.scaling.speed.averages import ALPHA
from hpcext.scaling.speed.online import LEAST, Floats

RECORDING = "speeds.csv.gz"

SERIES = ("speed", "cpu", "running", "memory")

BATCH = 128
"""Batch of a worker under BSP (section 5.3, ResNet-32)."""

SHARE, QUEUE = "cpu", "running"
"""Two measures of a worker's CPU: its share in the last iteration, or the number of processes that
wait for its core at the boundary."""


class Published(NamedTuple):
    """A row of Table 3: error in samples per second, and iteration time in multiples of BSP's."""

    rmse: float
    time: float


PAPER: Mapping[str, Published] = {
    "memoryless": Published(11.85, 0.58),
    "ema": Published(7.85, 0.48),
    "arima": Published(9.67, 0.52),
    "rnn": Published(8.34, 0.49),
    "lstm": Published(9.19, 0.51),
    "narx": Published(4.78, 0.42),
}

TITLES = {
    "memoryless": "memoryless",
    "ema": f"EMA, alpha {ALPHA:g}",
    "arima": "ARIMA(2,2,1)",
    "rnn": "SimpleRNN, look-back 2",
    "lstm": "LSTM, look-back 2",
    "narx": "NARX, look-back 2",
}

DRAWN = ("rnn", "lstm", "narx")
"""The predictors whose initial weights are random."""


class PredictorRun(NamedTuple):
    """A run of one predictor on all workers."""

    name: str
    usage: str
    seed: int
    quick: bool


class Outcome(NamedTuple):
    """The mean error over the workers, and the mean time of an iteration."""

    rmse: float
    time: float


ASSUMED = (
    "four workers of one core each, recorded by benchmarks/record_speeds.py beside a replayed "
    "load, training a PyTorch perceptron; the paper has ResNet-32 on 32 instances of EC2",
    "errors in samples per second are for other models on other machines: they can be compared as "
    "multiples of the EMA's error",
    f"figures begin with iteration {LEAST}, where the models are trained for the first time; "
    "training alternates with the iterations, not in a thread, so that figures repeat",
    "the k-th speed of a recording is that of iteration k, whatever the batches; the time of a "
    "batch is its samples divided by the speed (section 3.2.1)",
    "the plain recurrent network and the LSTM are trained like NARX",
)


def recorded(quick: bool = False) -> list[Floats]:
    """Return the rows of :data:`SERIES` of each worker, equally many for all workers.

    Parameters
    ----------
    quick : bool
        Whether to use fewer iterations.
    """
    packed = importlib.resources.files(__package__).joinpath(RECORDING).read_bytes()
    lines = csv.DictReader(gzip.decompress(packed).decode("ascii").splitlines())
    workers: dict[str, list[list[float]]] = {}
    for line in lines:
        workers.setdefault(line["worker"], []).append([float(line[key]) for key in SERIES])
    count = min(map(len, workers.values()))
    if quick:
        count = min(count, 3 * LEAST // 2)
    return [np.array(rows[:count]) for rows in workers.values()]


def predictions(predictor: Predictor, rows: Floats, usage: str) -> Floats:
    """Return the predictions for each iteration but the first.

    Parameters
    ----------
    predictor : Predictor
    rows : array of float, shape (n, s)
        The recording of a worker, a column for each of :data:`SERIES`.
    usage : str
        The measure of the CPU.
    """
    used = rows[:, SERIES.index(usage)]
    memory = rows[:, SERIES.index("memory")]
    found = []
    for speed, cpu, held in zip(rows[:-1, 0], used[:-1], memory[:-1], strict=True):
        predictor.observe(speed, cpu, held)
        found.append(predictor.predict())
    return np.array(found)


def rmse(said: Floats, true: Floats) -> float:
    """Return the root of the mean squared error.

    Parameters
    ----------
    said, true : array of float
        Predicted and true speeds.
    """
    return float(np.sqrt(np.mean((said - true) ** 2)))


def batches(speeds: Floats, total: int) -> Floats:
    """Divide samples in proportion to speeds by Algorithm 1, as integers with the same sum.

    Examples
    --------
    >>> batches(np.array([3.0, 2.0, 2.0]), 10).tolist()
    [4.0, 3.0, 3.0]
    """
    exact = speeds / speeds.sum() * total
    whole = np.floor(exact)
    # The largest remainders; of equal ones, those of the first workers.
    missing = total - int(whole.sum())
    whole[np.argsort(whole - exact, kind="stable")[:missing]] += 1
    return np.asarray(whole)


def time_s(said: Floats, true: Floats) -> float:
    """Return the mean time of an iteration, given predicted and true speeds by worker.

    Parameters
    ----------
    said, true : array of float, shape (iterations, workers)
        Predicted and true speeds.
    """
    total = BATCH * true.shape[1]
    return float(np.mean([np.max(batches(a, total) / b) for a, b in zip(said, true, strict=True)]))


def run(case: PredictorRun) -> Outcome:
    """Run a predictor on the recording."""
    traces = recorded(case.quick)
    true = np.stack([rows[LEAST + 1 :, 0] for rows in traces], axis=1)
    said = np.stack(
        [
            predictions(
                find_predictor(case.name, seed=case.seed, background=False), rows, case.usage
            )[LEAST:]
            for rows in traces
        ],
        axis=1,
    )
    errors = [rmse(*each) for each in zip(said.T, true.T, strict=True)]
    return Outcome(statistics.fmean(errors), time_s(said, true))


def tables(how: Extent) -> list[Table]:
    """Return Table 3, and the part of NARX's result that is due to CPU usage."""
    seeds = how.seeds[:1] if how.quick else how.seeds
    cases = [
        PredictorRun(name, usage, seed, how.quick)
        for name in PAPER
        for usage in ((SHARE, QUEUE) if name == "narx" else (SHARE,))
        for seed in (seeds if name in DRAWN else seeds[:1])
    ]
    outcomes: dict[tuple[str, str], list[Outcome]] = {}
    for case, outcome in many(run, cases, how.workers).items():
        outcomes.setdefault((case.name, case.usage), []).append(outcome)
    return _tables(outcomes, recorded(how.quick))


Kind = tuple[str, str]
"""A predictor, and the measure of the CPU."""

ERRORS, TIMES = "x EMA", "x BSP"


_WHY_TIMES = (
    "four workers differ less than 32: even knowing the speeds in advance gains less here than the "
    "moving average in the paper; and nothing can predict a load that begins in an iteration"
)


def _why_error(name: str) -> str:
    """Return the reason why the error of a predictor is far from the paper's."""
    if name == "narx":
        return (
            "the share of the CPU is that of the previous iteration, whose speed already shows it; "
            "the run queue is read between iterations, but soon changes, because tasks ask for "
            "part of a core; neither predicts when a task begins or ends"
        )
    return (
        "the moving average, by which it is divided, is worse here: the load changes abruptly and "
        "then stays for some hundred iterations, so the last speed predicts best"
    )


def _tables(outcomes: Mapping[Kind, Sequence[Outcome]], traces: Sequence[Floats]) -> list[Table]:
    true = np.stack([rows[LEAST + 1 :, 0] for rows in traces], axis=1)
    bsp = time_s(np.ones_like(true), true)
    base = outcomes["ema", SHARE][0].rmse
    errors, raw, times = [], [], []
    for (name, usage), some in outcomes.items():
        paper = PAPER[name]
        title = TITLES[name]
        if name == "narx":
            title += ", CPU: " + ("share of the last iteration" if usage == SHARE else "run queue")
        error = statistics.fmean(each.rmse for each in some)
        time = statistics.fmean(each.time for each in some)
        found = [each.rmse for each in some]
        spread = f"{min(found):,.0f} to {max(found):,.0f} over {len(some)} seeds"
        papers = paper.rmse / PAPER["ema"].rmse
        errors.append(figure(title, error / base, papers, ERRORS, _why_error(name)))
        raw.append(Row(title, error, None, "samples/s", spread if len(some) > 1 else ""))
        times.append(figure(title, time / bsp, paper.time, TIMES, _WHY_TIMES))
    times.append(Row("speeds known in advance", time_s(true, true) / bsp, None, TIMES))
    count = f"{len(traces)} workers, iterations {LEAST + 1} to {len(traces[0]) - 1}"
    return [
        Table(
            "Table 3: error of predicted speeds, over that of the moving average",
            tuple(errors),
            count,
        ),
        Table("The same in samples per second", tuple(raw)),
        Table(
            "Table 3: time of an iteration",
            tuple(times),
            "under Algorithm 1; the last row is the least possible",
        ),
    ]
