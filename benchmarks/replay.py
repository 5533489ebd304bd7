"""What a replay of idle nodes costs: milliseconds of a core for each change of nodes.

``python benchmarks/replay.py [--data DIR] [--policy NAME] [HOURS ...]``: ten trainers at once of a
thousand that wait, like those of the paper, under BFTrainer's policy and under equal shares, on
made-up idle nodes like Summit's, for so many hours (default 8 32 128; 8760 is a year). A cost that
does not grow with the length of a trace is the same in all rows. With ``--data`` the recorded week
too, until all trainers are done, as the authors' replayer was measured.
"""

from __future__ import annotations

import argparse
import itertools
import math
import resource
import time
from collections.abc import Iterator
from pathlib import Path

from hpcext.core.values import Job
from hpcext.policies import find_policy
from hpcext.sim.replay.physics import Physics
from hpcext.sim.replay.run import Named, Scenario, SimulationOptions, run
from hpcext.sim.replay.sources import facts
from hpcext.sim.replay.tasks import NodeSource, Task, simulate_task
from hpcext.sim.traces.generate import find_machine, generate
from hpcext.sim.traces.idle import NodeChange
from hpcext.sim.workloads.trainers import Trainer, simulated

POLICIES = ("bftrainer:parallel=10", "equal_share:parallel=10")
SHUFFLENET = {1: 2.8, 2: 5.3, 4: 10.0, 8: 20.4, 16: 38.9, 32: 74.1, 64: 145.1}
"""Thousands of samples per second, by nodes (Liu et al., Table 2)."""

SAMPLES = 130e3
"""The same of 100 epochs of ImageNet (section 4.2)."""

TRAINERS = 1000
HOURLY = 16


def trainers(hours: float) -> Iterator[tuple[Job, Physics]]:
    """A thousand from the beginning, and as many others as hardly more can be done meanwhile."""
    for number in range(TRAINERS + math.ceil(HOURLY * hours)):
        submit_s = 3600.0 * max(0, number - TRAINERS) / HOURLY
        trainer = Trainer(
            f"trainer{number}", SHUFFLENET, SAMPLES, (1, 64), 18.0, 12.0, submit_s=submit_s
        )
        yield simulated(trainer, number)


def made_up(policy: str, hours: float) -> None:
    """Replay so many hours."""
    changes = 0

    def counted() -> Iterator[NodeChange]:
        nonlocal changes
        for change in generate(find_machine("summit"), seed=1, hours=hours):
            changes += 1
            yield change

    scenario = Scenario(trainers(hours), (), facts(counted(), 1))
    began_s = time.process_time()
    found = run(
        scenario, find_policy(policy), Named(policy), SimulationOptions(until_s=3600 * hours)
    )
    show(policy, changes, time.process_time() - began_s, found.events, found.decisions)


def recorded(policy: str, data: Path) -> None:
    """Replay the recorded week."""
    folder = data / "bftrainer"
    place = NodeSource(idle=str(folder / "summit_idle_week1.csv.gz"), skip=1000)
    task = Task(str(folder / "trainers_hpo_shufflenet.csv"), policy, place)
    began_s = time.process_time()
    found, _ = simulate_task(task)
    cpu_s = time.process_time() - began_s
    trace = itertools.islice(place.find().changes(0), 1, None)
    changes = sum(when_s <= found.end_s for when_s, _ in trace)
    print(f"{policy}, recorded week, all trainers done after {found.end_s / 3600:.2f} h:")
    show(policy, changes, cpu_s, found.events, found.decisions)


def show(policy: str, changes: int, cpu_s: float, steps: int, decisions: int) -> None:
    """Print one line."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{policy:24} {changes:7} changes {cpu_s:7.1f} s of a core,"
        f" {1e3 * cpu_s / changes:5.2f} ms each; {steps} steps, {decisions} decisions;"
        f" peak {peak:.0f} MiB",
        flush=True,
    )


def main() -> None:
    """Measure what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("hours", nargs="*", type=float, default=[8.0, 32.0, 128.0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--policy", action="append")
    args = parser.parse_args()
    for policy in args.policy or POLICIES:
        for hours in args.hours:
            made_up(policy, hours)
        if args.data:
            recorded(policy, args.data)


if __name__ == "__main__":
    main()
