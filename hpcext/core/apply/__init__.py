"""The effect of facts on the world: one function for each kind of fact.

Each takes the world, the instant at which the fact became known (seconds) and the fact, and returns
why a policy should be asked because of it; see :func:`apply`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hpcext.core import facts as f
from hpcext.core.apply import attempts, nodes, requests
from hpcext.core.values import Cause
from hpcext.core.world import World

_BY_KIND: Mapping[type, Callable[[World, float, Any], Cause]] = {
    f.NodeJoined: nodes.joined,
    f.NodeLost: nodes.lost,
    f.Cleared: nodes.cleared,
    f.SetAside: nodes.set_aside,
    f.Readmitted: nodes.readmitted,
    f.Started: attempts.started,
    f.Registered: attempts.registered,
    f.Rescaled: attempts.rescaled,
    f.Progressed: attempts.progressed,
    f.Silent: attempts.silent,
    f.NotSaved: attempts.not_saved,
    f.Noted: attempts.noted,
    f.Ended: attempts.ended,
    f.Submitted: requests.submitted,
    f.Hold: requests.hold,
    f.Release: requests.release,
    f.Retried: requests.retried,
    f.Resize: requests.resize,
    f.Cancel: requests.cancel,
    f.Drain: requests.drain,
    f.Began: requests.began,
    f.Decided: requests.decided,
}


def apply(world: World, now_s: float, fact: f.Fact) -> Cause:
    """Make a fact true.

    A fact about an attempt that is no longer the job's current one is stale and changes nothing:
    without this, a late acknowledgement would free GPUs that are in use again.

    Parameters
    ----------
    world : World
    now_s : float
        Instant at which the fact became known.
    fact : Fact

    Returns
    -------
    Cause
        Why a policy should be asked because of it.
    """
    return _BY_KIND[type(fact)](world, now_s, fact)
