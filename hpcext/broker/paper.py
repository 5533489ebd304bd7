"""An executor of leave: it starts nothing, so that what an engine asks for is done at once."""

from __future__ import annotations

from hpcext.core.facts import Ended, Fact, Outcome, Registered, Rescaled, Started
from hpcext.core.values import Action, Alloc, Kind


def answers(action: Action) -> tuple[Fact, ...]:
    """Return the facts that an action leads to."""
    job, op = action.job, action.op
    if action.kind is Kind.START:
        begun = Started(job, op, _gpus(action.alloc))
        return begun, Registered(job, op, 0, in_place=True, elastic=True)
    if action.kind is Kind.RESCALE:
        return (Rescaled(job, op, action.resize, _gpus(action.alloc)),)
    if action.kind in {Kind.SUSPEND, Kind.KILL}:
        return (Ended(job, op, Outcome.SUSPENDED),)
    return ()


def _gpus(alloc: Alloc) -> tuple[str, ...]:
    return tuple(f"{node}:{index}" for node, gpus in alloc.items() for index in range(gpus))
