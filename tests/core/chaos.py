"""Random worlds: jobs, nodes, requests, faults, and a policy that asks for anything at all."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

from hypothesis import strategies as st

from hpcext.core import facts as f
from hpcext.core import values as v
from hpcext.core.engine import Policy
from hpcext.core.estimate import Estimate
from hpcext.policies import find_policy
from hpcext.sim.replay.executor import SimulatedExecutor
from hpcext.sim.replay.heap import Heap
from hpcext.sim.replay.physics import Faults, Physics

CALM_S = 300.0
"""From here on nothing new goes wrong, nobody asks for anything, and every job fits somewhere."""

MOST_GPUS = 8
FIFO = ("marble", "exclusive", "fixed", "fixed:gpus=2")
MALLEABLE = (
    "bftrainer", "bftrainer:objective=throughput", "bftrainer-lifetime",
    "bftrainer-lifetime:parallel=2", "equal_share", "optimus:interval_s=20",
    "doubling:explore_s=10", "doubling:strategy=precompute", "total_time:interval_s=20",
    "pollux:interval_s=20", "pollux:p=1", "fixed:gpus=2,turn_s=20",
    "tiresias:interval_s=20,thresholds=100", "easy", "conservative",
)  # fmt: skip
POLICIES = (*FIFO, *MALLEABLE, "wild", "restless")

CURVES: tuple[dict[str, dict[int, float]], ...] = (
    {}, {}, {"slow": {1: 1.0, 8: 4.0}, "fast": {1: 3.0, 8: 20.0}},
)  # fmt: skip
"""What jobs state of kinds of GPUs; a node may be of another kind than these."""

instants = st.integers(0, int(CALM_S) - 1).map(float)
"""Whole seconds: several things happen at one instant more often than in life."""

sinces = st.sampled_from([None, None, -900.0, 0.0])
ends = st.sampled_from([None, None, 0.0, 20.0, 200.0, 4000.0])
"""When a node is to leave, as far as that is known; whether it does is another thing."""

costs = st.sampled_from([0.0, 0.5, 1.0, 3.0, 10.0])
shares = st.sampled_from([0.0, 0.0, 0.2, 0.7])


@dataclasses.dataclass(frozen=True)
class Scenario:
    """All that one run depends on."""

    policy: str
    nodes: tuple[v.Node, ...]
    jobs: tuple[v.Job, ...]
    physics: dict[str, Physics]
    inputs: tuple[tuple[float, f.Fact], ...]
    faults: Faults
    report_s: float | None
    seed: int

    def make_policy(self) -> Policy:
        return MADE_UP[self.policy](self.seed) if self.made_up else find_policy(self.policy)

    @property
    def made_up(self) -> bool:
        """Whether its policy is none of ours, and promises nothing."""
        return self.policy in MADE_UP

    def begin(self) -> tuple[Heap, SimulatedExecutor]:
        """A heap with all that comes from outside on it, and the executor."""
        heap = Heap()
        executor = SimulatedExecutor(
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

    def _arrivals(self) -> list[tuple[float, f.Fact]]:
        nodes: list[tuple[float, f.Fact]] = [(0.0, f.NodeJoined(node)) for node in self.nodes]
        return nodes + [(job.submitted_s, f.Submitted(job)) for job in self.jobs]

    def _calm(self) -> list[tuple[float, f.Fact]]:
        """A node that every job fits on, and nobody's hand in the way of it."""
        facts: list[f.Fact] = [f.NodeJoined(v.Node("big", MOST_GPUS)), f.Began()]
        facts += [f.Release(job.id) for job in self.jobs]
        return [(CALM_S, fact) for fact in facts]


@st.composite
def scenarios(
    draw: st.DrawFn,
    policies: Sequence[str] = POLICIES,
    *,
    quiet: bool = False,
    supple: bool = False,
) -> Scenario:
    """A random scenario.

    A quiet one has neither faults nor requests, and one arrival; in a supple one jobs are long
    and can run at any size, and change it in place.
    """
    policy = draw(st.sampled_from(policies))
    kinds = st.sampled_from(draw(st.sampled_from([[""], [""], ["slow", "fast"]])))
    nodes = tuple(
        v.Node(
            f"n{number}",
            draw(st.integers(4 if supple else 1, MOST_GPUS)),
            draw(kinds),
            draw(sinces),
            draw(ends),
        )
        for number in range(draw(st.sampled_from([1, 1, 2, 4])))
    )
    ids = [str(number) for number in range(1, draw(st.integers(2, 7)) + 1)]
    # A random order of the ids: a job may come after one that is behind it in the queue.
    rank = draw(st.permutations(ids))
    jobs = tuple(draw(_jobs(job_id, rank[: rank.index(job_id)], quiet, supple)) for job_id in ids)
    physics = {job_id: draw(_physics(supple)) for job_id in ids}
    inputs = () if quiet else tuple(draw(st.lists(_inputs(ids, nodes), max_size=12)))
    faults = Faults() if quiet else draw(_faults())
    report_s = draw(st.sampled_from([None, 7.0]))
    return Scenario(
        policy, nodes, jobs, physics, inputs, faults, report_s, draw(st.integers(0, 1 << 16))
    )


