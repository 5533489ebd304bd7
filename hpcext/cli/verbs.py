"""``hpcext VERB PILOT [JOB]``: show or change a pilot from another terminal."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from hpcext.batch.standing import Standing
from hpcext.cli import asking, commands, view
from hpcext.cli.output import Output
from hpcext.config import load_settings
from hpcext.core.errors import InputError
from hpcext.core.saving import orphans
from hpcext.core.values import Job
from hpcext.core.world import World
from hpcext.manager import choosing, notifications, spool, standing
from hpcext.manager import directory as pilots
from hpcext.manager.handles import chosen, find_job
from hpcext.manager.requests import AUTO
from hpcext.manager.views import reading
from hpcext.manager.views.harvest_report import part, why_no_node
from hpcext.manager.views.reading import Follower, Reading
from hpcext.manager.views.report import run_document

BLOCK_BYTES = 64 << 10

FOLLOW_S = 0.2
"""Seconds between readings of a log that is followed."""


def add(subparsers: Any) -> None:
    """Register the commands."""
    _add(subparsers, "status", status, "show the jobs of a pilot", job="?", json=True)
    submit = _add(subparsers, "submit", asking.submit, "hand more jobs to a pilot", job=None)
    submit.usage = (
        "hpcext submit [OPTION...] [PILOT] {JOBS.toml | -- COMMAND [ARGUMENT...] | --commands FILE}"
    )
    submit.add_argument("jobs", nargs="?", metavar="JOBS.toml")
    submit.add_argument(
        "--name", help="name of the jobs of commands (default: made of each command)"
    )
    submit.add_argument(
        "--after", action="append", default=[], metavar="JOB",
        help="a job that must complete before those of commands; may be given several times",
    )  # fmt: skip
    commands.add(submit)
    submit.add_argument(
        "--number",
        action="store_true",
        help="add a number to a name that an unfinished job already has",
    )
    suspend = _add(subparsers, "suspend", asking.ask, "suspend a job until it is resumed")
    resume = _add(subparsers, "resume", asking.ask, "let a suspended job run again")
    resize = _add(subparsers, "resize", asking.ask, "give a job another number of GPUs")
    resize.add_argument("gpus", metavar="GPUS", help=f"number of GPUs, or {AUTO}")
    cancel = _add(subparsers, "cancel", asking.ask, "cancel a job")
    text = "start nothing more; what runs may finish"
    drain = _add(subparsers, "drain", asking.ask, text, job=None)
    for parser in (submit, suspend, resume, resize, cancel, drain):
        asking.add_wait(parser)
    _add(subparsers, "why", why, "explain why a job waits or runs as it does", job="?")
    logs_ = _add(subparsers, "logs", logs, "print what a job wrote", job="?")
    logs_.add_argument(
        "-f", "--follow", action="store_true", help="follow the log until the job has ended"
    )
    logs_.add_argument("-n", "--lines", type=int, metavar="N", help="print only the last lines")


def _add(
    subparsers: Any,
    name: str,
    run: Callable[[argparse.Namespace, Output], int],
    text: str,
    *,
    job: str | None = "",
    json: bool = False,
) -> argparse.ArgumentParser:
    """Register one verb.

    Parameters
    ----------
    subparsers : Any
    name : str
    run : callable
    text : str
        Its help.
    job : {"", "?", None}
        Whether it takes one job, perhaps one, or none.
    json : bool
        Whether it can print a document.
    """
    rest = {"submit": " more.toml", "resize": " cnn 3", "drain": "", "status": ""}
    example = f"example: hpcext {name} jobs{rest.get(name, ' cnn')}"
    parser: argparse.ArgumentParser = subparsers.add_parser(name, help=text, epilog=example)
    looks = job == "?"
    default = "the newest" if looks else "the only one that runs"
    parser.add_argument(
        "pilot", nargs="?", metavar="PILOT", help=f"directory, id or name (default: {default})"
    )
    if job is not None:
        parser.add_argument("job", metavar="JOB", nargs=job or None, help="id or name")
    if json:
        parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run, verb=name)
    return parser


def _pilot_and_job(args: argparse.Namespace, out: Output) -> tuple[Path, str]:
    """Find the pilot and the job that a verb shows; print which, if they were not named."""
    directory, job = choosing.to_look_at((args.pilot, args.job), load_settings().state_dir)
    if args.pilot is None or (job and args.job is None):
        out.note(f"pilot {pilots.load(directory).id}, the newest")
    return directory, job


def _job(world: World, handle: str, out: Output) -> Job:
    """Find the job to show; print which one if others had its name."""
    job = find_job(world, handle)
    if sentence := chosen(world, job, handle):
        out.note(sentence)
    return job


def status(args: argparse.Namespace, out: Output) -> int:
    """Print a table or a document of all jobs, or of one."""
    directory, name = _pilot_and_job(args, out)
    if not args.json and _has_not_begun(directory, out):
        return 0
    found = reading.read(directory)
    world = found.world
    jobs = [_job(world, name, out)] if name else list(world.jobs.values())
    shown = {job.id for job in jobs}
    if args.json:
        document = run_document(
            world, policy=found.policy, began_at=found.began_at, now_s=found.now_s
        )
        document["jobs"] = [job for job in document["jobs"] if job["id"] in shown]
        if found.pilot.harvest is not None:
            for said in document["jobs"]:
                instead = why_no_node(directory, world, world.jobs[said["id"]])
                said["why"] = instead or said["why"]
            document["broker"] = part(found)
        out.document(document)
        return 0
    show(found, jobs, out)
    return 0


def show(found: Reading, jobs: Sequence[Job], out: Output) -> None:
    """Print a table of some jobs, and below it what else there is to say of their pilot.

    Parameters
    ----------
    found : Reading
    jobs : sequence of Job
        Those of the pilot that are asked for.
    out : Output
    """
    engine, world = found.engine, found.world
    shown = {job.id for job in jobs}
    out.table(view.COLUMNS, [row for row in view.rows(engine) if row[0] in shown])
    for job in jobs:
        record = world.records[job.id]
        for told in (*orphans(record), *map(view.warning, record.notes)):
            out.line(f"{job.name}: {told}")
    if sentence := view.outlook_sentence(engine):
        out.line(sentence)
    for line in view.unsaved(jobs):
        out.line(line)
    for name, why_aside in world.aside.items():
        out.line(f"node {name} is set aside: {why_aside}; hpcext nodes --readmit uses it again")
    view.print_failures(out, jobs)
    if sentence := view.undecided(world, alive=found.alive):
        out.line(sentence)
    for sentence in filter(None, (notifications.problem_of(found.directory), part(found))):
        out.line(sentence)
    if any(not job.state.final for job in world.jobs.values()):
        _print_standing(found.standing, out)


def _has_not_begun(directory: Path, out: Output) -> bool:
    """Return whether a pilot waits to run for the first time; if so, print its job's state."""
    if Follower(directory).begun():
        return False
    found = standing.of_pilot(directory)
    if found.state.ended:
        return False
    _print_standing(found, out)
    return bool(found.what)


