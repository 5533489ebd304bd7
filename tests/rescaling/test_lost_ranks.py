"""Ranks that die: the others make the step again without them, and new ones take their places."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import re
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from resized import Training, samples, sizes
from site_of_test import wait_for

STEPS = ("--global-batch", "12", "--pause", "0.05")


def tails(training: Training) -> dict[int, list[dict[str, Any]]]:
    """Pid → what each living rank says of its last steps."""
    found = {}
    for file in training.path.glob("account-*"):
        pid = int(file.name.split("-")[-1])
        if Path(f"/proc/{pid}").exists():
            with file.open("rb") as opened:
                opened.seek(max(0, file.stat().st_size - 4000))
                # The first and the last line may be parts.
                lines = opened.read().decode().split("\n")[1:-1]
            found[pid] = [json.loads(line) for line in lines]
    return found


def together(training: Training, size: int, after: float = 0.0) -> dict[int, int]:
    """Rank → pid, once so many have made some steps together."""
    found = tails(training)
    made = [
        [line for line in lines if line["size"] == size and line["at"] > after]
        for lines in found.values()
        if lines
    ]
    # A step in which one dies is said, too, and none after it before the others have met.
    if len(made) != size or any(len(lines) < 3 for lines in made):
        return {}
    return {lines[-1]["rank"]: lines[-1]["pid"] for lines in made}


def kill(training: Training, *ranks: int, size: int) -> None:
    """Kill ranks when all train."""
    pids = wait_for(lambda: together(training, size), f"{size} ranks that train")
    for rank in ranks:
        os.kill(pids[rank], signal.SIGKILL)


def ordered(training: Training) -> list[int]:
    """The numbers of ranks, one after the other."""
    return sizes(sorted(training.account(), key=lambda line: line["at"]))


def end(training: Training) -> str:
    """Let it hurry to its end; what it said."""
    (training.path / "hurry").touch()
    assert training.wait() == 0, training.output
    return training.output


def counted(account: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines of steps that count: of each step those of the last time that it was made."""
    made: dict[int, int] = {}
    last: dict[tuple[int, int], dict[str, Any]] = {}
    for line in sorted(account, key=lambda line: line["at"]):
        made[line["step"]] = line["size"]
        last[line["step"], line["rank"]] = line
    return [line for line in last.values() if line["size"] == made[line["step"]]]


def once(training: Training) -> None:
    """Each sample counts once in each epoch.

    A rank that is killed when its part of a step is done may not have said so.
    """
    lines = counted(training.account())
    seen: dict[int, list[int]] = {}
    for line in lines:
        seen.setdefault(line["step"], []).append(line["size"])
    unsaid = {step for step, found in seen.items() if len(found) < found[0]}
    for epoch, found in samples(lines).items():
        assert len(set(found)) == len(found), epoch
        if not any(line["epoch"] == epoch and line["step"] in unsaid for line in lines):
            assert found == list(range(300)), epoch


def test_the_others_go_on_and_a_new_one_comes(start: Any, tmp_path: Path) -> None:
    training = start(*STEPS, size=3, replace=1)
    kill(training, 1, size=3)
    wait_for(lambda: ordered(training) == [3, 2, 3], "a new rank")
    said = end(training)
    once(training)
    assert "rank 1 of 3 ended with signal 9; the others go on without it" in said
    assert "rank 1 of 3 was lost; the other 2 went on from step" in said
    is_as_undisturbed(training, tmp_path)


def is_as_undisturbed(training: Training, path: Path, *words: str) -> None:
    """As one that nobody has disturbed, but for the order in which numbers were added."""
    (alone := path / "alone").mkdir()
    (alone / "hurry").touch()
    undisturbed = Training(alone, *words, *STEPS, size=1)
    assert undisturbed.wait() == 0
    assert torch.allclose(training.result()["weights"], undisturbed.result()["weights"], atol=1e-5)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_the_others_go_on_with_the_shards_of_a_lost_rank(
    start: Any, tmp_path: Path, size: int
) -> None:
    training = start("--shard", *STEPS, size=size, replace=1)
    kill(training, 1, size=size)
    wait_for(lambda: ordered(training) == [size, size - 1, size], "a new rank")
    said = end(training)
    once(training)
    assert f"rank 1 of {size} was lost; the other {size - 1} went on from step" in said
    is_as_undisturbed(training, tmp_path, "--shard")


