"""What a harvester costs the main queue, how much of its holes it uses, what its trainers learn.

``sudo python benchmarks/harvest.py [--jobs 40] [--scale 1.0] [--seed 1] [--trainers torch]``: a
Slurm of four nodes on this machine (tests/system), on which the same jobs of several sizes are
submitted at the same instants twice, without and with a harvester. Main jobs are sleeps, so nothing
but scheduling is compared. Trainers are small trainings in PyTorch (harvest_train.py), as many as
all idle nodes could train; those that ended are then trained once more, undisturbed, and their
accuracies compared. With ``--trainers counter`` they are counting jobs that do not end.

All figures are from Slurm's own accounting and the trainers' own logs, none from the harvester.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "system")]

from harvest_train import BATCH, EPOCHS, TRAINED  # noqa: E402  (beside this file)
from slurm_cluster import NODES, Cluster, cluster  # noqa: E402  (its place is said above)

COUNTER = ROOT / "tests" / "faults" / "counter.py"
TRAIN = ROOT / "benchmarks" / "harvest_train.py"
PACE_S = 0.004
LAUNCHERS = {
    "torchrun": (
        "-m", "torch.distributed.run", "--nnodes={nodes}", "--nproc-per-node={gpus}",
        "--rdzv-backend=c10d", "--rdzv-endpoint={rendezvous}",
    ),
    "hpcext": ("-m", "hpcext", "launch"),
}  # fmt: skip
FORMAT = "%Y-%m-%dT%H:%M:%S"
LATE_S = 12.0
"""GraceTime of the cluster, and a cycle of its backfill."""


class MainJob(NamedTuple):
    """A job of the site: seconds after the first one, nodes, seconds that it takes."""

    after_s: float
    nodes: int
    takes_s: int


class Ran(NamedTuple):
    """What accounting says of a job, epoch seconds."""

    name: str
    partition: str
    submit_s: float
    start_s: float
    end_s: float
    nodes: int


def workload(jobs: int, scale: float, seed: int) -> list[MainJob]:
    """Some jobs that use about three fifths of the machine."""
    rng = random.Random(seed)
    found, at_s = [], 0.0
    for _ in range(jobs):
        nodes = rng.choice([1, 1, 1, 2, 2, 3, 4])
        takes_s = max(2, round(scale * rng.choice([5, 10, 20, 40, 80])))
        found.append(MainJob(at_s, nodes, takes_s))
        at_s += rng.expovariate(1 / (nodes * takes_s / (0.6 * len(NODES))))
    return found


def replay(one: Cluster, jobs: Sequence[MainJob], label: str) -> None:
    """Submit jobs at their instants, and wait until all are over."""
    began_s = time.monotonic()
    for number, job in enumerate(jobs):
        time.sleep(max(0.0, began_s + job.after_s - time.monotonic()))
        minutes = job.takes_s // 60 + 1
        said = one.run(
            "sbatch", f"--job-name={label}-{number}", f"--nodes={job.nodes}", "--exclusive",
            "--mem=100", f"--time={minutes}", "--output=/dev/null", f"--wrap=sleep {job.takes_s}",
        )  # fmt: skip
        assert said.returncode == 0, said
    one.wait_for(lambda: not one.run("squeue", "-h", "-p", "batch").stdout, "all jobs", 3600)


def accounting(one: Cluster) -> list[Ran]:
    """All jobs that have run."""
    one.run("sacct", "-n")
    time.sleep(5)
    columns = "jobname%40,partition,submit,start,end,nnodes"
    said = one.run("sacct", "-a", "-X", "-n", "-P", "-S", "now-1days", f"--format={columns}").stdout
    found = []
    for line in said.splitlines():
        name, partition, *instants, nodes = line.split("|")
        if instants[1] in {"None", "Unknown"}:
            continue
        submit_s, start_s, end_s = (
            time.time() if each == "Unknown" else time.mktime(time.strptime(each, FORMAT))
            for each in instants
        )
        found.append(Ran(name, partition, submit_s, start_s, end_s, int(nodes)))
    return found


def of_run(ran: Sequence[Ran], label: str) -> list[Ran]:
    """The main jobs of one run, in order."""
    mine = [job for job in ran if job.name.startswith(f"{label}-")]
    return sorted(mine, key=lambda job: int(job.name.partition("-")[2]))


def busy_s(jobs: Sequence[Ran], begin_s: float, end_s: float) -> float:
    """Node-seconds of jobs within some time."""
    return sum(
        job.nodes * max(0.0, min(job.end_s, end_s) - max(job.start_s, begin_s)) for job in jobs
    )


class Step(NamedTuple):
    """A step of a trainer, by its own log; epoch seconds. Step 0 is the begin of an attempt."""

    attempt: int
    number: int
    at_s: float
    nodes: int


class Result(NamedTuple):
    """What a training came to: accuracy on samples it was not trained on, digest of the weights."""

    accuracy: float
    weights: str


def counters(one: Cluster, path: Path) -> list[dict[str, object]]:
    """Trainings that do not end, one for each node."""
    command = [str(one.python), str(COUNTER), "1000000", "0.2", "10"]
    return [
        {
            "name": f"t{number}",
            "command": command,
            "nodes": {"min": 1, "max": 1},
            "gpus": 1,
            "env": {"COUNTER_LOG": f"{path}/{number}.steps"},
        }
        for number in range(len(NODES))
    ]


def trainings(one: Cluster, path: Path, launcher: str, idle_s: float) -> list[dict[str, object]]:
    """Trainings that could use all idle nodes together, one after the other."""
    takes_s = EPOCHS * math.ceil(TRAINED / BATCH) * BATCH * PACE_S
    start = [str(one.python), *LAUNCHERS[launcher]]
    python = [str(one.python)] if launcher == "hpcext" else []
    return [
        {
            "name": f"t{seed}",
            "command": [*start, *python, str(TRAIN), str(path), str(seed), str(PACE_S)],
            "nodes": {"min": 1, "max": 2},
            "gpus": 1,
            "scaling": {"1": 1.0, "2": 1.9},
            "env": {"OMP_NUM_THREADS": "1"},
        }
        for seed in range(math.ceil(idle_s / takes_s) + len(NODES))
    ]


def write_jobs(file: Path, jobs: Iterable[dict[str, object]]) -> Path:
    """A job file."""

    def toml(value: object) -> str:
        if isinstance(value, dict):
            return "{" + ", ".join(f"{key} = {toml(each)}" for key, each in value.items()) + "}"
        return json.dumps(value)

    lines = []
    for job in jobs:
        lines += ["[[job]]", *(f"{key} = {toml(value)}" for key, value in job.items())]
    file.write_text("\n".join(lines) + "\n")
    return file


def read_steps(path: Path) -> list[Step]:
    """The log of a trainer; the first four words of each line."""
    epoch_s = time.time() - time.monotonic()
    found = []
    for line in path.read_text().splitlines():
        attempt, number, at_s, nodes = line.split()[:4]
        # A counter says its GPUs there, and has one node.
        had = int(nodes) if nodes in {"1", "2"} else 1
        found.append(Step(int(attempt), int(number), epoch_s + float(at_s), had))
    return found


def read_result(path: Path) -> Result:
    """What a training says at its end."""
    accuracy, weights = path.read_text().split()
    return Result(float(accuracy), weights)


class Spent(NamedTuple):
    """Node-seconds of a trainer, within some time.

    From the begin of each attempt to its first step; from there to its last one; of these, in steps
    that an attempt before had done.
    """

    starting_s: float
    stepping_s: float
    again_s: float


def spent(steps: Sequence[Step], begin_s: float, end_s: float) -> Spent:
    """What became of the time that a trainer had. What follows its last step is not in it."""
    starting_s, stepping_s, again_s = 0.0, 0.0, 0.0
    done = 0
    for _, group in groupby(steps, key=lambda step: step.attempt):
        taken = list(group)
        for one, other in pairwise(taken):
            lasted_s = max(0.0, min(other.at_s, end_s) - max(one.at_s, begin_s)) * other.nodes
            if one.number == 0:
                starting_s += lasted_s
            else:
                stepping_s += lasted_s
                again_s += lasted_s * (other.number <= done)
        done = max(done, taken[-1].number)
    return Spent(starting_s, stepping_s, again_s)


def undisturbed(path: Path, seeds: Iterable[int]) -> dict[int, Result]:
    """The same trainings, each alone on this machine, from its begin to its end."""
    path.mkdir()
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    found = {}
    for seed in seeds:
        command = [sys.executable, str(TRAIN), str(path), str(seed), "0"]
        subprocess.run(command, env=environ, check=True, stdout=subprocess.DEVNULL)
        found[seed] = read_result(path / f"{seed}.result")
    return found


def main() -> None:
    """Both runs, and what came of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--interval", default="3")
    parser.add_argument("--trainers", choices=("torch", "counter"), default="torch")
    parser.add_argument("--launcher", choices=tuple(LAUNCHERS), default="hpcext")
    parser.add_argument("--max-parallel", default=str(len(NODES) - 1))
    parser.add_argument("--keep", type=Path, help="a new directory for all logs")
    args = parser.parse_args()
    jobs = workload(args.jobs, args.scale, args.seed)
    with cluster() as one:
        replay(one, jobs, "without")
        span_s, idle_s = idle(of_run(accounting(one), "without"))
        path = one.home / "run"
        one.as_user("mkdir", str(path))
        if args.trainers == "torch":
            described = trainings(one, path, args.launcher, idle_s)
            more = ["--max-parallel", args.max_parallel]
        else:
            described, more = counters(one, path), []
        file = write_jobs(path / "trainers.toml", described)
        harvester = subprocess.Popen(
            [str(one.python), "-m", "hpcext", "harvest", "start", str(file), "--partition",
             "harvest", "--gpus-per-node", "1", "--interval", args.interval, "--least", "60",
             *more, "--dir", str(path / "h")],
            env=one.user_environ(), user=one.user, group=one.user, extra_groups=[],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        time.sleep(30)
        replay(one, jobs, "with")
        harvester.terminate()
        harvester.wait(120)
        if args.keep:
            shutil.copytree(path, args.keep / "run")
            shutil.copytree(one.root / "log", args.keep / "slurm")
        report_queue(ran := accounting(one), span_s, idle_s)
        began_s = of_run(ran, "with")[0].submit_s
        logs = {int(each.stem): read_steps(each) for each in path.glob("*.steps")}
        report_use(logs.values(), began_s, span_s, idle_s)
        if args.trainers == "torch":
            results = {int(each.stem): read_result(each) for each in path.glob("*.result")}
            alone = undisturbed(one.root / "alone", sorted(results))
            report_accuracies(logs, results, alone, len(described))


def idle(without: Sequence[Ran]) -> tuple[float, float]:
    """How long a run lasted, and the node-seconds of it that no job had."""
    zero = without[0].submit_s
    span_s = max(job.end_s for job in without) - zero
    return span_s, len(NODES) * span_s - busy_s(without, zero, zero + span_s)


def report_queue(ran: Sequence[Ran], span_s: float, idle_s: float) -> None:
    """How much later jobs began, and how much of the idle time leases held."""
    without, with_ = of_run(ran, "without"), of_run(ran, "with")
    leases = [job for job in ran if job.partition == "harvest"]
    zero, other = without[0].submit_s, with_[0].submit_s
    later = [(b.start_s - other) - (a.start_s - zero) for a, b in zip(without, with_, strict=True)]
    waits_s = [
        statistics.mean(job.start_s - job.submit_s for job in each) for each in (without, with_)
    ]
    taken_s = busy_s(leases, other, other + span_s)
    line = sys.stdout.write
    line(f"jobs {len(without)}, {span_s:.0f} s, idle {idle_s / len(NODES) / span_s:.0%}\n")
    line(f"waits, mean: without {waits_s[0]:.1f} s, with {waits_s[1]:.1f} s\n")
    cut = statistics.quantiles(later, n=20)
    line(
        f"began later by, s: least {min(later):.0f}, 5 % {cut[0]:.0f}, median "
        f"{statistics.median(later):.0f}, 95 % {cut[-1]:.0f}, most {max(later):.0f}\n"
    )
    for number, seconds in enumerate(later):
        if seconds > LATE_S:
            job = with_[number]
            line(
                f"  job {number}, {job.nodes} nodes, {seconds:.0f} s: it waited "
                f"{job.start_s - job.submit_s:.0f} s, before that "
                f"{without[number].start_s - without[number].submit_s:.0f}; "
                f"began at {job.start_s - other:.0f} s\n"
            )
    line(f"idle node-time held by {len(leases)} leases: {taken_s / idle_s:.0%} of {idle_s:.0f} s\n")


def report_use(
    logs: Iterable[Sequence[Step]], began_s: float, span_s: float, idle_s: float
) -> None:
    """How much of the idle time trainers made steps in, by their own logs."""
    all_of = [Spent(0.0, 0.0, 0.0), *(spent(each, began_s, began_s + span_s) for each in logs)]
    starting, stepping, again = (sum(each) / idle_s for each in zip(*all_of, strict=True))
    sys.stdout.write(
        f"idle node-time used, from the first to the last step of each attempt: {stepping:.0%}; "
        f"of it in steps done again {again:.1%}; attempts that began, before that: {starting:.0%}\n"
    )


def report_accuracies(
    logs: dict[int, list[Step]], had: dict[int, Result], alone: dict[int, Result], count: int
) -> None:
    """What each trainer learnt, beside what it learns when nobody disturbs it."""
    line = sys.stdout.write
    line(f"trainers that ended: {len(had)} of {count}; {len(logs)} began\n")
    line("trainer restarts nodes harvested undisturbed difference weights\n")
    same: dict[str, list[bool]] = {"1": [], "2": [], "1+2": []}
    for seed in sorted(had):
        steps = logs[seed]
        nodes = "+".join(map(str, sorted({step.nodes for step in steps})))
        one, other = had[seed], alone[seed]
        same[nodes].append(one.weights == other.weights)
        line(
            f"{f't{seed}':7} {len({step.attempt for step in steps}) - 1:8} {nodes:>5} "
            f"{one.accuracy:9.4f} {other.accuracy:11.4f} {one.accuracy - other.accuracy:+10.4f} "
            f"{'same bits' if same[nodes][-1] else 'others'}\n"
        )
    if had:
        most = max(abs(had[seed].accuracy - alone[seed].accuracy) for seed in had)
        line(f"largest difference {most:.4f}\n")
    wide = [*same["2"], *same["1+2"]]
    line(
        f"comparable bit by bit: {sum(same['1'])} of {len(same['1'])} that had one node at a "
        f"time, {sum(wide)} of {len(wide)} that had two: the same samples in the same steps, but "
        "gradients added in another order, so statistically comparable\n"
    )


if __name__ == "__main__":
    main()
