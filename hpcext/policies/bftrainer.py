"""BFTrainer: the division that gains most until the next event (Liu et al., Eq. 16).

Each job gains its speed for the time in which nothing is expected to change, ``T_fwd``, less what a
change of its size costs it: seconds without progress, at the speed that it has now. The paper
solves this as a mixed-integer programme; its optimum is one of counts, which is found exactly here
(:mod:`hpcext.policies.apportion`).

What the paper leaves open, and what is done here: the unit is a GPU instead of a node, and a speed
is the multiple of the job's own on one GPU, so that jobs in different units can be added; a job
that does not run pays nothing for its start, as in Eq. 16.
"""

from __future__ import annotations

import numpy as np

from hpcext.core.values import Job, Snapshot, Target, total
from hpcext.policies.divide import Counts, Values, divide, speeds

FORWARD_S = 120.0
"""T_fwd; a longer one gained the paper no more (section 5.1, Fig. 9)."""

CHANGE_S = 10.0
"""What a change of size is believed to cost a job of which nobody knows better."""


def allocate(now: Snapshot) -> Target:
    """Give each job its part of the division that gains most."""
    return divide(now, _gain)


def _gain(job: Job, counts: Counts) -> Values:
    """Eq. 16, for one job."""
    has, known = total(job.goal), job.estimate
    up_s = CHANGE_S if known.up_s is None else known.up_s
    down_s = CHANGE_S if known.down_s is None else known.down_s
    cost_s: Values = np.select([counts > has, counts < has], [up_s, down_s], 0.0)
    lost = float(speeds(job, np.array([has]))[0])
    return FORWARD_S * speeds(job, counts) - lost * cost_s
