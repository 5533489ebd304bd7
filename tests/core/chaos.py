"""Random worlds: jobs, nodes, requests, faults, and a policy that asks for anything at all."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

from hypothesis import strategies as st

from hpcext.core import values as v
from hpcext.core.engine import Policy
from hpcext.policies import find_policy
from hpcext.sim.executor import Simulated
from hpcext.sim.heap import Heap
from hpcext.sim.physics import Faults, Physics

CALM_S = 300.0
"""From here on nothing new goes wrong, nobody asks for anything, and every job fits somewhere."""

MOST_GPUS = 8
POLICIES = ("marble", "exclusive", "wild")

instants = st.integers(0, int(CALM_S) - 1).map(float)
"""Whole seconds: several things happen at one instant more often than in life."""

costs = st.sampled_from([0.0, 0.5, 1.0, 3.0, 10.0])
shares = st.sampled_from([0.0, 0.0, 0.2, 0.7])


@dataclasses.dataclass(frozen=True)
class Scenario:
    """All that one run depends on."""

    policy: str
    nodes: tuple[v.Node, ...]
    jobs: tuple[v.Job, ...]
    physics: dict[str, Physics]
    inputs: tuple[tuple[float, v.Fact], ...]
    faults: Faults
    report_s: float | None
    seed: int

    def make_policy(self) -> Policy:
        if self.policy == "wild":
            return wild(self.seed)
        return find_policy(self.policy)

    def begin(self) -> tuple[Heap, Simulated]:
        """A heap with all that comes from outside on it, and the executor."""
        heap = Heap()
        executor = Simulated(
            heap,
            self.nodes,
            self.physics,
            faults=self.faults,
            seed=self.seed,
            report_s=self.report_s,
        )
        for when_s, fact in (*self._arrivals(), *self.inputs, *self._calm()):
            heap.at(when_s, lambda it=fact: executor.happen(it))  # type: ignore[misc]
        return heap, executor

    def _arrivals(self) -> list[tuple[float, v.Fact]]:
        nodes: list[tuple[float, v.Fact]] = [(0.0, v.NodeJoined(node)) for node in self.nodes]
        return nodes + [(job.submitted_s, v.Submitted(job)) for job in self.jobs]

    def _calm(self) -> list[tuple[float, v.Fact]]:
        """A node that every job fits on, and nobody's hand in the way of it."""
        facts: list[v.Fact] = [v.NodeJoined(v.Node("big", MOST_GPUS)), v.Began()]
        facts += [v.Release(job.id) for job in self.jobs]
        return [(CALM_S, fact) for fact in facts]


@st.composite
def scenarios(draw: st.DrawFn, policies: Sequence[str] = POLICIES, quiet: bool = False) -> Scenario:
    """A random scenario; a quiet one has neither faults nor requests, and one arrival."""
    policy = draw(st.sampled_from(policies))
    nodes = tuple(
        v.Node(f"n{number}", draw(st.integers(1, MOST_GPUS)))
        for number in range(draw(st.sampled_from([1, 1, 2, 4])))
    )
    ids = [str(number) for number in range(1, draw(st.integers(2, 7)) + 1)]
    # A random order of the ids: a job may come after one that is behind it in the queue.
    rank = draw(st.permutations(ids))
    jobs = tuple(draw(_jobs(job_id, rank[: rank.index(job_id)], quiet)) for job_id in ids)
    physics = {job_id: draw(_physics()) for job_id in ids}
    inputs = () if quiet else tuple(draw(st.lists(_inputs(ids, nodes), max_size=12)))
    faults = Faults() if quiet else draw(_faults())
    report_s = draw(st.sampled_from([None, 7.0]))
    return Scenario(
        policy, nodes, jobs, physics, inputs, faults, report_s, draw(st.integers(0, 1 << 16))
    )


