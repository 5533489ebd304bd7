"""What a harvester costs the main queue, and how much of its holes it uses: on a real Slurm.

``sudo python benchmarks/harvest.py [--jobs 40] [--scale 1.0] [--seed 1]``: a Slurm of four
nodes on this machine (tests/system), on which the same jobs of several sizes are submitted at the
same instants twice, without and with a harvester. Jobs are sleeps, so nothing but scheduling is
compared; all figures are from Slurm's own accounting.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "system")]

from slurm_cluster import NODES, Cluster, cluster  # noqa: E402  (its place is said above)

COUNTER = ROOT / "tests" / "faults" / "counter.py"
FORMAT = "%Y-%m-%dT%H:%M:%S"


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


def trainers(one: Cluster, path: Path) -> Path:
    """A job file: four trainings that do not end."""
    text = ""
    for number in range(len(NODES)):
        command = [str(one.python), str(COUNTER), "1000000", "0.2", "10"]
        text += (
            f'[[job]]\nname = "t{number}"\ncommand = {command}\nnodes = {{min = 1, max = 1}}\n'
            f'gpus = 6\nenv = {{COUNTER_LOG = "{path}/t{number}.steps"}}\n'
        )
    file = path / "trainers.toml"
    file.write_text(text.replace("'", '"'))
    return file


def main() -> None:
    """Both runs, and what came of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--interval", default="3")
    args = parser.parse_args()
    jobs = workload(args.jobs, args.scale, args.seed)
    with cluster() as one:
        replay(one, jobs, "without")
        path = one.home / "run"
        one.as_user("mkdir", str(path))
        file = trainers(one, path)
        harvester = subprocess.Popen(
            [str(one.python), "-m", "hpcext", "harvest", "start", str(file), "--partition",
             "harvest", "--interval", args.interval, "--least", "60", "--dir", str(path / "h")],
            env=one.user_environ(), user=one.user, group=one.user, extra_groups=[],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        time.sleep(30)
        replay(one, jobs, "with")
        harvester.terminate()
        harvester.wait(120)
        ran = accounting(one)
        steps = sum(len(each.read_text().splitlines()) for each in path.glob("*.steps"))
    report(ran, steps)


def report(ran: Sequence[Ran], steps: int) -> None:
    """How much later jobs began, and how much of the idle time was used."""
    without, with_ = of_run(ran, "without"), of_run(ran, "with")
    leases = [job for job in ran if job.partition == "harvest"]
    zero, other = without[0].submit_s, with_[0].submit_s
    later = [(b.start_s - other) - (a.start_s - zero) for a, b in zip(without, with_, strict=True)]
    waits_s = [
        statistics.mean(job.start_s - job.submit_s for job in each) for each in (without, with_)
    ]
    span_s = max(job.end_s for job in without) - zero
    idle_s = len(NODES) * span_s - busy_s(without, zero, zero + span_s)
    taken_s = busy_s(leases, other, other + span_s)
    line = sys.stdout.write
    line(f"jobs {len(without)}, {span_s:.0f} s, idle {idle_s / len(NODES) / span_s:.0%}\n")
    line(f"waits, mean: without {waits_s[0]:.1f} s, with {waits_s[1]:.1f} s\n")
    cut = statistics.quantiles(later, n=20)
    line(
        f"began later by, s: least {min(later):.0f}, 5 % {cut[0]:.0f}, median "
        f"{statistics.median(later):.0f}, 95 % {cut[-1]:.0f}, most {max(later):.0f}\n"
    )
    line(f"idle node-time held by leases: {taken_s / idle_s:.0%} of {idle_s:.0f} node-s\n")
    line(f"leases {len(leases)}; steps of trainers {steps}: {0.2 * steps / idle_s:.0%} of it\n")


if __name__ == "__main__":
    main()
