"""A day of a site whose broker divides idle nodes among many users, on a real Slurm, compressed.

``sudo python benchmarks/shared_day.py [--users 50] [--nodes 96] [--minutes 60] [--attack]``: a
Slurm on this machine (tests/system) with an account of the system for each user. Every user has a
harvester with one to eight trainers and a weight from 1 to 4; some come later, some leave earlier.
Main jobs come and go, the same ones for each seed, and never ask for more nodes than there are, so
that whatever one waits is because of leases. The broker is killed again and again. With
``--attack`` two hostile accounts do what they can from half time on: they flood its socket, and
one speaks as another's harvester. With ``--alone`` one user has all trainers, without a broker.

Who had what is counted by Slurm's accounting. What users should have had follows from the nodes
that main jobs left, from weights, and from how many trainers each had then, by an arithmetic of
this file (weighted max-min fairness). What trainers lost is in their own logs. Trainers only count.

A day takes ``--minutes``, in which an interruption of thirty seconds is a large part of what a user
has; with ``--slowly`` there are fewer of them. The node time from which the broker rounds parts
otherwise (hpcext/broker/rounding.py) is compressed, too: ``--least`` node-seconds in place of 600.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "system")]

from harvest import FORMAT  # noqa: E402  (beside this file)
from site_of_test import Site  # noqa: E402  (its place is said above)
from slurm_cluster import Cluster, cluster, make_user  # noqa: E402
from test_broker import FLOOD  # noqa: E402

TRAINERS = (1, 2, 4, 6, 8)
WEIGHTS = (1, 2, 3, 4)
LEAVE_S = 12.0
"""GraceTime of the cluster, and a cycle of its backfill: a main job may begin later by that."""

NICE = "import os\nos.nice(19)\n"
"""All nodes and users of this site are on one machine: attackers are not to have its processors."""

BROKER = """
import sys
from hpcext.broker import rounding
rounding.LEAST_NODE_S = float(sys.argv.pop(1))
rounding.DUE_NODE_S = 6 * rounding.LEAST_NODE_S
rounding.MOST_NODE_S = 2 * rounding.DUE_NODE_S
from hpcext.__main__ import broker
sys.exit(broker())
"""


class User(NamedTuple):
    """An account: name, weight and trainers, and from when to when it takes part, in seconds."""

    name: str
    weight: int
    trainers: int
    from_s: float
    to_s: float


class Held(NamedTuple):
    """Nodes that a job had, epoch seconds; `user` is empty for main jobs."""

    user: str
    nodes: int
    submit_s: float
    start_s: float
    end_s: float


def users_of(prefix: str, count: int, lasts_s: float, rng: random.Random) -> list[User]:
    """Draw them: three in five are there all day."""
    found = []
    for number in range(count):
        from_s, to_s = 0.0, lasts_s
        if number % 5 == 3:
            from_s = rng.uniform(0.1, 0.3) * lasts_s
        if number % 5 == 4:
            to_s = rng.uniform(0.7, 0.9) * lasts_s
        weight, trainers = rng.choice(WEIGHTS), rng.choice(TRAINERS)
        found.append(User(f"{prefix}-{number}", weight, trainers, from_s, to_s))
    return found


def main_jobs(
    nodes: int, lasts_s: float, rng: random.Random, slowly: float = 1.0
) -> list[tuple[float, int, int]]:
    """Draw main jobs, (when, nodes, seconds), that take two fifths of all nodes on average.

    They take one to five minutes, `slowly` times as long, and there are as many times fewer. There
    is always room for the next one as long as those before it begin within `LEAVE_S`.
    """
    found: list[tuple[float, int, int]] = []
    at_s = 0.0
    while at_s < lasts_s:
        wanted = rng.choice((1, 1, 2, 2, 4, 8, nodes // 6))
        takes_s = round(slowly * rng.randint(60, 300))
        there = sum(has for when, has, takes in found if when <= at_s < when + takes + 2 * LEAVE_S)
        if there + wanted <= 0.8 * nodes:
            found.append((at_s, wanted, takes_s))
        at_s += rng.expovariate(0.4 * nodes / (3.9 * 180.0 * slowly))
    return found


def fair(nodes: float, wants: Mapping[str, tuple[float, int]]) -> dict[str, float]:
    """Return what weighted max-min fairness gives, by user; `wants` has (weight, most nodes)."""
    found = {}
    left, weights = nodes, sum(weight for weight, _ in wants.values())
    # Those who need least by weight have all that they want, if that is no more than their part.
    for user, (weight, most) in sorted(wants.items(), key=lambda each: each[1][1] / each[1][0]):
        found[user] = min(float(most), left * weight / weights)
        left, weights = left - found[user], weights - weight
    return found


class Day:
    """The accounts and what they run; everything of it ends with :meth:`end`."""

    def __init__(self, one: Cluster, users: Sequence[User], args: argparse.Namespace) -> None:
        self.one = one
        self.users = {user.name: user for user in users}
        self.args = args
        self.sites: dict[str, Site] = {}
        self.seen_s: dict[str, float] = {}
        self.left_s: dict[str, float] = {}
        self.accounts: list[str] = []
        self.socket = one.root / "broker" / "socket"
        self._harvesters: dict[str, subprocess.Popen[str]] = {}
        self._broker: Site | None = None
        self.kills = 0

    def account(self, name: str, mode: int = 0o700) -> Site:
        """Make an account with a place of its own."""
        path = self.one.root / name.rpartition("-")[2]
        path.mkdir()
        make_user(name, path)
        self.accounts.append(name)
        path.chmod(mode)
        environ = self.one.user_environ(HOME=str(path), USER=name, LOGNAME=name)
        site = Site(path, python=str(self.one.python), environ=environ, user=name)
        site.environ["HPCEXT_REPORT_INTERVAL_S"] = "5"
        site.environ["HPCEXT_BROKER"] = "none" if self.args.alone else str(self.socket)
        return site

    def begin(self) -> None:
        """Make all accounts and their job files, and start the broker."""
        for user in self.users.values():
            self.sites[user.name] = site = self.account(user.name)
            one = {"min": 1, "max": 1}
            counters = (
                site.counter(
                    f"t{number}", steps=10**7, step_s=1.0, save_every=20, nodes=one, gpus=6
                )
                for number in range(user.trainers)
            )
            site.write_jobs(*counters)
        if not self.args.alone:
            name = f"{self.one.user}-broker"
            self._broker = self.account(name, 0o755)
            lines = [
                'partition = "harvest"',
                f'socket = "{self.socket}"',
                f'state_dir = "{self._broker.path / "state"}"',
                f"cycle_s = {self.args.cycle}",
                *(f'[users."{user.name}"]\nweight = {user.weight}' for user in self.users.values()),
            ]
            (self._broker.path / "broker.toml").write_text("\n".join(lines) + "\n")
            self.start_broker()

    def start_broker(self) -> None:
        """Start it, whether one was there before or not."""
        assert self._broker is not None
        words = ("run", "--file", str(self._broker.path / "broker.toml"))
        python = ("-c", BROKER, str(self.args.least))
        self._running = self._broker.start(*words, python=python)

    def kill_broker(self) -> None:
        """Kill it, and start it again."""
        self._running.send_signal(signal.SIGKILL)
        self._running.wait()
        self.kills += 1
        self.start_broker()

    def pass_to(self, at_s: float) -> None:
        """Start and end harvesters that are due."""
        for name, process in self._harvesters.items():
            if name not in self.left_s and process.poll() is not None:
                raise RuntimeError(f"the harvester of {name} has ended: {process.communicate()}")
        for name, user in self.users.items():
            if name not in self._harvesters and user.from_s <= at_s < user.to_s:
                self._harvesters[name] = self._harvest(self.sites[name])
                return  # One at a time: each keeps a processor busy for a second.
            if name in self._harvesters and name not in self.seen_s:
                if (self.sites[name].pilot / "harvest.json").exists():
                    self.seen_s[name] = time.time()
            elif name in self.seen_s and name not in self.left_s and at_s >= user.to_s:
                self._harvesters[name].terminate()
                self.left_s[name] = time.time()

    def _harvest(self, site: Site) -> subprocess.Popen[str]:
        return site.start(
            "harvest", "start", str(site.jobs), "--partition", "harvest",
            "--interval", str(self.args.interval), "--idle", "30", "--least", "60",
            "--max-nodes", str(self.args.nodes), "--dir", str(site.pilot),
        )  # fmt: skip

    def attack(self) -> None:
        """Have two accounts do what they can."""
        for number, name in enumerate(("mallory", "trudy")):
            site = self.account(f"{self.one.user}-{name}")
            victim = next(iter(self.sites.values()))
            said = json.loads((victim.pilot / "pilot.json").read_text())["id"]
            for word in ("hpcext-mine-20261124-120000-ab12", f"hpcext-{said}")[: number + 1]:
                site.start(str(self.socket), word, python=("-c", NICE + FLOOD))
            self.sites[f"{self.one.user}-{name}"] = site

    def lost(self) -> tuple[int, int]:
        """Return the steps that were done twice, and attempts, by the trainers' own logs."""
        again = attempts = 0
        for site in self.sites.values():
            for path in site.path.glob("*.steps"):
                done, last = 0, 0
                for step in site.steps(path.stem):
                    attempts += step.attempt != last
                    last = step.attempt
                    # The first line of an attempt says from where it goes on.
                    again += 0 < step.step <= done
                    done = max(done, step.step)
        return again, attempts

    def end(self) -> None:
        """Kill all of it."""
        places = [*self.sites.values(), *([self._broker] if self._broker else [])]
        for site in places:
            for process in site.started:
                process.kill()
        for partition in ("harvest", "batch"):
            self.one.run("scancel", f"--partition={partition}")
        self.one.wait_for(lambda: not self.one.run("squeue", "-h").stdout, "an empty queue", 600)
        for name in self.accounts:
            subprocess.run(["userdel", name], capture_output=True, check=False)


