"""Interrupted TensorFlow training ends as the uninterrupted one, by its own account."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from harness import suspend_tree
from nursery import Nursery
from tf_harness import TensorFlowJob, check_suspended, largest_difference

SCRIPT = "train_loop.py"
STEPS = 30
EPOCH = list(range(120))


def steps(job: TensorFlowJob) -> list[int]:
    return [int(line[2]) for line in job.said("step") if line[1] == "0"]


@pytest.fixture(scope="module")
def finished(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> TensorFlowJob:
    """A job that was suspended three times, compared with one that was not."""
    path = tmp_path_factory.mktemp("loop")
    reference = TensorFlowJob(nursery, path / "reference", SCRIPT)
    assert reference.on(1).code == 0
    job = TensorFlowJob(nursery, path / "job", SCRIPT)
    draw = random.Random(11)
    for ask in (f"step:{draw.randrange(18)}", "validation:1:1"):
        check_suspended(job.on(1, f"--ask={ask}"))
    check_suspended(job.run_held(draw.randrange(21, 28), suspend_tree))
    last = job.on(1)
    assert last.code == 0, last.output

    assert steps(job) == steps(reference) == list(range(STEPS))
    assert job.seen() == reference.seen()
    assert [sorted(rows) for rows in job.seen().values()] == [EPOCH] * 3
    # Weights, slots, seed generators, variables of no layer, and the next number of each source.
    assert job.last("final") == reference.last("final")
    assert Counter(line[2] for line in job.log)["callback"] == 3
    # What AutoGraph writes is removed by an attempt that is suspended, too.
    assert not list(job.temporary.glob("__autograph*"))
    return job


@pytest.mark.slow
def test_bit_identical(finished: TensorFlowJob) -> None:
    assert len(finished.checkpoints) == 2


@pytest.mark.slow
def test_torn_checkpoint_falls_back(finished: TensorFlowJob, tmp_path: Path) -> None:
    job = finished.copy(tmp_path / "job")
    before = len(job.log)
    file = job.checkpoints[-1] / "state.npz"
    file.write_bytes(file.read_bytes()[:-100])
    run = job.on(1)
    assert run.code == 0, run.output
    assert run.output.count("checkpoint not usable") == 1
    assert str(file) in run.output
    again = [int(line[3]) for line in job.log[before:] if line[2] == "step"]
    assert again
    assert again == list(range(again[0], STEPS))
    assert job.last("final") == finished.last("final")


@pytest.mark.slow
def test_shuffled_by_tensorflow(nursery: Nursery, tmp_path: Path) -> None:
    """A data set made in the loop over the epochs gets the same order again."""
    reference = TensorFlowJob(
        nursery, tmp_path / "reference", SCRIPT, "--loader=plain", "--epochs=2"
    )
    assert reference.on(1).code == 0
    job = TensorFlowJob(nursery, tmp_path / "job", SCRIPT, "--loader=plain", "--epochs=2")
    check_suspended(job.on(1, "--ask=step:13"))
    assert job.on(1).code == 0
    assert job.seen() == reference.seen()
    assert job.last("final") == reference.last("final")


@pytest.mark.slow
def test_number_of_workers_changes(nursery: Nursery, tmp_path: Path) -> None:
    """1, 2, 3, 2, 1, 2 workers: each sample once in each epoch, and the weights of one worker but
    for the order in which gradients are added up."""
    reference = TensorFlowJob(nursery, tmp_path / "reference", SCRIPT, "--still")
    assert reference.on(1).code == 0
    job = TensorFlowJob(nursery, tmp_path / "job", SCRIPT, "--still")
    # By one worker alone too: all stop at the same step.
    for workers, ask in ((1, "step:4"), (2, "step:8@1"), (3, "step:14@2"), (2, "validation:1:1@1")):
        run = job.on(workers, f"--ask={ask}")
        check_suspended(run, workers)
    check_suspended(job.on(1, "--ask=step:24"))
    last = job.on(2)
    assert last.code == 0, last.output
    assert steps(job) == list(range(STEPS))
    assert [sorted(rows) for rows in job.seen().values()] == [EPOCH] * 3
    # Both workers of the last attempt hold the same.
    weights = [line[3:] for line in job.said("weight") if line[1] == "0"]
    assert weights == [line[3:] for line in job.said("weight") if line[1] == "1"]
    assert largest_difference(job, reference) < 1e-4
    # A metric that the workers share: every loss of every sample, once.
    (total, count), (expected, _) = (
        map(float, of.said("losses")[-1][2:]) for of in (job, reference)
    )
    assert count == 360
    assert abs(total - expected) < 1e-3 * expected
    assert abs(float(job.last("accuracy")) - float(reference.last("accuracy"))) <= 1 / 120


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_suspension_is_declined_if_the_state_cannot_be_saved(
    nursery: Nursery, tmp_path: Path, workers: int
) -> None:
    """It goes on, and is the training that it would have been."""
    jobs = []
    for name, full in (("reference", {}), ("job", {"SCRIPT_FULL": "0:6000"})):
        job = TensorFlowJob(nursery, tmp_path / name, SCRIPT, "--epochs=1", **full)
        run = job.on(workers, *(["--ask=step:5"] if full else []))
        assert (run.code, run.suspended) == (0, None), run.output
        assert bool(run.report["declined"]) is bool(full)
        jobs.append(job)
    assert jobs[0].last("final") == jobs[1].last("final")
    assert steps(jobs[0]) == steps(jobs[1])
