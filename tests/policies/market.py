"""Jobs with known speeds, and what a policy gives them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcext.core.estimate import Estimate
from hpcext.core.values import Cause, Job, Node, Run, Snapshot, State, Target, total
from hpcext.policies import find_policy
from hpcext.scaling.estimator import GpuCounts

CURVE = {1: 1.0, 2: 1.8, 3: 2.4, 4: 2.8}


def fewest(job: Job, sizes: GpuCounts, kind: str) -> NDArray[np.float64]:
    """An objective of a user's own: to run at all."""
    return np.minimum(sizes.gpus, 1).astype(float)


def job(order: int, most: int = 4, goal: Mapping[str, int] | None = None, **more: Any) -> Job:
    """It runs, with a session, if it has a goal."""
    running = {"state": State.RUNNING, "run": Run(registered=True), "held": goal} if goal else {}
    sizes = more.pop("sizes", tuple(range(1, most + 1)))
    known = {"estimate": Estimate(stated=CURVE), "nodes": (1, 1), **running, **more}
    name = known.pop("name", f"j{order}")
    return Job(str(order), name, order, sizes, max(sizes), goal=goal, **known)


def snapshot(
    jobs: list[Job], now_s: float = 0.0, cause: Cause = Cause.TIME, **nodes: int
) -> Snapshot:
    return Snapshot(
        now_s, {name: Node(name, gpus) for name, gpus in nodes.items()}, tuple(jobs), cause
    )


def answer(policy: str, now: Snapshot) -> Target:
    """What a policy says; of every job that is ready either a grant or why it waits."""
    target = find_policy(policy)(now)
    assert set(target.waits) == {each.id for each in now.jobs if each.ready} - set(target.grants)
    return target


def sizes(policy: str, now: Snapshot) -> dict[str, int]:
    """Job → GPUs, of those that get any."""
    return {name: total(grant.alloc) for name, grant in answer(policy, now).grants.items()}
