"""Which jobs a step has changed: a few, however many wait."""

from __future__ import annotations

import pytest

from hpcext.core import facts as f
from hpcext.core.changes import Changes
from hpcext.core.engine import Engine
from hpcext.core.values import Job, Node, State
from hpcext.policies import find_policy

JOBS = 300


def test_changes_are_told_once_in_their_order() -> None:
    changes = Changes()
    for name in ("a", "b", "c"):
        changes.note(name)
    assert changes.since(0) == ["a", "b", "c"]
    seen = changes.last
    assert changes.since(seen) == []
    changes.note("a")
    changes.note("b")
    changes.note("a")
    assert changes.since(seen) == ["b", "a"]
    assert list(changes.latest()) == ["a", "b", "c"]
    changes.forget("b")
    assert changes.since(0) == ["c", "a"]


@pytest.mark.parametrize("policy", ["marble", "exclusive", "fixed"])
def test_the_end_of_a_job_changes_no_job_that_only_moves_up_in_the_queue(policy: str) -> None:
    engine = Engine(find_policy(policy))
    jobs = [Job(str(i), f"j{i}", i, (1,), 1, nodes=(1, 1)) for i in range(1, JOBS + 1)]
    engine.step(0.0, [f.NodeJoined(Node("n", 2)), *map(f.Submitted, jobs)])
    world = engine.world
    for turn in range(1, 20):
        running = [job for job in world.queue.busy() if job.state.active]
        engine.step(turn, [f.Started(job.id, job.op, ("n:0",)) for job in running])
        seen = world.changed.last
        first = running[0]
        engine.step(turn + 0.5, [f.Ended(first.id, first.op, f.Outcome.COMPLETED, 0)])
        changed = world.changed.since(seen)
        assert first.id in changed
        # It, the one that has its GPU, the one that is next, and those that run beside it.
        assert len(changed) <= 5
    assert world.jobs[str(JOBS)].state is State.PENDING
    assert "waits behind others" in world.jobs[str(JOBS)].why


def test_what_a_training_notes_changes_its_job() -> None:
    engine = Engine(find_policy("marble"))
    engine.step(0.0, [f.NodeJoined(Node("n", 1)), f.Submitted(Job("1", "j", 1, (1,), 1))])
    engine.step(1.0, [f.Started("1", 1, ("n:0",))])
    seen = engine.world.changed.last
    engine.step(2.0, [f.Noted("1", 1, notes=("look here",))])
    assert engine.world.changed.since(seen) == ["1"]