def test_too_few_are_left_for_a_model(start: Any) -> None:
    training = start("--shard", "--replica", "2", *STEPS, size=2, replace=1)
    kill(training, 1, size=2)
    assert training.wait() == 1
    assert "2 ranks hold the model together, and those left are fewer" in training.output


def test_copies_of_shards_that_are_made_seldom(start: Any, tmp_path: Path) -> None:
    """The steps since the last one are made again."""
    training = start("--shard", "--copies", "7", *STEPS, size=3, replace=1)
    wait_for(lambda: len(training.account()) > 100, "steps")
    kill(training, 1, size=3)
    wait_for(lambda: ordered(training) == [3, 2, 3], "a new rank")
    said = end(training)
    once(training)
    (step,) = re.findall("the other 2 went on from step ([0-9]+)", said)
    # So has the first step of an epoch, of 25.
    assert int(step) % 25 % 7 == 0
    assert len({line["size"] for line in training.account() if line["step"] == int(step)}) == 2
    is_as_undisturbed(training, tmp_path, "--shard")


@pytest.mark.parametrize("rank", [1, 2])
def test_a_rank_that_dies_takes_its_replica_along(start: Any, tmp_path: Path, rank: int) -> None:
    """Two ranks hold the model together; they are replaced together. The first one stays."""
    training = start("--shard", "--replica", "2", *STEPS, size=4, replace=1)
    kill(training, rank, size=4)
    wait_for(lambda: ordered(training) == [4, 2, 4], "two new ranks")
    said = end(training)
    once(training)
    assert f"rank {rank} of 4 ended with signal 9; the others go on without it" in said
    is_as_undisturbed(training, tmp_path, "--shard")


@pytest.mark.slow
def test_two_that_die_at_once_and_one_later(start: Any) -> None:
    """With the workers of loaders, which have the connections of their ranks open."""
    training = start(*STEPS, "--workers", "1", size=4, replace=3)
    kill(training, 1, 3, size=4)
    wait_for(lambda: ordered(training) == [4, 2, 4], "two new ranks")
    kill(training, 2, size=4)
    wait_for(lambda: ordered(training) == [4, 2, 4, 3, 4], "another one")
    assert "rank 1, 3 of 4 was lost" in end(training)
    once(training)


def test_a_rank_that_has_not_made_the_step_gets_the_state_of_one_that_has(start: Any) -> None:
    training = start(*STEPS, "--misses", "20", size=3, replace=1)

    def there() -> dict[int, int]:
        found = {line["rank"]: line["pid"] for line in training.account() if line["step"] == 20}
        return found if len(found) == 3 else {}

    os.kill(wait_for(there, "the step that a rank misses")[1], signal.SIGKILL)
    wait_for(lambda: ordered(training) == [3, 2, 3], "a new rank")
    end(training)
    # All gradients of step 20 were averaged before, on the first rank.
    made = {line["size"] for line in training.account() if line["step"] == 20}
    assert made == {3}
    once(training)


def test_ranks_that_cannot_communicate_though_none_has_died(start: Any, tmp_path: Path) -> None:
    """They make the step again, all of them."""
    training = start(*STEPS, "--cut", "20", size=3, replace=1)
    said = end(training)
    assert "the ranks cannot communicate, and none has died; they try again" in said
    assert ordered(training) == [3]
    is_as_undisturbed(training, tmp_path)