def live(day: Day, jobs: Iterable[tuple[float, int, int]]) -> tuple[float, float, float]:
    """Let the day pass; return when it began, when the attack did, and when it ended (epoch)."""
    args, one = day.args, day.one
    lasts_s = 60.0 * args.minutes
    left = list(jobs)
    began, began_at = time.monotonic(), time.time()
    attacked_at = began_at + lasts_s / 2
    kills = [lasts_s * (number + 1) / (args.kills + 1) for number in range(args.kills)]
    attacks = args.attack
    while (at_s := time.monotonic() - began) < lasts_s:
        day.pass_to(at_s)
        while left and left[0][0] <= at_s:
            _, nodes, takes_s = left.pop(0)
            limit = f"--time={2 + takes_s // 60}"
            words = ["--exclusive", "--mem=100", "--output=/dev/null", limit]
            one.run("sbatch", *words, f"--nodes={nodes}", f"--wrap=sleep {takes_s}")
        if kills and at_s >= kills[0] and not args.alone:
            kills.pop(0)
            day.kill_broker()
        if attacks and time.time() >= attacked_at:
            attacks = False
            day.attack()
        time.sleep(0.5)
    return began_at, attacked_at, time.time()


def accounting(one: Cluster) -> list[Held]:
    """Return what all jobs had."""
    time.sleep(10)
    columns = "user%40,partition,nnodes,submit,start,end"
    said = one.run("sacct", "-a", "-X", "-D", "-n", "-P", "-S", "now-1days", f"--format={columns}")
    found = []
    for line in said.stdout.splitlines():
        user, partition, nodes, *instants = line.split("|")
        if instants[1] in {"None", "Unknown"}:
            continue
        when = [
            time.time() if each == "Unknown" else time.mktime(time.strptime(each, FORMAT))
            for each in instants
        ]
        found.append(Held(user if partition == "harvest" else "", int(nodes), *when))
    return found


