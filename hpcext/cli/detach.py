"""``hpcext attach`` and ``--detach``: run a manager in the background, and follow a pilot."""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from hpcext import backends, documents
from hpcext.batch.standing import Is, Standing
from hpcext.cli import view
from hpcext.cli.live import Live
from hpcext.cli.managing import add_output, exit_status, headline
from hpcext.cli.narrator import Narrator
from hpcext.cli.output import LogOutput, Output
from hpcext.config import load_settings
from hpcext.core.errors import HpcextError, NoManagerError
from hpcext.manager import choosing, spool
from hpcext.manager import directory as pilots
from hpcext.manager.views import reading
from hpcext.manager.views.reading import Follower, Reading
from hpcext.manager.views.report import run_document
from hpcext.manager.waiting import shell_status

LOG = "manager.log"

LOOK_S = 0.5
"""Seconds between readings of a pilot that is followed."""

ASK_S = 20.0
"""Seconds between queries of the batch system whether the job of a pilot still waits."""

BEGINS_S = 60.0
"""Seconds to wait for a manager to begin; errors after that are in its log only."""


def add(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "attach",
        help="follow a pilot as if it had been started here",
        epilog="example: hpcext attach jobs",
    )
    parser.add_argument(
        "pilot", nargs="?", metavar="PILOT", help="directory, id or name (default: the newest)"
    )
    add_output(parser)
    parser.set_defaults(run=attach)


# Starting a manager in the background.


def start_detached(directory: Path, args: argparse.Namespace, out: Output) -> int:
    """Start the manager of a pilot in a session of its own; return when it has begun.

    Parameters
    ----------
    directory : pathlib.Path
        The pilot's.
    args : argparse.Namespace
        Has ``json`` and ``log_format``, and perhaps ``moved`` and ``leave``.
    out : Output

    Raises
    ------
    HpcextError
        The manager ended at once; the error has its message and exit status.
    """
    pilot, log, journal = pilots.load(directory), directory / LOG, directory / "journal.jsonl"
    words = [flag for flag in ("moved", "leave") if getattr(args, flag, False)]
    argv = [sys.executable, "-m", "hpcext", "run", "--resume", str(directory)]
    argv += [*(f"--{word}" for word in words), f"--log-format={args.log_format}"]
    before = reading.identity(journal)
    with open(log, "ab", opener=_open_private) as its_log:
        begin = its_log.tell()
        manager = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=its_log,
            stderr=its_log,
            # Else the manager would keep the user's directory busy, and import modules from it.
            cwd="/",
            start_new_session=True,
        )
    deadline = time.monotonic() + BEGINS_S
    while not _has_begun(journal, before) and time.monotonic() < deadline:
        if manager.poll() is not None:
            raise _ended_at_once(manager.returncode, log, begin)
        time.sleep(0.02)
    if args.json:
        document = {"schema": "hpcext.detached/1", "pilot": pilot.id, "pid": manager.pid}
        out.document({**document, "directory": str(directory), "log": str(log)})
        return 0
    out.line(headline(pilot, directory))
    out.line(f"it goes on in the background (pid {manager.pid}); its output is in {log}")
    out.line(f"hpcext attach {pilot.id} follows it, hpcext drain {pilot.id} lets it end")
    return 0


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _has_begun(journal: Path, before: tuple[int, int] | None) -> bool:
    """Return whether a manager wrote its first entry, with which the pilot has its jobs."""
    if reading.identity(journal) == before:
        return False
    with open(documents.open_own(journal), "rb") as file:
        header_and_entry = list(itertools.islice(file, 2))
    return len(header_and_entry) == 2 and header_and_entry[1].endswith(b"\n")


def _ended_at_once(code: int, log: Path, begin: int) -> HpcextError:
    said = [line for line in log.read_bytes()[begin:].decode(errors="replace").splitlines() if line]
    what = said[-1].removeprefix("hpcext: ") if said else f"the manager ended with status {code}"
    error = HpcextError(what, do=f"see {log}")
    error.exit_status = shell_status(code) if code else 128
    return error


# Following a pilot.


def attach(args: argparse.Namespace, out: Output) -> int:
    """Follow a pilot until its manager ends; return the exit status of its jobs."""
    state_dir = load_settings().state_dir
    directory = pilots.find(args.pilot, state_dir) if args.pilot else choosing.newest(state_dir)
    pilot = pilots.load(directory)
    if isinstance(out, LogOutput):
        out.pilot = pilot.id
    if args.pilot is None:
        out.note(f"pilot {pilot.id}, the newest")
    try:
        found = _follow(directory, out, as_json=args.json)
    except KeyboardInterrupt:
        out.note(f"pilot {pilot.id} goes on; hpcext attach {pilot.id} follows it again")
        raise
    world = found.world
    if args.json:
        policy, began_at = found.policy, found.began_at
        out.document(run_document(world, policy=policy, began_at=began_at, now_s=found.now_s))
    else:
        view.summary(out, found.engine, found.now_s, found.node_time)
    status = exit_status(found.engine, None, directory, out)
    # With jobs left, nothing happens until somebody starts a manager.
    return status if all(job.state.final for job in world.jobs.values()) else 3


def _follow(directory: Path, out: Output, *, as_json: bool) -> Reading:
    """Show what happens until nobody manages the pilot any more; return the last reading."""
    follower, job, told = Follower(directory), _BatchJob(directory), ""
    with out.live(view.COLUMNS) as screen:
        tell = Narrator(out) if screen is None else Live(out, screen)
        if not as_json:
            out.line(headline(pilots.load(directory), directory))
        while True:
            found = follower.read() if follower.begun() else None
            if found is not None and not as_json:
                tell(found.engine, found.now_s)
            alive = _may_run(found) if found else follower.alive()
            if not alive and not job.waits(found):
                break
            how = found.standing if found else job.said
            if how.what != told and not how.state.ended:
                told = how.what
                out.note(f"{told}; {how.do}" if how.do else told)
            time.sleep(LOOK_S)
        if found is None:
            raise NoManagerError("it has never run", where=str(directory))
        # The manager may have written its last facts after the reading, and ended since.
        found = reading.read(directory)
        if not as_json:
            tell(found.engine, found.now_s)
    return found


def _may_run(found: Reading) -> bool:
    """Return whether more may happen; once all jobs have ended, an unknown state means no."""
    over = all(job.state.final for job in found.world.jobs.values())
    return found.alive and not (over and found.standing.state is Is.UNKNOWN)


class _BatchJob:
    """The batch job of a pilot, which may wait in the queue to begin, or to begin again."""

    def __init__(self, directory: Path) -> None:
        system = pilots.load(directory).batch
        job_id = backends.submitted(system).job_of(directory) if system else None
        self._job = (system, job_id) if system and job_id is not None else None
        self._asked_s, self._waits = float("-inf"), False
        self._ran = False
        self.said = Standing(Is.OVER)

    def waits(self, found: Reading | None) -> bool:
        if found is not None and all(job.state.final for job in found.world.jobs.values()):
            return False
        if self._job is None or time.monotonic() < self._asked_s + ASK_S:
            return self._waits
        self._asked_s = time.monotonic()
        self.said = spool.standing_of(*self._job)
        runs = self.said.state is Is.RUNS
        # A job that runs without a manager is about to start one, or to end: it is asked once more.
        self._waits = not (self.said.state.ended or (runs and self._ran))
        self._ran = runs
        return self._waits
