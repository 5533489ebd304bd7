"""The nodes of a training change while it runs: nothing is lost, nothing is done twice."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from resized import Training, samples, sizes
from site_of_test import wait_for
from spread import Nurseries, Spread
from test_lost_ranks import once, ordered, together
from train import LENGTH

from hpcext.process import Process
from hpcext.rendezvous import REPAIRS, SHARED, Rendezvous

BATCH = "--global-batch=12"
ALL = {epoch: list(range(LENGTH)) for epoch in range(4)}


@pytest.fixture(scope="module")
def nurseries() -> Iterator[Nurseries]:
    nurseries = Nurseries()
    yield nurseries
    nurseries.close()


@pytest.fixture
def spread(tmp_path: Path, nurseries: Nurseries) -> Iterator[Any]:
    """Begin a training over nodes."""
    begun: list[Spread] = []

    def make(*argv: str, nodes: int, attempt: int = 1) -> Spread:
        begun.append(
            Spread(tmp_path, BATCH, *argv, nodes=nodes, attempt=attempt, nurseries=nurseries)
        )
        return begun[-1]

    yield make
    for training in begun:
        training.kill()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [(), ("--shard",)], ids=["replicated", "sharded"])
def test_nodes_come_and_go(
    spread: Any, nurseries: Nurseries, tmp_path: Path, kind: tuple[str, ...]
) -> None:
    """One in the middle too, so that those behind it count anew; and one for two others."""
    changes = {20: [0, 1, 2], 35: [0, 2], 50: [0, 3, 4], 65: [0], 80: [0, 5]}
    training = spread(*kind, "--gates", *map(str, changes), nodes=2)
    for gate, nodes in changes.items():
        before = set(training.nodes)
        training.change(nodes)
        wait_for(training.proposed, f"ranks on {nodes}")
        training.open_gate(gate)
        answer = training.settled()
        assert answer["ok"], answer
        assert answer["nodes"] == nodes
        # Who leaves has nothing more to do, and ends as such.
        assert {training.ended(index) for index in before - set(nodes)} <= {0}
    assert [training.ended(index) for index in (0, 5)] == [0, 0], training.output

    account = training.account()
    assert samples(account) == ALL
    steps = Counter(line["step"] for line in account)
    assert sorted(steps) == list(range(100))
    assert sizes(account) == [2, 3, 2, 3, 1, 2]
    assert all(steps[line["step"]] == line["size"] for line in account)
    assert len({line["pid"] for line in account if line["rank"] == 0}) == 1
    # The third rank became the second one.
    moved = {line["pid"] for line in account if (line["size"], line["rank"]) == (3, 2)}
    assert moved & {line["pid"] for line in account if (line["size"], line["rank"]) == (2, 1)}

    calm_path = tmp_path / "calm"
    calm_path.mkdir()
    calm = Training(calm_path, BATCH, *kind, size=2, nursery=nurseries.one())
    assert calm.wait() == 0, calm.output
    weights = training.result()["weights"]
    torch.testing.assert_close(weights, calm.result()["weights"], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_new_node_that_fails_changes_nothing(spread: Any) -> None:
    training = spread("--gates", "10", "--slow-start=60", nodes=2)
    training.change([0, 1, 2])
    joiner = wait_for(lambda: list(training.path.glob("joiner-*")), "a new rank")[0]
    psutil.Process(int(joiner.name.removeprefix("joiner-"))).kill()
    answer = training.settled()
    assert not answer["ok"]
    assert "signal 9" in str(answer["why"])
    assert answer["nodes"] == [0, 1]
    assert training.ended(2) != 0
    training.open_gate(10)
    assert [training.ended(index) for index in (0, 1)] == [0, 0], training.output
    assert sizes(training.account()) == [2]
    assert samples(training.account()) == ALL


@pytest.mark.slow
def test_files_are_written_as_soon_as_the_disk_has_room(spread: Any) -> None:
    """Neither the launcher nor rank 0 dies of it; the training waits only when it is under way."""
    training = spread("--gates", "10", nodes=1)
    place = training.reports / "ranks"
    wait_for(lambda: len(training.account()) == 10, "the gate")
    # Nothing can be renamed onto a directory.
    for name in ("group.json", f"store-{REPAIRS}"):
        (place / name).mkdir()
    training.change([0, 1])
    wait_for((place / f"ready-{REPAIRS}-1").exists, "the new rank")
    (place / "group.json").rmdir()
    wait_for(training.proposed, "the change")
    training.open_gate(10)
    wait_for((place / f"begun-{REPAIRS}").exists, "its begin")
    (place / f"store-{REPAIRS}").rmdir()
    assert training.settled()["ok"]
    assert [training.ended(index) for index in (0, 1)] == [0, 0], training.output
    assert sizes(training.account()) == [1, 2]
    assert samples(training.account()) == ALL


@pytest.mark.slow
def test_a_change_that_is_thought_better_of_gives_way_to_the_next(spread: Any) -> None:
    """A node that was to join is gone before it came; another one comes in its place."""
    training = spread("--gates", "10", nodes=1)
    training.change([0, 1], begin=False)
    training.change([0, 2])
    wait_for(training.proposed, "ranks on the second")
    # Whoever comes too late finds that nobody waits for it.
    training.begin(1)
    assert training.ended(1) == 0
    training.open_gate(10)
    assert training.settled()["ok"]
    assert [training.ended(index) for index in (0, 2)] == [0, 0], training.output
    assert sizes(training.account()) == [1, 2]
    assert samples(training.account()) == ALL


@pytest.mark.slow
def test_a_suspension_wins_over_new_nodes(spread: Any) -> None:
    """The ranks that were to join end by themselves."""
    training = spread("--gates", "10", "--slow-start=60", nodes=2)
    training.change([0, 1, 2])
    wait_for(lambda: list(training.path.glob("joiner-*")), "a new rank")
    for index in (0, 1):
        training.launchers[index].send_signal(signal.SIGTSTP)
    training.open_gate(10)
    assert [training.ended(index) for index in (0, 1, 2)] == [0, 0, 0], training.output
    step = training.read("suspended.json")["step"]
    again = spread(nodes=3, attempt=2)
    assert [again.ended(index) for index in range(3)] == [0, 0, 0], again.output
    account = again.account()
    assert samples(account) == ALL
    assert {line["size"] for line in account if line["step"] < step} == {2}
    assert {line["size"] for line in account if line["step"] >= step} == {3}


@pytest.mark.slow
def test_a_lost_node_costs_the_steps_since_the_last_checkpoint(spread: Any) -> None:
    training = spread("--gates", "44", nodes=2)
    done = wait_for(lambda: [at for at in training.account() if at["step"] == 43][1:], "the gate")
    victim = next(line for line in done if line["rank"] == 1)
    psutil.Process(victim["pid"]).kill()
    assert training.ended(1) == 128 + signal.SIGKILL
    training.open_gate(44)
    # The first node hears of it by what it sends; or, if it waits, by its manager.
    training.launchers[0].send_signal(signal.SIGTERM)
    assert training.ended(0) != 0
    again = spread(nodes=1, attempt=2)
    assert again.ended(0) == 0, again.output
    account = again.account()
    redone = [line["step"] for line in account if line["size"] == 1]
    assert min(redone) == 40, "the checkpoint at step 40 is the last one before"
    kept = [line for line in account if line["step"] < 40 or line["size"] == 1]
    assert samples(kept) == ALL


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("lost", "kind"), [([2], ()), ([1, 2], ()), ([1], ()), ([1], ("--shard",))], ids=str
)
def test_nodes_that_are_lost_without_notice_cost_one_step(
    spread: Any, lost: list[int], kind: tuple[str, ...]
) -> None:
    """The others go on with the step in which they went, in the same processes."""
    training = spread("--pause", "0.05", *kind, nodes=3)
    wait_for(lambda: together(training, 3), "three ranks that train")
    training.lose(*lost)
    stay = [node for node in training.nodes if node not in lost]
    place = training.reports / SHARED
    wait_for(lambda: list(place.glob("cut-*")), "ranks that say that they are cut")
    training.change(stay, lost=lost)
    answer = training.settled()
    assert answer["ok"], answer
    assert answer["nodes"] == stay
    (training.path / "hurry").touch()
    assert [training.ended(index) for index in stay] == [0] * len(stay), training.output
    once(training)
    assert ordered(training) == [3, len(stay)]
    assert len({line["pid"] for line in training.account()}) == 3


def test_another_node_is_lost_before_the_others_have_met_without_the_first(spread: Any) -> None:
    """They do not wait for it, and no further step is lost."""
    training = spread("--pause", "0.05", nodes=3)
    wait_for(lambda: together(training, 3), "three ranks that train")
    training.lose(2)
    place = training.reports / SHARED
    wait_for(lambda: list(place.glob("cut-*")), "ranks that say that they are cut")
    training.lose(1)
    training.change([0, 1], lost=[2])
    wait_for((place / "group.json").exists, "a group of two")
    training.change([0], lost=[1, 2])
    answer = training.settled()
    assert answer["ok"], answer
    (training.path / "hurry").touch()
    assert training.ended(0) == 0, training.output
    once(training)
    assert ordered(training) == [3, 1]


def test_a_node_that_is_lost_while_it_joins_costs_nothing(spread: Any) -> None:
    training = spread("--pause", "0.05", "--gates", "40", nodes=2)
    wait_for(lambda: len([*training.path.glob("at-40-*")]) == 2, "the gate")
    training.change([0, 1, 2])
    wait_for(training.proposed, "a new rank that is ready")
    training.lose(2)
    training.open_gate(40)
    place = training.reports / SHARED
    wait_for((place / f"begun-{REPAIRS}").exists, "ranks that meet")
    # As its manager does when the lease is gone.
    Rendezvous(place, launcher=Process.of(training.process.pid)).fail(REPAIRS, "n2 was lost")
    answer = training.settled()
    assert not answer["ok"]
    assert answer["why"] == "n2 was lost"
    (training.path / "hurry").touch()
    assert [training.ended(index) for index in (1, 0)] == [0, 0], training.output
    once(training)
    assert ordered(training) == [2]