def within(held: Iterable[Held], begin_s: float, end_s: float) -> dict[str, float]:
    """Return node-seconds by user within some time."""
    found: dict[str, float] = defaultdict(float)
    for each in held:
        seconds = min(each.end_s, end_s) - max(each.start_s, begin_s)
        found[each.user] += each.nodes * max(0.0, seconds)
    return found


def should(day: Day, held: Sequence[Held], begin_s: float, end_s: float) -> dict[str, float]:
    """Return the node-seconds that users should have had within some time."""
    main = [each for each in held if not each.user]
    there = {
        user: (day.seen_s[user.name], day.left_s.get(user.name, end_s))
        for user in day.users.values()
        if user.name in day.seen_s
    }
    edges = {begin_s, end_s}
    edges.update(each.start_s for each in main)
    edges.update(each.end_s for each in main)
    edges.update(edge for span in there.values() for edge in span)
    found: dict[str, float] = defaultdict(float)
    for one, other in pairwise(sorted(each for each in edges if begin_s <= each <= end_s)):
        idle = day.args.nodes - sum(each.nodes for each in main if each.start_s <= one < each.end_s)
        wants = {
            user.name: (float(user.weight), user.trainers)
            for user, (from_s, to_s) in there.items()
            if from_s <= one < to_s
        }
        for user, nodes in fair(idle, wants).items():
            found[user] += nodes * (other - one)
    return found


