"""A short simulated run, with all that its jobs went through: what tests look at closely."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from hpcext.core.engine import Engine, Policy
from hpcext.core.facts import Fact
from hpcext.core.values import Action, Job, Node, Record
from hpcext.sim.evaluate.outcome import SimulatedRun
from hpcext.sim.replay.heap import Observe
from hpcext.sim.replay.physics import Faults, Physics
from hpcext.sim.replay.run import Named, Scenario, SimulationOptions, run


class Played(NamedTuple):
    """A run; jobs and records as they were last, by id; and each action with its instant."""

    run: SimulatedRun
    jobs: dict[str, Job]
    records: dict[str, Record]
    actions: tuple[tuple[float, Action], ...]

    @property
    def gpu_busy_fraction(self) -> float:
        """The share of the GPU time offered in which an attempt ran on the GPU."""
        spans, end_s = self.run.spans, self.run.end_s
        offered = sum(each.offered * (each.end_s - each.start_s) for each in spans)
        parts = [part for record in self.records.values() for part in record.segments]
        until_s = [end_s if part.end_s is None else part.end_s for part in parts]
        took = zip(parts, until_s, strict=True)
        return sum(len(part.gpus) * (until - part.start_s) for part, until in took) / offered


def play(
    jobs: Sequence[Job],
    nodes: Sequence[Node],
    policy: Policy,
    physics: Mapping[str, Physics],
    seed: int = 0,
    *,
    faults: Faults | None = None,
    inputs: Iterable[tuple[float, Fact]] = (),
    report_s: float | None = None,
) -> Played:
    """Run jobs to their end; `inputs` is what else happens from outside."""
    last_jobs: dict[str, Job] = {}
    last_records: dict[str, Record] = {}
    given: list[tuple[float, Action]] = []

    def watcher(engine: Engine) -> Observe:
        def note(now_s: float, _: tuple[Fact, ...], actions: tuple[Action, ...]) -> None:
            # What has ended is soon forgotten.
            last_jobs.update(engine.world.jobs)
            last_records.update(engine.world.records)
            given.extend((now_s, action) for action in actions)

        return note

    coming = [(job, physics[job.id]) for job in sorted(jobs, key=lambda job: job.submitted_s)]
    changes = [(when_s, (fact,)) for when_s, fact in sorted(inputs, key=lambda each: each[0])]
    scenario = Scenario(coming, tuple(nodes), changes)
    how = SimulationOptions(seed, faults or Faults(), report_s)
    done = run(scenario, policy, Named("played"), how, watcher)
    return Played(done, last_jobs, last_records, tuple(given))
