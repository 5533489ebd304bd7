"""Sharded training (FSDP2) goes on at other numbers of ranks, from shards of its own."""

from __future__ import annotations

import json
import os
import pickle
from collections import Counter
from pathlib import Path

import pytest
import torch
from forked_job import Forked
from harness import Run
from nursery import Nursery

SCRIPT = "train_sharded.py"
STEPS = 30
# Sums over another number of ranks are taken in another order: single precision, 30 steps.
NOISE = 1e-5


def steps(job: Forked) -> dict[int, list[int]]:
    """The samples of each step over all ranks, by the script's own account."""
    seen: dict[int, list[int]] = {}
    for line in job.log:
        if line[2] == "step":
            seen.setdefault(int(line[3]), []).extend(map(int, line[5].split(",")))
    return seen


def final(job: Forked) -> list[torch.Tensor]:
    """Weights and moments at the end, whole."""
    tensors: list[torch.Tensor] = torch.load(f"{job.path / 'log'}.final", weights_only=True)
    return tensors


def check_suspended(run: Run, asked: int) -> None:
    """Suspended at the end of the step where it was asked, or one later if ranks agree on it."""
    assert run.suspended is not None, run.output
    assert run.code == (85 if run.report["world_size"] == 1 else 0), run.output
    assert run.suspended["step"] == asked + min(run.report["world_size"], 2)


@pytest.fixture(scope="module")
def alone(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Forked:
    job = Forked(nursery, tmp_path_factory.mktemp("alone"), SCRIPT)
    run = job.run()
    assert run.code == 0, run.output
    return job


@pytest.mark.slow
def test_five_changes_of_size(nursery: Nursery, tmp_path: Path, alone: Forked) -> None:
    job = Forked(nursery, tmp_path, SCRIPT)
    for ranks, step in [(2, 3), (1, 7), (3, 12), (2, 18), (3, 24)]:
        job.ranks = ranks
        check_suspended(job.run(f"--ask=step:{step}@{ranks - 1}"), step)
        held = {path.name for path in job.checkpoints[-1].iterdir()}
        assert held == {"manifest.json", "state.pt", ".metadata"} | {
            f"__{rank}_0.distcp" for rank in range(ranks)
        }
    job.ranks = 1
    assert job.run().code == 0
    # The same samples in each step, none lost and none twice.
    assert {n: sorted(s) for n, s in steps(job).items()} == {
        n: sorted(s) for n, s in steps(alone).items()
    }
    assert Counter(map(len, steps(job).values())) == {12: STEPS}
    assert not [path.name for path in (tmp_path / "checkpoint").glob(".draft*")]
    for mine, reference in zip(final(job), final(alone), strict=True):
        torch.testing.assert_close(mine, reference, rtol=NOISE, atol=NOISE)


def test_each_rank_writes_only_its_shards(nursery: Nursery, tmp_path: Path) -> None:
    """Periodic checkpoints are written beside the training, by a thread of each rank."""
    job = Forked(nursery, tmp_path, SCRIPT, ranks=2)
    run = job.run("--every=10", "--ask=step:25")
    check_suspended(run, 25)
    sizes = [
        [entry["size"] for entry in manifest["files"] if entry["name"].endswith(".distcp")]
        for manifest in (json.loads((p / "manifest.json").read_text()) for p in job.checkpoints)
    ]
    assert len(sizes) == 2
    for one, two in sizes:
        assert one < 1.3 * two
        assert two < 1.3 * one
    # The second last is the one of step 20. Without the last it is what training goes on from.
    (job.checkpoints[-1] / "__1_0.distcp").write_bytes(b"broken")
    job.ranks = 3
    again = job.run("--ask=step:21")
    check_suspended(again, 21)
    assert "__1_0.distcp" in again.output
    assert [int(line[3]) for line in job.log if line[:3] == ["2", "0", "step"]] == [20, 21, 22]


@pytest.mark.parametrize(
    ("order", "told"),
    [
        ("optimizer", "holds parameters that no given model has; first make the model"),
        ("session", "the model was sharded after the session was made; first make"),
    ],
)
def test_the_wrong_order_of_model_and_session_is_reported(
    nursery: Nursery, tmp_path: Path, order: str, told: str
) -> None:
    job = Forked(nursery, tmp_path, SCRIPT, f"--order={order}")
    run = job.run()
    assert run.code == 1
    assert told in run.output
    assert not job.checkpoints


@pytest.mark.slow
def test_a_rank_that_cannot_write(nursery: Nursery, tmp_path: Path, alone: Forked) -> None:
    """Nothing is committed; every rank goes on, and the training is the one it would have been."""
    job = Forked(nursery, tmp_path, SCRIPT, ranks=2)
    check_suspended(job.run("--ask=step:3"), 3)
    before = [path.name for path in job.checkpoints]
    job.environ["SCRIPT_FULL"] = "1:6000"
    run = job.run("--ask=step:7")
    assert run.code == 0, run.output
    assert "rank 1: File too large" in run.output
    assert (run.suspended, run.report["declined"]) == (None, 1)
    assert job.checkpoints[0].name == before[-1]
    assert not list((tmp_path / "checkpoint").glob(".draft*"))
    assert {step: sorted(seen) for step, seen in steps(job).items()} == {
        step: sorted(seen) for step, seen in steps(alone).items()
    }
    for one, other in zip(final(job), final(alone), strict=True):
        assert torch.allclose(one, other, atol=NOISE)


MANIFEST = {"files": [{"name": ".metadata", "size": 1, "sha256": ""}]}


def test_an_index_names_no_file_that_was_not_verified(tmp_path: Path) -> None:
    """Beside the files of a checkpoint something may have been planted that blocks who opens it."""
    from hpcext.training.checkpoint import Checkpoint, CheckpointError
    from hpcext.training.ranks import Ranks
    from hpcext.training.torch.sharded import TorchShards
    from hpcext.training.torch.state import TorchState

    shards = TorchShards(TorchState({}), Ranks())
    shards.write(tmp_path, {"w": torch.zeros(3)})
    (shard,) = tmp_path.glob("*.distcp")
    shard.unlink()
    os.mkfifo(shard)
    with pytest.raises(CheckpointError, match="its manifest names no such file"):
        shards.read(Checkpoint(tmp_path, MANIFEST), {"w": torch.zeros(3)})


def test_an_index_runs_nothing(tmp_path: Path) -> None:
    """The index of the shards is a pickle; one that was planted does nothing."""
    from torch.distributed.checkpoint.api import CheckpointException

    from hpcext.training.checkpoint import Checkpoint, CheckpointError
    from hpcext.training.ranks import Ranks
    from hpcext.training.torch.sharded import TorchShards
    from hpcext.training.torch.state import TorchState

    class Planted:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "ran"),)

    (tmp_path / ".metadata").write_bytes(pickle.dumps(Planted()))
    with pytest.raises(CheckpointError, match="has no place in an index of shards") as refused:
        TorchShards(TorchState({}), Ranks()).read(
            Checkpoint(tmp_path, MANIFEST), {"w": torch.zeros(3)}
        )
    assert isinstance(refused.value.__cause__, CheckpointException)
    assert not (tmp_path / "ran").exists()
