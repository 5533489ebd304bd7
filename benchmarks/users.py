"""What users have on recorded idle nodes beside what their weights entitle them to.

``python benchmarks/users.py --data DIR [--policy NAME] [--hours H] [--skip N] [DIVISION ...]``:
fifty users with weights from 1 to 4 and six trainers each, like those of BFTrainer's paper, on the
recorded week of Summit. Each fifth user has one trainer, on three nodes at most; the trainers of
the others come over a third of the time, and together want far more nodes than are idle.

Goals: the node time of each user is within 2 % of the fair share over a day, and the node time that
is used is within 2 points of what one user with all trainers uses.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from hpcext.broker.division import Share
from hpcext.broker.settings import Settings
from hpcext.broker.simulated.account import Account
from hpcext.broker.simulated.policy import ByWeights
from hpcext.core.engine import Policy
from hpcext.core.values import Job
from hpcext.policies import find_policy
from hpcext.sim.evaluate.metrics import figures
from hpcext.sim.evaluate.users import ALONE, EQUAL, WEIGHTS, farthest, of_users
from hpcext.sim.replay.physics import Physics
from hpcext.sim.replay.run import Named, Scenario, SimulationOptions, run
from hpcext.sim.replay.tasks import NodeSource
from hpcext.sim.workloads.trainers import Trainer, simulated
from hpcext.sim.workloads.workload import of_user

USERS, TRAINERS, SMALL = 50, 6, 5
SHUFFLENET = {1: 2.8, 2: 5.3, 4: 10.0, 8: 20.4, 16: 38.9, 32: 74.1, 64: 145.1}
"""Thousands of samples per second, by nodes (Liu et al., Table 2)."""


def named(user: int) -> str:
    """Return the name of a user."""
    return f"u{user:02}"


def trainers(seed: int, hours: float) -> Iterator[tuple[Job, Physics]]:
    """Those of all users, in the order of their submission."""
    chance = random.Random(seed)
    asked = [
        (chance.uniform(0, 1200 * hours) if number else 0.0, user)
        for user in range(USERS)
        for number in range(TRAINERS if user % SMALL else 1)
    ]
    for order, (submit_s, user) in enumerate(sorted(asked)):
        # Some end in an hour or two, others last longer than the trace.
        samples = chance.choice((30.0, 200.0, 2000.0)) * 1e3 * hours / 24
        nodes = (1, 64) if user % SMALL else (1, 3)
        trainer = Trainer(f"t{order}", SHUFFLENET, samples, nodes, 18.0, 12.0, submit_s)
        job, physics = simulated(trainer, order)
        yield replace(job, id=of_user(named(user), job.id)), physics


def main() -> None:
    """Run the divisions, and print what each comes to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("divisions", nargs="*", metavar="DIVISION", default=(ALONE, EQUAL, WEIGHTS))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--policy", default="equal_share")
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--skip", type=int, default=1000)
    args = parser.parse_args()
    place = NodeSource(
        idle=str(args.data / "bftrainer" / "summit_idle_week1.csv.gz"), skip=args.skip
    )
    settings = Settings("p", users={named(user): Share(1 + user % 4) for user in range(USERS)})
    users = [named(user) for user in range(USERS)]
    for division in args.divisions:
        policy: Policy = find_policy(args.policy)
        if division != ALONE:
            weighed = settings if division == WEIGHTS else Settings("p")
            policy = ByWeights(weighed, policy, 0.0)
        account = Account(settings, users, 0.0, division)
        scenario = Scenario(trainers(1, args.hours), (), place.find().changes(0))
        how = SimulationOptions(until_s=3600 * args.hours)
        began_s = time.process_time()
        found = run(scenario, policy, Named(args.policy, label=division), how, account.begin)
        cpu_s = time.process_time() - began_s
        found = account.completed(found)
        own = figures(found)
        print(
            f"{division:8} {own.offered_gpu_h:9.1f} node-h offered, used {own.utilisation:7.2%}, "
            f"of it training {own.efficiency:7.2%}; work {own.done:.4g}; {own.completed:.0f} of "
            f"{own.jobs:.0f} ended; {cpu_s:.0f} s of a core, {found.decisions} decisions",
            flush=True,
        )
        rows = of_users([found])
        if (user := farthest(rows)) is not None:
            away = sorted(abs(each.difference or 0.0) for each in rows)
            for each in rows:
                if abs(each.difference or 0.0) > 0.02:
                    print(
                        f"         {each.user}: {each.difference:+.2%} of "
                        f"{each.entitled_node_h:.1f} node-h"
                    )
            print(
                f"         farthest from the fair share: {user.user}, {user.difference:+.2%} of "
                f"{user.entitled_node_h:.1f} node-h; median {away[len(away) // 2]:.2%}; "
                f"{sum(each <= 0.02 for each in away)} of {len(away)} within 2 %",
                flush=True,
            )


if __name__ == "__main__":
    main()
