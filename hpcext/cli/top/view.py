"""The content of ``hpcext top``: rows of its tables, made from readings alone."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Mapping, Sequence

from hpcext.batch.standing import Is
from hpcext.cli import view
from hpcext.core.errors import HpcextError
from hpcext.core.history.node_time import Use
from hpcext.core.values import Job, State
from hpcext.executors.gpu_facts import GpuFacts
from hpcext.manager.views.harvest_report import part
from hpcext.manager.views.reading import Reading
from hpcext.manager.views.report import held_gpus, offered_gpus

Look = Callable[[], Sequence[Reading | HpcextError]]
"""A function that reads the pilots that are to be shown."""

Rows = Mapping[str, tuple[str, ...]]
"""The key of a row → its cells."""

PILOTS = ("pilot", "what", "manager", "nodes", "GPUs", "run", "wait", "done", "trained")
NODES = ("node", "GPUs", "jobs on them", "busy", "memory")
JOBS = ("id", "job", "state", "role", "GPUs", "progress", "left", "goodput")

MOST_JOBS = 500
"""The largest number of rows; of more jobs, those that ended first are left out."""

GIB = 2.0**30


def headline(found: Sequence[Reading | HpcextError]) -> str:
    """Return one line about all pilots; the first error, if none can be read."""
    readings = [each for each in found if isinstance(each, Reading)]
    errors = [str(each) for each in found if isinstance(each, HpcextError)]
    if errors and not readings:
        return errors[0]
    going = [each for each in readings if each.alive]
    gpus = sum(offered_gpus(each.world) for each in going)
    held = sum(held_gpus(each.world) for each in going)
    words = f"{len(going)} of {len(readings)} pilots run; jobs have {held} of {gpus} GPUs"
    return f"{words}; {len(errors)} cannot be read" if errors else words


def why(reading: Reading, job: Job) -> list[str]:
    """Return sentences on why a job waits or runs as it does, and on what its harvester may have.

    Parameters
    ----------
    reading : Reading
    job : Job
    """
    said = view.why(job, reading.world.records[job.id])
    more = view.undecided(reading.world, alive=reading.alive), part(reading)
    return [*said, *filter(None, more)]


def pilot_rows(readings: Iterable[Reading]) -> Rows:
    """Return a row for each pilot, keyed by its directory; running pilots come first."""
    ordered = sorted(readings, key=lambda each: not each.alive)
    return {str(each.directory): _pilot(each) for each in ordered}


def _pilot(reading: Reading) -> tuple[str, ...]:
    jobs = reading.world.jobs.values()
    running = sum(job.state.active for job in jobs)
    done = sum(job.state.final for job in jobs)
    nodes = [node for node in reading.world.nodes.values() if node.gpus]
    held_s = reading.node_time.held_s
    trained = reading.node_time.spent.get(Use.TRAINING, 0.0) / held_s if held_s else None
    return (
        reading.pilot.name,
        "harvester" if reading.pilot.harvest else "pilot",
        _managed(reading),
        str(len(nodes)),
        f"{held_gpus(reading.world)}/{offered_gpus(reading.world)}",
        str(running),
        str(len(jobs) - running - done),
        str(done),
        "" if trained is None else f"{trained:.0%}",
    )


def _managed(reading: Reading) -> str:
    state = reading.standing.state
    if reading.alive:
        return state.value
    return state.value if state in {Is.HELD, Is.WAITS, Is.ENDS, Is.UNKNOWN} else "none"


def node_rows(reading: Reading, use: Mapping[str, GpuFacts]) -> Rows:
    """Return a row for each node of a pilot.

    Parameters
    ----------
    reading : Reading
    use : Mapping of str to GpuFacts
        Index → a GPU of the pilot's only node; empty if that is another machine.
    """
    on: dict[str, dict[str, str]] = {}
    for job in reading.world.queue.busy():
        for gpu in job.gpus:
            node, _, index = gpu.rpartition(":")
            on.setdefault(node, {})[index] = job.id
    rows = {}
    for name, offered in reading.world.nodes.items():
        jobs = on.get(name, {})
        free = reading.pilot.indices(name) if len(jobs) < offered.gpus else ()
        indices = sorted({*jobs, *free}, key=lambda index: (len(index), index))
        # A seat has the index of its GPU, and a letter.
        real = dict.fromkeys(index.rstrip(string.ascii_lowercase) for index in indices)
        seen = [use[index] for index in real if index in use]
        rows[name] = (
            name,
            f"{len(jobs)}/{offered.gpus}" if offered.gpus else "leaves",
            " ".join(jobs.get(index, "-") for index in indices),
            " ".join("?" if each.used is None else f"{each.used:.0%}" for each in seen),
            _memory(seen),
        )
    return rows


def _memory(seen: Sequence[GpuFacts]) -> str:
    every = sum(each.memory_bytes or 0 for each in seen)
    used = sum(each.memory_used_bytes or 0 for each in seen)
    return f"{used / GIB:.0f} of {every / GIB:.0f} GiB" if every else ""


def job_rows(reading: Reading, wanted: str) -> Rows:
    """Return a row for each job that matches a filter, keyed by its id; unfinished jobs come first.

    Parameters
    ----------
    reading : Reading
    wanted : str
        Lowercase text that the job's name or state must contain.
    """
    world = reading.world
    every = [dict(zip(view.COLUMNS, row, strict=True)) for row in view.rows(reading.engine)]
    chosen = [
        row for row in every if wanted in row["job"].casefold() or wanted in row["state"].casefold()
    ]
    finals = [row for row in chosen if world.jobs[row["id"]].state.final]
    others = [row for row in chosen if not world.jobs[row["id"]].state.final]
    others.sort(key=lambda row: world.jobs[row["id"]].state is State.PENDING)
    shown = [*others, *finals[-max(0, MOST_JOBS - len(others)) :]]
    return {row["id"]: tuple(row[column] for column in JOBS) for row in shown[:MOST_JOBS]}
