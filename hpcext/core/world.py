"""The world: nodes, jobs and their records, and the moves that a job can make."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from hpcext.core import saving
from hpcext.core.changes import Changes
from hpcext.core.decisions import OpenQuestion, left_of
from hpcext.core.history.fragments import FragmentCounter
from hpcext.core.home import Homes
from hpcext.core.queue import Queue
from hpcext.core.saved import Saved
from hpcext.core.suspicion import Suspicion
from hpcext.core.trials import Trial, Trials
from hpcext.core.values import TRANSITIONS, Cause, Job, Node, Record, Snapshot, State

LOST_SOME = "goes on with its remaining nodes until the policy has decided"

NOTHING = Cause(0)

_SAVED = tuple(set(Saved.__struct_fields__) - {"nodes", "jobs", "records", "fragments"})
"""What a world keeps under the same names as :class:`Saved`, as it is."""


class World:
    """The facts so far, as values; :func:`hpcext.core.apply.apply` adds one.

    Attributes
    ----------
    nodes : dict of str to Node
    jobs : dict of str to Job
        Every job ever submitted, by id.
    records : dict of str to Record
    draining, suspending : bool
        No job is started any more; and running jobs are suspended as well.
    drained : bool
        A user wants that no job is started any more, and not only the end of an allocation.
    leaving : bool
        All running jobs have to leave, even those that cannot save.
    ends_s : float or None
        The instant by which they must have left, if something has to be done after that.
    shrunk : bool
        Of a fixed set of nodes some are gone.
    next_op : int
        Number of the next operation that starts an attempt.
    memo : dict or None
        The policy's memo from last time.
    wake_s : float or None
        When it wants to be asked again.
    unsettled : bool
        At the last decision some job could not be given another size, since it was changing its
        size or had no session yet. If none was, it is no news that one has what it was to have.
    questions : int
        How many have been put to the policy.
    open_question : OpenQuestion or None
        The one that it has yet to answer.
    undecided : str
        Why its last answer is not followed; empty if it is.
    slow : bool
        That it took longer than anybody waits for one.
    queue : Queue
        The unfinished jobs.
    changed : Changes
        Which jobs have other values, or other records, than before.
    seen : FragmentCounter
        How long the nodes that have left had stayed.
    trials : Trials
        The metrics of sweeps' trials at their rungs.
    orphaned : set of str
        Jobs that may run where a node was lost.
    suspects : dict of str to Suspicion
        Nodes on which attempts have failed since one went well there.
    aside : dict of str to str
        Nodes that are set aside, those too that are gone → why.
    homes : Homes
        The jobs that can go on only where they were suspended.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.jobs: dict[str, Job] = {}
        self.records: dict[str, Record] = {}
        self.draining = self.drained = False
        self.suspending = self.leaving = False
        self.ends_s: float | None = None
        self.shrunk = False
        self.next_op = 1
        self.memo: dict[str, Any] | None = None
        self.wake_s: float | None = None
        self.unsettled = False
        self.questions = 0
        self.open_question: OpenQuestion | None = None
        self.undecided = ""
        self.slow = False
        self.queue = Queue()
        self.changed = Changes()
        self.seen = FragmentCounter()
        self.trials = Trials()
        self.orphaned: set[str] = set()
        self.suspects: dict[str, Suspicion] = {}
        self.aside: dict[str, str] = {}
        self._offered: dict[str, Node] | None = None
        self._dependents: dict[str, list[str]] = {}
        self.homes = Homes()

    # Looking.

    def unfinished(self) -> tuple[Job, ...]:
        """Return the jobs that are not final, by priority and order."""
        return self.queue.jobs()

    def snapshot(self, now_s: float, cause: Cause, *, busy: bool = False) -> Snapshot:
        """Return what is true now as one value.

        Parameters
        ----------
        now_s : float
        cause : Cause
        busy : bool
            Have only those jobs in it that hold something or are to have something.
        """
        few = self.queue.busy()
        jobs = few if busy else self.queue.jobs()
        return Snapshot(
            now_s, self.offered, jobs, cause, self.memo, few, self.seen.fragments, self.leaving
        )

    @property
    def offered(self) -> Mapping[str, Node]:
        """The nodes that offer something, by name; another mapping once they are others."""
        if self._offered is None:
            # One that offers nothing more is only waited for.
            self._offered = {
                name: node
                for name, node in self.nodes.items()
                if node.gpus and name not in self.aside
            }
        return self._offered

    @property
    def fewer(self) -> bool:
        """Whether jobs have fewer nodes than there were: some are gone for good, or set aside."""
        return self.shrunk or any(name in self.nodes for name in self.aside)

    def current(self, job_id: str, op: int) -> Job | None:
        """Return a job if `op` started its current attempt."""
        job = self.jobs.get(job_id)
        return None if job is None or not job.state.active or job.op != op else job

    def waiting(self, job_id: str) -> Job | None:
        """Return a job if it has not ended."""
        job = self.jobs.get(job_id)
        return None if job is None or job.state.final else job

    def unmet(self, job: Job) -> Iterable[Job | str]:
        """Yield the dependencies of a job that are not completed; an unknown one by its id."""
        for need in job.after:
            other = self.jobs.get(need)
            if other is None:
                yield need
            elif not other.done:
                yield other

    def waited_for(self) -> set[str]:
        """Return the nodes for which jobs wait that can go on only there."""
        return {self.jobs[name].home for name in self.homes.kept_back}

    def answer_by(self, now_s: float, job: Job) -> float:
        """Return the instant by which a job that is suspended now has to answer."""
        return saving.answer_by(now_s, job.suspend_timeout_s, self.ends_s)

    # Changes by the engine.

    def refresh(self, now_s: float) -> Cause:
        """Bring `ready` up to date for every unfinished job."""
        changed = False
        for job_id in self.queue.unchecked(now_s) | self.homes.jobs:
            if (job := self.waiting(job_id)) is None:
                continue
            self.homes.kept_back.discard(job_id)
            ready = self._ready(job, now_s)
            if job_id in self.homes.kept_back and not job.home_until_s:
                job = self.change(job, home_until_s=now_s + job.home_work_s)
            if ready != job.ready:
                self.change(job, ready=ready)
                changed = True
        return Cause.TIME if changed else NOTHING

    def ask(self, now_s: float, cause: Cause) -> bool:
        """Note that a decision is wanted; False: another one is awaited first."""
        if self.open_question is not None:
            again = self.open_question.again | cause.value
            self.open_question = replace(self.open_question, again=again)
            return False
        self.questions += 1
        self.open_question = OpenQuestion(self.questions, now_s, cause.value)
        return True

    def shrink(self) -> None:
        """Have elastic jobs that lose nodes go on with the others, where no policy has decided."""
        for job in self.queue.busy():
            if job.state is State.RUNNING and (rest := left_of(job, self.offered)):
                self.change(job, goal=rest, why=LOST_SOME)

    # Moves of nodes and jobs.

    def set_node(self, node: Node) -> None:
        """Add a node, or replace it."""
        self.nodes[node.name] = node
        self._offered = None

    def pop_node(self, name: str) -> Node | None:
        """Remove a node, and return it if it was there."""
        node = self.nodes.pop(name, None)
        if node is not None:
            self._offered = None
        return node

    def put_aside(self, name: str, why: str) -> None:
        """Offer a node no more, and grant nothing there."""
        self.aside = {**self.aside, name: why}
        self.suspects = {other: said for other, said in self.suspects.items() if other != name}
        self._offered = None
        for job in self.queue.busy():
            if job.goal and name in job.goal:
                self.change(job, goal=None)

    def readmit(self, name: str) -> bool:
        """Offer a node again; return whether it was set aside."""
        was = name in self.aside
        self.aside = {other: why for other, why in self.aside.items() if other != name}
        self._offered = None
        return was

    def add(self, job: Job) -> None:
        """Add a job, its dependents, and the trial in its record."""
        self.put(job)
        if job.trial is not None and job.id in self.records:
            for rung, value in self.records[job.id].rungs.items():
                self.trials.place(job.trial, rung, value)
        for need in job.after:
            self._dependents.setdefault(need, []).append(job.id)

    def put(self, job: Job) -> None:
        """Replace a job."""
        self.jobs[job.id] = job
        self.changed.note(job.id)
        self.homes.note(job)
        if job.trial is not None:
            lost = job.cancelling or job.state in {State.FAILED, State.CANCELLED}
            self.trials.note(job.id, job.trial, left=not lost or job.state is State.COMPLETED)
        if not job.state.final:
            self.queue.put(job)

    def change(self, job: Job, **changes: Any) -> Job:
        """Replace some values of a job."""
        job = replace(job, **changes)
        self.put(job)
        return job

    def change_run(self, job: Job, **changes: Any) -> Job:
        """Replace some values of a job's current attempt."""
        return self.change(job, run=replace(job.run, **changes))

    def enter(self, job: Job, state: State, now_s: float, **changes: Any) -> Job:
        """Move a job to a state, by the table.

        Parameters
        ----------
        job : Job
        state : State
        now_s : float
        **changes
            Other values of the job that change.

        Raises
        ------
        RuntimeError
            The table has no such transition.
        """
        if state is not job.state:
            if state not in TRANSITIONS[job.state]:
                raise RuntimeError(f"job {job.id}: {job.state.value} → {state.value}")
            changes["since_s"] = now_s
        return self.change(job, state=state, **changes)

    def finish(self, job: Job, now_s: float, state: State, *, why: str) -> None:
        """Put a job into a final state, and with it those that can now never run.

        Parameters
        ----------
        job : Job
        now_s : float
        state : State
            A final one.
        why : str
            The reason that its user reads.
        """
        job = self._settle(job, state, now_s, why)
        # A chain of dependents may be long: a stack, not recursion.
        stack = [] if job.done else [job]
        while stack:
            need = stack.pop()
            for name in self._dependents.get(need.id, ()):
                waiting = self.jobs[name]
                if waiting.state is State.PENDING:
                    stack.append(self._settle(waiting, State.CANCELLED, now_s, gone(need)))

    def judge(self, job: Job, trial: Trial, rungs: Mapping[int, float | None]) -> Cause:
        """Compare a trial with the others at rungs that it came to; end it where it is behind.

        Parameters
        ----------
        job : Job
        trial : Trial
        rungs : Mapping[int, float or None]
            Step of each rung → the metric there.
        """
        for rung, value in rungs.items():
            self.trials.place(trial, rung, value)
        verdicts = (self.trials.verdict(job.id, trial, *reached) for reached in rungs.items())
        verdict = next(filter(None, verdicts), "")
        if job.cancelling or not verdict:
            return NOTHING
        self.change(job, cancelling=True, goal=None, verdict=verdict)
        return Cause.REQUEST

    def forget(self, job_id: str) -> None:
        """Know nothing more of a job that has ended, if no other one waits for it.

        A manager keeps all jobs; a simulated year has too many of them.
        """
        job = self.jobs[job_id]
        waiting = (self.jobs[name] for name in self._dependents.get(job_id, ()))
        if job.state.final and all(each.state.final for each in waiting):
            del self.jobs[job_id], self.records[job_id]
            self.changed.forget(job_id)
            self._dependents.pop(job_id, None)
            for need in job.after:
                if job_id in self._dependents.get(need, ()):
                    self._dependents[need].remove(job_id)

    def touch_dependents(self, need: str) -> None:
        """Look again at the jobs that wait for one."""
        for name in self._dependents.get(need, ()):
            if not self.jobs[name].state.final:
                self.queue.touch(name)

    def _settle(self, job: Job, state: State, now_s: float, why: str) -> Job:
        """Enter a final state, and leave the queue."""
        self.queue.drop(job)
        job = self.enter(job, state, now_s, goal=None, why=why, ready=False)
        self.touch_dependents(job.id)
        return job

    def _ready(self, job: Job, now_s: float) -> bool:
        if job.on_hold or job.cancelling or self.suspending or now_s < job.not_before_s:
            return False
        if self.draining and job.goal is None and not job.state.active:
            return False
        if job.home and self.homes.keep_back(job, now_s, self.offered, self.queue.busy()):
            return False
        return not job.after or not any(True for _ in self.unmet(job))

    # As one value.

    def save(self) -> Saved:
        """Return all of it as one value."""
        return Saved(
            nodes=tuple(self.nodes.values()),
            jobs=tuple(self.jobs.values()),
            records=self.records,
            fragments=self.seen.fragments,
            **{name: getattr(self, name) for name in _SAVED},
        )

    @classmethod
    def restore(cls, saved: Saved) -> World:
        """Make the world that :meth:`save` was called on."""
        world = cls()
        world.nodes = {node.name: node for node in saved.nodes}
        world.records = dict(saved.records)
        world.orphaned = {name for name, each in saved.records.items() if each.orphans}
        for name in _SAVED:
            value = getattr(saved, name)
            # The world changes its own.
            setattr(world, name, dict(value) if isinstance(value, dict) else value)
        world.seen = FragmentCounter(saved.fragments)
        for job in saved.jobs:
            world.add(job)
        return world


def gone(need: Job) -> str:
    """Explain why a job that needs this one will never run."""
    return f"needs {need.name}, which {'failed' if need.state is State.FAILED else 'was cancelled'}"
