"""Interrupted JAX training ends as the uninterrupted one, by its own account."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import suspend_tree
from nursery import JAX, Nursery
from tf_harness import TensorFlowJob, check_suspended, largest_difference

SCRIPT = str(Path(__file__).parent / "train_jax.py")
STEPS = 30
EPOCH = list(range(120))
# Compiling takes most of the time of an attempt; what is compiled need not be fast.
ONE_DEVICE = {"XLA_FLAGS": "--xla_backend_optimization_level=0"}
TWO_DEVICES = {"XLA_FLAGS": f"{ONE_DEVICE['XLA_FLAGS']} --xla_force_host_platform_device_count=2"}


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery(JAX)
    yield nursery
    nursery.close()


def job_of(nursery: Nursery, path: Path, *args: str, **environ: str) -> TensorFlowJob:
    return TensorFlowJob(nursery, path, SCRIPT, *args, **{**ONE_DEVICE, **environ})


def steps(job: TensorFlowJob) -> list[int]:
    return [int(line[2]) for line in job.said("step") if line[1] == "0"]


def check_trained_once(job: TensorFlowJob) -> None:
    """Each step was made once, and each epoch had each sample once."""
    assert steps(job) == list(range(STEPS))
    assert [sorted(rows) for rows in job.seen().values()] == [EPOCH] * 3


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Has attempts share what they compile."""
    return {"SCRIPT_CACHE": str(tmp_path_factory.mktemp("compiled"))}


def test_bit_identical(nursery: Nursery, tmp_path: Path, quick: dict[str, str]) -> None:
    """In one process with two devices; the state is divided among them."""
    reference = job_of(nursery, tmp_path / "reference", **quick, **TWO_DEVICES)
    assert reference.on(1).code == 0
    job = job_of(nursery, tmp_path / "job", "--every=4", **quick, **TWO_DEVICES)
    for ask in ("step:7", "validation:1:1"):
        check_suspended(job.on(1, f"--ask={ask}"))
    last = job.on(1)
    assert last.code == 0, last.output
    assert job.last("devices") == "2"
    check_trained_once(job)
    assert job.seen() == reference.seen()
    # Parameters, slots, key, bfloat16, and the next number of each source.
    assert job.last("final") == reference.last("final")
    assert Counter(line[2] for line in job.log)["callback"] == 2
    assert len(job.checkpoints) == 2


@pytest.mark.slow
def test_two_processes(nursery: Nursery, tmp_path: Path, quick: dict[str, str]) -> None:
    """All stop at the same step if one is asked; each writes and reads its pieces."""
    job = job_of(nursery, tmp_path / "job", **quick)
    check_suspended(job.on(2, "--ask=step:8@1"), 2)
    names = {path.name for path in job.checkpoints[-1].iterdir()}
    assert {"pieces-00000.npz", "pieces-00001.npz"} < names
    last = job.on(2)
    assert last.code == 0, last.output
    assert last.report["world_size"] == 2
    check_trained_once(job)
    weights = [line[3:] for line in job.said("weight") if line[1] == "0"]
    assert weights
    assert weights == [line[3:] for line in job.said("weight") if line[1] == "1"]


@pytest.mark.slow
def test_bit_identical_in_two_processes(nursery: Nursery, tmp_path: Path) -> None:
    reference = job_of(nursery, tmp_path / "reference")
    assert reference.on(2).code == 0
    job = job_of(nursery, tmp_path / "job", "--every=3")
    for ask in ("step:4@0", "step:8@1", "validation:1:1@1"):
        check_suspended(job.on(2, f"--ask={ask}"), 2)
    check_suspended(job.run_held(24, suspend_tree), 2)
    last = job.on(2)
    assert last.code == 0, last.output
    check_trained_once(job)
    for rank in ("0", "1"):
        mine, expected = (
            [line[2:] for line in each.said("step") if line[1] == rank] for each in (job, reference)
        )
        assert mine == expected
        assert job.last("final", rank) == reference.last("final", rank)


@pytest.mark.slow
def test_number_of_processes_changes(nursery: Nursery, tmp_path: Path) -> None:
    """1, 2, 3, 2, 1, 1 with 2 devices, 2 processes: each sample once in each epoch, and the
    weights of one process but for the order in which numbers are added up."""
    reference = job_of(nursery, tmp_path / "reference", "--still")
    assert reference.on(1).code == 0
    job = job_of(nursery, tmp_path / "job", "--still")
    stops = ((1, "step:4"), (2, "step:8@1"), (3, "step:14@2"), (2, "validation:1:1@1"))
    for workers, ask in (*stops, (1, "step:24")):
        check_suspended(job.on(workers, f"--ask={ask}"), workers)
    job.environ.update(TWO_DEVICES)
    check_suspended(job.on(1, "--ask=step:26"))
    job.environ.update(ONE_DEVICE)
    last = job.on(2)
    assert last.code == 0, last.output
    check_trained_once(job)
    assert largest_difference(job, reference) < 1e-4


@pytest.mark.slow
def test_without_a_sharding(nursery: Nursery, tmp_path: Path) -> None:
    """The plainest script: one device, and a state that is bound to none."""
    reference = job_of(nursery, tmp_path / "reference", "--plain")
    assert reference.on(1).code == 0
    job = job_of(nursery, tmp_path / "job", "--plain")
    for ask in ("step:3", "step:19"):
        check_suspended(job.on(1, f"--ask={ask}"))
    assert job.on(1).code == 0
    check_trained_once(job)
    assert job.last("final") == reference.last("final")


@pytest.mark.slow
def test_torn_pieces_fall_back(nursery: Nursery, tmp_path: Path) -> None:
    job = job_of(nursery, tmp_path / "job", "--every=5")
    check_suspended(job.on(2, "--ask=step:13"), 2)
    file = job.checkpoints[-1] / "pieces-00001.npz"
    file.write_bytes(file.read_bytes()[:-100])
    before = len(job.log)
    run = job.on(2)
    assert run.code == 0, run.output
    assert run.output.count("checkpoint not usable") == 1
    assert str(file) in run.output
    again = [int(line[3]) for line in job.log[before:] if line[2] == "step" and line[1] == "0"]
    assert again == list(range(again[0], STEPS))
    assert again[0] > 0


@pytest.mark.slow
@pytest.mark.parametrize("full", ["0:6000", "1:6000"])
def test_a_suspension_is_declined_if_a_piece_cannot_be_saved(
    nursery: Nursery, tmp_path: Path, full: str
) -> None:
    """It goes on, and is the training that it would have been."""
    jobs = []
    for name, environ in (("reference", {}), ("job", {"SCRIPT_FULL": full})):
        job = job_of(nursery, tmp_path / name, "--epochs=1", "--width=240", **environ)
        run = job.on(2, *(["--ask=step:5"] if environ else []))
        assert (run.code, run.suspended) == (0, None), run.output
        assert bool(run.report["declined"]) is bool(environ)
        jobs.append(job)
    assert jobs[0].last("final") == jobs[1].last("final")
    assert steps(jobs[0]) == steps(jobs[1])


@pytest.mark.slow
def test_a_process_that_fails_ends_the_job(nursery: Nursery, tmp_path: Path) -> None:
    """At once, with its own exit code: the others would wait for it."""
    job = job_of(nursery, tmp_path / "job", "--fail=6@1")
    run = job.on(2)
    assert run.code == 1, run.output
    assert "ArithmeticError: it fails" in run.output
