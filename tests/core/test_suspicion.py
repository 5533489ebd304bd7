"""Nodes on which attempts fail that go well elsewhere are set aside, until a user readmits them."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hpcext.core import facts as f
from hpcext.core import values as v
from hpcext.core.apply import suspects
from hpcext.core.engine import Engine
from hpcext.core.saved import Saved
from hpcext.core.suspicion import Suspicion, after_failure, after_success
from hpcext.policies import find_policy, names

Bad = Callable[[v.Action], bool]


class Site:
    """Nodes of one GPU; attempts fail where `bad` says so, and else make a step and end."""

    def __init__(self, *nodes: str, bad: Bad, policy: str = "marble") -> None:
        self.engine = Engine(find_policy(policy))
        self.bad = bad
        self.now_s = 0.0
        self.facts: list[f.Fact] = [f.NodeJoined(v.Node(name, 1)) for name in nodes]
        self.tried: list[tuple[str, str]] = []
        self.broken: dict[str, str] = {}

    def submit(self, *names: str, retries: int = 5) -> None:
        for name in names:
            order = len(self.engine.world.jobs) + len(self.facts)
            job = v.Job(name, name, order, (1,), 1, retries=retries)
            self.facts.append(f.Submitted(job))

    def run(self, most: int = 200) -> None:
        """Until nothing happens any more."""
        for _ in range(most):
            facts, self.facts = tuple(self.facts), []
            actions, wake_s = self.engine.step(self.now_s, facts)
            for action in actions:
                self.perform(action)
            if not self.facts:
                if wake_s is None:
                    return
                self.now_s = max(self.now_s, wake_s)
        raise AssertionError("it does not come to an end")

    def perform(self, action: v.Action) -> None:
        assert action.kind is v.Kind.START, action
        (node,) = action.alloc
        self.tried.append((action.job, node))
        self.facts.append(f.Started(action.job, action.op, (f"{node}:0",)))
        if self.bad(action):
            failed = f.Outcome.FAILED
            ended = f.Ended(action.job, action.op, failed, 1, broken_gpus=self.broken)
            self.facts.append(ended)
            return
        self.facts.append(f.Registered(action.job, action.op, 0))
        self.facts.append(f.Progressed(action.job, action.op, 5, 5))
        self.facts.append(f.Ended(action.job, action.op, f.Outcome.COMPLETED, 0))

    @property
    def aside(self) -> dict[str, str]:
        return self.engine.world.aside


def on(name: str) -> Bad:
    return lambda action: name in action.alloc


def test_a_broken_node_takes_no_more_jobs() -> None:
    """Though it is always free."""
    site = Site("a", "b", bad=on("b"))
    site.submit(*(f"j{number}" for number in range(12)))
    site.run()
    assert list(site.aside) == ["b"]
    assert re.fullmatch(
        r"\d+ attempts in a row failed there, and j\d+, j\d+ went on elsewhere", site.aside["b"]
    )
    assert all(job.state is v.State.COMPLETED for job in site.engine.world.jobs.values())
    assert sum(node == "b" for _, node in site.tried) < 10, "it would take all their tries"


def test_a_program_that_fails_everywhere_is_no_fault_of_a_node() -> None:
    site = Site("a", "b", bad=lambda action: action.job.startswith("wrong"))
    names = (f"{what}{number}" for number in range(8) for what in ("wrong", "wrong_too", "right"))
    site.submit(*names)
    site.run()
    assert not site.aside
    assert sum(job.done for job in site.engine.world.jobs.values()) == 8


def test_one_job_alone_condemns_no_node() -> None:
    """It may be what it needs of the node: its memory, its files."""
    site = Site("a", "b", bad=lambda action: action.job == "odd" and "b" in action.alloc)
    site.submit("first", "odd", "one", "two", "three", "four")
    site.run()
    assert ("odd", "b") in site.tried
    assert not site.aside


def test_a_gpu_with_seats_is_no_other_node() -> None:
    """Its machine is that of the GPUs on which the jobs failed."""
    engine = Engine()
    nodes = [v.Node("n", 1), v.Node("n/mps", 4, seats=4)]
    jobs = [v.Job(name, name, order, (1,), 1) for order, name in enumerate("xy")]
    engine.step(0, [*map(f.NodeJoined, nodes), *map(f.Submitted, jobs)])
    for name in "xy":
        for node, outcome in (("n", f.Outcome.FAILED), ("n/mps", f.Outcome.COMPLETED)):
            had = replace(engine.world.jobs[name], held={node: 1})
            suspects.ended(engine.world, had, f.Ended(name, 1, outcome, 1))
    assert not engine.world.aside


def test_the_last_node_stays() -> None:
    site = Site("a", bad=lambda action: action.job in {"x", "y"})
    site.submit("x", "y", "z", "x2")
    site.run()
    assert not site.aside


def test_what_runs_there_goes_on_elsewhere_and_a_readmitted_node_is_used() -> None:
    site = Site("a", "b", bad=lambda _: False)
    site.facts.append(f.SetAside("b", "a fan"))
    site.submit("one", "two")
    site.run()
    assert {node for _, node in site.tried} == {"a"}
    site.facts.append(f.Readmitted("b"))
    site.submit("three", "four")
    site.run()
    assert {node for _, node in site.tried[2:]} == {"a", "b"}


def test_a_job_on_it_is_suspended() -> None:
    engine = Engine(find_policy("marble"))
    job = v.Job("1", "one", 1, (1,), 1)
    nodes = [f.NodeJoined(v.Node(name, 1)) for name in "ab"]
    (start,), _ = engine.step(0, [*nodes, f.Submitted(job)])
    (node,) = start.alloc
    engine.step(1, [f.Started("1", start.op, (f"{node}:0",)), f.Registered("1", start.op, 0)])
    actions, _ = engine.step(2, [f.SetAside(node, "by its user")])
    assert [action.kind for action in actions] == [v.Kind.SUSPEND]
    (again,), _ = engine.step(3, [f.Ended("1", start.op, f.Outcome.SUSPENDED, 85)])
    assert again.kind is v.Kind.START
    assert set(again.alloc) == {"a", "b"} - {node}


def test_it_stays_aside_when_it_comes_back_and_in_a_compacted_journal() -> None:
    site = Site("a", "b", bad=lambda _: False)
    site.facts += [f.SetAside("b", "a fan"), f.NodeLost("b"), f.NodeJoined(v.Node("b", 1))]
    site.run()
    saved = site.engine.world.save()
    engine = Engine(find_policy("marble"), Saved(**{
        name: getattr(saved, name) for name in Saved.__struct_fields__
    }))  # fmt: skip
    assert engine.world.aside == {"b": "a fan"}
    assert list(engine.world.offered) == ["a"]
    engine.step(1, [f.Readmitted("b")])
    assert sorted(engine.world.offered) == ["a", "b"]
    assert saved.aside == {"b": "a fan"}


@pytest.mark.parametrize("outcome", [f.Outcome.LOST, f.Outcome.EVICTED, f.Outcome.SUSPENDED])
def test_what_is_no_failure_of_a_training_speaks_against_no_node(outcome: f.Outcome) -> None:
    engine = Engine(find_policy("marble"))
    engine.step(0, [f.NodeJoined(v.Node("a", 1)), f.Submitted(v.Job("1", "one", 1, (1,), 1))])
    engine.step(1, [f.Started("1", 1, ("a:0",)), f.Ended("1", 1, outcome)])
    assert not engine.world.suspects


def test_nor_does_one_that_its_user_cancels() -> None:
    engine = Engine(find_policy("marble"))
    engine.step(0, [f.NodeJoined(v.Node("a", 1)), f.Submitted(v.Job("1", "one", 1, (1,), 1))])
    engine.step(1, [f.Started("1", 1, ("a:0",)), f.Registered("1", 1, 0), f.Cancel("1")])
    engine.step(2, [f.Ended("1", 1, f.Outcome.FAILED, -15)])
    assert not engine.world.suspects


EVENTS = st.lists(
    st.tuples(st.booleans(), st.sampled_from("1234"), st.sets(st.sampled_from("abc"), min_size=1)),
    max_size=30,
)


@given(EVENTS)
def test_a_node_where_the_last_attempt_went_well_is_not_suspected(
    events: list[tuple[bool, str, set[str]]],
) -> None:
    """And whoever is, has failures of those alone that came after."""
    known: dict[str, Suspicion] = {}
    since: dict[str, list[str]] = {name: [] for name in "abc"}
    for well, job, nodes in events:
        known = (after_success if well else after_failure)(known, job, sorted(nodes))
        for name in nodes:
            since[name] = [] if well else [*since[name], job]
        assert {name: list(said.failed) for name, said in known.items()} == {
            name: jobs[-20:] for name, jobs in since.items() if jobs
        }


def test_a_node_whose_driver_says_that_a_gpu_is_broken_is_set_aside_at_once() -> None:
    """By one failure, which is not the job's: it may fail never."""
    site = Site("a", "b", bad=on("b"))
    site.broken = {"b": "GPU 0 is lost"}
    site.submit("one", "two", "three", retries=0)
    site.run()
    assert re.fullmatch(r"an attempt of \w+ failed there, and GPU 0 is lost", site.aside["b"])
    assert {job.state for job in site.engine.world.jobs.values()} == {v.State.COMPLETED}
    assert [node for _, node in site.tried].count("b") == 1


@pytest.mark.parametrize("policy", [name for name in names() if name != "fixed"])
def test_a_job_tries_another_node_than_the_one_where_it_has_failed(policy: str) -> None:
    """Though that one is as free, and comes first; where there is no other it stays."""
    site = Site("a", "b", bad=lambda action: action.attempt == 1, policy=policy)
    site.submit("one", retries=1)
    site.run()
    (_, first), (_, second) = site.tried
    assert first != second
    assert site.engine.world.jobs["one"].state is v.State.COMPLETED
    site = Site("a", bad=lambda action: action.attempt == 1, policy=policy)
    site.submit("one", retries=1)
    site.run()
    assert site.tried == [("one", "a"), ("one", "a")]
    assert site.engine.world.jobs["one"].state is v.State.COMPLETED


def test_where_no_other_node_is_left_a_broken_gpu_is_a_failure_of_the_job() -> None:
    """Or it would be tried for ever."""
    site = Site("b", bad=on("b"))
    site.broken = {"b": "GPU 0 is lost"}
    site.submit("one", retries=2)
    site.run()
    assert site.aside == {}
    assert site.engine.world.jobs["one"].state is v.State.FAILED
    assert len(site.tried) == 3
