"""Malleable trainers as in BFTrainer's evaluation: a CSV file with a row for each.

::

    name,submit_s,n_min,n_max,rescale_up_s,rescale_down_s,samples,rate_1,rate_2,rate_4,...

The columns are the range of its nodes, the seconds that a change costs it, the samples to train,
and samples per second by number of nodes. Where several users share nodes, a column ``user`` says
whose trainer it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from hpcext.core.errors import InputError
from hpcext.core.estimate import Estimate
from hpcext.core.values import Job
from hpcext.numerals import whole
from hpcext.sim.replay.physics import Physics
from hpcext.sim.traces.lines import TableRow, read_lines, table_of
from hpcext.sim.workloads.workload import of_user, user_name
from hpcext.text import clean, listed, shown

COLUMNS = ("name", "submit_s", "n_min", "n_max", "rescale_up_s", "rescale_down_s", "samples")

OWN_COLUMNS = COLUMNS[1:]
"""The columns by which such a table is recognised."""

USER = "user"
USERS = "a user's name"

MOST_NODES = 1_000_000
MOST_BYTES = 10_000
"""Longest row."""

_RATE = "rate_"


class Trainer(NamedTuple):
    """A malleable trainer.

    Attributes
    ----------
    name : str
    speed : Mapping[int, float]
        Samples per second by number of GPUs, stated and true.
    samples : float
    nodes : (int, int)
        The smallest and the largest number of its nodes.
    up_s, down_s : float
        Seconds without progress when it gets nodes, and when it loses some.
    submit_s : float
    """

    name: str
    speed: Mapping[int, float]
    samples: float
    nodes: tuple[int, int]
    up_s: float
    down_s: float
    submit_s: float = 0.0


def simulated(trainer: Trainer, order: int, gpus: int = 1) -> tuple[Job, Physics]:
    """Return a trainer as a job on nodes with `gpus` GPUs, and its physics.

    It restores its newest checkpoint within the seconds that it takes to grow, like a new rank. It
    goes on when it loses nodes, and loses no work when it loses all.

    Parameters
    ----------
    trainer : Trainer
    order : int
        Its position in the queue.
    gpus : int
        GPUs of a node.
    """
    name, speed, samples, nodes, up_s, down_s, submit_s = trainer
    job = Job(
        str(order + 1),
        name,
        order,
        (gpus,),
        gpus,
        nodes=nodes,
        submitted_s=submit_s,
        estimate=Estimate(stated=speed, work=samples, up_s=up_s, down_s=down_s),
    )
    physics = Physics(
        speed,
        samples,
        resume_s=up_s,
        suspend_s=down_s,
        checkpoint_s=0.0,
        elastic=True,
        rescale_up_s=up_s,
        rescale_down_s=down_s,
    )
    return job, physics


def read_trainers(
    path: Path, *, gpus: int = 1, users: bool = False
) -> Iterator[tuple[Job, Physics]]:
    """Read trainers, one at a time.

    A trainer restores its newest checkpoint within the seconds that it takes to grow, like a new
    rank. It goes on when it loses nodes, and loses no work when it loses all, as in the published
    replayer of the paper.

    Parameters
    ----------
    path : Path
    gpus : int
        GPUs of a node; a trainer uses all of them, and its speeds are those of whole nodes.
    users : bool
        Whether each belongs to the user in the column ``user``.

    Raises
    ------
    InputError
        A row is not valid; the message names the file and the line.
    """
    names, where, rows = table_of(path, read_lines(path, MOST_BYTES))
    missing = [name for name in COLUMNS if name not in names]
    rates = [name for name in names if name.startswith(_RATE)]
    if missing or not rates:
        wanted = missing[0] if missing else f"{_RATE}1"
        raise InputError(f"no column {wanted}", where=where, valid=listed(COLUMNS))
    if users and USER not in names:
        do = f"add it, or say whose trainers these are: USER={clean(str(path))}"
        raise InputError(f"no column {USER}", where=where, do=do)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"column {shown(twice)} occurs twice", where=where)
    points = {name: _nodes(name, where) for name in rates}
    before_s = 0.0
    for order, row in enumerate(rows):
        job, physics = _trainer(row, order, points, gpus)
        if job.submitted_s < before_s:
            what, do = "submitted before the row above", "sort the rows by submit_s"
            raise InputError(what, where=row.where, do=do)
        before_s = job.submitted_s
        if users:
            job = replace(job, id=of_user(_user(row), job.id))
        yield job, physics


def _user(row: TableRow) -> str:
    user = user_name(row.cells[USER])
    if user is None:
        raise InputError(f"{USER} {shown(row.cells[USER])}", where=row.where, valid=USERS)
    return user


def _trainer(row: TableRow, order: int, rates: Mapping[str, int], gpus: int) -> tuple[Job, Physics]:
    fewest, most = (row.whole(column, MOST_NODES) for column in ("n_min", "n_max"))
    if fewest > most:
        raise InputError(f"n_min is {fewest}, more than n_max, {most}", where=row.where)
    curve = {gpus * nodes: row.number(column, above=True) for column, nodes in rates.items()}
    up_s, down_s = (row.number(f"rescale_{way}_s") for way in ("up", "down"))
    samples, submit_s = row.number("samples", above=True), row.number("submit_s")
    trainer = Trainer(row.cells["name"], curve, samples, (fewest, most), up_s, down_s, submit_s)
    return simulated(trainer, order, gpus)


def _nodes(name: str, where: str) -> int:
    """Return the number of nodes whose rate is in this column."""
    count = whole(name[len(_RATE) :])
    if count is None or not 1 <= count <= MOST_NODES:
        raise InputError(f"column {shown(name)}", where=where, valid=f"{_RATE}1, {_RATE}2, ...")
    return count