@pytest.mark.slow
def test_a_step_that_is_left_by_break_is_none_if_a_rank_dies_in_it(start: Any) -> None:
    """Otherwise it would count, and have changed nothing."""
    words = ("--global-batch", "12", "--epochs", "2", "--gates", "10", "--leave", "10")
    training = start(*words, size=3, replace=1)
    wait_for(lambda: len([*training.path.glob("at-10-*")]) == 3, "the gate")
    kill(training, 1, size=3)
    training.open_gate(10)
    assert "rank 1 of 3 was lost; the other 2 went on from step 10" in end(training)
    # The second epoch is whole, from that step on.
    last = [line for line in counted(training.account()) if line["epoch"] == 1]
    assert sorted({line["step"] for line in last}) == list(range(10, 35))
    assert samples(last)[1] == list(range(300))


@pytest.mark.slow
def test_a_rank_that_dies_in_a_validation(start: Any, tmp_path: Path) -> None:
    """The next step is made without it."""
    training = start("--global-batch", "12", "--pause", "0.3", "--validate", size=3, replace=1)
    # Steps hurry, so that it is there soon.
    wait_for(lambda: len(training.account()) > 9, "steps")
    (tmp_path / "hurry").touch()
    wait_for((tmp_path / "validates-1").exists, "a validation")
    pids = {line["rank"]: line["pid"] for line in training.account()}
    os.kill(pids[2], signal.SIGKILL)
    assert "rank 2 of 3 was lost; the other 2 went on from step 50" in end(training)
    once(training)


@pytest.mark.slow
def test_a_rank_of_a_sharded_model_that_dies_in_a_validation(start: Any, tmp_path: Path) -> None:
    """What comes of that would count, and is of no meaning; so all end."""
    words = ("--shard", "--global-batch", "12", "--pause", "0.3", "--validate")
    training = start(*words, size=3, replace=1)
    wait_for(lambda: len(training.account()) > 9, "steps")
    (tmp_path / "hurry").touch()
    wait_for((tmp_path / "validates-1").exists, "a validation")
    pids = {line["rank"]: line["pid"] for line in training.account()}
    os.kill(pids[2], signal.SIGKILL)
    assert training.wait() != 0
    assert "rank 2 of 3 ended with signal 9" in training.output
    assert "RuntimeError: " in training.output
    assert "went on from step" not in training.output


@pytest.mark.parametrize(
    ("words", "rank", "replace", "why"),
    [
        ((), 0, 1, "it was the first one"),
        ((), 1, 0, ""),
        (("--balance",), 1, 1, "the training cannot make a step again"),
        (("--adapt", "12"), 1, 1, "the training cannot make a step again"),
        (("--accumulate",), 1, 1, "the training cannot make a step again"),
        (("--shard", "--accumulate"), 1, 1, "the training cannot make a step again"),
        (("--shard", "--full"), 1, 1, "the training cannot make a step again"),
    ],
    ids=["first", "not asked for", "balanced", "adapted", "accumulated", "sharded", "no memory"],
)
def test_when_the_others_end_too(
    start: Any, words: tuple[str, ...], rank: int, replace: int, why: str
) -> None:
    given = () if "--adapt" in words else ("--global-batch", "12")
    # There the others do not notice it by themselves.
    training = start(*given, *words, "--gates", "20", size=2, replace=replace)
    wait_for(lambda: len([*training.path.glob("at-20-*")]) == 2, "the gate")
    kill(training, rank, size=2)
    assert training.wait() == 128 + signal.SIGKILL
    said = f"rank {rank} of 2 ended with signal 9, and all others are ended"
    assert (f"{said}: {why}" if why else "") in training.output
    assert (said in training.output) == bool(why)


