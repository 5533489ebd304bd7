"""Fixed nodes of which some are gone: what still runs, what waits for nothing, what was left."""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec
import pytest

from hpcext.core import facts as f
from hpcext.core import values as v
from hpcext.core.engine import Engine
from hpcext.core.reach import lacks, stranded
from hpcext.core.saved import Saved
from hpcext.policies import find_policy

NODES = {"n1": v.Node("n1", 4), "n2": v.Node("n2", 4)}
ONE = {"n1": v.Node("n1", 4)}


def job(name: str, nodes: int | None = None, *, gpus: int = 4, **more: object) -> v.Job:
    spread = None if nodes is None else (nodes, nodes)
    return v.Job(name, f"j{name}", int(name), (gpus,), gpus, nodes=spread, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("what", "nodes", "why"),
    [
        (job("1", 2), NODES, ""),
        (job("1", 2), ONE, "needs 2 nodes, and 1 is left of its allocation"),
        (job("1", 1), ONE, ""),
        (job("1", 1), {}, "needs 1 node, and 0 are left of its allocation"),
        (job("1", gpus=4), ONE, ""),
        (job("1", gpus=8), NODES, ""),
        (job("1", gpus=8), ONE, "needs 8 GPUs, and 4 are left of its allocation"),
        # Nodes that are too small for it do not count, nor those of another kind.
        (job("1", 2, gpus=4), {**ONE, "n2": v.Node("n2", 3)},
         "needs 2 nodes, and 1 is left of its allocation"),
        (job("1", 2), {"n1": v.Node("n1", 4, "a"), "n2": v.Node("n2", 4, "b")},
         "needs 2 nodes, and 1 is left of its allocation"),
    ],
)  # fmt: skip
def test_what_a_job_lacks(what: v.Job, nodes: Mapping[str, v.Node], why: str) -> None:
    assert lacks(what, nodes) == why


HELD = v.State.RUNNING


@pytest.mark.parametrize(
    ("jobs", "nothing"),
    [
        ([job("1", 2)], True),
        ([job("1", 1)], False),
        ([], False),
        # One that waits for it, and one that waits for that; one that its user holds.
        ([job("1", 2), job("2", 1, after=("1",)), job("3", 1, after=("2",))], True),
        ([job("1", 2), job("2", 1, on_hold=True)], True),
        ([job("2", 1, on_hold=True)], False),
        # One that backs off, one that runs.
        ([job("1", 2), job("2", 1, not_before_s=99.0, ready=False)], False),
        ([job("1", 2), job("2", 1, state=HELD, held={"n1": 4})], False),
        ([job("1", 2), job("2", 1, after=("1",)), job("3", 1)], False),
    ],
)
def test_when_what_is_left_serves_nothing_that_waits(jobs: list[v.Job], nothing: bool) -> None:
    assert stranded(jobs, ONE) is nothing


def begun(*jobs: v.Job) -> Engine:
    """MARBLE, first in, first out, on two nodes; what starts runs."""
    engine = Engine(find_policy("marble"))
    facts = [*(f.NodeJoined(node) for node in NODES.values()), *map(f.Submitted, jobs)]
    run(engine, 0, *facts)
    return engine


def run(engine: Engine, now_s: float, *facts: f.Fact) -> list[str]:
    actions, _ = engine.step(now_s, facts)
    assert not engine.refusal
    started = [f.Started(a.job, a.op, ()) for a in actions if a.kind is v.Kind.START]
    if started:
        engine.step(now_s, started)
    return [" ".join([a.kind.value, a.job, *a.alloc]) for a in actions]


def test_what_needs_more_nodes_than_are_left_keeps_nothing_waiting() -> None:
    engine = begun(job("1", 2), job("2", 1))
    run(engine, 1, f.NodeLost("n2", gone=True))
    wide = engine.world.jobs["1"]
    assert run(engine, 2, f.Ended("1", wide.op, f.Outcome.LOST)) == ["start 2 n1"]
    wide = engine.world.jobs["1"]
    assert (wide.state, wide.failures) == (v.State.PENDING, 0)
    assert wide.why == "needs 2 nodes, and 1 is left of its allocation"
    assert not engine.stranded
    done = f.Ended("2", engine.world.jobs["2"].op, f.Outcome.COMPLETED, 0)
    assert run(engine, 3, done) == []
    assert engine.stranded
    # In the next allocation it is first again.
    there = [f.NodeJoined(node) for node in NODES.values()]
    assert run(engine, 9, f.Began(), *there) == ["start 1 n1 n2"]
    assert not engine.stranded


def test_so_does_what_needs_one_that_is_set_aside() -> None:
    """Nothing behind it waits for ever, and an allocation that none can use is left."""
    engine = begun(job("1", 2), job("2", 1))
    wide = engine.world.jobs["1"].op
    engine.step(1, [f.Registered("1", wide, 0)])
    assert run(engine, 2, f.SetAside("n2", "a fan")) == ["suspend 1"]
    assert run(engine, 3, f.Ended("1", wide, f.Outcome.SUSPENDED, 85)) == ["start 2 n1"]
    assert engine.world.jobs["1"].why == "needs 2 nodes, and 1 is left that may be used"
    done = f.Ended("2", engine.world.jobs["2"].op, f.Outcome.COMPLETED, 0)
    assert run(engine, 4, done) == []
    assert engine.stranded
    assert run(engine, 5, f.Readmitted("n2")) == ["start 1 n1 n2"]
    assert not engine.stranded


def test_of_nodes_that_come_and_go_one_that_is_set_aside_and_has_left_is_no_loss() -> None:
    engine = begun(job("1", 2), job("2", 1))
    run(engine, 1, f.SetAside("n2", "a fan"), f.NodeLost("n2", unneeded=True))
    run(engine, 2, f.Ended("1", engine.world.jobs["1"].op, f.Outcome.LOST))
    assert engine.world.jobs["2"].state is v.State.PENDING
    assert not engine.stranded


def test_a_node_that_may_be_followed_by_another_one_is_waited_for() -> None:
    """Leases come and go: who is first in the queue is first."""
    engine = begun(job("1", 2), job("2", 1))
    run(engine, 1, f.NodeLost("n2"))
    run(engine, 2, f.Ended("1", engine.world.jobs["1"].op, f.Outcome.LOST))
    assert engine.world.jobs["2"].state is v.State.PENDING
    assert not engine.stranded


def test_what_was_left_on_a_lost_node_is_known_until_it_has_ended() -> None:
    engine = begun(job("1", 2))
    run(engine, 1, f.NodeLost("n2", gone=True))
    assert engine.world.records["1"].orphans == (("n2", 1),)
    text = msgspec.json.encode(engine.world.save())
    saved = msgspec.json.decode(text, type=Saved)
    assert Engine(find_policy("marble"), saved).world.shrunk
    assert saved.records["1"].orphans == (("n2", 1),)
    again = Engine(find_policy("marble"), saved)
    run(again, 2, f.NodeJoined(v.Node("n3", 4)), f.Cleared("1", 7, "n2"))
    assert again.world.records["1"].orphans == (("n2", 1),)
    # Given once more, a node has nothing of before.
    run(again, 3, f.NodeJoined(NODES["n2"]))
    assert again.world.records["1"].orphans == ()
    run(engine, 2, f.Cleared("1", 1, "n2"))
    assert engine.world.records["1"].orphans == ()
    # A world that an older release saved says nothing of all that.
    old = json.loads(text)
    del old["shrunk"], old["ends_s"], old["records"]["1"]["orphans"]
    assert not msgspec.convert(old, Saved).shrunk