def of_what_was_leased(had: Mapping[str, float], due: Mapping[str, float]) -> dict[str, float]:
    """Return by how much of their parts users had more, where all of them together had theirs.

    What lies idle between two jobs is nobody's gain.
    """
    had = {user: had.get(user, 0.0) for user, node_s in due.items() if node_s > 0}
    leased = sum(had.values()) / sum(due[user] for user in had)
    return {user: node_s / due[user] / leased - 1 for user, node_s in had.items()}


def spread(parts: Mapping[str, float]) -> dict[str, object]:
    """Return how far users are from their parts."""
    far = [abs(off) for off in parts.values()]
    return {
        "farthest": round(max(far), 4),
        "median": round(statistics.median(far), 4),
        "within_2_percent": sum(off <= 0.02 for off in far),
    }


def report(day: Day, held: Sequence[Held], at: tuple[float, float, float]) -> dict[str, object]:
    """Return what came of the day."""
    began, half, ended = at
    # Until all have come that come at the beginning.
    begin = max(
        [
            day.seen_s[user.name]
            for user in day.users.values()
            if not user.from_s and user.name in day.seen_s
        ],
        default=began,
    )
    had, due = within(held, begin, ended), should(day, held, begin, ended)
    main = had.pop("", 0.0)
    offs = {user: had.get(user, 0.0) / due[user] - 1 for user in due if due[user] > 0}
    parts = of_what_was_leased(had, due)
    waits = sorted(
        each.start_s - each.submit_s for each in held if not each.user and each.submit_s >= began
    )
    again, attempts = day.lost()

    def due_by(to_s: float) -> dict[str, float]:
        return should(day, held, begin, to_s)

    found: dict[str, object] = {
        "users": len(due),
        "nodes": day.args.nodes,
        "minutes_counted": round((ended - begin) / 60, 1),
        "main_share": round(main / (day.args.nodes * (ended - begin)), 3),
        "idle_node_s": round(day.args.nodes * (ended - begin) - main),
        "leased": round(sum(had.values()) / (day.args.nodes * (ended - begin) - main), 4),
        "should_be_leased": round(sum(due.values()) / (day.args.nodes * (ended - begin) - main), 4),
        "farthest": round(max(map(abs, offs.values()), default=0.0), 4),
        "median": round(statistics.median(map(abs, offs.values())), 4) if offs else None,
        "within_2_percent": sum(abs(off) <= 0.02 for off in offs.values()),
        "of_what_was_leased": {
            "farthest": round(max(map(abs, parts.values())), 4),
            "median": round(statistics.median(map(abs, parts.values())), 4),
            "within_2_percent": sum(abs(off) <= 0.02 for off in parts.values()),
            "of_weights": {
                weight: round(
                    statistics.mean(
                        off for user, off in parts.items() if day.users[user].weight == weight
                    ),
                    4,
                )
                for weight in sorted({day.users[user].weight for user in parts})
            },
        },
        "as_it_goes": {
            f"{minutes:.0f}": spread(of_what_was_leased(within(held, begin, to), due_by(to)))
            for minutes in range(5, round((ended - begin) / 60), 5)
            for to in [begin + 60 * minutes]
        },
        "of_users": {
            user: [
                day.users[user].weight,
                day.users[user].trainers,
                round(had.get(user, 0.0)),
                round(due[user]),
                round(offs[user], 4),
            ]
            for user in sorted(offs, key=lambda user: offs[user])
        },
        "main_jobs": len(waits),
        "main_waits_s": {
            "median": statistics.median(waits),
            "95_percent": waits[int(0.95 * len(waits))],
            "most": waits[-1],
            "beyond_grace_and_cycle": sum(wait > LEAVE_S for wait in waits),
        }
        if waits
        else {},
        "broker_killed": day.kills,
        "attempts": attempts,
        "steps_done_twice": again,
        "load": os.getloadavg()[0],
    }
    found["halves"] = of_halves(day, held, begin, half, ended)
    return found


