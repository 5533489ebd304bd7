"""The one engine: facts in, actions out. Synchronous and pure; whoever drives it owns time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Set
from typing import TypeAlias

from msgspec.structs import replace

from hpcext.core.facts import Fact, Progressed
from hpcext.core.reach import lacks, stranded, within
from hpcext.core.reconcile import reconcile
from hpcext.core.values import (
    Action,
    Alloc,
    Cause,
    Job,
    Kind,
    Snapshot,
    State,
    Target,
    suits,
    total,
)
from hpcext.core.world import Saved, World

Policy: TypeAlias = Callable[[Snapshot], Target]
"""What a scheduler is here: a pure function. Each paper's is one module of `policies`."""

ASKED = ~(Cause.PROGRESS | Cause.STARTED)
"""Causes for which the policy is asked. Neither progress nor a start frees or takes a GPU."""


class Engine:
    """Applies facts, asks the policy, and says what is safe to do.

    Only this class calls `policy` and `reconcile` at run time: live, in the simulator, and when
    a journal is replayed.

    Parameters
    ----------
    policy : Policy
    saved : Saved, optional
        The world to go on from.

    Attributes
    ----------
    world : World
    refusal : str
        What was wrong with the policy's last answer, so that it was refused; empty if nothing was.
    """

    def __init__(self, policy: Policy, saved: Saved | None = None) -> None:
        self._policy = policy
        self.world = World.restore(saved) if saved else World()
        self.refusal = ""
        self._mentioned: Set[str] = frozenset()  # by the last target
        self._wake_s: float | None = None
        self._until_s = -math.inf  # until then, progress alone needs no decision

    def step(self, now_s: float, facts: Iterable[Fact]) -> tuple[tuple[Action, ...], float | None]:
        """Take in what happened and say what to do.

        Parameters
        ----------
        now_s : float
            Never earlier than at the last step.
        facts : iterable of Fact
            In the order in which they became known; may be empty (time has passed).

        Returns
        -------
        actions : tuple of Action
            Each counts as handed to the executor.
        wake_s : float or None
            Step again at this instant at the latest, even if nothing happens.
        """
        world = self.world
        cause, others = Cause(0), False
        for fact in facts:
            cause |= world.apply(now_s, fact)
            others = others or not isinstance(fact, Progressed)
        if cause == Cause.PROGRESS and not others and now_s < self._until_s:
            # By far the most frequent step, and nothing below depends on progress.
            return (), self._wake_s
        cause |= world.refresh(now_s)
        if world.wake_s is not None and now_s >= world.wake_s:
            # Once: a policy whose target is refused must not keep the driver awake for ever.
            world.wake_s = None
            cause |= Cause.TIME
        if cause & ASKED:
            self._decide(world.snapshot(now_s, cause))
        actions = reconcile(world.snapshot(now_s, cause, busy=True))
        carried_out = tuple(world.carry_out(now_s, action) for action in actions)
        self._wake_s = self._next_wake_s(now_s)
        self._until_s = math.inf if self._wake_s is None else self._wake_s
        return carried_out, self._wake_s

    def outstanding(self) -> tuple[Action, ...]:
        """Every action that has not been answered, for an executor that begins anew.

        A START comes for each active job, so that its attempt is adopted, or started if the
        manager died between the record and the action.
        """
        actions = []
        for job in self.world.unfinished():
            if not job.state.active:
                continue
            actions.append(Action(Kind.START, job.id, job.op, job.attempt, alloc=job.held))
            if job.kills:
                actions.append(Action(Kind.KILL, job.id, job.op, job.attempt, force=job.kills > 1))
            elif job.state is State.STOPPING:
                actions.append(Action(Kind.SUSPEND, job.id, job.op, job.attempt))
            elif job.state is State.RESCALING:
                again = Action(Kind.RESCALE, job.id, job.op, job.attempt, alloc=job.asked)
                actions.append(replace(again, resize=job.resize))
        return tuple(actions)

    @property
    def finished(self) -> bool:
        """Whether nothing runs and nothing ever will by itself."""
        queue = self.world.queue
        if any(job.state.active for job in queue.busy()):
            return False
        return self.world.draining or not len(queue)

    @property
    def stranded(self) -> bool:
        """Whether nothing runs, and what is left of the allocation serves nothing that waits."""
        world = self.world
        return world.shrunk and stranded(world.unfinished(), world.nodes)

    def _decide(self, now: Snapshot) -> None:
        """Ask the policy; take its target as the new goals, or refuse it and keep the old.

        A policy that fails costs a decision, never the manager and what it looks after.
        """
        world = self.world
        if world.shrunk:
            now = within(now)
        busy = world.queue.busy()
        world.unsettled = any(job.state in _COMING and not _settled(job) for job in busy)
        try:
            target = self._policy(now)
        except Exception as error:
            # It may call a function of the user's own.
            self.refusal = f"failed with {type(error).__name__}: {error}"
            return
        self.refusal = refusal(now, target, world.jobs)
        if self.refusal:
            return
        world.memo = target.memo
        later = target.wake_s is not None and target.wake_s > now.now_s
        world.wake_s = target.wake_s if later else None
        # Of all others is known already why they wait.
        about = world.queue.unexplained() | self._mentioned | {job.id for job in busy}
        self._mentioned = target.grants.keys() | target.waits.keys()
        for job_id in about | self._mentioned:
            job = world.jobs.get(job_id)
            if job is None or job.state.final:
                continue
            grant = target.grants.get(job.id)
            why = grant.why if grant else self._waits(job, target)
            goal, role = (grant.alloc, grant.role) if grant else (None, None)
            if goal is not None and goal is not job.goal:
                goal = dict(goal)
            if (goal, role, why) != (job.goal, job.role, job.why):
                world.put(replace(job, goal=goal, role=role or job.role, why=why))
        if world.draining:
            # A job whose goal was taken back is not ready any more: while draining, none is given.
            world.refresh(now.now_s)

    def _waits(self, job: Job, target: Target) -> str:
        """Why a job gets nothing: the engine's reasons come before the policy's."""
        if job.cancelling:
            return job.verdict or "being cancelled"
        if job.on_hold:
            return "suspended by its user; hpcext resume lets it go on"
        if job.after:
            unmet = self.world.unmet(job)
            names = ", ".join(need if isinstance(need, str) else need.name for need in unmet)
            if names:
                return f"waits for {names} to complete"
        if not job.ready:
            # Backing off after a failure: `why` says so already. Draining is all that is left.
            return "waits because the manager is draining" if self.world.draining else job.why
        if self.world.shrunk and (why := lacks(job, self.world.nodes)):
            return why
        return target.waits.get(job.id, "waits for its turn")

    def _next_wake_s(self, now_s: float) -> float | None:
        world = self.world
        times = (world.wake_s, world.queue.wake_s(now_s, world.jobs))
        return min((each for each in times if each is not None), default=None)


