"""How equally two users' harvesters divide the idle nodes, and what stays idle.

``sudo python benchmarks/neighbours.py [--minutes 5] [--main]``: a Slurm of four nodes on this
machine (tests/system). The first harvester has taken all nodes when the second one, of another
user, begins; a minute later it is counted who has how many, twice a second by squeue, and what a
node waits for that nobody has. With ``--main`` jobs of the site come and go meanwhile, the same
ones each time (``--seed``). Trainers only count, and do not end.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "system"), str(ROOT)]

from site_of_test import Site  # noqa: E402  (its place is said above)
from slurm_cluster import NODES, Cluster, cluster  # noqa: E402

from hpcext.manager.views.harvest_report import PARTS  # noqa: E402

SETTLE_S = 60.0
LOOK_S = 0.5
SEEN_S = 25.0
"""A node is asked for at the second look, which comes 20 s after it is free at the latest."""


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


class Queue(NamedTuple):
    """What squeue shows at one instant.

    Attributes
    ----------
    has : dict of str to str
        Node → whose it is.
    asked : frozenset of str
        Nodes for which a lease waits.
    claims : int
        Leases that wait for any node.
    due : bool
        A main job waits for nodes.
    """

    has: dict[str, str]
    asked: frozenset[str]
    claims: int
    due: bool


def look(one: Cluster) -> Queue:
    """Ask once."""
    words = ("squeue", "-h", "-t", "PENDING,RUNNING,COMPLETING", "-o", "%T|%P|%u|%N|%n|%r")
    has, asked, claims, due = {}, set(), 0, False
    for line in one.run(*words).stdout.splitlines():
        said, partition, user, nodes, node, why = line.split("|")
        lease = partition == "harvest"
        if said != "PENDING":
            names = one.run("scontrol", "show", "hostnames", nodes).stdout.split()
            has.update(dict.fromkeys(names, user if lease else "main jobs"))
        elif lease and node:
            asked.add(node)
        elif lease:
            claims += 1
        else:
            due |= why in {"None", "Resources", "Priority"}
    return Queue(has, frozenset(asked), claims, due)


def why_free(queue: Queue, node: str, free_s: float) -> str:
    """What keeps a node from being anybody's."""
    if queue.due:
        return "a main job is about to begin"
    if node in queue.asked or queue.claims:
        return "Slurm begins a lease"
    return "not asked for yet" if free_s < SEEN_S else "not asked for"


def waited(one: Cluster) -> dict[str, float]:
    """How long main jobs waited to begin."""
    words = ("squeue", "-h", "-t", "RUNNING,COMPLETING,COMPLETED", "-p", "batch", "-o", "%V|%S")
    said = one.run(*words, SLURM_TIME_FORMAT="%s").stdout.split()
    found = sorted(int(begin) - int(asked) for asked, begin in (line.split("|") for line in said))
    if not found:
        return {}
    return {"jobs": len(found), "median_s": found[len(found) // 2], "most_s": found[-1]}


def measure(
    one: Cluster, minutes: float, rng: random.Random | None
) -> tuple[dict[str, float], dict[str, float]]:
    """Node-seconds of each user, of main jobs, and of nobody; the last by what it waited for."""
    spent: Counter[str] = Counter()
    nobody: Counter[str] = Counter()
    began = last = due = time.monotonic()
    free_since: dict[str, float] = {}
    until = began + 60 * minutes
    while last < until:
        if rng is not None and last >= due:
            due = main_jobs(one, rng, until, last)
        queue = look(one)
        now = time.monotonic()
        for node in NODES:
            who = queue.has.get(node)
            spent[who or "nobody"] += now - last
            if who is not None:
                free_since.pop(node, None)
                continue
            since = free_since.setdefault(node, now)
            nobody[why_free(queue, node, now - since)] += now - last
        last = now
        time.sleep(LOOK_S)
    return (
        {key: round(value, 1) for key, value in spent.items()},
        {key: round(value, 1) for key, value in nobody.items()},
    )


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
        spent, nobody = measure(one, args.minutes, random.Random(args.seed) if args.main else None)
        main_waited = waited(one)
        leased: Counter[str] = Counter()
        for place in (first, second):
            said = place.document("harvest", "report", str(place.pilot))
            leased.update({part: 3600 * said[f"{part}_node_h"] for part in PARTS})
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
        "nobody_node_s": nobody,
        "main_jobs_waited": main_waited,
        # Since they began, as hpcext harvest report counts it.
        "leases_node_s": {part: round(value, 1) for part, value in leased.items()},
        "off_equal": round(abs(a - equal) / equal, 3) if equal else None,
    }
    sys.stdout.write(json.dumps(document) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
