"""The number of ranks changes while they train: nothing is lost, nothing is done twice."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from nursery import Nursery
from resized import Training, samples, sizes
from site_of_test import wait_for
from train import LENGTH

CHANGES = {20: 3, 35: 2, 50: 1, 65: 3, 80: 2}
"""Step → size from there on."""


def change_at_gates(training: Training, changes: dict[int, int]) -> list[dict[str, Any]]:
    """Change the size so often; the ranks wait at a gate until new ones are ready."""
    answers = []
    for gate, size in changes.items():
        training.ask(size)
        wait_for(training.proposed, f"ranks for size {size}")
        training.open_gate(gate)
        answers.append(training.answer())
    return answers


def test_the_last_rank_stays_when_one_before_it_leaves(start: Any) -> None:
    """It has another number then, by which the next changes know it."""
    training = start("--global-batch=12", "--gates", "20", "35", "50", size=3)
    for gate, size, without in ((20, 2, 1), (35, 3, None), (50, 2, 1)):
        training.ask(size, without=without)
        wait_for(training.proposed, f"ranks for size {size}")
        training.open_gate(gate)
        assert training.answer()["ok"]
    assert training.wait() == 0, training.output
    account = training.account()
    assert sizes(account) == [3, 2, 3, 2]
    assert samples(account) == {epoch: list(range(LENGTH)) for epoch in range(4)}


@pytest.mark.slow
def test_five_changes_make_no_difference(start: Any, nursery: Nursery, tmp_path: Path) -> None:
    # Programs of their own: what they import when must keep nothing of a group either.
    gates = ("--gates", *map(str, CHANGES))
    disturbed = start("--global-batch=12", *gates, size=2, forked=False)
    answers = change_at_gates(disturbed, CHANGES)
    assert disturbed.wait() == 0, disturbed.output
    assert all(answer["ok"] and answer["stall_s"] < 60 for answer in answers), answers
    account, result = disturbed.account(), disturbed.result()

    # By the ranks' own account: every sample once in each epoch, every step once, by all ranks.
    assert samples(account) == {epoch: list(range(LENGTH)) for epoch in range(4)}
    steps = Counter(line["step"] for line in account)
    assert sorted(steps) == list(range(100))
    assert sizes(account) == [2, *CHANGES.values()]
    assert all(steps[line["step"]] == line["size"] for line in account)
    # Nothing went through the disk: the first rank is one process all the time.
    assert len({line["pid"] for line in account if line["rank"] == 0}) == 1
    assert len({line["rate"] for line in account if line["epoch"] == 0}) == 1

    # Of none of the six groups is a thread left when the two last ranks end.
    threads = [path.read_text() for path in disturbed.path.glob("threads-*")]
    assert threads == ["0", "0"]

    calm_path = tmp_path / "calm"
    calm_path.mkdir()
    calm = Training(calm_path, "--global-batch=12", size=2, nursery=nursery)
    assert calm.wait() == 0, calm.output
    # The same batches in the same order: only the order of additions differs.
    torch.testing.assert_close(result["weights"], calm.result()["weights"], rtol=1e-4, atol=1e-5)
    assert abs(result["error"] - calm.result()["error"]) < 1e-6
    assert samples(calm.account()) == samples(account)


@pytest.mark.slow
def test_a_training_that_adapts_its_batch_goes_on_with_what_it_knows(start: Any) -> None:
    gates = {20: 3, 35: 2}
    training = start("--adapt=12", "--workers=1", "--gates", *map(str, gates), size=2)
    answers = change_at_gates(training, gates)
    # Its ranks would have parted, and said so, had they believed in different noise.
    assert all(answer["ok"] for answer in answers), answers
    assert training.wait() == 0, training.output
    account = training.account()
    assert samples(account) == {epoch: list(range(LENGTH)) for epoch in range(4)}
    assert sizes(account) == [2, 3, 2]
    rates = {step: {line["rate"] for line in account if line["step"] == step} for step in range(50)}
    assert all(len(each) == 1 for each in rates.values())
    told = training.read("report.json")["goodput"]
    assert (told["initial_batch"], told["most_batch"]) == (12, 24)


@pytest.mark.slow
def test_unequal_ranks_are_balanced_as_soon_as_they_are_others(start: Any) -> None:
    training = start("--global-batch=12", "--balance", "--gates=70", size=2)
    wait_for(lambda: len(training.account()) > 80, "ranks that know each other")
    answers = change_at_gates(training, {70: 3})
    # New ranks would have parted from the others, had they divided a step otherwise.
    assert all(answer["ok"] for answer in answers), answers
    assert training.wait() == 0, training.output
    account = training.account()
    assert samples(account) == {epoch: list(range(LENGTH)) for epoch in range(4)}
    assert sizes(account) == [2, 3]
    ranks = {
        step: [len(line["indices"]) for line in account if line["step"] == step]
        for step in range(100)
    }
    assert ranks[0] == [6, 6]
    assert all(sum(each) == 12 for each in ranks.values())
    first_of_three = next(each for each in ranks.values() if len(each) == 3)
    assert first_of_three[0] > first_of_three[1], "known, and not learned anew"


@pytest.mark.slow
def test_the_batch_of_each_gpu_stays_and_the_rate_follows(start: Any) -> None:
    """With workers that have read ahead, by the division before."""
    training = start("--gpu-batch=6", "--workers=1", "--gates", "10", "20", size=1)
    answers = change_at_gates(training, {10: 2, 20: 1})
    assert all(answer["ok"] for answer in answers), answers
    assert training.wait() == 0, training.output
    account = training.account()
    assert samples(account) == {epoch: list(range(LENGTH)) for epoch in range(4)}
    first = [line for line in account if line["epoch"] == 0]
    assert {len(line["indices"]) for line in first} == {6}
    # Capes et al., eq. 7: the rate goes with the number of GPUs, and comes back exactly.
    assert {(line["size"], line["rate"]) for line in first} == {(1, 0.01), (2, 0.02)}
    assert account[-1]["size"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", [(), ("--shard",)], ids=["replicated", "sharded"])
def test_a_compiled_model_changes_too(
    start: Any, nursery: Nursery, tmp_path: Path, kind: tuple[str, ...]
) -> None:
    training = start("--global-batch=12", "--compiled", *kind, "--gates", "20", "35", size=1)
    answers = change_at_gates(training, {20: 2, 35: 1})
    assert all(answer["ok"] for answer in answers), answers
    assert training.wait() == 0, training.output
    account = training.account()
    assert samples(account) == {epoch: list(range(LENGTH)) for epoch in range(4)}
    assert sizes(account) == [1, 2, 1]
    calm_path = tmp_path / "calm"
    calm_path.mkdir()
    calm = Training(calm_path, "--global-batch=12", *kind, size=1)
    assert calm.wait() == 0, calm.output
    weights = training.result()["weights"]
    torch.testing.assert_close(weights, calm.result()["weights"], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_new_ranks_that_die_change_nothing(start: Any) -> None:
    training = start("--global-batch=12", "--gates", "10", "--slow-start=60", size=2)
    training.ask(3)
    joiner = wait_for(lambda: list(training.path.glob("joiner-*")), "a new rank")[0]
    psutil.Process(int(joiner.name.removeprefix("joiner-"))).kill()
    answer = training.answer()
    assert not answer["ok"]
    assert "signal 9" in answer["why"]
    training.open_gate(10)
    assert answer["gpus"] == ["node:0", "node:1"]
    assert training.wait() == 0, training.output
    assert sizes(training.account()) == [2]
    assert samples(training.account()) == {epoch: list(range(LENGTH)) for epoch in range(4)}


@pytest.mark.slow
def test_new_ranks_that_come_too_late_do_not_wait_for_ever(start: Any) -> None:
    """The training has made its last step when they are ready, and nobody looks any more."""
    training = start("--global-batch=12", "--gates", "100", size=2)
    wait_for(lambda: len(training.account()) == 200, "the last step of both ranks")
    training.ask(3)
    wait_for(training.proposed, "a new rank")
    training.open_gate(100)
    assert training.wait() == 0, training.output
    assert sizes(training.account()) == [2]
    assert samples(training.account()) == {epoch: list(range(LENGTH)) for epoch in range(4)}


@pytest.mark.slow
def test_a_suspension_wins_over_a_change(start: Any) -> None:
    training = start("--global-batch=12", "--gates", "10", "--slow-start=60", size=2)
    training.ask(3)
    wait_for(lambda: list(training.path.glob("joiner-*")), "a new rank")
    training.process.send_signal(signal.SIGTSTP)
    training.open_gate(10)
    assert training.wait() == 0, training.output
    step = training.read("suspended.json")["step"]
    again = start("--global-batch=12", size=3, attempt=2)
    assert again.wait() == 0, again.output
    account = again.account()
    assert samples(account) == {epoch: list(range(LENGTH)) for epoch in range(4)}
    assert sizes(account) == [2, 3]
    assert {line["size"] for line in account if line["step"] < step} == {2}
    assert {line["size"] for line in account if line["step"] >= step} == {3}


@pytest.mark.slow
def test_a_lost_rank_costs_the_steps_since_the_last_checkpoint(start: Any) -> None:
    training = start("--global-batch=12", "--gates", "20", "44", size=2)
    training.ask(3)
    wait_for(training.proposed, "a third rank")
    training.open_gate(20)
    assert training.answer()["ok"]
    # All three have done it, each in its own time.
    done = wait_for(lambda: [at for at in training.account() if at["step"] == 43][2:], "the gate")
    (victim,) = done
    assert victim["rank"] == 2
    psutil.Process(victim["pid"]).kill()
    assert training.wait() == 128 + signal.SIGKILL
    training.open_gate(44)
    again = start("--global-batch=12", size=2, attempt=2)
    assert again.wait() == 0, again.output
    account = again.account()
    first = [line for line in account if line["pid"] in {v["pid"] for v in account[:2]}]
    assert max(line["step"] for line in first) == 43
    redone = [line["step"] for line in account if line["size"] == 2 and line["step"] > 30]
    assert min(redone) == 40, "the checkpoint at step 40 is the last one before"
    kept = [line for line in account if line["step"] < 40 or line["size"] == 2]
    assert samples(kept) == {epoch: list(range(LENGTH)) for epoch in range(4)}


@pytest.mark.slow
def test_a_rank_that_fails_alone_does_not_wait(start: Any) -> None:
    """What it has sent to the others may never be answered: its end is heard of all the same."""
    training = start("--global-batch=12", "--fail=20", size=2)
    assert training.wait() == 1
    assert "rank 1 failed alone" in training.output


@pytest.mark.slow
def test_replicas_that_differ_are_found(start: Any) -> None:
    training = start("--global-batch=12", "--gates", "20", "--spoil", "15", size=2)
    wait_for(lambda: len(training.account()) == 2 * 20, "the gate")
    training.ask(3)
    wait_for(training.proposed, "a third rank")
    training.open_gate(20)
    assert training.wait() == 1
    assert "different weights" in training.output


@pytest.mark.slow
def test_a_loader_that_cannot_be_divided_is_refused(start: Any) -> None:
    training = start("--global-batch=12", "--plain", "--gates", "10", size=2)
    # Else they may refuse before the gate, and there is nothing to see of the third rank.
    wait_for(lambda: len(training.account()) == 2 * 10, "the gate")
    training.ask(3)
    wait_for(training.proposed, "a third rank")
    training.open_gate(10)
    answer = training.answer()
    assert not answer["ok"]
    assert "batch_sampler" in answer["why"]
    assert training.wait() == 0, training.output
    assert sizes(training.account()) == [2]
    assert training.read("report.json")["in_place"] is False
