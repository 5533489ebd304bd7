"""The work that a constant number of nodes would have done in place of changing ones.

That is A_s of BFTrainer §4.1, the denominator of its utilisation efficiency U: the outcome of the
same jobs under the same policy on N_eq nodes that stay, where N_eq is the mean number of nodes.
Starts and changes of size cost nothing there, and nothing fails.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from hpcext.core.engine import Policy
from hpcext.core.values import Job, Node
from hpcext.sim.evaluate.metrics import integral
from hpcext.sim.evaluate.outcome import SimulatedRun
from hpcext.sim.replay.physics import Physics
from hpcext.sim.replay.run import Named, Scenario, SimulationOptions, run


def ideal(
    found: SimulatedRun,
    jobs: Iterable[tuple[Job, Physics]],
    policy: Policy,
    gpus: int,
    how: SimulationOptions,
) -> float | None:
    """Return the work that as many GPUs would have done in the time of a run, had they stayed.

    Whole nodes are simulated; the rounding of N_eq is compensated. If all jobs are done, times are
    compared instead of work.

    Parameters
    ----------
    found : SimulatedRun
        The run on nodes that come and go.
    jobs : iterable of (Job, Physics)
        The jobs of that run, with all costs 0.
    policy : Policy
    gpus : int
        GPUs of a node.
    how : SimulationOptions
        The options of that run.

    Returns
    -------
    float or None
        None if there were hardly any nodes, or if N_eq nodes cannot do all the work.
    """
    n_eq = integral(found.spans, "offered") / found.end_s / gpus if found.end_s else 0.0
    ended = all(row.ended_s is not None for row in found.jobs)
    return staying(Stay(n_eq, gpus, found.end_s, ended), jobs, policy, found.policy, how)


class Stay(NamedTuple):
    """Nodes that stay, instead of those that came and went.

    Attributes
    ----------
    n_eq : float
        The mean number of nodes that came and went.
    gpus : int
        GPUs of a node.
    lasted_s : float
        Seconds for which they came and went.
    ended : bool
        Whether all jobs were done by then.
    """

    n_eq: float
    gpus: int
    lasted_s: float
    ended: bool


def staying(
    stay: Stay,
    jobs: Iterable[tuple[Job, Physics]],
    policy: Policy,
    name: str,
    how: SimulationOptions,
) -> float | None:
    """Return the work of jobs on nodes that stay, as in :func:`ideal`; `name` is the policy's.

    Parameters
    ----------
    stay : Stay
    jobs : iterable of (Job, Physics)
    policy : Policy
    name : str
    how : SimulationOptions
    """
    # They stay, and policies may know it.
    nodes = tuple(
        Node(f"n{number}", stay.gpus, ends_s=math.inf) for number in range(round(stay.n_eq))
    )
    if not nodes:
        return None
    until_s = math.inf if stay.ended else stay.lasted_s
    free = SimulationOptions(seed=how.seed, report_s=how.report_s, until_s=until_s)
    found = run(Scenario(jobs, nodes), policy, Named(name), free)
    if stay.ended and any(row.ended_s is None for row in found.jobs):
        return None
    if not found.end_s:
        return None
    return found.done / found.end_s * stay.lasted_s * stay.n_eq / len(nodes)
