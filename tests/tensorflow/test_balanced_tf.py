"""TensorFlow's workers are divided as fast as they are, and train the same model in the end."""

from __future__ import annotations

from pathlib import Path

import pytest
from balance_sizes import BATCH, SAMPLES
from nursery import Nursery
from tf_harness import TensorFlowJob, check_suspended, largest_difference

SCRIPT = "train_balance_tf.py"


@pytest.fixture(scope="module")
def alone(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> TensorFlowJob:
    """What one worker trains, of the same steps: bulk synchronous, by definition."""
    job = TensorFlowJob(nursery, tmp_path_factory.mktemp("alone"), SCRIPT, "--plain")
    run = job.on(1)
    assert run.code == 0, run.output
    return job


def trained(job: TensorFlowJob) -> dict[int, list[int]]:
    """Step → samples of each rank; checks that all ranks trained, alike, each sample once."""
    epochs: dict[int, list[int]] = {}
    steps: dict[int, dict[int, int]] = {}
    weights: dict[int, set[str]] = {}
    for _, rank, step, epoch, rows, digest in job.said("step"):
        seen = [] if rows == "-" else [int(each) for each in rows.split(",")]
        epochs.setdefault(int(epoch), []).extend(seen)
        steps.setdefault(int(step), {})[int(rank)] = len(seen)
        weights.setdefault(int(step), set()).add(digest)
    assert [sorted(seen) for seen in epochs.values()] == [list(range(SAMPLES))] * 2
    assert sorted(steps) == list(range(len(steps)))
    assert all(len(each) == 1 for each in weights.values())
    return {step: [of[rank] for rank in sorted(of)] for step, of in sorted(steps.items())}


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [("--mode=cpu",), pytest.param(("--mode=gpu", "--ahead=2"), marks=pytest.mark.slow)],
    ids=" ".join,
)
def test_unequal_workers_train_what_one_would_have_trained(
    nursery: Nursery, tmp_path: Path, alone: TensorFlowJob, options: tuple[str, ...]
) -> None:
    job = TensorFlowJob(nursery, tmp_path, SCRIPT, *options)
    run = job.on(3)
    assert run.code == 0, run.output
    steps = trained(job)
    assert all(sum(sizes) == BATCH for sizes in steps.values())
    assert steps[0] == [8, 8, 8]
    # The second worker is the slowest one, however busy the machine.
    assert min(sizes[1] for sizes in steps.values()) < 7
    assert largest_difference(job, alone) < 1e-9


@pytest.mark.slow
def test_a_suspended_training_is_balanced_at_once_on_other_workers(
    nursery: Nursery, tmp_path: Path, alone: TensorFlowJob
) -> None:
    # By speeds, as a mean of many: what one busy moment does to a line is not the question.
    job = TensorFlowJob(nursery, tmp_path, SCRIPT, "--rule=speeds")
    first = job.on(2, "--ask=step:22")
    check_suspended(first, 2)
    assert first.suspended is not None
    second = job.on(3)
    assert second.code == 0, second.output
    steps = trained(job)
    at = first.suspended["step"]
    assert len(steps[at - 1]) == 2
    assert steps[at][0] > steps[at][1], "known, and not learned anew"
    assert sum(steps[at]) == BATCH
    assert largest_difference(job, alone) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize(("times", "calls"), [pytest.param(0, 0, marks=pytest.mark.slow), (2, 2)])
def test_gradients_are_weighed_once(
    nursery: Nursery, tmp_path: Path, times: int, calls: int
) -> None:
    job = TensorFlowJob(nursery, tmp_path, SCRIPT, f"--weigh={times}", "--eager")
    run = job.on(2)
    assert run.code != 0, run.output
    told = " ".join(job.said("error")[0][2:])
    assert told.startswith(f"session.weighted(): {calls} calls in step 0; call it once")