_COMING = frozenset({State.STARTING, State.RUNNING, State.RESCALING})


def _settled(job: Job) -> bool:
    """Whether what a job is asked to do next depends on nothing that it has yet to say."""
    return job.state is State.RUNNING and job.registered


def refusal(now: Snapshot, target: Target, jobs: Mapping[str, Job]) -> str:
    """Why a target cannot be carried out; empty if it can.

    A target must name unfinished, ready jobs, of all `jobs`, and known nodes, give each job a size
    that it can run on (or what it has), and fit the nodes.
    """
    changed: list[Alloc] = []
    for job_id, grant in target.grants.items():
        job = jobs.get(job_id)
        if job is None or job.state.final:
            return f"grants GPUs to job {job_id}, which is unknown or finished"
        if not job.ready:
            return f"grants GPUs to job {job_id}, which is not ready"
        if grant.alloc is job.goal:
            continue
        changed.append(grant.alloc)
        if grant.alloc != job.goal and not suits(job, grant.alloc):
            takes = f"{job.sizes}" + (f" on {job.nodes} nodes" if job.nodes else "")
            return f"grants {total(grant.alloc)} GPUs to job {job_id}, which takes {takes}"
    # Goals that stay as they are fit together.
    used: dict[str, int] = {}
    touched = {name for alloc in changed for name in alloc}
    for job_id, grant in target.grants.items():
        if grant.alloc is jobs[job_id].goal:
            for name in grant.alloc.keys() & touched:
                used[name] = used.get(name, 0) + grant.alloc[name]
    for alloc in changed:
        for name, gpus in alloc.items():
            node, taken = now.nodes.get(name), used.get(name, 0)
            if node is None:
                return f"grants GPUs on node {name}, which is not there"
            if gpus < 1 or taken + gpus > node.gpus:
                return f"grants {gpus} GPUs on node {name}, which has {node.gpus - taken} left"
            used[name] = taken + gpus
    return ""
