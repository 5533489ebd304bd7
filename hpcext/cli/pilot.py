"""``hpcext pilot``: submit a pilot as a job of Slurm or LSF, and list or remove pilots."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from typing import Any

from hpcext import backends
from hpcext.allocation import JobId
from hpcext.backends.base import PilotOrder
from hpcext.backends.batch_job import LEAD_S, MAX_LEAD_S, MIN_LEAD_S
from hpcext.batch.jobs import Seen
from hpcext.batch.standing import Is, kind
from hpcext.checks import check_range
from hpcext.cli import tidy
from hpcext.cli.managing import LOG_FORMATS
from hpcext.cli.output import Output
from hpcext.cli.run import add_notify
from hpcext.cli.stated import name_after, read_job_file
from hpcext.config import load_settings
from hpcext.core.errors import BatchError, InputError, NoManagerError
from hpcext.jobfields import MAX_GPUS
from hpcext.manager import directory as pilots
from hpcext.manager import orphans, spool, standing
from hpcext.manager.cleaning import left_of, size_of
from hpcext.manager.submissions import check_in_time
from hpcext.policies import POLICIES
from hpcext.text import counted, sized

log = logging.getLogger(__name__)

MAX_NODES = 10_000

NOT_KNOWN = "not known"


def add(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "pilot",
        help="submit a pilot as a job of Slurm or LSF, list pilots, or remove them",
        epilog="example: hpcext pilot submit jobs.toml --nodes 2 --gpus-per-node 6",
    )
    parser.set_defaults(rest=())
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    submit_ = actions.add_parser(
        "submit",
        usage="hpcext pilot submit JOBS.toml --gpus-per-node GPUS [OPTION...] [-- OPTION...]",
        help="submit the jobs of a file, to run side by side in one allocation",
        epilog="example: hpcext pilot submit jobs.toml --gpus-per-node 4 --time 2:00:00 -- -p gpu",
    )
    submit_.add_argument("jobs", type=Path, metavar="JOBS.toml")
    submit_.add_argument("--nodes", type=int, default=1, help="number of nodes (default: 1)")
    submit_.add_argument(
        "--gpus-per-node", type=int, required=True, help="number of GPUs on each node"
    )
    submit_.add_argument(
        "--cpus-per-gpu", type=int, default=1, help="number of CPUs for each GPU (default: 1)"
    )
    submit_.add_argument("--time", help="time limit, as sbatch or bsub takes it")
    submit_.add_argument(
        "--lead",
        type=int,
        default=LEAD_S,
        help=f"suspend the jobs this many seconds before its end (default: {LEAD_S})",
    )
    submit_.add_argument(
        "--requeue", action="store_true", help="go on in another allocation when this one ends"
    )
    submit_.add_argument("--policy", help=f"how to share the GPUs: {', '.join(POLICIES)}")
    submit_.add_argument("--name", help="name of the pilot (default: that of the file)")
    submit_.add_argument("--dir", type=Path, help="directory of the pilot; must not exist")
    add_notify(submit_)
    submit_.add_argument(
        "--log-format",
        # The form of the manager's log, not of this command's output.
        dest="manager_log",
        choices=LOG_FORMATS,
        default="text",
        help="json: in the job's output, log events as one JSON object per line",
    )
    submit_.set_defaults(run=submit)
    again = actions.add_parser(
        "resubmit",
        help="submit a pilot that ended before its jobs did once more",
        epilog="example: hpcext pilot resubmit jobs",
    )
    again.add_argument("pilot", metavar="PILOT", help="directory, id or name")
    again.set_defaults(run=resubmit)
    tidy.add_rm(actions)
    list_ = actions.add_parser("list", help="list the pilots", epilog="example: hpcext pilot list")
    list_.set_defaults(run=show)


def submit(args: argparse.Namespace, out: Output) -> int:
    """Submit a pilot as a batch job."""
    for flag, value, least, most in (
        ("--nodes", args.nodes, 1, MAX_NODES),
        ("--gpus-per-node", args.gpus_per_node, 1, MAX_GPUS),
        ("--cpus-per-gpu", args.cpus_per_gpu, 1, MAX_NODES),
        ("--lead", args.lead, MIN_LEAD_S, MAX_LEAD_S),
    ):
        check_range(flag, value, least, most)
    settings = load_settings(flags={"policy": args.policy, "notify": args.notify})
    backend = backends.choose(settings.batch)
    wanted = PilotOrder(
        nodes=args.nodes,
        gpus=args.gpus_per_node,
        cpus_per_gpu=args.cpus_per_gpu,
        requeue=args.requeue,
        time=args.time or "",
        options=tuple(args.rest),
        as_log=args.manager_log == "json",
    )
    order = backend.check(wanted)
    time_s = backend.limit_s(order.time) if order.time else None
    if time_s is not None and time_s <= args.lead:
        raise InputError(
            f"{args.time}: its jobs would be suspended {args.lead} s before its end, which is at "
            "once",
            where="--time",
            do="give it more time" + (", or a smaller --lead" if args.lead > MIN_LEAD_S else ""),
        )
    specs = read_job_file(args.jobs, settings, out)
    if time_s is not None and not args.requeue:
        check_in_time(specs, time_s - args.lead, str(args.jobs))
    directory = pilots.create(
        specs,
        pilots.NewPilot(
            file=str(args.jobs.absolute()),
            notify=settings.notify,
            name=args.name or name_after(args.jobs),
            gpus=range(args.gpus_per_node),
            logical=False,
            batch=backend.name,
            launcher=backend.launcher(settings),
            nodes=args.nodes,
            lead_s=args.lead,
            requeue=args.requeue,
        ),
        settings=settings,
        where=str(args.jobs),
        directory=args.dir,
    )
    try:
        for sentence in backend.lacks(settings):
            out.note(sentence)
        job_id = backend.submit(directory, order, settings)
    except BatchError:
        pilots.remove(directory, settings.state_dir)
        raise
    out.line(f"pilot {directory.name}: job {job_id} of {backend.title}; {directory}")
    return 0


def resubmit(args: argparse.Namespace, out: Output) -> int:
    """Submit a pilot that has ended once more."""
    directory = pilots.find(args.pilot, load_settings().state_dir)
    batch = pilots.load(directory).batch
    if not batch:
        raise NoManagerError(
            "it was not submitted to a batch system",
            where=str(directory),
            do=f"hpcext run --resume {directory} goes on with it here",
        )
    backend = backends.find(batch, str(directory / "pilot.json"))
    standing.refuse_resubmission(directory)
    out.line(f"pilot {directory.name}: job {backend.resubmit(directory)} of {backend.title}")
    return 0


def show(args: argparse.Namespace, out: Output) -> int:
    """List the pilots, newest first."""
    found = pilots.known(load_settings().state_dir)
    ids = {
        path: backends.submitted(pilot.batch).job_of(path) if pilot.batch else None
        for path, pilot in found
    }
    seen: dict[str, dict[JobId, Seen]] = {}
    for system in {pilot.batch for path, pilot in found if ids[path] is not None}:
        asked = [ids[path] for path, pilot in found if pilot.batch == system]
        try:
            jobs = backends.find(system).jobs()
            seen[system] = jobs.seen([each for each in asked if each is not None])
        except (BatchError, InputError) as error:
            # The others may answer: one home directory may serve clusters of several batch systems.
            log.warning("%s", error)
    rows = []
    for path, pilot in found:
        job_id, system = ids[path], pilot.batch
        state = ""
        if job_id:
            state = NOT_KNOWN
            if system in seen:
                one = seen[system].get(job_id)
                state = _state_words(system, one) + (_unfinished(path) if kind(one).ended else "")
        elif not pilot.batch:
            state = "running" if spool.manager_of(path) else _ended_here(path)
        rows.append((pilot.id, str(job_id or ""), state, sized(size_of([path]).bytes), str(path)))
    out.table(("pilot", "job", "state", "size", "directory"), rows)
    return 0


def _ended_here(path: Path) -> str:
    """Return the state of a pilot without a manager on this machine."""
    left = _unfinished(path)
    elsewhere = left and orphans.ran_on(path) not in {"", pilots.host()}
    return ("not running here" if elsewhere else "ended") + left


def _unfinished(path: Path) -> str:
    """Return the number of unfinished jobs of an ended pilot in words, to be added to its state."""
    left = left_of(path)
    return f", {counted(left, 'job')} left" if left else ""


def _state_words(system: str, seen: Seen | None) -> str:
    """Return the state of a batch job, with the batch system's own word where ours says less."""
    if seen is None:
        return f"forgotten by {backends.title(system)}"
    word = seen.said or seen.why
    return {
        Is.UNKNOWN: f"{NOT_KNOWN} ({seen.said})" if seen.said else NOT_KNOWN,
        Is.HELD: f"held ({word})" if word else "held",
        Is.STOPPED: f"{seen.state} ({seen.said})" if seen.said else seen.state,
    }.get(kind(seen), seen.state)
