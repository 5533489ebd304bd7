"""``hpcext simulate``: run jobs under policies on a virtual clock."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from hpcext.broker.simulated.task import UsersTask
from hpcext.cli.output import Output
from hpcext.cli.simulate.runs import Runs
from hpcext.cli.simulate.tasks import tasks_of
from hpcext.cli.simulate.view import show
from hpcext.core.band import NONE
from hpcext.extras import need
from hpcext.numerals import whole
from hpcext.sim.evaluate.comparison import Watts, compared
from hpcext.sim.evaluate.outcome import SimulatedRun
from hpcext.sim.evaluate.store import Key, RunStore, digest
from hpcext.sim.evaluate.users import of_users
from hpcext.sim.replay.mainqueue import BACKFILLS
from hpcext.sim.replay.tasks import Task
from hpcext.sim.report import files
from hpcext.sim.report.page import About
from hpcext.text import shown

ORACLE = (
    "With an oracle: policies are told the true speeds of jobs and how much work they have, "
    "which nobody knows for real jobs."
)
KNOWN = (
    "With known ends: policies are told when each idle node will leave. For a real machine at "
    "most the plans of its main queue are known."
)
AUTOSCALED = (
    "Nodes are held only as far as the jobs' speeds, as policies know them, make them worth it; "
    "what is offered is what was held. Nobody waits for a node."
)
USERS = (
    "Each user has one harvester, which asks for as many nodes as the user's trainers can use "
    "together, uses the policy of the run, and gives back at once what goes to another user. In "
    "equal parts weights, priorities, limits and reservations do not count, and as one user there "
    "is no division at all."
)
UNASKED = (
    "Slurm is not asked: nobody's fair share differs from another's, and accounts have no members."
)
MEASURED = (
    "Trainings are measured ones. Unless the workload says adapt, they choose their batch size "
    "under pollux, as its agent does. Under exclusive, fixed, easy, conservative, marble and "
    "tiresias they have the GPUs and the batch that their user asked for, under the other policies "
    "that batch. A start takes 30 s, and each reports every 30 s."
)


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "simulate",
        help="run jobs under policies on a virtual clock",
        description="Run jobs on a virtual clock, with the same decision code as a real run.",
        epilog="example: hpcext simulate jobs.toml --nodes 4x4 --compare --report out",
    )
    parser.add_argument(
        "workload",
        metavar="WORKLOAD",
        nargs="+",
        help="a job file, a recorded pilot (.json), a log (.swf, .swf.gz), trainers or measured "
        "trainings (.csv), or made-up jobs: philly, capes:CONTENTION, marble:SET, "
        "poisson:jobs=N,mean_s=S; with --users also several, each as USER=WORKLOAD",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--nodes", help="the machine: 16x4 is 16 nodes of 4 GPUs; of two kinds: 2xa100:4,4xv100:8"
    )
    where.add_argument(
        "--idle",
        help="run on idle nodes: those of a trace (.csv, .csv.gz), or made up: summit:hours=48",
    )
    where.add_argument(
        "--main", help="run on the nodes that the jobs of this log (.swf) leave idle"
    )
    parser.add_argument(
        "--main-nodes", type=_count, help="number of nodes of the machine of --main"
    )
    parser.add_argument(
        "--main-backfill",
        choices=BACKFILLS,
        metavar="NAME",
        help="how the main queue backfills: it reserves for the first waiting job, or for each "
        "(default: easy)",
    )
    parser.add_argument(
        "--per-node",
        type=_count,
        default=1,
        help="processors of each node in .swf logs (default: 1)",
    )
    parser.add_argument("--gpus-per-node", type=_count, help="GPUs of each idle node (default: 1)")
    parser.add_argument(
        "--skip",
        type=_natural,
        help="skip this many changes at the beginning of the trace",
    )
    parser.add_argument(
        "--policy",
        action="append",
        help="see hpcext-policies(7); several are compared (default: that of the settings)",
    )
    parser.add_argument(
        "--compare",
        action="store_true",
        help="compare the usual policies, marble and exclusive among them",
    )
    parser.add_argument(
        "--users",
        type=Path,
        metavar="FILE",
        help="divide nodes among users by the settings of a broker, see hpcext-broker(8)",
    )
    parser.add_argument(
        "--date",
        metavar="TIME",
        help="local time at which the simulation begins, as 2026-12-01T08:00, for reservations",
    )
    parser.add_argument(
        "--seed",
        type=_natural,
        action="append",
        help="seed of what is drawn at random; results of several are averaged (default: 0)",
    )
    parser.add_argument("--hours", type=_positive, help="end after this many simulated hours")
    parser.add_argument(
        "--learn",
        action="store_true",
        help="have policies learn speeds from reports, as if jobs stated none",
    )
    parser.add_argument(
        "--oracle",
        action="store_true",
        help="tell policies the true speeds and work of jobs, which nobody knows",
    )
    parser.add_argument(
        "--known-ends",
        action="store_true",
        help="tell policies when idle nodes leave, which nobody knows",
    )
    parser.add_argument(
        "--autoscale",
        default=NONE,
        metavar="LOW:HIGH",
        help="choose the number of nodes so that the utility of jobs stays within this band",
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="directory with the measurements of measured trainings",
    )
    parser.add_argument("--launch-s", type=_number, help="seconds that each start of a job takes")
    parser.add_argument(
        "--checkpoint-s", type=_number, help="seconds between checkpoints; 0: after each step"
    )
    parser.add_argument(
        "--interference",
        type=_share,
        help="share of its speed that a job on several nodes loses beside another such job",
    )
    parser.add_argument(
        "--rescale-cost",
        type=_number,
        default=1.0,
        help="factor for the costs of changes of size (default: 1)",
    )
    parser.add_argument(
        "--fail-s", type=_positive, help="make jobs fail: mean seconds of training between failures"
    )
    parser.add_argument(
        "--report",
        type=Path,
        metavar="DIR",
        help="write a page with plots, and its data, into this directory",
    )
    parser.add_argument(
        "--workers",
        type=_count,
        help="number of simulations to run at once (default: one for each processor)",
    )
    parser.add_argument(
        "--watts",
        type=_watts,
        metavar="BUSY:IDLE",
        help="power of a GPU that trains and of an idle one, to estimate the energy",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, out: Output) -> int:
    """Run the simulations that the command line states; return 1 if some job did not complete."""
    if args.report:
        need("matplotlib", "--report")
    tasks = tasks_of(args, out)
    store = RunStore(args.report) if args.report else None
    try:
        runs = _run_all(tasks, store, args.workers, out)
    except KeyboardInterrupt:
        if store:
            out.note(
                f"the completed runs are in {store.folder}; the same command continues with "
                "the others"
            )
        raise
    rows, users = compared(runs, args.watts), of_users(runs)
    about = About(watts=args.watts, assumed=_assumptions(tasks[0]), users=users)
    if store:
        page = files.write(store.folder, runs, about)
        out.note(f"the report is {page}")
    if args.json:
        out.document(files.summary(rows, about))
    else:
        show(out, rows, users)
        _note_incomplete(runs, out)
    return 0 if all(job.state == "completed" for run_ in runs for job in run_.jobs) else 1


def _run_all(
    tasks: Sequence[Task], store: RunStore | None, workers: int | None, out: Output
) -> list[SimulatedRun]:
    """Return the runs in the order of the tasks; those that the store has are not run again."""
    keys = [_key(task) for task in tasks] if store else []
    runs: dict[int, SimulatedRun] = {}
    for number, key in enumerate(keys):
        if store and (found := store.load(key)):
            runs[number] = found
    kept = len(runs)
    if kept:
        out.note(f"{kept} of {len(tasks)} runs already exist")
    left = [number for number in range(len(tasks)) if number not in runs]
    coming = Runs(tasks, left)
    with out.progress(len(left), coming.within) as tell:
        for number, run_, wall_s in coming.each(workers):
            runs[number] = run_
            if store:
                store.save(keys[number], run_, wall_s)
            task = tasks[number]
            tell(f"{task.label}, seed {task.seed}: {wall_s:.1f} s")
    return [runs[number] for number in range(len(tasks))]


def _key(task: Task) -> Key:
    """Return the key of a run: its options, and digests of the files that they name."""
    source = task.place.find()
    workload = task.jobs(source)
    return Key(
        task.label,
        workload.text,
        source.text,
        task.policy,
        task.seed,
        "".join(map(digest, workload.files)),
        "".join(map(digest, source.files)),
        task.options,
    )


def _assumptions(task: Task) -> tuple[str, ...]:
    """Return the assumptions of a simulation that a reader should know."""
    said = ["Policies know what a job states and what it has reported, as on a real machine."]
    if task.learn:
        said = ["Policies are not told the speeds that jobs state; they learn them from reports."]
    if task.oracle:
        said = [ORACLE]
    if task.place.known:
        said.append(KNOWN)
    if task.autoscale is not None:
        said.append(AUTOSCALED)
    if isinstance(task, UsersTask):
        said.append(USERS)
        if task.settings().asks:
            said.append(UNASKED)
    if task.jobs(task.place.find()).measured:
        said.append(MEASURED)
    if task.place.harvest:
        said.append(
            "Nodes leave at the times of the trace, without notice, so no job of the main queue "
            "is delayed. The time that a real lease needs to end is not simulated. Policies are "
            "told what the main queue has planned on idle nodes, where that is known. The nodes "
            "that are idle after the last change of the trace stay."
        )
    return tuple(said)


def _note_incomplete(runs: Sequence[SimulatedRun], out: Output) -> None:
    """Print how many jobs did not complete, for each run with such jobs."""
    for run_ in runs:
        left = sum(job.state != "completed" for job in run_.jobs)
        if left:
            of = len(run_.jobs)
            out.note(f"{run_.label}, seed {run_.seed}: {left} of {of} jobs did not complete")


def _bounded(least: float, most: float, valid: str) -> Callable[[str], float]:
    """Return a parser of numbers within limits, for argparse."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{shown(text)}: {valid}")
        return value

    return read


_number = _bounded(0.0, 1e9, "a number from 0 on")
_positive = _bounded(1e-9, 1e9, "a number above 0")
_share = _bounded(0.0, 0.99, "a share from 0 to 0.99")


def _natural(text: str) -> int:
    number = whole(text, 9)
    if number is None:
        raise argparse.ArgumentTypeError(f"{shown(text)}: a whole number from 0 on")
    return number


def _count(text: str) -> int:
    number = _natural(text)
    if not number:
        raise argparse.ArgumentTypeError(f"{shown(text)}: a whole number from 1 on")
    return number


def _watts(text: str) -> Watts:
    busy, between, idle = text.partition(":")
    if not between:
        raise argparse.ArgumentTypeError(f"{shown(text)}: two numbers, as 400:60")
    return Watts(_number(busy), _number(idle))
