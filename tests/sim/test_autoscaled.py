"""Simulated nodes that are held as far as they are worth it; and Figure 9 of Pollux."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from made_measurements import write

from hpcext.core.band import Band
from hpcext.core.engine import Engine
from hpcext.core.estimate import Estimate
from hpcext.core.facts import Fact, NodeJoined, NodeLost
from hpcext.core.values import Action, Job, Node
from hpcext.papers.pollux.autoscale import MODEL, Bill, Rented, rented
from hpcext.policies import find_policy
from hpcext.sim.evaluate.outcome import SimulatedRun
from hpcext.sim.replay.physics import Physics
from hpcext.sim.replay.run import Named, Scenario, SimulationOptions, run

CURVE = {1: 1.0, 2: 1.7, 3: 2.0, 4: 2.1}
BAND = Band(0.5, 0.9)
NODES = tuple(Node(f"n{number}", 1) for number in range(4))


def training(
    name: str, curve: dict[int, float], work: float, nodes: tuple[int, int], submitted_s: float = 0
) -> tuple[Job, Physics]:
    known = Estimate(stated=curve)
    job = Job(name, name, 0, (1,), 1, nodes=nodes, submitted_s=submitted_s, estimate=known)
    return job, Physics(curve, work, resume_s=1.0, suspend_s=2.0, checkpoint_s=0.0, elastic=True)


class Watch:
    """What the engine was told of nodes, and how many there were."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.nodes: list[tuple[float, int]] = []
        self.facts: list[Fact] = []

    def __call__(self, now_s: float, facts: tuple[Fact, ...], _: tuple[Action, ...]) -> None:
        self.facts += [fact for fact in facts if isinstance(fact, (NodeJoined, NodeLost))]
        there = sum(node.gpus for node in self.engine.world.nodes.values())
        if not self.nodes or self.nodes[-1][1] != there:
            self.nodes.append((now_s, there))


def simulated(
    jobs: Sequence[tuple[Job, Physics]], scenario: Scenario | None = None, band: Band | None = BAND
) -> tuple[SimulatedRun, Watch]:
    watches: list[Watch] = []

    def watcher(engine: Engine) -> Watch:
        watches.append(Watch(engine))
        return watches[0]

    found = run(
        scenario or Scenario(jobs, NODES),
        find_policy("bftrainer"),
        Named("bftrainer"),
        SimulationOptions(report_s=10.0, autoscale=band),
        watcher,
    )
    return found, watches[0]


def test_only_nodes_that_are_worth_it_are_held() -> None:
    """Of four: three, whose utility of 0.67 is the nearest to 0.7."""
    found, watch = simulated([training("one", CURVE, 200.0, (1, 4))])
    assert [row.state for row in found.jobs] == ["completed"]
    assert [count for _, count in watch.nodes] == [0, 3]
    assert max(span.offered for span in found.spans) == 3
    # All four are no faster by more than a tenth, and cost a third more.
    every, _ = simulated([training("one", CURVE, 200.0, (1, 4))], band=None)
    assert every.end_s < found.end_s < 1.1 * every.end_s


def test_nodes_are_given_back_when_another_job_ends() -> None:
    """Without losing a step: jobs leave a node before it is gone."""
    flat = {1: 1.0, 2: 1.05, 3: 1.08, 4: 1.1}
    jobs = [
        training("one", flat, 300.0, (1, 4)),
        training("two", {1: 1.0}, 60.0, (1, 1)),
        training("three", {1: 1.0}, 60.0, (1, 1), submitted_s=100.0),
    ]
    found, watch = simulated(jobs)
    assert [row.state for row in found.jobs] == ["completed"] * 3
    assert sum(row.lost for row in found.jobs) == 0
    assert [count for _, count in watch.nodes] == [0, 3, 2, 3, 2]
    left = [fact for fact in watch.facts if isinstance(fact, NodeLost)]
    assert len(left) == 2
    # Nobody had wanted them.
    assert all(fact.unneeded for fact in left)


def test_nodes_that_the_source_takes_back_are_replaced_by_others() -> None:
    jobs = [training("one", CURVE, 200.0, (1, 4))]
    joined = tuple(NodeJoined(node) for node in NODES)
    lost = (NodeLost("n0"), NodeLost("n3"))
    changes = [(0.0, joined), (50.0, lost), (60.0, (NodeJoined(NODES[3]),))]
    found, watch = simulated(jobs, Scenario(jobs, changes=changes))
    assert [row.state for row in found.jobs] == ["completed"]
    assert [(round(now_s), count) for now_s, count in watch.nodes] == [
        (0, 0), (0, 3), (50, 2), (60, 3)
    ]  # fmt: skip


def test_a_job_that_finds_no_room_does_not_loop_for_ever() -> None:
    found, _ = simulated([training("one", CURVE, 10.0, (6, 6))])
    assert [row.state for row in found.jobs] == ["pending"]


def _longer(line: str) -> str:
    """With 300 times the work, and 20 times the noise."""
    progress, iteration, metric, sqr, var = line.split(",")
    return f"{int(progress) * 300},{iteration},{metric},{sqr},{float(var) * 20}"


@pytest.fixture(scope="module")
def bills(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bill]:
    folder: Path = tmp_path_factory.mktemp("data")
    for path in write(folder / MODEL, (16, 256, 4096), 256).glob("validation-*.csv"):
        header, *lines = path.read_text().splitlines()
        path.write_text("\n".join([header, *map(_longer, lines)]) + "\n")
    return {
        "goodput": rented(Rented(folder)),
        "throughput": rented(Rented(folder, blind=True)),
        "one": rented(Rented(folder, nodes=1)),
        "all": rented(Rented(folder, nodes=16)),
    }


def test_by_goodput_it_costs_less_than_by_throughput(bills: dict[str, Bill]) -> None:
    """The noise of these measurements is ten times as large in the second half."""
    good, blind = bills["goodput"], bills["throughput"]
    assert good.node_h < blind.node_h
    assert 1 <= good.first < good.last <= blind.last
    assert bills["one"].node_h <= good.node_h
    assert bills["all"].hours <= good.hours <= bills["one"].hours


def test_it_is_paid_for_what_stays(bills: dict[str, Bill]) -> None:
    for name, nodes in (("one", 1), ("all", 16)):
        bill = bills[name]
        assert bill.node_h == pytest.approx(nodes * bill.hours)
        assert (bill.first, bill.last) == (pytest.approx(nodes), pytest.approx(nodes))
