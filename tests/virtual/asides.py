"""Nodes that are set aside: a broken one, what a user asks for, and what may start where then."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from hpcext.core.values import Job, State

if TYPE_CHECKING:
    from virtual.kernel import Process
    from virtual.room import Room

FAILS = 3
"""The exit code of what begins on a broken node."""

PROVES = 2
"""Jobs that fail on a node and complete elsewhere, for which it has to be set aside."""

QUIET = {"kill_manager", "stop_manager", "second_manager", "slow", "fail", "late", "jump"}
"""Faults that hide no failure of a training from its manager for good."""


class Asides:
    """What happens to nodes, as trainings and users tell it.

    Attributes
    ----------
    broken : str
        The node on which whatever begins fails; empty for none.
    meddled : bool
        Whether a user has asked for anything.
    refused : set of (str, str)
        What a user has asked for last and was refused, with its node.
    withdrawals : Counter
        How often each node was asked to be used again, and how often that was answered.
    """

    def __init__(self, room: Room) -> None:
        self._room = room
        self.broken = ""
        self._failed: dict[str, dict[str, None]] = {}  # node → jobs of one node that failed there
        self._answered: dict[str, float] = {}  # node → when its user was told that it is aside
        self._first: dict[str, Process] = {}  # job → the training of its present attempt
        self._attempts: dict[str, int] = {}
        self.meddled = False
        self.refused: set[tuple[str, str]] = set()
        self.withdrawals: Counter[str] = Counter()

    # As it happens.

    def begins(self, process: Process) -> bool:
        """Check where a training begins; return whether it fails there at once."""
        job, attempt = (process.environ[f"HPCEXT_{name}"] for name in ("JOB_ID", "ATTEMPT"))
        node, number = process.machine.name, int(attempt)
        before = self._first.get(job)
        if number > self._attempts.get(job, 0):
            self._attempts[job], self._first[job] = number, process
            self._starts(job, number, node, before)
        if node != self.broken:
            return False
        self._room.kernel.tell(f"job {job} attempt {attempt} fails on {node}, which is broken")
        self._room.faults.harm[job] += 1
        self._room.checks.harmed(job)
        if self._room.specs[int(job) - 1].nodes.max == 1:
            self._failed.setdefault(node, {})[job] = None
        return True

    def _starts(self, job: str, number: int, node: str, before: Process | None) -> None:
        """Check a new attempt: it was decided on once the one before it had ended."""
        answered_s = self._answered.get(node)
        ended_s = None if before is None else before.ended_s
        if answered_s is not None and ended_s is not None and ended_s > answered_s:
            self._room.checks.wrong(
                f"job {job} attempt {number} begins on {node}, set aside at {answered_s:.1f} s"
            )

    def answered(self, verb: str, node: str, before: int) -> None:
        """Note that a user's request was answered.

        Parameters
        ----------
        verb, node : str
        before : int
            Of :attr:`withdrawals` when it was made: of two at once nobody knows which came last.
        """
        if verb == "readmit":
            self.withdrawn(node)
        elif self.withdrawals[node] == before:
            self._answered[node] = self._room.kernel.now

    def withdrawn(self, node: str) -> None:
        """Note that a user is about to ask for a node to be used again, or has been answered."""
        self.meddled = True
        self.withdrawals[node] += 1
        self._answered.pop(node, None)

    def room_for(self, node: str) -> bool:
        """Return whether all jobs still have the nodes that they need once one more is aside.

        Otherwise a manager has nothing to do, and ends before its user can say anything else.
        """
        left = [each.name for each in self._room.workers if each.name not in self._answered]
        least = max(spec.nodes.min for spec in self._room.specs)
        return self._room.count == 1 or len([name for name in left if name != node]) >= least

    # At the end.

    def replayed(self, past: Any) -> Any:
        """Check the journal of a pilot step by step; return its world at the end."""
        engine = past.begin()
        world = engine.world
        ever = set(world.aside)
        for entry in past.entries:
            aside, had = world.aside, {job.id: job for job in world.jobs.values()}
            engine.step(entry.now_s, entry.facts)
            new = world.aside.keys() - aside.keys()
            ever |= new
            if new and not world.offered:
                self._room.checks.wrong(f"{new} was the last node that could be used")
            for job in world.jobs.values():
                self._given(job, had.get(job.id), aside.keys() & world.aside.keys())
        self._proven(world, ever)
        return world

    def _given(self, job: Job, before: Job | None, aside: set[str]) -> None:
        started = job.op and (before is None or job.op != before.op)
        if started and (there := aside & job.held.keys()):
            self._room.checks.wrong(f"job {job.id} attempt {job.attempt} gets {there}, set aside")

    def _proven(self, world: Any, ever: set[str]) -> None:
        """Check that a node was set aside on which jobs failed that have completed elsewhere."""
        if ever or self.meddled or not all(each.what in QUIET for each in self._room.plan):
            return
        for node, jobs in self._failed.items():
            well = [job for job in jobs if world.jobs[job].state is State.COMPLETED]
            if len(well) >= PROVES:
                self._room.checks.wrong(f"jobs {well} failed on {node}, which was never set aside")
