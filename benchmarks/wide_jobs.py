"""How long a main job of several nodes waits for the leases that are preempted for it.

``sudo python benchmarks/wide_jobs.py [--jobs 8] [--users 2]``: a Slurm of four nodes on this
machine (tests/system), all of which harvesters have. Jobs of three nodes come one after the other;
half of the trainers take 7 s to save themselves, so a job's nodes are free at different times.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "system"), str(ROOT)]

from site_of_test import Site  # noqa: E402  (its place is said above)
from slurm_cluster import NODES, Cluster, cluster  # noqa: E402

SAVE_S = 7
REST_S = 12.0


def begin(place: Site) -> None:
    """Start a harvester that could use all nodes."""
    jobs = [
        place.counter(f"t{number}", gated=True, nodes={"min": 1, "max": 1}, gpus=6)
        for number in range(len(NODES))
    ]
    for job in jobs[::2]:
        job["env"]["COUNTER_SAVE_S"] = str(SAVE_S)
    place.write_jobs(*jobs)
    words = ("--partition", "harvest", "--interval", "5", "--idle", "30")
    place.start("harvest", "start", str(place.jobs), *words, "--dir", str(place.pilot))


def measure(one: Cluster, users: int) -> float:
    """Submit one job when all nodes are leased, and wait for its start; for how long."""

    def leased() -> bool:
        words = ("squeue", "-h", "-t", "RUNNING", "-p", "harvest", "-o", "%u")
        found = one.run(*words).stdout.split()
        return len(found) == len(NODES) and len(set(found)) == users

    one.wait_for(leased, "leases of all nodes", 300)
    time.sleep(REST_S)
    words = ("--exclusive", "--mem=100", "--output=/dev/null", "--time=5", "--nodes=3")
    began = time.monotonic()
    job = one.run("sbatch", "--parsable", *words, "--wrap=sleep 6").stdout.strip()
    one.wait_for(lambda: one.job(job)["JobState"] != "PENDING", "its start", 300)
    return round(time.monotonic() - began, 1)


def main() -> int:
    """Measure, and print one document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--users", type=int, choices=(1, 2), default=2)
    args = parser.parse_args()
    with cluster() as one:
        mine, other = one.home / "mine", one.root / "other"
        one.as_user("mkdir", str(mine))
        other.mkdir()
        root = one.user_environ(HOME=str(one.root), USER="root", LOGNAME="root")
        python = str(one.python)
        places = [
            Site(mine, python=python, environ=one.user_environ(), user=one.user),
            Site(other, python=python, environ=root),
        ][: args.users]
        for place in places:
            begin(place)
        waited = [measure(one, args.users) for _ in range(args.jobs)]
        for place in places:
            for process in place.started:
                process.kill()
    sys.stdout.write(json.dumps({"users": args.users, "waited_s": waited}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
