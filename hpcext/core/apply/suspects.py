"""The effect of attempts that fail or go well on what speaks against nodes.

Each function takes the `world`, the `job` as it was, and perhaps the `fact` of its end.
"""

from __future__ import annotations

from hpcext.core import suspicion
from hpcext.core.facts import Ended, Outcome
from hpcext.core.values import Cause, Job, State
from hpcext.core.world import NOTHING, World


def went_well(world: World, job: Job) -> Cause:
    """Note that an attempt has gone well on the nodes of a job."""
    if not world.suspects:
        return NOTHING
    world.suspects = suspicion.after_success(world.suspects, job.id, _nodes(world, job))
    return _set_aside(world)


def ended(world: World, job: Job, fact: Ended) -> Cause:
    """Note what the end of an attempt says about its nodes."""
    if fact.outcome is Outcome.COMPLETED:
        return went_well(world, job)
    wanted = job.cancelling or job.run.kills or job.state is State.STOPPING
    if fact.outcome is not Outcome.FAILED or wanted:
        return NOTHING
    world.suspects = suspicion.after_failure(world.suspects, job.id, _nodes(world, job))
    return _set_aside(world)


def _nodes(world: World, job: Job) -> list[str]:
    """Return the nodes that a job had; a GPU with seats is none: its machine is another one's."""
    held = ((name, world.nodes.get(name)) for name in job.held)
    return [name for name, node in held if node is not None and not node.seats]


def _set_aside(world: World) -> Cause:
    """Set nodes aside against which enough speaks, but never the last one."""
    cause = NOTHING
    for name, said in world.suspects.items():
        others = (node for other, node in world.offered.items() if other != name)
        if said.confirmed and not all(node.seats for node in others):
            names = {job: world.jobs[job].name for job in said.failed if job in world.jobs}
            world.put_aside(name, suspicion.why(said, names))
            cause |= Cause.NODES
    return cause
