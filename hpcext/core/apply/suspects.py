"""The effect of attempts that fail or go well on what speaks against nodes.

Each function takes the `world`, the `job` as it was, and perhaps the `fact` of its end.
"""

from __future__ import annotations

from msgspec.structs import replace

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


def of_broken_gpus(world: World, job: Job, fact: Ended) -> tuple[Ended, Cause]:
    """Set nodes aside whose driver says that a GPU of a failed attempt is broken.

    That failure is not the job's; but where no other node is left it is, or there would be no end.
    """
    if fact.outcome is not Outcome.FAILED:
        return fact, NOTHING
    blamed = []
    for name in _nodes(world, job):
        words = fact.broken_gpus.get(name)
        if words and name in world.offered and _another(world, name):
            world.put_aside(name, f"an attempt of {job.name} failed there, and {words}")
            blamed.append(f"{words} on {name}")
    if not blamed:
        return fact, NOTHING
    return replace(fact, outcome=Outcome.EVICTED, why=", ".join(blamed)), Cause.NODES


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


def _another(world: World, name: str) -> bool:
    """Return whether another node is offered; a GPU with seats is none."""
    return not all(node.seats for other, node in world.offered.items() if other != name)


def _set_aside(world: World) -> Cause:
    """Set nodes aside against which enough speaks, but never the last one."""
    cause = NOTHING
    for name, said in world.suspects.items():
        if said.confirmed and _another(world, name):
            names = {job: world.jobs[job].name for job in said.failed if job in world.jobs}
            world.put_aside(name, suspicion.why(said, names))
            cause |= Cause.NODES
    return cause
