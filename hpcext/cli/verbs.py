"""``hpcext VERB PILOT [JOB]``: what can be asked of a pilot from another terminal."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcext.checks import read_text
from hpcext.cli import view
from hpcext.cli.output import Output
from hpcext.config import load_settings
from hpcext.core.errors import InputError
from hpcext.manager import pilot as pilots
from hpcext.manager import reading, spool
from hpcext.manager.reading import Follower
from hpcext.manager.report import run_document
from hpcext.manager.requests import find_job

FOLLOW_S = 0.2
"""How often a log that is followed is looked at."""


def add(subparsers: Any) -> None:
    """Register the commands."""
    _add(subparsers, "status", status, "show the jobs of a pilot", job="?", json=True)
    submit_ = _add(subparsers, "submit", submit, "hand more jobs to a pilot", job=None)
    submit_.add_argument("jobs", type=Path, metavar="JOBS.toml")
    _add(subparsers, "suspend", ask, "suspend a job until it is resumed")
    _add(subparsers, "resume", ask, "let a suspended job run again")
    resize = _add(subparsers, "resize", ask, "give a job another number of GPUs")
    resize.add_argument("gpus", type=int, metavar="GPUS")
    _add(subparsers, "cancel", ask, "cancel a job")
    _add(subparsers, "drain", ask, "start nothing more; what runs may finish", job=None)
    _add(subparsers, "why", why, "say why a job waits or runs as it does")
    logs_ = _add(subparsers, "logs", logs, "print what a job wrote")
    logs_.add_argument("-f", "--follow", action="store_true", help="until the job has ended")


def _add(
    subparsers: Any,
    name: str,
    run: Callable[[argparse.Namespace, Output], int],
    text: str,
    *,
    job: str | None = "",
    json: bool = False,
) -> argparse.ArgumentParser:
    """Register one verb; `job` is how many jobs it takes: one (""), perhaps one ("?"), none."""
    rest = {"submit": " more.toml", "resize": " cnn 3", "drain": "", "status": ""}
    example = f"example: hpcext {name} jobs{rest.get(name, ' cnn')}"
    parser: argparse.ArgumentParser = subparsers.add_parser(name, help=text, epilog=example)
    parser.add_argument("pilot", metavar="PILOT", help="directory, id or name")
    if job is not None:
        parser.add_argument("job", metavar="JOB", nargs=job or None, help="id or name")
    if json:
        parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run, verb=name)
    return parser


def _find(args: argparse.Namespace) -> Path:
    return pilots.find(args.pilot, load_settings().state_dir)


def status(args: argparse.Namespace, out: Output) -> int:
    """Show all jobs, or one."""
    found = reading.read(_find(args))
    engine, world = found.engine, found.world
    if args.json:
        document = run_document(
            world, policy=found.policy, began_at=found.began_at, now_s=found.now_s
        )
        if args.job:
            wanted = find_job(world, args.job).id
            document["jobs"] = [job for job in document["jobs"] if job["id"] == wanted]
        out.document(document)
        return 0
    rows = view.rows(engine)
    if args.job:
        job = find_job(world, args.job)
        rows = [row for row in rows if row[0] == job.id]
    out.table(view.COLUMNS, rows)
    if sentence := view.outlook_sentence(engine):
        out.line(sentence)
    if not found.alive:
        out.line(f"no manager runs this pilot; hpcext run --resume {args.pilot} starts one")
    return 0


def why(args: argparse.Namespace, out: Output) -> int:
    """Say why a job waits, or runs as it does, and how it gets on if it adapts its batch."""
    job = find_job(Follower(_find(args)).engine().world, args.job)
    for sentence in view.why(job):
        out.line(sentence)
    return 0


def submit(args: argparse.Namespace, out: Output) -> int:
    """Hand the jobs of a file to a running manager, which checks them."""
    path = args.jobs.absolute()
    text, base = read_text(path), str(path.parent)
    answer = spool.ask(_find(args), "submit", text=text, where=str(args.jobs), base=base)
    out.line(str(answer["text"]))
    return 0


def ask(args: argparse.Namespace, out: Output) -> int:
    """Ask for one thing and print the answer."""
    words: dict[str, Any] = {
        key: getattr(args, key) for key in ("job", "gpus") if hasattr(args, key)
    }
    out.line(str(spool.ask(_find(args), args.verb, **words)["text"]))
    return 0


def logs(args: argparse.Namespace, out: Output) -> int:
    """Print a job's log; with ``--follow`` until the job is final or its manager is gone."""
    directory = _find(args)
    follower = Follower(directory)
    job = find_job(follower.engine().world, args.job)
    path = directory / "jobs" / job.id / "log.txt"
    for other in sorted(path.parent.glob("log.node-*.txt")):
        # Ranks are not numbered as nodes are: what the first one says may be in any of them.
        out.note(f"what other nodes print is in {other}")
    position = 0
    ended = not args.follow
    while True:
        ended = ended or follower.engine().world.jobs[job.id].state.final
        ended = ended or spool.manager_of(directory) is None
        position = copy_log(path, position, out)
        if ended:
            return 0
        time.sleep(FOLLOW_S)


def copy_log(path: Path, position: int, out: Output) -> int:
    """Print what was added to a log; returns where it ends now."""
    try:
        with open(path, "rb") as file:
            file.seek(position)
            data = file.read()
    except FileNotFoundError:
        return position
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None
    out.raw(data)
    return position + len(data)
