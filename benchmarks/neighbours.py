"""How equally two users' harvesters divide the idle nodes, and what stays idle.

``sudo python benchmarks/neighbours.py [--minutes 5] [--main]``: a Slurm of four nodes on this
machine (tests/system). The first harvester has taken all nodes when the second one, of another
user, begins; a minute later it is counted who has how many, twice a second by squeue. With
``--main`` jobs of the site come and go meanwhile, the same ones each time (``--seed``). Trainers
only count, and do not end.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "system"), str(ROOT)]

from site_of_test import Site  # noqa: E402  (its place is said above)
from slurm_cluster import NODES, Cluster, cluster  # noqa: E402

SETTLE_S = 60.0
LOOK_S = 0.5


def begin(one: Cluster, place: Site) -> None:
    """Start a harvester that could use all nodes."""
    jobs = [
        place.counter(f"t{number}", steps=10**7, nodes={"min": 1, "max": 1}, gpus=6)
        for number in range(len(NODES))
    ]
    place.write_jobs(*jobs)
    words = ("--partition", "harvest", "--dir", str(place.pilot), "--idle", "30")
    place.start("harvest", "start", str(place.jobs), *words)


def main_jobs(one: Cluster, rng: random.Random, until: float, now: float) -> float:
    """Submit a job of the site's; when the next one is due."""
    words = ["--exclusive", "--mem=100", "--output=/dev/null", "--time=2"]
    nodes, takes_s = rng.choice((1, 1, 2)), rng.randint(15, 45)
    if now < until:
        one.run("sbatch", *words, f"--nodes={nodes}", f"--wrap=sleep {takes_s}")
    return now + rng.expovariate(1 / 30.0)


def measure(one: Cluster, minutes: float, rng: random.Random | None) -> dict[str, float]:
    """Node-seconds of each user, of main jobs, and of nobody."""
    spent: Counter[str] = Counter()
    began = last = due = time.monotonic()
    until = began + 60 * minutes
    while last < until:
        if rng is not None and last >= due:
            due = main_jobs(one, rng, until, last)
        said = one.run("squeue", "-h", "-t", "RUNNING,COMPLETING", "-o", "%u|%P|%D").stdout
        now = time.monotonic()
        left = len(NODES)
        for line in said.split():
            user, partition, nodes = line.split("|")
            spent[user if partition == "harvest" else "main jobs"] += int(nodes) * (now - last)
            left -= int(nodes)
        spent["nobody"] += max(0, left) * (now - last)
        last = now
        time.sleep(LOOK_S)
    return {key: round(value, 1) for key, value in spent.items()}


def main() -> int:
    """Measure, and print one document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--main", action="store_true", help="jobs of the site come and go")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with cluster() as one:
        mine, other = one.home / "mine", one.root / "other"
        one.as_user("mkdir", str(mine))
        other.mkdir()
        root = one.user_environ(HOME=str(one.root), USER="root", LOGNAME="root")
        python = str(one.python)
        first = Site(mine, python=python, environ=one.user_environ(), user=one.user)
        second = Site(other, python=python, environ=root)
        begin(one, first)
        leases = ("squeue", "-h", "-t", "RUNNING", "-p", "harvest")
        one.wait_for(lambda: len(one.run(*leases).stdout.splitlines()) == len(NODES), "all nodes")
        begin(one, second)
        time.sleep(SETTLE_S)
        spent = measure(one, args.minutes, random.Random(args.seed) if args.main else None)
        for place in (first, second):
            for process in place.started:
                process.kill()
    a, b = spent.get(one.user, 0.0), spent.get("root", 0.0)
    equal = (a + b) / 2
    document = {
        "minutes": args.minutes,
        "main": args.main,
        "node_s": {
            "first": a,
            "second": b,
            **{k: spent[k] for k in ("main jobs", "nobody") if k in spent},
        },
        "off_equal": round(abs(a - equal) / equal, 3) if equal else None,
    }
    sys.stdout.write(json.dumps(document) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
