"""The effect of nodes that come and go.

Each function takes the `world`, the time `now_s` by the engine's clock, in seconds, and the `fact`.
"""

from __future__ import annotations

from msgspec.structs import replace

from hpcext.core import rescaling
from hpcext.core.apply.attempts import close
from hpcext.core.facts import (
    Cleared,
    Ended,
    NodeJoined,
    NodeLost,
    Outcome,
    Readmitted,
    SetAside,
)
from hpcext.core.history import records
from hpcext.core.values import Cause, Job, Node, State
from hpcext.core.world import NOTHING, World


def joined(world: World, now_s: float, fact: NodeJoined) -> Cause:
    """Offer a node, or other GPUs of it."""
    node, before = fact.node, world.nodes.get(fact.node.name)
    if node.since_s is None:
        node = replace(node, since_s=before.since_s if before else now_s)
    if before == node:
        return NOTHING
    world.set_node(node)
    for job_id in world.orphaned:
        # The batch system has ended what was left there before it gave the node again.
        world.records[job_id] = records.cleared(world.records[job_id], node.name)
    if before is not None and node.gpus < before.gpus:
        # No job has a goal on a node that does not exist, so this concerns known nodes only.
        _refit(world, node)
    return Cause.NODES


def _refit(world: World, node: Node) -> None:
    """Take back what was granted on a node that came again with fewer GPUs."""
    left = node.gpus
    for job in world.queue.busy():
        granted = job.goal.get(node.name, 0) if job.goal else 0
        if granted > left:
            world.change(job, goal=None)
        else:
            left -= granted


def lost(world: World, now_s: float, fact: NodeLost) -> Cause:
    """Remove a node, and what ran there."""
    node = world.pop_node(fact.name)
    if fact.gone and not world.shrunk:
        world.shrunk = True
        world.queue.touch_all()
    if node is None:
        return NOTHING
    early_s = node.ends_s - now_s if node.ends_s is not None and node.planned else None
    age_s = now_s - (node.since_s or 0.0)
    world.seen.left(age_s, early_s=early_s, ended=not fact.unneeded)
    for job in world.queue.busy():
        if fact.gone and fact.name in job.held:
            # The node cannot be reached, so nothing can be checked or ended there.
            record = world.records[job.id]
            world.records[job.id] = records.left_behind(record, fact.name, job.attempt)
            world.orphaned.add(job.id)
        if fact.name in job.held or (job.goal and fact.name in job.goal):
            _bereave(world, job, fact.name, now_s)
    return Cause.NODES


def _bereave(world: World, job: Job, name: str, now_s: float) -> None:
    """Take a node that is lost from a job that has it, or is to have it."""
    if name in job.held and (changes := rescaling.bereft(job, name)):
        world.enter(job, State.RUNNING, now_s, **changes)
        return
    if job.goal and name in job.goal:
        job = world.change(job, goal=None)
    if name not in job.held:
        return
    held = {node: gpus for node, gpus in job.held.items() if node != name}
    job = world.change_run(job, degraded=True)
    if held:
        # The attempt still runs on its other nodes, but cannot answer a suspension: kill it.
        world.enter(job, State.STOPPING, now_s, held=held, deadline_s=now_s)
    else:
        before = world.records[job.id]
        why = "its node was lost"
        close(world, job, now_s, Ended(job.id, job.op, Outcome.LOST, why=why))
        world.records[job.id] = records.bereft(world.records[job.id], before, job)


def set_aside(world: World, now_s: float, fact: SetAside) -> Cause:
    """Offer a node no more, whatever becomes of it, until it is readmitted."""
    if fact.node in world.aside:
        return NOTHING
    world.put_aside(fact.node, fact.why)
    return Cause.NODES


def readmitted(world: World, now_s: float, fact: Readmitted) -> Cause:
    """Offer a node again that was set aside."""
    return Cause.NODES if world.readmit(fact.node) else NOTHING


def cleared(world: World, now_s: float, fact: Cleared) -> Cause:
    """Note that what was left on a lost node has ended."""
    if fact.job in world.records:
        record = world.records[fact.job]
        world.records[fact.job] = records.cleared(record, fact.node, fact.attempt)
    return NOTHING
