"""``hpcext harvest``: train on idle nodes of a cluster for as long as nobody else wants them."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import msgspec

from hpcext import backends
from hpcext.checks import check_range
from hpcext.cli.harvest import view as harvest_view
from hpcext.cli.harvest.terms import make_terms, nodes_of
from hpcext.cli.managing import add_output
from hpcext.cli.output import Output
from hpcext.cli.run import add_detach, add_notify, begin
from hpcext.cli.stated import name_after, read_job_file
from hpcext.config import MAX_NODES, load_settings
from hpcext.core.band import read_band
from hpcext.core.errors import HpcextError, InputError
from hpcext.harvest.leases import Hole, requests
from hpcext.jobspec import JobSpec
from hpcext.manager import pilot as pilots
from hpcext.manager.submissions import Submissions
from hpcext.manager.views import reading
from hpcext.manager.views.harvest_report import harvest_document
from hpcext.policies import find_policy
from hpcext.render.words import duration

MAX_S = 86_400


def add(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "harvest",
        help="train on idle nodes of a cluster, at no cost to others",
        epilog="example: hpcext harvest start trainers.toml --partition preemptible",
    )
    parser.set_defaults(rest=())
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    start_ = actions.add_parser(
        "start",
        usage="hpcext harvest start [JOBS.toml] --partition NAME [OPTION...] [-- SBATCH|BSUB...]",
        help="take idle nodes as leases, and train the jobs of a file on them",
        epilog="example: hpcext harvest start trainers.toml --partition preemptible --max-nodes 8",
    )
    start_.add_argument("jobs", nargs="?", type=Path, metavar="JOBS.toml")
    _add_where(start_)
    start_.add_argument(
        "--max-nodes", type=int, help="largest number of nodes at a time (default: 64, or as set)"
    )
    start_.add_argument(
        "--whole-nodes",
        action="store_true",
        help="take no node of which another job uses a part",
    )
    start_.add_argument("--max-parallel", type=int, help="largest number of trainings at a time")
    start_.add_argument(
        "--policy", default="bftrainer", help="how to share nodes (default: bftrainer)"
    )
    start_.add_argument("--objective", help="what to maximize: throughput, efficiency or priority")
    start_.add_argument(
        "--forward-looking",
        type=float,
        metavar="S",
        help="make only changes that pay off within this many seconds",
    )
    start_.add_argument(
        "--interval",
        type=float,
        default=15,
        metavar="S",
        help="seconds between queries of the batch system (default: 15)",
    )
    start_.add_argument(
        "--least",
        type=float,
        default=180,
        metavar="S",
        help="take no node that is idle for fewer than this many seconds (default: 180)",
    )
    start_.add_argument(
        "--idle",
        type=float,
        default=60,
        metavar="S",
        help="give back a node on which nothing ran for this many seconds (default: 60)",
    )
    start_.add_argument(
        "--autoscale",
        metavar="LOW:HIGH",
        help="choose the number of nodes so that their utility stays within this band, as 0.4:0.7",
    )
    start_.add_argument("--name", help="name of the harvester (default: that of the file)")
    start_.add_argument("--dir", type=Path, help="directory of the harvester; must not exist")
    start_.add_argument(
        "--stay", action="store_true", help="when all jobs are done, wait for more until drained"
    )
    add_notify(start_)
    add_detach(start_)
    add_output(start_)
    start_.set_defaults(run=start)
    report_ = actions.add_parser(
        "report",
        help="show how a harvester has used the idle nodes",
        epilog="example: hpcext harvest report trainers",
    )
    report_.add_argument("pilot", metavar="HARVESTER", help="directory, id or name")
    report_.add_argument("--json", action="store_true", help="print one JSON document")
    report_.set_defaults(run=report)
    holes_ = actions.add_parser(
        "holes",
        help="show the idle nodes of a partition, and for how long each could be had",
        epilog="example: hpcext harvest holes --partition preemptible",
    )
    _add_where(holes_)
    holes_.set_defaults(run=holes)


def _add_where(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--partition", help="partition or queue whose jobs all others preempt (default: as set)"
    )
    parser.add_argument(
        "--gpus-per-node",
        type=int,
        help="number of GPUs to use on each node (default: as many as most nodes have)",
    )
    parser.add_argument(
        "--slots", type=int, help="number of slots of each node, if nodes have no GPUs"
    )


def start(args: argparse.Namespace, out: Output) -> int:
    """Run a harvester until all trainers are done."""
    for flag, value in (("--max-nodes", args.max_nodes), ("--max-parallel", args.max_parallel)):
        if value is not None:
            check_range(flag, value, 1, MAX_NODES)
    for flag, seconds, least in (
        ("--interval", args.interval, 1),
        ("--idle", args.idle, 5),
        ("--least", args.least, 60),
    ):
        check_range(flag, seconds, least, MAX_S, " seconds")
    settings = load_settings(flags={"policy": _policy(args), "notify": args.notify})
    find_policy(settings.policy, "--policy")
    specs: tuple[JobSpec, ...] = ()
    if args.jobs is not None:
        specs = read_job_file(args.jobs, settings, out, empty=args.stay)
    elif not (args.stay and args.name):
        raise InputError("no job file", valid="JOBS.toml, or --stay and --name NAME")
    terms = make_terms(
        args,
        settings,
        max_nodes=args.max_nodes or settings.harvest_max_nodes,
        parallel=args.max_parallel,
        cycle_s=args.interval,
        idle_s=args.idle,
        least_s=args.least,
        whole=args.whole_nodes,
        autoscale=read_band(args.autoscale or settings.harvest_autoscale),
    )
    for sentence in backends.leasing(terms.system).lacks():
        out.note(sentence)
    directory = pilots.create(
        specs,
        pilots.NewPilot(
            file=str(args.jobs.absolute()) if args.jobs else "",
            notify=settings.notify,
            name=args.name or name_after(args.jobs),
            gpus=range(terms.gpus),
            logical=terms.logical,
            nodes=terms.max_nodes,
            harvest=terms,
            stay=args.stay,
        ),
        settings=settings,
        where=str(args.jobs or ""),
        directory=args.dir,
    )
    try:
        return begin(directory, args, out)
    except HpcextError:
        # It has never run, for example because another harvester uses the partition already.
        if not (directory / "journal.jsonl").exists():
            pilots.remove(directory, settings.state_dir)
        raise


def holes(args: argparse.Namespace, out: Output) -> int:
    """Show the idle nodes, and for how long each could be leased."""
    terms = make_terms(args, load_settings())
    leasing = backends.leasing(terms.system)
    nodes = nodes_of(leasing, terms.partition)
    ends, now_s = leasing.ends(), time.time()
    rows = []
    for name, node in nodes.items():
        if not node.idle or (not terms.logical and node.gpus < terms.gpus):
            continue
        hole = Hole(name, ends.get(name, float("inf")), node.limit_s)
        lease = requests([hole], idle=1, have=0, want=1, terms=terms, now_s=now_s)
        until = duration(hole.ends_s - now_s) if name in ends else "not known"
        could = f"{lease[0].minutes} min" if lease else "too short"
        rows.append((name, str(terms.gpus), until, could))
    for sentence in leasing.lacks():
        out.note(sentence)
    out.table(("node", "slots" if terms.logical else "GPUs", "ends in", "lease"), rows)
    return 0


def report(args: argparse.Namespace, out: Output) -> int:
    """Show how a harvester has used the idle nodes."""
    from hpcext.sim.pilots.harvested import (  # noqa: PLC0415  (slow: it simulates)
        Offered,
        utilisation_efficiency,
    )

    directory = pilots.find(args.pilot, load_settings().state_dir)
    terms = pilots.load(directory).harvest
    if terms is None:
        raise InputError("is a pilot, not a harvester", where=str(directory))
    found = reading.read(directory)
    document = harvest_document(directory, found.world, found.node_time)
    away_s = found.node_time.away_s
    reached = utilisation_efficiency(
        tuple(found.world.jobs.values()),
        Submissions(directory / "submissions").spec,
        found.policy,
        Offered(document["mean_nodes"], terms.gpus, found.now_s - away_s, away_s),
    )
    document["efficiency"] = msgspec.structs.asdict(reached)
    if args.json:
        out.document(document)
        return 0
    harvest_view.show(out, document)
    return 0


def _policy(args: argparse.Namespace) -> str:
    """Return the policy, with the options that further flags set."""
    said = {
        "objective": args.objective,
        "forward_s": args.forward_looking,
        "parallel": args.max_parallel,
    }
    options = ",".join(f"{key}={value}" for key, value in said.items() if value is not None)
    if not options:
        return str(args.policy)
    return f"{args.policy}{',' if ':' in args.policy else ':'}{options}"
