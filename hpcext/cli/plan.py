"""``hpcext plan``: show how each policy would begin, and how far that is from the optimum."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hpcext.admission import admit
from hpcext.cli import plot
from hpcext.cli.fits import check_specs
from hpcext.cli.output import Output
from hpcext.config import load_settings
from hpcext.core.engine import Engine
from hpcext.core.errors import HpcextError, InputError
from hpcext.core.facts import NodeJoined, Submitted
from hpcext.core.values import Job, Node, Snapshot, Target, total
from hpcext.jobfile import read_jobs
from hpcext.manager.refine import profiles_for
from hpcext.numerals import whole
from hpcext.policies import POLICIES, find_policy
from hpcext.policies import names as every_policy
from hpcext.policies.common import ONE_NODE
from hpcext.policies.solve.kinds import share
from hpcext.policies.solve.tables import ValueTable
from hpcext.scaling.estimator import GpuCounts, speedups
from hpcext.sim.replay.sources import NodeGroup, numbered, read_nodes
from hpcext.sim.workloads.jobfiles import unstated

OPTIMUM = "optimum"

SPEED = (
    "total speed: the sum of the jobs' speeds, each as a multiple of its own speed on one GPU;"
    " optimum: the division with the largest sum"
)
SCORE = (
    "score: what a policy maximizes, in a unit of its own; best score: the largest that any "
    "division of these GPUs has. Scores of different policies cannot be compared"
)

VALID = "a number, or NxKIND:GPUS for each kind, as 2xa100:4,4xv100:8"


class Division(msgspec.Struct, frozen=True):
    """The division of the GPUs with which one policy begins.

    Attributes
    ----------
    policy : str
    gpus : dict
        Job → the number of its GPUs.
    kinds : dict
        Job → the kind of its GPUs, if there are several kinds and it gets any.
    value : float
        The sum of the jobs' speeds, each as a multiple of its speed on one GPU, of the slowest kind
        if there are several.
    objective, bound : float or None
        The value that the policy maximises, on these nodes, and an upper bound of it; None for a
        policy that maximises none.
    """

    policy: str
    gpus: dict[str, int]
    value: float
    objective: float | None = None
    bound: float | None = None
    kinds: dict[str, str] = {}


def add(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "plan",
        help="show how policies would share GPUs among the jobs of a file",
        epilog="example: hpcext plan jobs.toml --gpus 8 --compare",
    )
    parser.add_argument("jobs", type=Path, metavar="JOBS.toml")
    parser.add_argument("--gpus", type=int, help="number of GPUs of each node")
    parser.add_argument(
        "--nodes",
        default="1",
        help="number of nodes (default: 1), or their kinds, as in 2xa100:4,4xv100:8 without --gpus",
    )
    parser.add_argument("--policy", help=f"policy to show: {', '.join(POLICIES)}")
    parser.add_argument("--compare", action="store_true", help="show every policy")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw it to this file: .png, .svg or .pdf"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, out: Output) -> int:
    """Print the first division of each policy, and the best one."""
    if args.plot:
        plot.check(args.plot)
    nodes = _nodes(args.nodes, args.gpus)
    if args.policy and args.compare:
        raise InputError("already shows every policy", where="--compare", do="leave out --policy")
    settings = load_settings(flags={"policy": args.policy})
    profiles = profiles_for(settings.state_dir / "profiles")
    specs = read_jobs(args.jobs, profiles=profiles)
    check_specs(specs, nodes, str(args.jobs))
    jobs = admit(specs, 1, {})
    names = list(every_policy()) if args.compare else [settings.policy]
    found = [_first_division(name, jobs, nodes) for name in names]
    best = _best(jobs, nodes)
    if args.plot:
        divisions = {each.policy: each.gpus for each in (*found, best)}
        speeds = [f"speed {each.value:.2f}" for each in (*found, best)]
        plot.plot(args.plot, divisions, speeds, sum(node.gpus for node in nodes))
    unknown = [job.name for job in jobs if not job.after and not _speeds(job, nodes[0].kind)]
    if args.json:
        document = {
            "schema": "hpcext.division/1",
            "nodes": len(nodes),
            "gpus_per_node": args.gpus,
            "kinds": {kind: gpus for kind, gpus in _totals(nodes).items() if kind},
            "policies": [msgspec.to_builtins(each) for each in found],
            OPTIMUM: msgspec.to_builtins(best),
            "unknown_speed": unknown,
        }
        out.document(document)
        return 0
    _show(out, jobs, [*found, best])
    if unknown:
        out.note(f"left out of the speeds: {unstated(specs, unknown, work=False)}")
    return 0


def _nodes(text: str, gpus: int | None) -> tuple[Node, ...]:
    """Parse ``N``, nodes of `gpus` GPUs each, or ``NxKIND:GPUS,...`` for nodes of several kinds.

    Raises
    ------
    InputError
        The text is neither, or a number is too large.
    """
    if whole(text.removeprefix("-")) is not None:
        if gpus is None:
            raise InputError("is missing", where="--gpus", do="say how many GPUs each node has")
        return numbered([NodeGroup(int(text), gpus)], "--nodes", "--gpus")
    if gpus is not None:
        raise InputError("--gpus together with kinds", where="--nodes", do="leave out --gpus")
    return read_nodes(text, valid=VALID)


def _totals(nodes: Sequence[Node]) -> dict[str, int]:
    """Return the number of GPUs of each kind."""
    totals: Counter[str] = Counter()
    for node in nodes:
        totals[node.kind] += node.gpus
    return dict(totals)


def _first_division(name: str, jobs: Sequence[Job], nodes: Sequence[Node]) -> Division:
    """Return what the jobs get in the first step of an engine under a policy."""
    policy, answers = find_policy(name), [Target()]

    def ask(now: Snapshot) -> Target:
        answers.append(policy(now))
        return answers[-1]

    engine = Engine(ask)
    engine.step(0.0, [*map(NodeJoined, nodes), *map(Submitted, jobs)])
    if engine.refusal:
        raise HpcextError(f"it {engine.refusal}", where=f"policy {name}")
    goals = {job.name: engine.world.jobs[job.id].goal or {} for job in jobs}
    gpus = {job: total(goal) for job, goal in goals.items()}
    kind = {node.name: node.kind for node in nodes}
    on = {job: kind[next(iter(goal))] for job, goal in goals.items() if goal}
    value = sum(_speeds(job, on.get(job.name, "")).get(gpus[job.name], 0.0) for job in jobs)
    several = on if len(_totals(nodes)) > 1 else {}
    return Division(name, gpus, value, answers[-1].value, answers[-1].bound, several)


def _best(jobs: Sequence[Job], nodes: Sequence[Node]) -> Division:
    """Return the best division to begin with, if all GPUs of a kind were on one node."""
    totals = _totals(nodes)
    ready = [job for job in jobs if not job.after and _speeds(job, nodes[0].kind)]
    tables = [{kind: _table(_speeds(job, kind)) for kind in totals} for job in ready]
    division = share(tables, totals)
    given = {job.name: each for job, each in zip(ready, division.choices, strict=True)}
    kinds = {job: kind for job, (kind, count) in given.items() if count and len(totals) > 1}
    counts = {job: count for job, (_, count) in given.items()}
    bound = division.bound if kinds else None
    return Division(OPTIMUM, counts, division.value, bound=bound, kinds=kinds)


def _table(speeds: Mapping[int, float]) -> ValueTable:
    return ValueTable(np.array([0, *speeds]), np.array([0.0, *speeds.values()]))


def _speeds(job: Job, kind: str) -> dict[int, float]:
    """Return a job's speed by its number of GPUs of a kind; empty if it is unknown.

    The speed on one GPU is 1. If a curve does not state it, the speed on the fewest GPUs counts as
    the number of these.
    """
    fewest, most = job.nodes or ONE_NODE
    sizes = sorted({size * nodes for nodes in range(fewest, most + 1) for size in job.sizes})
    known = speedups(job.estimate, GpuCounts.on_one_node(np.array(sizes)), kind)
    return {} if known is None else dict(zip(sizes, known.tolist(), strict=True))


def _show(out: Output, jobs: Sequence[Job], found: Sequence[Division]) -> None:
    rows = [(job.name, *(_cell(each, job.name) for each in found)) for job in jobs]
    rows.append(("GPUs in all", *(str(sum(each.gpus.values())) for each in found)))
    rows.append(("total speed", *(f"{each.value:.2f}" for each in found)))
    scored = any(each.objective is not None for each in found)
    if scored:
        rows.append(("score", *(_figure(each.objective) for each in found)))
        rows.append(("best score", *(_figure(each.bound) for each in found)))
    out.table(("job", *(each.policy for each in found)), rows)
    out.line(SPEED)
    if scored:
        out.line(SCORE)


def _cell(division: Division, job: str) -> str:
    return f"{division.gpus.get(job) or ''} {division.kinds.get(job, '')}".strip()


def _figure(number: float | None) -> str:
    return "" if number is None else f"{number:.6g}"
