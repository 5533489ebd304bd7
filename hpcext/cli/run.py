"""``hpcext run``: share this machine's GPUs among the jobs of a file."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcext.checks import at
from hpcext.cli import commands, view
from hpcext.cli.detach import start_detached
from hpcext.cli.live import Live
from hpcext.cli.managing import add_output, exit_status, headline
from hpcext.cli.narrator import Narrator
from hpcext.cli.output import LogOutput, Output
from hpcext.cli.stated import StatedJobs, stated_jobs
from hpcext.cli.unwritten import drop_unwritten, optional
from hpcext.config import Settings, load_settings
from hpcext.core.engine import Engine
from hpcext.core.errors import InputError
from hpcext.core.values import Node, State
from hpcext.executors.gpus import find_gpus
from hpcext.executors.seats import MOST, Shared, check, memory
from hpcext.manager import pilot as pilots
from hpcext.manager import spool
from hpcext.manager.directory import host
from hpcext.manager.handles import find_job
from hpcext.manager.submissions import check_fits
from hpcext.manager.views import reading
from hpcext.manager.views.report import run_document
from hpcext.manager.waiting import shell_status
from hpcext.numerals import whole
from hpcext.policies import POLICIES
from hpcext.protocol import EXIT_SUSPENDED
from hpcext.text import shown

LIVE_S = 1.0
"""Seconds between two updates of the table on a terminal."""


def add(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "run",
        help="share this machine's GPUs among the jobs of a file, or run commands",
        usage="hpcext run [OPTION...] {JOBS.toml | -- COMMAND [ARGUMENT...] | --commands FILE}\n"
        "       hpcext run --stay --name NAME [OPTION...]",
        epilog="example: hpcext run jobs.toml --gpus 6",
    )
    parser.add_argument("jobs", nargs="?", type=Path, metavar="JOBS.toml")
    parser.add_argument(
        "--gpus", help="number of GPUs to use, or of logical slots if there are none"
    )
    parser.add_argument(
        "--mps", metavar="SEATS", help="how many jobs with mps = true may share the last GPU"
    )
    parser.add_argument("--policy", help=f"how to share them: {', '.join(POLICIES)}")
    parser.add_argument(
        "--name", help="name of the pilot (default: that of the file or the command)"
    )
    parser.add_argument("--dir", type=Path, help="directory of the pilot; must not exist")
    parser.add_argument("--resume", metavar="PILOT", help="go on with a pilot that has ended")
    parser.add_argument(
        "--moved",
        action="store_true",
        help="with --resume: go on here, because the machine that it ran on is gone",
    )
    parser.add_argument(
        "--retry",
        action="append",
        default=[],
        metavar="JOB",
        help="with --resume: let a job that has failed run again, from its checkpoint",
    )
    parser.add_argument(
        "--leave",
        action="store_true",
        help="with --resume of a harvester: when told to end, leave the trainings to its next "
        "manager",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would start first, and start nothing"
    )
    parser.add_argument(
        "--stay", action="store_true", help="when all jobs are done, wait for more until drained"
    )
    add_notify(parser)
    add_detach(parser)
    add_output(parser)
    commands.add(parser)
    parser.set_defaults(run=run)


def add_notify(parser: argparse.ArgumentParser) -> None:
    """Add the option that says whom to notify of failures and of the end of a pilot."""
    parser.add_argument(
        "--notify",
        metavar="WAY",
        help="notify about failures and the end: mail, mail:ADDRESS, webhook:URL, command:COMMAND",
    )


def add_detach(parser: argparse.ArgumentParser) -> None:
    """Add the option that runs a manager in the background."""
    parser.add_argument(
        "--detach", action="store_true", help="run in the background; hpcext attach follows it"
    )


def run(args: argparse.Namespace, out: Output) -> int:
    """Begin a pilot, or go on with one; return the exit status of its jobs."""
    settings = settings_of(args)
    if args.resume is not None:
        _refuse_with_resume(args)
        directory = pilots.find(args.resume, settings.state_dir)
        if args.leave and pilots.load(directory).harvest is None:
            raise InputError("can be given for harvesters only", where="--leave")
        _retry(directory, args.retry)
        return begin(directory, args, out)
    for name in ("moved", "leave", "retry"):
        if getattr(args, name):
            raise InputError("can be given with --resume only", where=f"--{name}")
    found = stated_jobs(args, settings, out)
    if not args.dry_run:
        return begin(create(found, args, settings), args, out)
    for name in ("detach", "stay"):
        if getattr(args, name):
            raise InputError(f"--{name} cannot be given with it", where="--dry-run")
    pilots.check_new(args.name or found.name, args.dir)
    gpus, logical = choose_gpus(settings)
    shared = _shared(args.mps, gpus, logical=logical)
    node = Node(host(), len(gpus) - (shared is not None))
    offers = [node, shared.as_node(host())] if shared else [node]
    check_fits(found.specs, offers, found.where, seat_bytes=memory(shared))
    from hpcext.cli import dry_run  # noqa: PLC0415  (slow: a simulation)

    dry_run.show(found.specs, offers, settings.policy, out, as_json=args.json)
    return 0


def settings_of(args: argparse.Namespace) -> Settings:
    """Return the settings of a new pilot, with what its command line says."""
    return load_settings(flags={"policy": args.policy, "gpus": args.gpus, "notify": args.notify})


def create(stated: StatedJobs, args: argparse.Namespace, settings: Settings) -> Path:
    """Make the directory of a new pilot; start nothing.

    Parameters
    ----------
    stated : StatedJobs
    args : argparse.Namespace
        Of ``hpcext run``.
    settings : Settings

    Raises
    ------
    InputError
        It cannot be; nothing was made.
    """
    gpus, logical = choose_gpus(settings)
    shared = _shared(args.mps, gpus, logical=logical)
    return pilots.create(
        stated.specs,
        pilots.NewPilot(
            file=stated.file,
            notify=settings.notify,
            name=args.name or stated.name,
            gpus=gpus,
            logical=logical,
            shared=shared,
            stay=args.stay,
        ),
        settings=settings,
        where=stated.where,
        directory=args.dir,
    )


def begin(directory: Path, args: argparse.Namespace, out: Output) -> int:
    """Manage a pilot, in this process or in the background; return the exit status.

    Parameters
    ----------
    directory : pathlib.Path
        The pilot's.
    args : argparse.Namespace
        Has ``detach``, ``json`` and ``log_format``, and perhaps ``moved`` and ``leave``.
    out : Output
    """
    if args.detach:
        return start_detached(directory, args, out)
    moved, leave = getattr(args, "moved", False), getattr(args, "leave", False)
    return manage(directory, out, as_json=args.json, moved=moved, leave=leave)


def _shared(said: str | None, gpus: Sequence[int], *, logical: bool) -> Shared | None:
    """Return the GPU that jobs share through MPS; None if no option asks for one.

    Raises
    ------
    InputError
        The GPU cannot be shared, or not by so many.
    """
    if said is None:
        return None
    count = whole(said)
    if count is None or not 2 <= count <= MOST:
        raise InputError(shown(said), where="--mps", valid=f"2 to {MOST} seats")
    if logical:
        raise InputError("logical slots cannot be shared", where="--mps", valid="a real GPU")
    shared = Shared(gpus[-1], count)
    check(shared, "--mps")
    return shared


def _refuse_with_resume(args: argparse.Namespace) -> None:
    """Refuse options that describe a new pilot: one that goes on keeps those it began with."""
    if args.jobs is not None:
        raise InputError("takes no job file", where="--resume", do="hpcext submit adds jobs")
    if said := commands.given(args):
        raise InputError(f"{said[0]} cannot be given with it", where="--resume")
    for name in ("gpus", "mps", "policy", "name", "dir", "notify", "dry_run", "stay"):
        if getattr(args, name):
            flag = f"--{name.replace('_', '-')}"
            raise InputError(f"{flag} cannot be given with it", where="--resume")


def _retry(directory: Path, names: Sequence[str]) -> None:
    """Ask the next manager of a pilot to let jobs that have failed run again."""
    if not names:
        return
    world = reading.read(directory).world
    with at("--retry"):
        if spool.manager_of(directory) is not None:
            raise InputError("the pilot runs", do=f"hpcext resume {directory} {names[0]}")
        jobs = [find_job(world, name) for name in names]
        for job in jobs:
            if job.state is not State.FAILED:
                raise InputError(f"{job.name} is {job.state.value}", valid="a job that has failed")
    for job in jobs:
        spool.put(directory, "resume", job=job.id)


def choose_gpus(settings: Settings) -> tuple[tuple[int, ...], bool]:
    """Return the GPU indices to use, and whether they are slots of a machine without GPUs.

    Raises
    ------
    InputError
        More GPUs are asked for than there are; or there are none, and no number is given.
    """
    found, wanted = find_gpus(), settings.gpus
    if wanted == "auto":
        if not found:
            raise InputError(
                "no GPU is visible on this machine",
                where="--gpus",
                do="give a number of logical slots, as in --gpus 6",
            )
        return found, False
    count = int(wanted)
    if found and count > len(found):
        raise InputError(f"{count} GPUs", where="--gpus", valid=f"1 to {len(found)}, as found")
    return (found[:count], False) if found else (tuple(range(count)), True)


def manage(
    directory: Path, out: Output, *, as_json: bool, moved: bool = False, leave: bool = False
) -> int:
    """Manage a pilot in this process; return the exit status of its jobs.

    Parameters
    ----------
    directory : pathlib.Path
    out : Output
    as_json : bool
        Whether to print one document at the end instead of events.
    moved : bool
        Whether the machine that the pilot ran on is gone, so that it goes on here.
    leave : bool
        Whether a harvester that is told to end leaves its trainings running for its next manager.
    """
    pilot = pilots.load(directory)
    if isinstance(out, LogOutput):
        out.pilot = pilot.id
        logging.basicConfig(handlers=[_LogEntries(out)], level=logging.WARNING)
    else:
        logging.basicConfig(format="hpcext: %(message)s", level=logging.WARNING)
    with out.live(view.COLUMNS) as screen:
        # A manager whose output cannot be written goes on: what counts is in the journal.
        with optional():
            if not as_json:
                out.line(headline(pilot, directory))
        tell = Narrator(out) if screen is None else Live(out, screen)
        ends = ""

        def observe(engine: Engine, now_s: float) -> None:
            nonlocal ends
            with optional():
                if engine.world.suspending and not (ends or pilot.alone):
                    ends = view.ending(engine)
                    if ends:
                        out.note(ends)
                if not as_json:
                    tell(engine, now_s)

        interval_s = None if screen is None else LIVE_S
        engine, driver = pilots.run(
            directory, observe, interval_s=interval_s, moved=moved, leave=leave
        )
    if as_json:
        world, now_s = engine.world, driver.now_s()
        policy, began_at = pilot.policy, pilot.began_at
        out.document(run_document(world, policy=policy, began_at=began_at, now_s=now_s))
    else:
        with optional():
            view.summary(out, engine, driver.now_s(), driver.node_time)
    if pilot.alone:
        status = _exit_code(engine)
    else:
        status = exit_status(engine, driver.stopped_by, directory, out)
    drop_unwritten()
    return status


class _LogEntries(logging.Handler):
    """A handler that prints warnings as entries of a JSON log."""

    def __init__(self, out: LogOutput) -> None:
        super().__init__()
        self._out = out

    def emit(self, record: logging.LogRecord) -> None:
        """Print one warning."""
        with optional():
            self._out.note(self.format(record))


def _exit_code(engine: Engine) -> int:
    """Return the exit code of the only job, as a shell would; 85 if it is not done."""
    ((name, job),) = engine.world.jobs.items()
    code = engine.world.records[name].exit_code
    if not job.state.final or code is None:
        return EXIT_SUSPENDED
    return shell_status(code)