@st.composite
def _jobs(draw: st.DrawFn, job_id: str, earlier: Sequence[str], quiet: bool, supple: bool) -> v.Job:
    all_sizes = set(range(1, MOST_GPUS + 1))
    # Then it takes a node of four, which there is from the beginning of the calm.
    spreads = not supple and draw(st.sampled_from([False, False, True]))
    if spreads:
        all_sizes = {1, 2, 4}
    sizes = all_sizes if supple else draw(st.sets(st.sampled_from(sorted(all_sizes)), min_size=1))
    most_needs = draw(st.sampled_from([0, 0, 2])) if earlier else 0
    after = draw(st.sets(st.sampled_from(earlier), max_size=most_needs)) if most_needs else set()
    return v.Job(
        job_id,
        f"job{job_id}",
        int(job_id),
        tuple(sorted(sizes)),
        draw(st.sampled_from(sorted(sizes))),
        nodes=(1, 3) if spreads else None,
        estimate=Estimate(by_kind=draw(st.sampled_from(CURVES))),
        priority=0.0 if quiet else draw(st.sampled_from([0.0, 0.0, 1.0])),
        after=tuple(sorted(after)),
        retries=draw(st.integers(0, 3)),
        suspend_timeout_s=draw(st.sampled_from([2.0, 20.0])),
        submitted_s=draw(st.sampled_from([0.0, 0.0, 25.0])),
    )


@st.composite
def _physics(draw: st.DrawFn, supple: bool) -> Physics:
    speed = {1: 1.0, MOST_GPUS: draw(st.sampled_from([0.8, 2.0, 7.0]))}
    return Physics(
        speed,
        work=draw(st.sampled_from([200.0, 500.0] if supple else [5.0, 60.0, 200.0, 500.0])),
        launch_s=draw(costs),
        resume_s=draw(costs),
        suspend_s=draw(costs),
        checkpoint_s=draw(st.sampled_from([None, 0.0, 5.0, 40.0])),
        elastic=draw(st.booleans()),
        interference=draw(st.sampled_from([0.0, 0.3])),
        in_place=supple or draw(st.booleans()),
        join_s=draw(costs),
        rescale_up_s=draw(costs),
        rescale_down_s=draw(costs),
    )


def _faults() -> st.SearchStrategy[Faults]:
    return st.builds(
        Faults,
        fail_s=st.sampled_from([None, None, 30.0, 200.0]),
        unstarted=shares,
        unresponsive=shares,
        stubborn=shares,
        late_s=st.sampled_from([0.0, 0.0, 4.0, 30.0]),
        repeat=shares,
        unscaled=shares,
        mute=shares,
        until_s=st.just(CALM_S),
    )


@st.composite
def _inputs(draw: st.DrawFn, ids: Sequence[str], nodes: Sequence[v.Node]) -> tuple[float, f.Fact]:
    job = draw(st.sampled_from([*ids, "nobody"]))
    node, kind = draw(st.sampled_from([(node.name, node.kind) for node in nodes]))
    gpus, end_s = draw(st.integers(1, MOST_GPUS)), draw(ends)
    facts: list[f.Fact] = [
        f.NodeLost(node), f.NodeJoined(v.Node(node, gpus, kind, ends_s=end_s)), f.Hold(job),
        f.Hold(job), f.Release(job), f.Resize(job, gpus), f.Resize(job, gpus), f.Resize(job, gpus),
        f.Resize(job, 0), f.Cancel(job), f.Drain(), f.Drain(suspend=True), f.Began(),
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


def restless(seed: int) -> Policy:
    """A policy that gives jobs another size where they are, again and again, until all is calm.

    Not when a job has just got one: where that takes no time, neither would all that follows.
    """

    def allocate(now: v.Snapshot) -> v.Target:
        if now.now_s >= CALM_S:
            return find_policy("marble")(now)
        about = [(job.id, job.state.value, job.op, job.ready) for job in now.jobs]
        source = random.Random(f"{seed}/{now.now_s}/{now.cause.value}/{about}")
        left = {name: node.gpus for name, node in now.nodes.items()}
        grants = {}
        for job in now.jobs:
            if not job.ready or not left or source.random() < 0.03:
                continue
            nodes = list(job.goal or {}) or source.sample(list(left), min(len(left), 2))
            size = source.choice([size for size in job.sizes if size >= len(nodes)] or [0])
            first = source.randint(1, size - 1) if len(nodes) > 1 and size else size
            alloc = dict(zip(nodes, (first, size - first), strict=False))
            if job.goal and not now.cause & v.Cause.TIME:
                alloc = dict(job.goal)
            if all(0 < gpus <= left.get(node, 0) for node, gpus in alloc.items()):
                for node, gpus in alloc.items():
                    left[node] -= gpus
                grants[job.id] = v.Grant(alloc, v.Role.SECONDARY, "for a change")
        return v.Target(grants, wake_s=now.now_s + source.choice([1.0, 4.0, 20.0]))

    return allocate


MADE_UP = {"wild": wild, "restless": restless}


def _any_alloc(source: random.Random, job: v.Job, left: dict[str, int]) -> dict[str, int]:
    """Mostly what the job could run on, on one node or two; sometimes nonsense."""
    if not left or (not job.ready and source.random() < 0.95):
        return {}
    size = source.choice(job.sizes) if source.random() < 0.97 else source.randint(-1, 9)
    # Often where it is: then it is resized, not moved.
    here = [node for node in job.goal or {} if node in left and source.random() < 0.8]
    first, *others = here or [source.choice(list(left))]
    second = others[0] if others else source.choice(list(left))
    splits = size > 1 and (others or source.random() < 0.3)
    split = source.randint(1, size - 1) if splits else size
    alloc = {first: split}
    if split != size:
        alloc[second] = alloc.get(second, 0) + size - split
    if source.random() < 0.97 and any(left[node] < gpus for node, gpus in alloc.items()):
        return {}
    for node, gpus in alloc.items():
        left[node] -= gpus
    return alloc
