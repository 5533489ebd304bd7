"""What nodes that come and go would have done had they been as many throughout.

A_s of BFTrainer §4.1, the denominator of its utilisation efficiency U: the outcome of the same jobs
under the same policy on N_eq nodes that stay, N_eq being the mean number of those that there were,
where starts and changes of size cost nothing and nothing fails.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from hpcext.core.engine import Policy
from hpcext.core.values import Job, Node
from hpcext.sim.metrics import integral
from hpcext.sim.outcome import Run
from hpcext.sim.physics import Physics
from hpcext.sim.run import How, Named, Scenario, run


def ideal(
    found: Run, jobs: Iterable[tuple[Job, Physics]], policy: Policy, gpus: int, how: How
) -> float | None:
    """Work that the same GPUs would have done in the time of a run.

    Whole nodes are simulated: what N_eq is rounded by is made good for. Where all jobs are done it
    is for how long they would have been at it, not how much there was to do, that is compared.

    Parameters
    ----------
    found : Run
        On nodes that come and go.
    jobs : iterable of (Job, Physics)
        The same jobs, to which nothing costs anything.
    policy : Policy
    gpus : int
        Of a node.
    how : How
        Of the run.

    Returns
    -------
    float or None
        None if there were hardly any nodes, or so many cannot do all that was done.
    """
    n_eq = integral(found.spans, "offered") / found.end_s / gpus if found.end_s else 0.0
    ended = all(row.ended_s is not None for row in found.jobs)
    return staying(Stay(n_eq, gpus, found.end_s, ended), jobs, policy, found.policy, how)


class Stay(NamedTuple):
    """Nodes that stay, in place of those that came and went.

    Attributes
    ----------
    n_eq : float
        The mean number of those.
    gpus : int
        Of a node.
    lasted_s : float
        For how long they came and went.
    ended : bool
        Whether all jobs were done by then.
    """

    n_eq: float
    gpus: int
    lasted_s: float
    ended: bool


def staying(
    stay: Stay, jobs: Iterable[tuple[Job, Physics]], policy: Policy, name: str, how: How
) -> float | None:
    """Work of jobs on nodes that stay, as :func:`ideal` has it; `name` is the policy's."""
    # They stay, and policies that ask may know it.
    nodes = tuple(
        Node(f"n{number}", stay.gpus, ends_s=math.inf) for number in range(round(stay.n_eq))
    )
    if not nodes:
        return None
    until_s = math.inf if stay.ended else stay.lasted_s
    free = How(seed=how.seed, report_s=how.report_s, until_s=until_s)
    found = run(Scenario(jobs, nodes), policy, Named(name), free)
    if stay.ended and any(row.ended_s is None for row in found.jobs):
        return None
    if not found.end_s:
        return None
    return found.done / found.end_s * stay.lasted_s * stay.n_eq / len(nodes)
