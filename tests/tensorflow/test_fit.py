"""``model.fit``, interrupted: the same samples, figures, callbacks and weights as without."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import suspend_tree
from nursery import Nursery
from tf_harness import TensorFlowJob, check_suspended, largest_difference

SCRIPT = "train_fit.py"
EPOCH = list(range(120))


def figures(job: TensorFlowJob) -> list[tuple[str, ...]]:
    return [tuple(line[2:]) for line in job.said("figures") if line[1] == "0"]


def test_bit_identical(nursery: Nursery, tmp_path: Path) -> None:
    reference = TensorFlowJob(nursery, tmp_path / "reference", SCRIPT)
    assert reference.on(1).code == 0
    job = TensorFlowJob(nursery, tmp_path / "job", SCRIPT)
    # In the middle of an epoch, in its last step, in a validation, as an epoch begins.
    for ask in ("step:3", "step:9", "validation:1:1", "epoch:2"):
        check_suspended(job.on(1, f"--ask={ask}"))
    check_suspended(job.run_held(24, suspend_tree))
    last = job.on(1)
    assert last.code == 0, last.output
    assert "ran out of data" not in last.output

    assert [int(line[2]) for line in job.said("step")] == list(range(30))
    assert job.seen() == reference.seen()
    assert [sorted(rows) for rows in job.seen().values()] == [EPOCH] * 3
    # What other callbacks were told, and what fit returned: of all attempts.
    assert figures(job) == figures(reference)
    assert job.said("epochs")[-1][2:] == ("0", "1", "2")
    # Weights, slots, seed generators, the history, the state of another callback.
    assert job.last("final") == reference.last("final")


@pytest.mark.slow
def test_number_of_workers_changes(nursery: Nursery, tmp_path: Path) -> None:
    """1, 2, 3, 2, 1, 2 workers; under a real manager: test_fit_managed.py."""
    reference = TensorFlowJob(nursery, tmp_path / "reference", SCRIPT, "--still")
    assert reference.on(1).code == 0
    job = TensorFlowJob(nursery, tmp_path / "job", SCRIPT, "--still")
    stops = ((1, "step:4"), (2, "step:8@1"), (3, "step:14@2"), (2, "validation:1:1@1"))
    for workers, ask in (*stops, (1, "step:24")):
        check_suspended(job.on(workers, f"--ask={ask}"), workers)
    last = job.on(2)
    assert last.code == 0, last.output
    assert [sorted(rows) for rows in job.seen().values()] == [EPOCH] * 3
    assert largest_difference(job, reference) < 1e-4
    assert abs(float(job.last("accuracy")) - float(reference.last("accuracy"))) <= 1 / 120


@pytest.mark.slow
def test_steps_per_execution(nursery: Nursery, tmp_path: Path) -> None:
    """Several steps at once are counted as several."""
    job = TensorFlowJob(nursery, tmp_path / "job", SCRIPT, "--together=4", "--epochs=1")
    # In the first execution: it stops after four steps, and ten are no multiple of four.
    run = job.on(1, "--ask=step:0")
    check_suspended(run)
    assert run.report["step"] == 4
    last = job.on(1)
    assert last.code == 0, last.output
    assert sorted(job.seen()[0]) == EPOCH
    assert last.report["step"] == 10


@pytest.mark.slow
def test_torch_backend(tmp_path: Path) -> None:
    environ = {"KERAS_BACKEND": "torch"}
    reference = TensorFlowJob(None, tmp_path / "reference", SCRIPT, **environ)
    assert reference.on(1).code == 0
    job = TensorFlowJob(None, tmp_path / "job", SCRIPT, **environ)
    for ask in ("step:3", "step:9", "validation:1:1", "epoch:2"):
        check_suspended(job.on(1, f"--ask={ask}"))
    assert job.on(1).code == 0
    assert job.seen() == reference.seen()
    # Up to the end of the epoch; then a DataLoader of Keras draws from the numbers of Dropout.
    assert figures(job)[0] == figures(reference)[0]
    assert abs(float(job.last("accuracy")) - float(reference.last("accuracy"))) <= 0.1


@pytest.mark.slow
def test_a_suspension_is_declined_if_the_state_cannot_be_saved(
    nursery: Nursery, tmp_path: Path
) -> None:
    """In an epoch and in a validation it goes on, and is the training that it would have been."""
    reference = TensorFlowJob(nursery, tmp_path / "reference", SCRIPT)
    assert reference.on(1).code == 0
    for ask in ("step:5", "validation:1:1"):
        path = tmp_path / ask.partition(":")[0]
        job = TensorFlowJob(nursery, path, SCRIPT, SCRIPT_FULL="0:6000")
        run = job.on(1, f"--ask={ask}")
        assert (run.code, run.suspended, run.report["declined"]) == (0, None, 1), run.output
        assert figures(job) == figures(reference)
        assert job.last("final") == reference.last("final")
