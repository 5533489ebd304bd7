"""The live table of a run on a terminal: the jobs that fit, and one line that sums up all."""

from __future__ import annotations

import itertools

from hpcext.cli import view
from hpcext.cli.narrator import Narrator
from hpcext.cli.output import Output, Screen
from hpcext.core.engine import Engine
from hpcext.core.values import Job, State

ENDED = 8
"""The largest number of ended jobs that are shown, if there is room for these last ones."""


class Live:
    """An observer of a run that shows it on a screen.

    Parameters
    ----------
    out : Output
    screen : Screen
    """

    def __init__(self, out: Output, screen: Screen) -> None:
        self._narrator = Narrator(out)
        self._screen = screen

    def __call__(self, engine: Engine, now_s: float) -> None:
        """Show the present state; the cost grows with the screen, not with the number of jobs."""
        self._narrator.aside(engine, now_s)
        jobs = chosen(engine, max(1, self._screen.lines()))
        named, records = view.several_hosts(engine.world), engine.world.records
        rows = [view.row(job, records[job.id], named=named) for job in jobs]
        self._screen.show(rows, self._narrator.census.sentence())


def chosen(engine: Engine, most: int) -> list[Job]:
    """Return the jobs to show, in the order of their submission if all fit.

    Jobs that hold GPUs come first, then the next ones of the queue, and a few that ended last.

    Parameters
    ----------
    engine : Engine
    most : int
        The number of rows.
    """
    world = engine.world
    if len(world.jobs) <= most:
        return list(world.jobs.values())
    busy = [job for job in world.queue.busy() if job.state.active][:most]
    room = most - len(busy)
    ended = _ended(engine, min(ENDED, room // 4))
    waiting = (job for job in world.queue.jobs() if job.state is State.PENDING)
    return [*ended, *busy, *itertools.islice(waiting, room - len(ended))]


def _ended(engine: Engine, most: int) -> list[Job]:
    """Return the jobs that ended last."""
    jobs = engine.world.jobs
    late = engine.world.changed.latest()
    found = (jobs[name] for name in itertools.islice(late, 8 * (most + 1)))
    finals = [job for job in found if job.state.final]
    return finals[:most][::-1]
