"""How long main jobs of an LSF wait for hosts that a harvester has, and how long without one.

``python benchmarks/lsf_waits.py [--jobs 12] [--seed 1]``: the LSF of the tests (tests/fakes/lsf),
as an engine of its line was recorded, with three hosts and a queue for leases (docs/lsf.md).
The same main jobs of one to three whole hosts are submitted at the same instants twice, without and
with a harvester whose trainers would use all hosts for ever. They are sleeps; each writes down when
it began, and how long it waited is from the instant at which its bsub was called.

The engine's hosts are this machine; its daemons look a hundred times a second, and start a job as
soon as there is room. On a real one each of that takes some seconds, in either case.
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), *(str(ROOT / "tests" / name) for name in (".", "lsf", "fakes/lsf"))]

import lsf_tools  # noqa: E402  (its place is said above)
from lsf_site import RECORDED, Host, Queue  # noqa: E402
from lsf_site import Site as Lsf  # noqa: E402
from site_of_test import Site  # noqa: E402

HOSTS = tuple(Host(name, 4, 2) for name in ("h1", "h2", "h3"))
QUEUES = {
    "normal": Queue(priority=40, preemptive=True),
    "killable": Queue(
        priority=10,
        preemption="PREEMPTABLE[normal]",
        job_controls={"SUSPEND": "SIGTSTP"},
        rerunnable=True,
        run_limit=240,
    ),
}
KNOWN_S = 5.0
"""So old is a job whose processes the engine knows; a real one takes half a minute."""


class MainJob(NamedTuple):
    """A job of the site: seconds after the first one, hosts, seconds that it takes."""

    after_s: float
    hosts: int
    takes_s: int


def workload(jobs: int, seed: int) -> list[MainJob]:
    """Some jobs that use about half of the hosts."""
    rng = random.Random(seed)
    found, at_s = [], 0.0
    for _ in range(jobs):
        hosts, takes_s = rng.choice([1, 1, 2, 3]), rng.choice([5, 10, 20])
        found.append(MainJob(at_s, hosts, takes_s))
        at_s += rng.expovariate(1 / (hosts * takes_s / (0.5 * len(HOSTS))))
    return found


def play(lsf: Lsf, jobs: list[MainJob], place: Path) -> list[float]:
    """Submit jobs at their instants; how long each waited."""
    place.mkdir()
    began_s, submitted = time.monotonic(), []
    for number, job in enumerate(jobs):
        time.sleep(max(0.0, began_s + job.after_s - time.monotonic()))
        text = f"date +%s.%N >{shlex.quote(str(place / str(number)))}; sleep {job.takes_s}"
        shape = ("-n", str(4 * job.hosts), "-R", "span[ptile=4]", "-gpu", "num=2/host")
        submitted.append(time.time())
        said = lsf_tools.command(lsf, "bsub", "-q", "normal", *shape, text)
        assert said.returncode == 0, said
    while any(job.queue == "normal" and not job.over() for job in lsf.jobs()):
        time.sleep(0.5)
    starts = [float((place / str(number)).read_text()) for number in range(len(jobs))]
    return [max(0.0, start - at) for start, at in zip(starts, submitted, strict=True)]


def harvest(site: Site) -> subprocess.Popen[str]:
    """Start a harvester whose trainers go on until it is told to end, and have all hosts."""
    one = {"gpus": 2, "nodes": {"min": 1, "max": 1}}
    names = [f"t{number}" for number in range(2 * len(HOSTS))]
    site.write_jobs(*(site.counter(name, steps=10**7, step_s=0.2, **one) for name in names))
    return site.start(
        "harvest", "start", str(site.jobs), "--partition", "killable", "--interval", "1",
        "--idle", "10", "--dir", str(site.pilot),
    )  # fmt: skip


def of_trainers(site: Site) -> tuple[int, int]:
    """Steps that trainers did, and how many of these twice; by their own accounts."""
    every = [site.steps(f"t{number}") for number in range(2 * len(HOSTS))]
    twice = [len(steps) - len({step.step for step in steps}) for steps in every]
    return sum(map(len, every)), sum(twice)


def said(label: str, waits: list[float]) -> str:
    """A line of the table."""
    median, most = statistics.median(waits), max(waits)
    return (
        f"{label}: {len(waits)} main jobs waited {median:.1f} s in the median, {most:.1f} at most"
    )


def main() -> int:
    """Play the jobs twice."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    jobs = workload(args.jobs, args.seed)
    with tempfile.TemporaryDirectory(prefix="hpcext-lsf-waits-") as name:
        top = Path(name)
        lsf = lsf_tools.make_site(top / "lsf", RECORDED, hosts=HOSTS, queues=QUEUES, pim_s=KNOWN_S)
        environ = {key: each for key, each in os.environ.items() if "SLURM" not in key}
        environ |= {"LSF_ENVDIR": str(lsf.directory), "HPCEXT_BATCH": "lsf"}
        environ |= {"PATH": f"{lsf.directory}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        site = Site(top, environ=environ)
        try:
            sys.stdout.write(f"{said('without a harvester', play(lsf, jobs, top / 'without'))}\n")
            sys.stdout.flush()
            process = harvest(site)
            while sum(job.queue == "killable" and job.state == "RUN" for job in lsf.jobs()) < 3:
                time.sleep(0.5)
            time.sleep(2 * KNOWN_S)
            sys.stdout.write(f"{said('with a harvester', play(lsf, jobs, top / 'with'))}\n")
            leases = sum(job.queue == "killable" for job in lsf.jobs())
            steps, twice = of_trainers(site)
            sys.stdout.write(f"{leases} leases, {steps} steps of trainers, {twice} done twice\n")
            process.kill()
            process.wait()
        finally:
            lsf_tools.end_all([lsf.directory])
            for left in site.left_behind():
                left.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main())
