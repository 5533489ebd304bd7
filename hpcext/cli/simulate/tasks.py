"""The simulations that the options of ``hpcext simulate`` state, and checks of them."""

from __future__ import annotations

import argparse
import collections
import functools
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from hpcext.broker import settings as broker
from hpcext.broker.reservations import instant
from hpcext.broker.settings import Settings
from hpcext.broker.simulated.task import UsersTask
from hpcext.checks import at
from hpcext.cli.fits import check_jobs, check_specs
from hpcext.cli.output import Output
from hpcext.config import load_settings
from hpcext.core.band import NONE, read_band
from hpcext.core.errors import InputError
from hpcext.core.values import Node
from hpcext.manager.refine import profiles_for
from hpcext.manager.submissions import check_fits
from hpcext.policies import find_policy
from hpcext.sim.evaluate.users import ALONE, EQUAL, WEIGHTS
from hpcext.sim.pilots.recording import read_recording
from hpcext.sim.replay.mainqueue import EASY, nodes_of
from hpcext.sim.replay.sources import MOST_GPUS
from hpcext.sim.replay.tasks import NodeSource, Task
from hpcext.sim.traces.swf import SwfJob
from hpcext.sim.workloads.find import RECORDING, job_file
from hpcext.sim.workloads.workload import user_name
from hpcext.text import clean, counted, listed, shown

ON_NODES = ("exclusive", "marble", "equal_share", "bftrainer", "optimus", "pollux")
ON_HOLES = ("equal_share", "exclusive", "marble", "bftrainer", "pollux")
"""Policies that ``--compare`` compares on idle nodes; the others are measured against the first."""

OF_MEASURED = ("exclusive", "marble", "tiresias", "optimus:interval_s=60", "pollux")
"""Policies that ``--compare`` compares on measured trainings.

They are those of the paper on Pollux, all deciding every 60 s as there; exclusive, which is what a
batch system does; and the default policy of a pilot.
"""

REPORT_S = 30.0
"""Seconds between reports of progress, as in a live training, with ``--learn``."""


def tasks_of(args: argparse.Namespace, out: Output) -> Sequence[Task]:
    """Return a task for every policy with every seed, all of them checked.

    Parameters
    ----------
    args : argparse.Namespace
    out : Output
        Is told what is valid and may be a mistake.

    Raises
    ------
    InputError
        An option or a file is invalid, options contradict one another, or a job can never run.
    """
    if args.users is not None:
        return _of_users(args, out)
    if args.date is not None:
        raise InputError("has no meaning without --users", where="--date", do="leave it out")
    if len(args.workload) > 1:
        do = "give one, or say with --users how users divide the nodes"
        raise InputError(f"{len(args.workload)} of them", where="WORKLOAD", do=do)
    (workload,) = args.workload
    if _owned(workload)[0] and not Path(workload).exists():
        do = "say with --users how users divide the nodes"
        raise InputError(f"{shown(workload)} names a user", where="WORKLOAD", do=do)
    return _variants(args, _task(args, workload, load_settings().policy), out.note)


def _of_users(args: argparse.Namespace, out: Output) -> list[UsersTask]:
    """Return the tasks for users who share nodes; those of one policy and seed together."""
    settings = broker.read(args.users)
    if args.autoscale != NONE:
        raise InputError("cannot be given together with --users", where="--autoscale")
    zero_at = _zero_at(args, settings)
    base = _task(args, args.workload[0], settings.policy)
    owned = tuple(map(_owned, args.workload))
    users = [user for user, _ in owned if user]
    if len(set(users)) < len(users):
        twice = next(user for user in users if users.count(user) > 1)
        raise InputError(f"user {twice} has two", where="WORKLOAD", do="put them into one file")
    task = UsersTask(
        **{name: getattr(base, name) for name in Task.__struct_fields__},
        users=str(args.users),
        owned=owned,
        zero_at=zero_at,
    )
    names = task.names(task.place.find())
    if unknown := sorted(settings.users.keys() - set(names)):
        out.note(f"{args.users} has users without jobs: {listed(map(clean, unknown))}")
    if settings.asks:
        out.note("Slurm is not asked: fair shares are alike, and accounts have no members")
    policies: dict[str, list[Task]] = {}
    # What is said of the nodes is said of each workload.
    note = functools.cache(out.note)
    for text in dict.fromkeys(text for _, text in owned):
        policies = _by_policy(_variants(args, _task(args, text, settings.policy), note))
    return [
        replace(task, policy=each.policy, seed=each.seed, division=division)
        for variants in policies.values()
        for division in (ALONE, EQUAL, WEIGHTS)
        for each in variants
    ]


def _zero_at(args: argparse.Namespace, settings: Settings) -> float:
    """Return when the simulation begins, in seconds since the epoch; 0 if it does not matter."""
    if args.date is None:
        if not settings.reservations:
            return 0.0
        do = "say when the simulation begins, as --date 2026-12-01T08:00"
        what = f"is missing, and {args.users} has reservations"
        raise InputError(what, where="--date", do=do)
    with at("--date"):
        if not settings.reservations:
            what = f"has no meaning: {args.users} has no reservations"
            raise InputError(what, do="leave it out")
        return instant(args.date)


def _by_policy(tasks: Sequence[Task]) -> dict[str, list[Task]]:
    found: dict[str, list[Task]] = {}
    for task in tasks:
        found.setdefault(task.policy, []).append(task)
    return found


def _owned(text: str) -> tuple[str, str]:
    """Return the user and the workload of ``USER=WORKLOAD``; no user if it names none."""
    user, between, workload = text.partition("=")
    if between and workload and user_name(user):
        return user, workload
    return "", text