def of_halves(
    day: Day, held: Sequence[Held], begin: float, half: float, ended: float
) -> dict[str, object]:
    """Return what users had of their parts in each half of the day.

    Attackers come at half time, if there are any; without them this says how much users differ
    from one half to the other anyway.
    """
    parts = []
    for from_s, to_s in ((begin, half), (half, ended)):
        had, due = within(held, from_s, to_s), should(day, held, from_s, to_s)
        parts.append({user: had.get(user, 0.0) / due[user] for user in due if due[user] > 0})
    first, second = parts
    slower = {
        user: 1 - second[user] / first[user]
        for user in first.keys() & second.keys()
        if first[user] > 0
    }
    had = within(held, half, ended)
    return {
        "attacked": day.args.attack,
        "of_part_first": round(statistics.mean(first.values()), 4),
        "of_part_second": round(statistics.mean(second.values()), 4),
        "slower_median": round(statistics.median(slower.values()), 4),
        "slower_95_percent": round(sorted(slower.values())[int(0.95 * len(slower))], 4),
        "slower_most": round(max(slower.values()), 4),
        "attackers_node_s": round(
            sum(had.get(f"{day.one.user}-{name}", 0.0) for name in ("mallory", "trudy"))
        ),
    }


def main() -> int:
    """Measure, and print one document."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, default=50)
    parser.add_argument("--nodes", type=int, default=96)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--interval", type=float, default=10.0, help="of harvesters, seconds")
    parser.add_argument("--cycle", type=float, default=5.0, help="of the broker, seconds")
    parser.add_argument("--least", type=float, default=60.0, help="node-seconds; see above")
    parser.add_argument("--slowly", type=float, default=1.0, help="how main jobs come and go")
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--attack", action="store_true")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--keep", type=Path, help="a file for what the report is made of")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    lasts_s = 60.0 * args.minutes
    jobs = main_jobs(args.nodes, lasts_s, random.Random(args.seed), args.slowly)
    names = [f"n{number}" for number in range(args.nodes)]
    with cluster(nodes=names) as one:
        users = users_of(one.user, args.users, lasts_s, rng)
        if args.alone:
            users = [User(users[0].name, 1, sum(user.trainers for user in users), 0.0, lasts_s)]
        day = Day(one, users, args)
        try:
            day.begin()
            at = live(day, jobs)
            held = accounting(one)
            if args.keep:
                args.keep.write_text(json.dumps([users, day.seen_s, day.left_s, at, held]))
            document = report(day, held, at)
        finally:
            day.end()
    sys.stdout.write(json.dumps(document) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
