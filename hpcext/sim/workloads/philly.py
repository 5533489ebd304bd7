"""Workloads like those of Pollux's evaluation, after the jobs of Microsoft's Philly.

They are read from ``name,time,application,num_replicas,batch_size`` as the authors published them,
with or without the name, or generated (Qiao et al., section 5.1 and Table 1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hpcext.checks import unknown
from hpcext.core.errors import InputError
from hpcext.sim.traces.lines import TableRow, place, read_lines, table_of
from hpcext.text import clean

COLUMNS = ("time", "application", "num_replicas", "batch_size")

OWN_COLUMNS = COLUMNS[1:]
"""The columns by which such a table is recognised."""

MOST_BYTES = 10_000
"""Longest line."""

MOST_COUNT = 999_999_999
"""Largest number of GPUs, and of samples, of a job."""

JOBS = 160
"""Number of jobs in eight hours, the busiest of the trace (section 5.1)."""

SHARES: Mapping[str, float] = {
    "imagenet": 0.02, "yolov3": 0.06, "deepspeech2": 0.10, "bert": 0.10, "cifar10": 0.36,
    "ncf": 0.36,
}  # fmt: skip
"""Table 1: the fraction of jobs of each application."""

TUNED: Mapping[str, Sequence[tuple[int, int]]] = {
    "imagenet": ((24, 3200), (32, 6400), (48, 6400)),
    "yolov3": ((4, 64),),
    "deepspeech2": ((6, 320), (8, 320), (12, 640)),
    "bert": ((6, 384), (8, 384), (12, 384), (16, 384)),
    "cifar10": ((6, 2048), (8, 2048), (12, 4096), (16, 4096)),
    "ncf": ((1, 32768),),
}
"""GPUs and total batch with which 50 to 80 % of a linear speed-up is reached (section 5.1), as far
as they occur in the published workloads. One pair is drawn for each job."""

HOURLY = (73, 72, 32, 84, 95, 138, 77, 70)
"""Number of arrivals in each of the eight hours, in the published workloads 1 to 4 together."""


class PhillyJob(NamedTuple):
    """One job of a workload.

    Attributes
    ----------
    name, application : str
    submitted_s : float
    gpus : int
        GPUs that its user requests.
    batch : int
        Samples in a step, on all GPUs together.
    """

    name: str
    submitted_s: float
    application: str
    gpus: int
    batch: int


def read_philly(path: Path, applications: Sequence[str] = tuple(SHARES)) -> tuple[PhillyJob, ...]:
    """Read a workload.

    Parameters
    ----------
    path : pathlib.Path
    applications : sequence of str
        Known applications.

    Returns
    -------
    tuple of PhillyJob
        In the order of the file.

    Raises
    ------
    InputError
        The file is not such a workload.
    """
    table = table_of(path, read_lines(path, MOST_BYTES))
    if [column for column in table.columns if column != "name"] != list(COLUMNS):
        valid = f"name,{','.join(COLUMNS)}"
        raise InputError("not the header of a workload", where=table.where, valid=valid)
    found: list[PhillyJob] = []
    seen: set[str] = set()
    for row in table.rows:
        job = _job(row, len(found), applications)
        if job.name in seen:
            raise InputError(f"job {job.name} occurs twice", where=row.where)
        if found and job.submitted_s < found[-1].submitted_s:
            what, do = f"time {job.submitted_s:g}", "sort the lines by their time"
            raise InputError(what, where=row.where, do=do)
        seen.add(job.name)
        found.append(job)
    if not found:
        raise InputError("it has no jobs", where=place(path, 2))
    return tuple(found)


def _job(row: TableRow, number: int, applications: Sequence[str]) -> PhillyJob:
    application = row.cells["application"]
    if application not in applications:
        raise unknown("application", application, applications, where=row.where)
    gpus, batch = (row.whole(column, MOST_COUNT) for column in COLUMNS[2:])
    label = clean(row.cells.get("name") or f"{application}-{number}")[:80]
    return PhillyJob(label, row.number("time"), application, gpus, batch)


def make_philly(seed: int, *, load: float = 1.0) -> tuple[PhillyJob, ...]:
    """Generate a workload with the mixture of Table 1 and the published arrival rates.

    Parameters
    ----------
    seed : int
        Seed; equal seeds give equal workloads.
    load : float
        Factor on the paper's rate of 160 jobs in eight hours; > 0.

    Returns
    -------
    tuple of PhillyJob
        Jobs in the order of their arrival, at least one.
    """
    rng = np.random.default_rng(seed)
    jobs = max(1, round(JOBS * load))
    hours = rng.choice(len(HOURLY), size=jobs, p=np.array(HOURLY) / sum(HOURLY))
    times = np.sort(np.floor((hours + rng.uniform(0.0, 1.0, jobs)) * 3600.0))
    names = list(SHARES)
    shares = np.array(list(SHARES.values()))
    drawn = rng.choice(len(names), size=jobs, p=shares / shares.sum())
    found = []
    for number, (time, which) in enumerate(zip(times.tolist(), drawn.tolist(), strict=True)):
        application = names[which]
        ways = TUNED[application]
        gpus, batch = ways[int(rng.integers(len(ways)))]
        found.append(PhillyJob(f"{application}-{number}", time, application, gpus, batch))
    return tuple(found)
