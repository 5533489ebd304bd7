"""The shards of a model go from rank to rank when the ranks change: nothing is lost."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from nursery import Nursery
from resized import Training, is_pending, samples, sizes
from site_of_test import wait_for
from test_changes import CHANGES, change_at_gates
from train import LENGTH


def at_gate(training: Training, step: int) -> None:
    """Wait until all ranks are in a step that waits for a gate."""
    wait_for(
        lambda: sum(line["step"] == step - 1 for line in training.account()) == training.size,
        f"step {step}",
    )


def heard(training: Training) -> bool:
    """Whether every rank knows that it is to be suspended."""
    pids = {line["pid"] for line in training.account()[-training.size :]}
    return all(is_pending(pid, signal.SIGTSTP) for pid in pids)


@pytest.mark.slow
def test_five_changes(start: Any, nursery: Nursery, tmp_path: Path) -> None:
    gates = ("--gates", *map(str, CHANGES))
    disturbed = start("--shard", "--global-batch=12", *gates, size=2, forked=False)
    answers = change_at_gates(disturbed, CHANGES)
    assert disturbed.wait() == 0, disturbed.output
    assert all(answer["ok"] for answer in answers), answers
    account = disturbed.account()
    assert samples(account) == {epoch: list(range(LENGTH)) for epoch in range(4)}
    steps = Counter(line["step"] for line in account)
    assert sorted(steps) == list(range(100))
    assert sizes(account) == [2, *CHANGES.values()]
    assert all(steps[line["step"]] == line["size"] for line in account)
    assert len({line["pid"] for line in account if line["rank"] == 0}) == 1
    threads = [path.read_text() for path in disturbed.path.glob("threads-*")]
    assert threads == ["0", "0"], "of groups that are over"
    calm_path = tmp_path / "calm"
    calm_path.mkdir()
    calm = Training(calm_path, "--shard", "--global-batch=12", size=2, nursery=nursery)
    assert calm.wait() == 0, calm.output
    assert abs(disturbed.result()["error"] - calm.result()["error"]) < 1e-6
    parts, quiet = (torch.load(each / "parts.pt") for each in (disturbed.path, calm_path))
    torch.testing.assert_close(parts, quiet, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_the_bits_are_those_of_a_training_that_was_suspended_there(
    start: Any, nursery: Nursery, tmp_path: Path
) -> None:
    """Two to three ranks and to one: once in place, once by checkpoints, at the same steps."""
    changes = {30: 3, 60: 1}
    gates = ("--gates", *map(str, changes))
    moved = start("--shard", "--global-batch=12", *gates, size=2)
    for gate, size in changes.items():
        at_gate(moved, gate)
        moved.ask(size)
        wait_for(moved.proposed, f"ranks for size {size}")
        moved.open_gate(gate)
        assert moved.answer()["ok"]
    assert moved.wait() == 0, moved.output
    assert sizes(moved.account()) == [2, 3, 1]

    path = tmp_path / "stopped"
    path.mkdir()
    size = 2
    for number, (gate, after) in enumerate({**changes, 0: 0}.items(), start=1):
        stopped = Training(
            path, "--shard", "--global-batch=12", *gates, size=size, attempt=number, nursery=nursery
        )
        if gate:
            at_gate(stopped, gate)
            stopped.process.send_signal(signal.SIGTSTP)
            wait_for(lambda one=stopped: heard(one), "the request")
            stopped.open_gate(gate)
        assert stopped.wait() == 0, stopped.output
        size = after
    firsts = [
        [
            min(line["step"] for line in training.account() if line["size"] == size)
            for size in (3, 1)
        ]
        for training in (moved, stopped)
    ]
    assert firsts[0] == firsts[1], "the steps at which they changed"
    parts, others = (torch.load(each / "parts.pt") for each in (moved.path, path))
    assert all(torch.equal(part, other) for part, other in zip(parts, others, strict=True))


def test_replicas_come_and_go(start: Any) -> None:
    """Each of two ranks; a number of ranks that is no multiple is not reached in place."""
    arguments = ("--shard", "--replica=2", "--global-batch=12", "--gates", "10", "20", "30")
    training = start(*arguments, size=2)
    at_gate(training, 10)
    training.ask(3)
    wait_for(training.proposed, "a third rank")
    training.open_gate(10)
    answer = training.answer()
    assert not answer["ok"]
    assert "replicas of the model have 2 ranks, and 3 is no multiple" in answer["why"]
    for gate, size in {20: 4, 30: 2}.items():
        at_gate(training, gate)
        training.ask(size)
        wait_for(training.proposed, f"ranks for size {size}")
        training.open_gate(gate)
        assert training.answer()["ok"]
    assert training.wait() == 0, training.output
    account = training.account()
    assert samples(account) == {epoch: list(range(LENGTH)) for epoch in range(4)}
    assert sizes(account) == [2, 4, 2]


def test_a_validation_leaves_parameters_gathered(start: Any) -> None:
    """Those of the outermost module, which has some; epochs and changes of size go on after it."""
    words = ("--shard", "--validate", "--epochs", "3", "--global-batch=12", "--gates", "30")
    training = start(*words, size=2)
    at_gate(training, 30)
    training.ask(1)
    wait_for(training.proposed, "the request")
    training.open_gate(30)
    assert training.answer()["ok"]
    assert training.wait() == 0, training.output
    assert samples(training.account()) == {epoch: list(range(LENGTH)) for epoch in range(3)}
