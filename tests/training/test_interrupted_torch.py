"""Interrupted PyTorch training ends with the very weights of the uninterrupted one.

Two ranks are started by torchrun, and workers of loaders by a process of its own; where neither is
what is tested, an attempt is a fork of one process that has imported PyTorch.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from forked_job import Forked
from harness import Job, Run, suspend_tree
from nursery import Nursery

SCRIPT = "train_torch.py"
STEPS = 30


def finals(job: Job) -> dict[str, str]:
    """What each rank held at the end, by its own account."""
    return {line[1]: line[3] for line in job.log if line[2] == "final"}


def steps(job: Job, rank: str = "0") -> list[int]:
    return [int(line[3]) for line in job.log if line[2] == "step" and line[1] == rank]


def uninterrupted(nursery: Nursery, path: Path, ranks: int, *args: str) -> Job:
    job = Forked(nursery, path, SCRIPT, *args, ranks=ranks)
    run = job.run()
    assert run.code == 0, run.output
    assert steps(job) == list(range(STEPS))
    return job


@pytest.fixture(scope="module")
def alone(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Job:
    return uninterrupted(nursery, tmp_path_factory.mktemp("alone"), 1)


def check_suspended(run: Run, ranks: int) -> None:
    # To a launcher of ranks anything but 0 would be a failure.
    assert run.code == (85 if ranks == 1 else 0), run.output
    record = run.suspended
    assert record is not None, run.output
    assert record["agreed_at"] <= record["written_at"] <= record["acknowledged_at"]
    assert Path(record["manifest"]).exists()
    assert run.report["world_size"] == ranks
    assert run.report["step"] == record["step"]


# Mid-step by one rank alone; in a validation; and from outside, to the whole tree.
@pytest.mark.parametrize(
    ("ranks", "options", "asks"),
    [
        (1, ["--loader=plain", "--workers=2"], ["step:3", "validation:1:1"]),
        pytest.param(2, ["--loader=plain"], ["step:12@1"], marks=pytest.mark.slow),
        pytest.param(4, ["--loader=sampler"], ["validation:0:1@3"], marks=pytest.mark.slow),
    ],
)
def test_weights_are_bit_identical(
    nursery: Nursery, tmp_path: Path, ranks: int, options: list[str], asks: list[str]
) -> None:
    reference = uninterrupted(nursery, tmp_path / "reference", ranks, *options)
    path = tmp_path / "interrupted"
    if ranks == 2:
        # Under torchrun.
        job = Job(path, SCRIPT, *options, ranks=ranks)
    else:
        job = Forked(nursery, path, SCRIPT, *options, ranks=ranks)
    for ask in asks:
        check_suspended(job.run(f"--ask={ask}"), ranks)
    step = random.Random(ranks).randrange(22, 27)
    check_suspended(job.run_held(step, suspend_tree), ranks)
    last = job.run()
    assert last.code == 0, last.output
    assert last.suspended is None
    # Every step once, none lost, whatever the interruptions.
    assert steps(job) == list(range(STEPS))
    assert finals(job) == finals(reference)
    assert len(finals(job)) == ranks
    assert Counter(line[2] for line in job.log)["callback"] == ranks * (len(asks) + 1)


@pytest.mark.slow
def test_a_finished_job_trains_no_more(alone: Job) -> None:
    again = alone.run()
    assert again.code == 0, again.output
    assert steps(alone) == list(range(STEPS))
    assert again.report["step"] == again.report["resumed_step"] == STEPS
    assert again.report["metrics"] == {"accuracy": 0.5}
    one, two = [line[3] for line in alone.log if line[2] == "final"]
    assert one == two


def test_suspended_after_the_last_epoch(nursery: Nursery, tmp_path: Path, alone: Job) -> None:
    job = Forked(nursery, tmp_path / "job", SCRIPT)
    check_suspended(job.run("--ask=test:1"), 1)
    assert job.run().code == 0
    assert steps(job) == list(range(STEPS))
    assert finals(job) == finals(alone)


@pytest.mark.slow
def test_a_signal_during_imports_is_kept(tmp_path: Path) -> None:
    job = Job(tmp_path / "job", SCRIPT)
    run = job.run("--ask=import")
    check_suspended(run, 1)
    assert steps(job) == [0]


def test_ranks_change_in_mid_epoch(nursery: Nursery, tmp_path: Path) -> None:
    job = Forked(nursery, tmp_path / "job", SCRIPT, "--epochs=1", ranks=2)
    check_suspended(job.run("--ask=step:3@1"), 2)
    job.ranks = 1
    assert job.run().code == 0
    seen = [i for line in job.log if line[2] == "step" for i in line[5].split(",")]
    assert sorted(map(int, seen)) == list(range(120))


@pytest.mark.parametrize(
    "start",
    [pytest.param((), id="fork"), pytest.param(("--spawn",), id="spawn", marks=pytest.mark.slow)],
)
def test_workers_neither_stop_nor_stay(tmp_path: Path, start: tuple[str, ...]) -> None:
    """The whole tree gets the signal; a worker goes on serving until its parent leaves."""
    job = Job(tmp_path / "job", SCRIPT, "--workers=1", *start)
    # The output ends when the last process that holds the pipe has ended, workers included.
    run = job.run_held(4, suspend_tree)
    check_suspended(run, 1)
    assert [line[3] for line in job.log if line[2] == "step"] == ["0", "1", "2", "3", "4"]
