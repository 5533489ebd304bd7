"""What one decision of a site's broker costs: 50 users with 20 trainers each, 4,608 idle nodes.

Claim: once harvesters are known, a look with its decision takes under 100 ms of a processor. All
of it counts: what the queue shows, the division by weights, the policy for each harvester, the
engine, and the journal (on the file system of the temporary directory).

Three looks are timed. *still*: nothing has changed. *moved*: 50 nodes have gone to other jobs, and
50 others are idle. *news*: each user has another trainer in the place of one.

Run: ``python benchmarks/broker.py [POLICY ...]``
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

from hpcext.batch.leasing import Idle, Other
from hpcext.broker.account import Account
from hpcext.broker.division import Share
from hpcext.broker.identity import Peer
from hpcext.broker.settings import Settings
from hpcext.broker.site import Site
from hpcext.harvest.leave import Ask, Trainer
from hpcext.manager.journal import Header, Journal

LIMIT_MS = 100.0
USERS, TRAINERS, NODES, GPUS = 50, 20, 4608, 6
TIMES = 7


class Machine:
    """A site of that size, half of whose nodes are leased already."""

    def __init__(self, path: Path, policy: str) -> None:
        shares = {f"user{each}": Share(1 + each % 4) for each in range(USERS)}
        settings = Settings("harvest", policy=policy, users=shares)
        journal = Journal(path / "journal.jsonl", Header(began_at=0.0, policy=policy))
        self.now_s = 0.0
        self.site = Site(settings, journal, Account(), self.now_s)
        self.cycle_s = settings.cycle_s
        self.newest = TRAINERS
        self.nodes = [f"node{each:05d}" for each in range(NODES)]
        self.gone: set[str] = set()
        self.others = [
            Other(_harvester(each % USERS), f"user{each % USERS}", self.nodes[2 * each], True, 0.0)
            for each in range(NODES // 2)
        ]

    def ask(self) -> None:
        """All users ask, as in each cycle."""
        for user in range(USERS):
            # Each wants up to eight nodes for a trainer: more than there are, in all.
            trainers = tuple(
                Trainer(each, (GPUS,), (1, 8))
                for each in range(self.newest - TRAINERS, self.newest)
            )
            ask = Ask(_harvester(user), "harvest", GPUS, 8 * TRAINERS, trainers)
            self.site.hear(Peer(9000 + user, f"user{user}"), ask, self.now_s)

    def look(self) -> float:
        """A cycle later the broker looks; milliseconds of the processor."""
        self.now_s += self.cycle_s
        leased = {each.node for each in self.others}
        nodes = {
            name: Idle(
                name, name not in leased and name not in self.gone, False, GPUS, "v100", 42, 1
            )
            for name in self.nodes
        }
        others = [each for each in self.others if each.node not in self.gone]
        begin = time.process_time_ns()
        self.site.look(nodes, others, self.now_s)
        return (time.process_time_ns() - begin) / 1e6


def _harvester(user: int) -> str:
    return f"hpcext-jobs{user}-20261124-120000-ab12"


def measure(policy: str) -> dict[str, float]:
    """Median milliseconds of each kind of look."""
    with tempfile.TemporaryDirectory() as path:
        machine = Machine(Path(path), policy)
        for _ in range(6):
            machine.ask()
            machine.look()
        found: dict[str, list[float]] = {"still": [], "moved": [], "news": []}
        for turn in range(TIMES):
            machine.ask()
            found["still"].append(machine.look())
            machine.gone = set(machine.nodes[turn * 50 : turn * 50 + 50])
            machine.ask()
            found["moved"].append(machine.look())
            machine.newest += 1
            machine.ask()
            found["news"].append(machine.look())
        granted = machine.site.status(Peer(0, "root"), machine.now_s)["users"]
        assert sum(row["granted"] for row in granted) > NODES * 0.9
    return {name: statistics.median(took) for name, took in found.items()}


def main() -> None:
    """Print the table."""
    print(
        f"{USERS} users x {TRAINERS} trainers x {NODES} nodes; ms of a processor, median of {TIMES}"
    )
    for policy in sys.argv[1:] or ("equal_share", "bftrainer"):
        took = measure(policy)
        figures = "  ".join(f"{name} {ms:7.1f}" for name, ms in took.items())
        kept = all(ms < LIMIT_MS for ms in took.values())
        print(f"{policy:12}  {figures}  {'ok' if kept else 'MISSED'} (goal: {LIMIT_MS:g})")


if __name__ == "__main__":
    main()
