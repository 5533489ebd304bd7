"""One run of Pollux's simulator experiments (section 5.3): a workload under a policy."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from hpcext.core.values import Node
from hpcext.policies import find_policy
from hpcext.sim.evaluate.outcome import SimulatedRun
from hpcext.sim.replay.run import Named, Scenario, SimulationOptions, run
from hpcext.sim.workloads.applications import (
    REPORT_S,
    ClusterSize,
    WorkloadOptions,
    application_jobs,
)
from hpcext.sim.workloads.philly import PhillyJob, make_philly, read_philly
from hpcext.sim.workloads.workload import Costs, Jobs, Setting, changed

NODES, GPUS = 16, 4
"""Number of nodes of the machine, and GPUs of each (section 5.1)."""

NEEDS = "needs --data DIR, with the measurements of Pollux in DIR/pollux"


class PolluxRun(NamedTuple):
    """One run.

    Attributes
    ----------
    data : Path
        The folder of the measurements.
    policy : str
        Name of the policy, with its options.
    workload : int
        Number of a published workload; 0 for a generated one.
    seed : int
        Seed of a generated workload, and of a genetic search.
    load : float
        Factor on the paper's rate of jobs, for a generated workload.
    interference : float
        Share of its speed that a job loses while another job on several nodes shares one of its
        nodes.
    """

    data: Path
    policy: str
    workload: int = 0
    seed: int = 0
    load: float = 1.0
    interference: float = 0.0

    @property
    def name(self) -> str:
        """The name of the policy, without its options."""
        return self.policy.partition(":")[0]

    @property
    def searches(self) -> bool:
        """Whether the policy is the paper's genetic search."""
        return "search=genetic" in self.policy


def asked(case: PolluxRun) -> tuple[PhillyJob, ...]:
    """Return the jobs of a case."""
    if not case.workload:
        return make_philly(case.seed, load=case.load)
    return read_philly(case.data / f"workload-{case.workload}.csv")


def simulated(case: PolluxRun) -> SimulatedRun:
    """Simulate a case.

    Raises
    ------
    InputError
        The measurements are missing, or not valid.
    """
    nodes = tuple(Node(f"node{number:02}", GPUS) for number in range(1, NODES + 1))
    policy = case.policy
    if case.searches:
        policy += f",seed={case.seed}"
    return run(
        Scenario(_jobs(case), nodes),
        find_policy(policy),
        Named(case.policy, f"workload-{case.workload}" if case.workload else "philly", "16x4"),
        SimulationOptions(seed=case.seed, report_s=REPORT_S),
    )


def _jobs(case: PolluxRun) -> Jobs:
    """Return the jobs as the authors simulate them, where only Optimus has an oracle."""
    way = WorkloadOptions(ClusterSize(NODES, GPUS), case.policy, oracle=case.name == "optimus")
    setting = Setting(costs=Costs(interference=case.interference))
    return changed(application_jobs(asked(case), case.data, way), setting)