def _variants(args: argparse.Namespace, base: Task, note: Callable[[str], None]) -> list[Task]:
    """Return a task for every policy with every seed, checked."""
    if args.compare and args.policy:
        do = "leave out one of the two: several --policy options are compared anyway"
        raise InputError("cannot be given together with --policy", where="--compare", do=do)
    if args.oracle and args.learn:
        do = "leave out one of the two"
        raise InputError("tells policies what --learn hides", where="--oracle", do=do)
    policies = args.policy or (_usual_policies(base) if args.compare else [base.policy])
    for policy in policies:
        find_policy(policy)
    seeds = args.seed or [0]
    for name, values in (("--policy", policies), ("--seed", seeds)):
        if len(set(values)) < len(values):
            raise InputError("the same value twice", where=name)
    tasks = [replace(base, policy=policy, seed=seed) for policy in policies for seed in seeds]
    _check(tasks, note)
    return tasks


def _task(args: argparse.Namespace, workload: str, policy: str) -> Task:
    """Return the task under the usual policy, of which all others are variants."""
    place, settings = _node_source(args, workload), load_settings()
    profiles = profiles_for(settings.state_dir / "profiles")
    return Task(
        workload=workload,
        policy=policy,
        place=place,
        learn=args.learn,
        oracle=args.oracle,
        launch_s=args.launch_s,
        checkpoint_s=args.checkpoint_s,
        interference=args.interference,
        rescale=args.rescale_cost,
        fail_s=args.fail_s,
        report_s=REPORT_S if args.learn else None,
        until_s=args.hours * 3600 if args.hours else None,
        profiles=str(profiles.directory),
        gpu=profiles.gpu,
        data=str(args.data) if args.data else "",
        autoscale=read_band(args.autoscale),
    )


def _usual_policies(task: Task) -> Sequence[str]:
    """Return the policies that are compared if none are named."""
    source = task.place.find()
    if task.jobs(source).measured:
        return OF_MEASURED
    return ON_HOLES if task.place.harvest else ON_NODES


def _node_source(args: argparse.Namespace, workload: str) -> NodeSource:
    """Return where the jobs run; refuse options that have no meaning there."""
    for name, value, given in (
        ("--main-nodes", args.main_nodes, args.main),
        ("--main-backfill", args.main_backfill, args.main),
        ("--gpus-per-node", args.gpus_per_node, args.idle or args.main),
        ("--skip", args.skip, args.idle),
        ("--known-ends", args.known_ends or None, args.idle or args.main),
    ):
        if value is not None and not given:
            main = name.startswith("--main")
            means = "--main" if main else {"--skip": "--idle"}.get(name, "--idle or --main")
            raise InputError(f"has no meaning without {means}", where=name, do="leave it out")
    if args.main and not args.main_nodes:
        do = "give the number of nodes of the machine"
        raise InputError("is missing", where="--main-nodes", do=do)
    return NodeSource(
        _nodes(args, workload),
        args.idle or "",
        args.main or "",
        args.main_nodes or 0,
        args.per_node,
        args.gpus_per_node or 1,
        args.skip or 0,
        args.known_ends,
        args.main_backfill or EASY,
    )


def _nodes(args: argparse.Namespace, workload: str) -> str:
    """Return the machine: as the option says, or that of a recorded pilot."""
    if args.nodes or args.idle or args.main:
        return args.nodes or ""
    if not workload.endswith(RECORDING) or args.users is not None:
        do = "say where the jobs run, for example --nodes 4x4, --idle TRACE or --main LOG"
        raise InputError("is missing", where="--nodes", do=do)
    return read_recording(Path(workload)).machine


def _check(tasks: Sequence[Task], note: Callable[[str], None]) -> None:
    """Read all files once, and refuse jobs that can never run, before hours of simulation."""
    task = tasks[0]
    place, source = task.place, task.place.find()
    if place.idle and not source.files and ":" not in place.idle:
        do = "say --hours, or how long the trace is, as summit:hours=48"
        if place.known:
            # To know the ends, the whole trace is read first, whatever --hours says.
            do = "say how long the trace is, as summit:hours=48"
        if place.known or task.until_s is None:
            raise InputError(f"{shown(place.idle)} has no end", where="--idle", do=do)
    if task.autoscale is not None and len({(one.gpus, one.kind) for one in source.nodes}) > 1:
        raise InputError("needs nodes that are alike", where="--autoscale", do="leave it out")
    measured = task.jobs(source).measured
    if task.data and not measured:
        do = "leave it out: only measured trainings need it"
        raise InputError("has no meaning for this workload", where="--data", do=do)
    most = place.main_nodes or MOST_GPUS
    specs = task.specs()
    if specs and source.nodes:
        check_specs(specs, source.nodes, str(job_file(task.workload)))
    elif specs:
        node = Node("an idle node", place.gpus)
        check_fits(specs, [node], str(job_file(task.workload)), most)
    # What measured trainings need depends on the policy, so they are checked under each.
    for known in {one.policy: one for one in tasks}.values() if measured else [task]:
        jobs = (job for job, _ in known.jobs(source).jobs(known.seed))
        if not check_jobs(jobs, source.nodes, most, task.workload):
            raise InputError("it has no jobs that ran", where=task.workload)
    if not place.main:
        collections.deque(source.read(), maxlen=0)
        return
    needed = (nodes_of(job, place.per_node) for job in source.read() if isinstance(job, SwfJob))
    large = [nodes for nodes in needed if nodes > place.main_nodes]
    if large:
        note(
            f"{place.main}: left out: {counted(len(large), 'job')} of more than "
            f"{counted(place.main_nodes, 'node')}, the largest of {max(large)}; if the log counts "
            "processors, say with --per-node how many a node has"
        )