def _print_standing(found: Standing, out: Output) -> None:
    """Print that a pilot's job waits, or that nobody manages the pilot, and what to do."""
    if found.what:
        out.line(f"{found.what}; {found.do}" if found.do else found.what)


def why(args: argparse.Namespace, out: Output) -> int:
    """Print why a job waits or runs as it does, and its goodput if it adapts its batch."""
    directory, name = _pilot_and_job(args, out)
    if _has_not_begun(directory, out):
        return 0
    found = reading.read(directory)
    world = found.world
    harvests = pilots.load(directory).harvest is not None
    leave = part(found)
    for job in [_job(world, name, out)] if name else world.jobs.values():
        instead = why_no_node(directory, world, job) if harvests else ""
        # Said once, where that is why there is no lease.
        leave = "" if leave in instead else leave
        for sentence in view.why(job, world.records[job.id], instead):
            out.line(sentence)
        if name and (sentence := view.before(world, job)):
            out.line(sentence)
    if leave:
        out.line(leave)
    waits = world.open_question is not None or world.undecided
    if waits and (sentence := view.undecided(world, alive=found.alive)):
        out.line(sentence)
    if any(not job.state.final for job in world.jobs.values()):
        _print_standing(found.standing, out)
    return 0


def logs(args: argparse.Namespace, out: Output) -> int:
    """Print a job's log; with ``--follow``, until the job ends or its manager is gone."""
    if args.lines is not None and args.lines < 0:
        raise InputError(str(args.lines), where="--lines", valid="0 and more")
    directory, name = _pilot_and_job(args, out)
    follower = Follower(directory)
    world = follower.engine().world
    job = _job(world, name or choosing.only_job(world), out)
    path = directory / "jobs" / job.id / "log.txt"
    for other in sorted(path.parent.glob("log.node-*.txt")):
        # Ranks are not numbered like nodes, so the output of rank 0 may be in any of the logs.
        out.note(f"the output of other nodes is in {other}")
    position = 0 if args.lines is None else last_lines(path, args.lines)
    ended = not args.follow
    try:
        while True:
            ended = ended or follower.engine().world.jobs[job.id].state.final
            ended = ended or spool.manager_of(directory) is None
            position = copy_log(path, position, out)
            if ended:
                return 0
            time.sleep(FOLLOW_S)
    finally:
        out.copy_end()


def last_lines(path: Path, count: int) -> int:
    """Return the position at which the last lines of a log begin; an incomplete line counts.

    Parameters
    ----------
    path : pathlib.Path
    count : int
        The number of lines.

    Returns
    -------
    int
        In bytes.
    """
    try:
        with open(path, "rb") as file:
            end = position = file.seek(0, os.SEEK_END)
            # A newline at the very end begins no further line.
            left = count + 1 if _ends_with_newline(file, end) else count
            while position > 0:
                size = min(BLOCK_BYTES, position)
                position = file.seek(position - size)
                block = file.read(size)
                if block.count(b"\n") >= left:
                    for _ in range(left):
                        size = block.rindex(b"\n", 0, size)
                    return position + size + 1 if left else end
                left -= block.count(b"\n")
    except OSError:
        pass  # The caller reads the file next, and reports the error.
    return 0


def _ends_with_newline(file: BinaryIO, end: int) -> bool:
    file.seek(max(0, end - 1))
    return file.read(1) == b"\n"


def copy_log(path: Path, position: int, out: Output) -> int:
    """Print what was added to a log since a position; return the position of its end.

    Parameters
    ----------
    path : pathlib.Path
        It may not exist yet.
    position : int
        In bytes, like the result.
    out : Output

    Raises
    ------
    InputError
        The log cannot be read.
    """
    for data in _added(path, position):
        out.copy(data)
        position += len(data)
    return position


def _added(path: Path, position: int) -> Iterator[bytes]:
    """Yield what a log has now after a position, piece by piece: it may be larger than memory."""
    try:
        with open(path, "rb") as file:
            left = os.fstat(file.fileno()).st_size - position
            file.seek(position)
            # Not to its end: it may grow as fast as it is read.
            while left > 0 and (data := file.read(min(left, BLOCK_BYTES))):
                left -= len(data)
                yield data
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None
