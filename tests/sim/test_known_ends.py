"""What nodes are said to be given back at: planned by the main queue, or known to nobody."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcext.core.engine import Engine
from hpcext.core.estimate import Estimate
from hpcext.core.facts import Fact, NodeJoined, NodeLost, Registered, Started, Submitted
from hpcext.core.values import Action, Job, Node, Snapshot, State, Target
from hpcext.policies import find_policy
from hpcext.sim.evaluate.outcome import SimulatedRun
from hpcext.sim.replay.heap import Observe
from hpcext.sim.replay.mainqueue import MainQueue
from hpcext.sim.replay.physics import Physics
from hpcext.sim.replay.run import Named, Scenario, SimulationOptions, run
from hpcext.sim.replay.sources import facts, holes, idle
from hpcext.sim.traces.idle import NodeChange, read_idle, write_idle
from hpcext.sim.traces.swf import read_swf

PLANNED = (
    NodeChange(10.0, (0, 1, 2), (), 100.0, (1, 2)),
    NodeChange(20.0, (3,), (0,), 100.0, (1, 2)),
    NodeChange(30.0, (), (), 90.0, (1, 2)),  # sooner than was said
    NodeChange(40.0, (0,), (1,), 90.0, (0, 2)),
    NodeChange(50.0, (), (), None, ()),  # nothing waits any more
    NodeChange(60.0, (), (2,), 95.0, (2, 3, 7)),  # of these only 3 is there
)


def ends(told: Iterable[Fact]) -> dict[str, float | None]:
    return {fact.node.name: fact.node.ends_s for fact in told if isinstance(fact, NodeJoined)}


def said(
    changes: Iterable[NodeChange], skip: int = 0, *, known: bool = False
) -> list[tuple[float, dict[str, float | None]]]:
    return [(when_s, ends(told)) for when_s, told in facts(changes, 1, skip, known=known)]


def test_a_plan_is_reported_when_it_changes() -> None:
    assert said(PLANNED) == [
        (0.0, {"n0": None, "n1": 90.0, "n2": 90.0}),
        (10.0, {"n3": None}),
        (20.0, {"n1": 80.0, "n2": 80.0}),
        (30.0, {"n0": 80.0}),
        (40.0, {"n0": None, "n2": None}),
        (50.0, {"n3": 85.0}),
    ]
    told = [told for _, told in facts(PLANNED, 2)]
    # It has been idle since before; it is the same node.
    assert told[2] == tuple(NodeJoined(Node(f"n{n}", 2, "", 0.0, 80.0)) for n in (1, 2))
    # Of who leaves nothing is said.
    assert told[3] == (NodeLost("n1"), NodeJoined(Node("n0", 2, "", 30.0, 80.0)))


def test_plans_from_before_the_beginning_are_reported_at_the_beginning() -> None:
    assert said(PLANNED, 3)[:2] == [
        (0.0, {"n0": 50.0, "n2": 50.0, "n3": None}), (10.0, {"n0": None, "n2": None}),
    ]  # fmt: skip
    begun = next(iter(facts(PLANNED, 1, 3)))[1]
    since = {fact.node.name: fact.node.since_s for fact in begun if isinstance(fact, NodeJoined)}
    assert since == {"n0": 0.0, "n2": -30.0, "n3": -20.0}


def test_true_ends_are_reported_instead_of_plans() -> None:
    assert said(PLANNED, known=True) == [
        (0.0, {"n0": 10.0, "n1": 30.0, "n2": 50.0}),
        (10.0, {"n3": math.inf}),
        (20.0, {}),
        (30.0, {"n0": math.inf}),
        (40.0, {}),
        (50.0, {}),
    ]


@st.composite
def traces(draw: st.DrawFn) -> list[NodeChange]:
    """Six nodes that come and go, and plans; some plans are of nodes that are not idle."""
    there: set[int] = set()
    changes, now_s = [], 0.0
    nodes = st.sets(st.integers(0, 5))
    for _ in range(draw(st.integers(1, 12))):
        now_s += draw(st.integers(1, 3))
        left = draw(nodes) & there
        joined = draw(nodes) - (there - left)
        there = (there - left) | joined
        plan = draw(nodes)
        when_s = now_s + draw(st.integers(0, 2)) if plan else None
        changes.append(
            NodeChange(
                now_s, tuple(sorted(joined)), tuple(sorted(left)), when_s, tuple(sorted(plan))
            )
        )
    return changes


@settings(max_examples=200, deadline=None)
@given(traces(), st.integers(0, 3))
def test_who_takes_in_all_facts_knows_the_plan(changes: list[NodeChange], skip: int) -> None:
    there: dict[str, Node] = {}
    skip = min(skip, len(changes) - 1)
    first_s = changes[skip].time_s
    told = list(facts(changes, 1, skip))
    for change, (_, given_) in zip(changes[skip:], told, strict=True):
        for fact in given_:
            if isinstance(fact, NodeLost):
                del there[fact.name]
            elif isinstance(fact, NodeJoined):
                # Nothing is told twice.
                assert there.get(fact.node.name) != fact.node
                there[fact.node.name] = fact.node
        planned = {f"n{number}" for number in change.planned}
        for name, node in there.items():
            when_s = change.planned_s - first_s if change.planned_s is not None else None
            assert node.ends_s == (when_s if name in planned else None)


@settings(max_examples=50, deadline=None)
@given(traces())
def test_without_plans_each_node_is_reported_once(changes: list[NodeChange]) -> None:
    without = [change._replace(planned_s=None, planned=()) for change in changes]
    named = [sum(isinstance(fact, NodeJoined) for fact in told) for _, told in facts(without, 1)]
    assert named == [len(change.joined) for change in changes]
    assert all(end is None for _, told in said(without) for end in told.values())


def trainer(order: int, work: float = 1e5) -> tuple[Job, Physics]:
    speed = {1: 10.0, 2: 19.0, 3: 27.0, 4: 34.0}
    known = Estimate(stated=speed, work=work, up_s=9.0, down_s=6.0)
    job = Job(str(order), f"J-{order}", order, (1,), 1, nodes=(1, 4), estimate=known)
    physics = Physics(
        speed, work, resume_s=9.0, suspend_s=6.0, checkpoint_s=0.0, elastic=True,
        rescale_up_s=9.0, rescale_down_s=6.0,
    )  # fmt: skip
    return job, physics


BUSY = (
    NodeChange(0.0, (0, 1, 2, 3), ()),
    NodeChange(100.0, (4, 5), (1,)),
    NodeChange(110.0, (1,), ()),
    NodeChange(300.0, (), (0, 4)),
)
PLANS = {
    50.0: (400.0, (2, 3)),
    105.0: (350.0, (2, 3, 4, 5)),
    112.0: (None, ()),
    200.0: (300.0, (0,)),
}
"""When something else is planned, and what; no instant of a change."""

Step = tuple[float, tuple[Action, ...]]


def simulated(
    changes: Sequence[NodeChange], policy: str, until_s: float = 1000.0
) -> tuple[SimulatedRun, list[Step], list[Snapshot]]:
    """A run of two trainers, all that was ordered, and all that the policy was shown."""
    ordered: list[Step] = []
    shown: list[Snapshot] = []
    decide = find_policy(policy)

    def spying(now: Snapshot) -> Target:
        shown.append(now)
        return decide(now)

    def watcher(_: Engine) -> Observe:
        def watch(now_s: float, _: tuple[Fact, ...], actions: tuple[Action, ...]) -> None:
            if actions:
                ordered.append((now_s, actions))

        return watch

    scenario = Scenario([trainer(0), trainer(1)], changes=facts(changes, 1))
    found = run(scenario, spying, Named(policy), SimulationOptions(until_s=until_s), watcher)
    return found, ordered, shown


def with_plans() -> list[NodeChange]:
    plan: tuple[float | None, tuple[int, ...]] = (None, ())
    changes: dict[float, NodeChange] = {change.time_s: change for change in BUSY}
    for when_s in sorted({*changes, *PLANS}):
        plan = PLANS.get(when_s, plan)
        before = changes.get(when_s, NodeChange(when_s, (), ()))
        changes[when_s] = before._replace(planned_s=plan[0], planned=plan[1])
    return [changes[when_s] for when_s in sorted(changes)]


@pytest.mark.parametrize("policy", ["bftrainer", "equal_share"])
def test_a_plan_alone_changes_nothing_of_what_runs(policy: str) -> None:
    """Where the policy does not look at ends; while trainers start, run and change their size."""
    plain, ordered, _ = simulated(BUSY, policy)
    planned, ordered_too, shown = simulated(with_plans(), policy)
    assert ordered_too == ordered
    assert planned.jobs == plain.jobs
    assert planned.done == plain.done > 0
    told = {now.now_s: now.nodes for now in shown}
    assert {name: node.ends_s for name, node in told[105.0].items()} == {
        "n0": None, "n2": 350.0, "n3": 350.0, "n4": 350.0, "n5": 350.0,
    }  # fmt: skip
    assert {node.ends_s for node in told[112.0].values()} == {None}


@pytest.mark.parametrize("when_s", [1.0, 50.0])
def test_the_engine_keeps_jobs_on_a_node_that_is_reported_again(when_s: float) -> None:
    engine = Engine(find_policy("bftrainer"))
    job, _ = trainer(0)
    nodes = [Node(f"n{number}", 1) for number in range(3)]
    (start,), _ = engine.step(0.0, [*map(NodeJoined, nodes), Submitted(job)])
    gpus = tuple(f"{name}:0" for name in start.alloc)
    if when_s > 1:
        engine.step(2.0, [Started("0", start.op, gpus)])
        engine.step(3.0, [Registered("0", start.op, 0, in_place=True, elastic=True)])
    before = engine.world.jobs["0"]
    again = Node("n1", 1, "", 0.0, 500.0)
    actions, _ = engine.step(when_s, [NodeJoined(again)])
    after = engine.world.jobs["0"]
    assert actions == ()
    assert engine.refusal == ""
    assert (after.state, after.goal, after.held, after.op) == (
        before.state, before.goal, before.held, before.op,
    )  # fmt: skip
    assert after.state is (State.RUNNING if when_s > 1 else State.STARTING)
    assert engine.world.nodes["n1"] == again


LOG = [
    # number, submit, run, processors, seconds asked for
    (1, 0, 100, 4, 200),
    (2, 10, 50, 8, 60),  # is planned on all eight, at 200 s
    (3, 20, 30, 2, 30),
    (4, 300, 10, 1, 10),
]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.swf"
    lines = (
        f"{number} {submit} 0 {run_s} {procs} -1 -1 {procs} {limit} -1 1 1 1 1 1 1 -1 -1"
        for number, submit, run_s, procs, limit in LOG
    )
    path.write_text("; MaxProcs: 8\n" + "\n".join(lines) + "\n")
    return path


def test_the_holes_of_a_main_queue_end_as_planned(log: Path) -> None:
    source = holes(log, 8)
    told = {when_s: ends(given_) for when_s, given_ in source.changes(0)}
    assert told[10.0] == dict.fromkeys(("n4", "n5", "n6", "n7"), 200.0)
    # Job 3 ends before that, and gives its nodes back to the plan.
    assert told[50.0] == dict.fromkeys(("n4", "n5"), 200.0)
    # Job 1 ended sooner than it had to: nothing is left that ends.
    assert 100.0 in told
    assert 200.0 not in told


def test_a_trace_with_a_plan_is_as_the_queue_that_it_is_of(log: Path, tmp_path: Path) -> None:
    path = tmp_path / "holes.csv"
    write_idle(path, MainQueue(8).changes(read_swf(log), planned=True), planned=True)
    assert list(idle(str(path)).changes(0)) == list(holes(log, 8).changes(0))
    known = list(idle(str(path), known=True).changes(0))
    assert known == list(facts(read_idle(path), 1, known=True))
    assert known == list(holes(log, 8, known=True).changes(0))
    assert known != list(idle(str(path)).changes(0))
