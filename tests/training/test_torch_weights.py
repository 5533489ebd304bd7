"""Unequal batches of real ranks give the gradients of one process on the whole batch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import train_weighted as script

from hpcext.protocol import environ
from hpcext.training.batching import ElasticBatches


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, torch.Tensor]]:
    """What each of three ranks saw."""
    place = tmp_path_factory.mktemp("ranks")
    argv = [
        sys.executable,
        str(Path(script.__file__)),
        "{}",
        str(place / "store"),
        str(place / "o"),
    ]
    ranks = [
        subprocess.Popen(
            [part.format(rank) for part in argv],
            env={**environ(), "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    try:
        errors = [rank.communicate(timeout=500)[1] for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0, 0, 0], errors
    finally:
        for rank in ranks:
            rank.kill()
    return [torch.load(place / f"o.{rank}", weights_only=True) for rank in range(3)]


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("size", [pytest.param(10, marks=pytest.mark.slow), 14])
def test_gradients_are_those_of_one_process(
    seen: list[dict[str, torch.Tensor]], world: int, size: int
) -> None:
    alone = ElasticBatches(script.SAMPLES, global_batch=size, seed=1)
    expected = torch.stack(script.train(script.fresh(), alone, [0]))
    assert len(expected) == script.EPOCHS * -(-script.SAMPLES // size)
    for rank in range(world):
        for kind in ("", " sharded"):
            found = seen[rank][f"{world} {size}{kind}"]
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    last = ElasticBatches(
        script.SAMPLES, global_batch=size, rank=world - 1, world_size=world, seed=1
    )
    weights = [last.weight(turn) for turn in range(len(last))]
    # They were unequal.
    assert set(weights) != {1.0}
    assert (weights[-1] == 0.0) == (size == 14)


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
def test_equal_batches_give_the_same_bits_as_without(
    seen: list[dict[str, torch.Tensor]], world: int
) -> None:
    for rank in range(world):
        assert torch.equal(seen[rank][f"{world} hook"], seen[rank][f"{world} plain"])


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
def test_what_has_no_weight_does_not_count(seen: list[dict[str, torch.Tensor]], world: int) -> None:
    model, (x, y) = script.fresh(), script.data()
    counted = 7 * (world - 1)
    torch.nn.functional.mse_loss(model(x[:counted]), y[:counted]).backward()
    for rank in range(world):
        torch.testing.assert_close(
            seen[rank][f"{world} nan"], script.gradients(model), rtol=1e-9, atol=1e-12
        )
