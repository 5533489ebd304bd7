"""``hpcext plan``: what each policy would begin with, and how far that is from the best."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hpcext.admission import admit
from hpcext.cli.output import Output
from hpcext.cli.plot import plot
from hpcext.config import load_settings
from hpcext.core.engine import Engine
from hpcext.core.errors import HpcextError, InputError
from hpcext.core.facts import NodeJoined, Submitted
from hpcext.core.values import Job, Node, Snapshot, Target, total
from hpcext.jobfile import read_jobs
from hpcext.manager.refine import profiles_for
from hpcext.manager.submissions import check_fits
from hpcext.policies import POLICIES, find_policy
from hpcext.policies.apportion import Table, apportion
from hpcext.policies.common import ONE_NODE
from hpcext.scaling.estimator import Sizes, speedups

MOST_GPUS = 1_000_000
"""More than any machine has, and still quickly divided."""

OPTIMUM = "optimum"


class Division(msgspec.Struct, frozen=True):
    """How one policy divides the GPUs at the beginning.

    Attributes
    ----------
    policy : str
    gpus : dict
        Job → how many it gets.
    value : float
        Sum of the jobs' speeds, each as a multiple of its own on one GPU.
    objective, bound : float or None
        What the policy makes largest, as it stands on these nodes, and more than which it cannot
        be; None for a policy without such.
    """

    policy: str
    gpus: dict[str, int]
    value: float
    objective: float | None = None
    bound: float | None = None


def add(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "plan",
        help="show how policies would share GPUs among the jobs of a file",
        epilog="example: hpcext plan jobs.toml --gpus 8 --compare",
    )
    parser.add_argument("jobs", type=Path, metavar="JOBS.toml")
    parser.add_argument("--gpus", type=int, required=True, help="GPUs of each node")
    parser.add_argument("--nodes", type=int, default=1, help="nodes (default: 1)")
    parser.add_argument("--policy", help=f"one of {', '.join(POLICIES)}")
    parser.add_argument("--compare", action="store_true", help="every policy")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it: .png, .svg or .pdf")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, out: Output) -> int:
    """Run the command."""
    for flag, number in (("--gpus", args.gpus), ("--nodes", args.nodes)):
        if not 1 <= number <= MOST_GPUS:
            raise InputError(str(number), where=flag, valid=f"1 to {MOST_GPUS}")
    if args.gpus * args.nodes > MOST_GPUS:
        all_ = f"{args.gpus * args.nodes} GPUs in all"
        raise InputError(all_, where="--nodes", valid=f"at most {MOST_GPUS}")
    if args.policy and args.compare:
        raise InputError("shows every policy", where="--compare", do="leave out --policy")
    settings = load_settings(flags={"policy": args.policy})
    nodes = [Node(f"node{number}", args.gpus) for number in range(1, args.nodes + 1)]
    profiles = profiles_for(settings.state_dir / "profiles")
    specs = read_jobs(args.jobs, profiles=profiles)
    check_fits(specs, nodes[0], str(args.jobs), len(nodes))
    jobs = admit(specs, 1, {})
    names = list(POLICIES) if args.compare else [settings.policy]
    found = [_begin(name, jobs, nodes) for name in names]
    best = _best(jobs, args.gpus * args.nodes)
    if args.plot:
        divisions = {each.policy: each.gpus for each in (*found, best)}
        speeds = [f"{each.value:.2f}" for each in (*found, best)]
        plot(args.plot, divisions, speeds, args.gpus * args.nodes)
    unknown = [job.name for job in jobs if not job.after and not _speeds(job)]
    if args.json:
        document = {
            "schema": "hpcext.division/1",
            "nodes": args.nodes,
            "gpus_per_node": args.gpus,
            "policies": [msgspec.to_builtins(each) for each in found],
            OPTIMUM: msgspec.to_builtins(best),
            "unknown_speed": unknown,
        }
        out.document(document)
        return 0
    _show(out, jobs, [*found, best])
    if unknown:
        out.note(f"no scaling is known of {', '.join(unknown[:5])}: not counted in the speeds")
    return 0


def _begin(name: str, jobs: Sequence[Job], nodes: Sequence[Node]) -> Division:
    """Let an engine take its first step under a policy."""
    policy, answers = find_policy(name), [Target()]

    def ask(now: Snapshot) -> Target:
        answers.append(policy(now))
        return answers[-1]

    engine = Engine(ask)
    engine.step(0.0, [*map(NodeJoined, nodes), *map(Submitted, jobs)])
    if engine.refusal:
        raise HpcextError(f"it {engine.refusal}", where=f"policy {name}")
    gpus = {job.name: total(engine.world.jobs[job.id].goal) for job in jobs}
    value = sum(_speeds(job).get(gpus[job.name], 0.0) for job in jobs)
    return Division(name, gpus, value, answers[-1].value, answers[-1].bound)


def _best(jobs: Sequence[Job], gpus: int) -> Division:
    """The most that any policy could begin with, if GPUs were all on one node."""
    ready = [(job, speeds) for job in jobs if not job.after and (speeds := _speeds(job))]
    tables = [
        Table(np.array([0, *speeds]), np.array([0.0, *speeds.values()])) for _, speeds in ready
    ]
    division = apportion(tables, gpus)
    counts = {job.name: count for (job, _), count in zip(ready, division.counts, strict=True)}
    return Division(OPTIMUM, counts, division.value)


def _speeds(job: Job) -> dict[int, float]:
    """Speed by the GPUs that it may have, 1 on one GPU; empty where that is not known.

    Of a curve that does not say it, the speed on the fewest GPUs is taken for as many times that of
    one.
    """
    fewest, most = job.nodes or ONE_NODE
    sizes = sorted({size * nodes for nodes in range(fewest, most + 1) for size in job.sizes})
    known = speedups(job.estimate, Sizes.on_one_node(np.array(sizes)))
    return {} if known is None else dict(zip(sizes, known.tolist(), strict=True))


def _show(out: Output, jobs: Sequence[Job], found: Sequence[Division]) -> None:
    rows = [(job.name, *(str(each.gpus.get(job.name) or "") for each in found)) for job in jobs]
    rows.append(("GPUs in all", *(str(sum(each.gpus.values())) for each in found)))
    rows.append(("speed in all", *(f"{each.value:.2f}" for each in found)))
    rows.append(("objective", *(_figure(each.objective) for each in found)))
    rows.append(("at most", *(_figure(each.bound) for each in found)))
    out.table(("job", *(each.policy for each in found)), rows)


def _figure(number: float | None) -> str:
    return "" if number is None else f"{number:.6g}"