@st.composite
def _jobs(draw: st.DrawFn, job_id: str, earlier: Sequence[str], quiet: bool) -> v.Job:
    sizes = draw(st.sets(st.integers(1, MOST_GPUS), min_size=1))
    most_needs = draw(st.sampled_from([0, 0, 2])) if earlier else 0
    after = draw(st.sets(st.sampled_from(earlier), max_size=most_needs)) if most_needs else set()
    return v.Job(
        job_id,
        f"job{job_id}",
        int(job_id),
        tuple(sorted(sizes)),
        draw(st.sampled_from(sorted(sizes))),
        priority=0.0 if quiet else draw(st.sampled_from([0.0, 0.0, 1.0])),
        after=tuple(sorted(after)),
        retries=draw(st.integers(0, 3)),
        suspend_timeout_s=draw(st.sampled_from([2.0, 20.0])),
        submitted_s=draw(st.sampled_from([0.0, 0.0, 25.0])),
    )


@st.composite
def _physics(draw: st.DrawFn) -> Physics:
    speed = {1: 1.0, MOST_GPUS: draw(st.sampled_from([0.8, 2.0, 7.0]))}
    return Physics(
        speed,
        work=draw(st.sampled_from([5.0, 60.0, 200.0, 500.0])),
        launch_s=draw(costs),
        resume_s=draw(costs),
        suspend_s=draw(costs),
        checkpoint_s=draw(st.sampled_from([None, 5.0, 40.0])),
    )


def _faults() -> st.SearchStrategy[Faults]:
    return st.builds(
        Faults,
        fail_s=st.sampled_from([None, None, 30.0, 200.0]),
        unstarted=shares,
        deaf=shares,
        stubborn=shares,
        late_s=st.sampled_from([0.0, 0.0, 4.0, 30.0]),
        repeat=shares,
        until_s=st.just(CALM_S),
    )


@st.composite
def _inputs(draw: st.DrawFn, ids: Sequence[str], nodes: Sequence[v.Node]) -> tuple[float, v.Fact]:
    job = draw(st.sampled_from([*ids, "nobody"]))
    node = draw(st.sampled_from([node.name for node in nodes]))
    gpus = draw(st.integers(1, MOST_GPUS))
    facts: list[v.Fact] = [
        v.NodeLost(node), v.NodeJoined(v.Node(node, gpus)), v.Hold(job), v.Hold(job),
        v.Release(job), v.Resize(job, gpus), v.Resize(job, gpus), v.Resize(job, gpus),
        v.Cancel(job), v.Drain(), v.Drain(stop=True), v.Began(),
    ]  # fmt: skip
    return draw(instants), draw(st.sampled_from(facts))


def wild(seed: int) -> Policy:
    """A policy that asks for anything, fitting or not, until all is calm; then it is marble.

    It is a function of its snapshot, as every policy must be.
    """

    def allocate(now: v.Snapshot) -> v.Target:
        if now.now_s >= CALM_S:
            return find_policy("marble")(now)
        about = [(job.id, job.state.value, job.op, job.ready) for job in now.jobs]
        source = random.Random(f"{seed}/{now.now_s}/{now.cause.value}/{now.memo}/{about}")
        left = {name: node.gpus for name, node in now.nodes.items()}
        if source.random() < 0.1:
            left["nowhere"] = 8
        grants = {}
        for job in now.jobs:
            if source.random() < 0.6 and (alloc := _any_alloc(source, job, left)):
                grants[job.id] = v.Grant(alloc, source.choice(list(v.Role)), "because")
        if source.random() < 0.05:
            grants["nobody"] = v.Grant({"n0": 1}, v.Role.PRIMARY, "because")
        wake_s = now.now_s + source.choice([-5.0, 0.0, 1.0, 20.0])
        return v.Target(
            grants,
            wake_s=wake_s if source.random() < 0.5 else None,
            memo={"asked": (now.memo or {"asked": 0})["asked"] + 1},
        )

    return allocate


def _any_alloc(source: random.Random, job: v.Job, left: dict[str, int]) -> dict[str, int]:
    """Mostly what the job could run on, on one node or two; sometimes nonsense."""
    if not left or (not job.ready and source.random() < 0.95):
        return {}
    size = source.choice(job.sizes) if source.random() < 0.97 else source.randint(-1, 9)
    first, second = source.choice(list(left)), source.choice(list(left))
    split = source.randint(1, size - 1) if size > 1 and source.random() < 0.3 else size
    alloc = {first: split}
    if split != size:
        alloc[second] = alloc.get(second, 0) + size - split
    if source.random() < 0.97 and any(left[node] < gpus for node, gpus in alloc.items()):
        return {}
    for node, gpus in alloc.items():
        left[node] -= gpus
    return alloc