def test_a_script_that_changes_parameters_itself(start: Any) -> None:
    training = start(*STEPS, "--decay", size=2, replace=1)
    kill(training, 1, size=2)
    assert training.wait() != 0
    assert "other than the session's optimizers has changed parameters" in training.output


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("kills", "shards"),
    [
        (20, ()),
        (250, ()),
        (20, ("--shard",)),
        (250, ("--shard",)),
        (20, ("--shard", "--replica", "2")),
    ],
    ids=["20", "250", "20 sharded", "250 sharded", "20 replicas"],
)
def test_random_kills(start: Any, tmp_path: Path, kills: int, shards: tuple[str, ...]) -> None:
    """So often some rank but the first is killed at some time."""
    chance, over = random.Random(kills), tmp_path / "over"
    words = ("--global-batch", "12", "--epochs", "100000", "--pause", "0.01", "--until", str(over))
    training, at = start(*words, *shards, size=4, replace=kills), 0.0
    for number in range(kills):
        four = functools.partial(together, training, 4, at)
        pids = wait_for(four, f"four ranks after {number} deaths")
        os.kill(pids[chance.choice([1, 2, 3])], signal.SIGKILL)
        at = max(lines[-1]["at"] for lines in tails(training).values()) + chance.random()
    last = max(lines[-1]["epoch"] for lines in tails(training).values()) + 3
    over.write_text(str(last))
    end(training)
    assert training.output.count("the others go on without it") == kills
    once(training)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("kills", "batch"), [(40, "12"), (40, "300"), (500, "12")], ids=["", "epochs of a step", "500"]
)
def test_kills_at_any_time(start: Any, tmp_path: Path, kills: int, batch: str) -> None:
    """Also while others form a group, join it, or get the state of one that has made the step."""
    chance, over = random.Random(kills), tmp_path / "over"
    words = ("--global-batch", batch, "--epochs", "100000", "--pause", "0.01")
    training = start(*words, "--until", str(over), size=4, replace=4 * kills)
    first = wait_for(lambda: together(training, 4), "four ranks")[0]
    launcher, done = psutil.Process(training.process.pid), 0
    while done < kills:
        time.sleep(chance.choice([0.02, 0.2, 1.0, 3.0]) * chance.random())
        assert first in [each.pid for each in launcher.children()], training.wait()
        others = [each for each in launcher.children() if each.pid != first]
        if others:
            with contextlib.suppress(psutil.NoSuchProcess):
                chance.choice(others).kill()
                done += 1
    last = max(lines[-1]["epoch"] for lines in tails(training).values() if lines) + 3
    over.write_text(str(last))
    end(training)
    once(training)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("kills", "batch"), [(40, "12"), (40, "300"), (500, "12")], ids=["", "epochs of a step", "500"]
)
def test_kills_of_a_sharded_training(start: Any, tmp_path: Path, kills: int, batch: str) -> None:
    """New ones die at any time, also while they get shards; of the others one after the other.

    Two that die at once would end all if one has the only copy of the other's shards.
    """
    chance, over = random.Random(kills), tmp_path / "over"
    words = ("--shard", "--global-batch", batch, "--epochs", "100000", "--pause", "0.01")
    training = start(*words, "--until", str(over), size=4, replace=4 * kills)
    first = wait_for(lambda: together(training, 4), "four ranks")[0]
    launcher, done, at, joined = psutil.Process(training.process.pid), 0, 0.0, 0
    again = True  # whether a new one may die before the others have gone on without the last one
    while done < kills:
        time.sleep(chance.choice([0.02, 0.2, 1.0, 3.0]) * chance.random())
        assert training.process.poll() is None, training.wait()
        said = {file for file in training.path.glob("account-*") if file.stat().st_size}
        trained = {int(file.name.split("-")[-1]) for file in said}
        steady = any(together(training, size, at) for size in (1, 2, 3, 4))
        with contextlib.suppress(psutil.NoSuchProcess):
            found = [each for each in launcher.children() if each.pid != first]
            new = [each for each in found if each.pid not in trained]
            if one := chance.choice((found if steady else new if again else []) or [None]):
                one.kill()
                done, at, again = done + 1, time.time(), steady and one not in new
                joined += one in new
    assert joined > kills / 20
    last = max(lines[-1]["epoch"] for lines in tails(training).values() if lines) + 3
    over.write_text(str(last))
    end(training)
    once(training)
