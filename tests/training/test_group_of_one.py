"""What the state of sharded models needs a process group for, in a group of one rank."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from hpcext.training.checkpoint import Store
from hpcext.training.torch.ranks import TorchRanks
from hpcext.training.torch.sharded import TorchShards
from hpcext.training.torch.state import TorchCopier, TorchState


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_ranks_can_send_nothing() -> None:
    ranks = TorchRanks()
    assert ranks.broadcast(b"") == b""
    assert ranks.gather(b"") == [b""]


def test_a_full_disk_is_an_error_that_a_training_survives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other ranks are told that there is no draft, and the error stays the one of the disk."""
    store = Store(tmp_path / "checkpoints")
    store.open()

    def full(*_: Any, **__: Any) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    shards = TorchShards(TorchState({}), TorchRanks())
    with pytest.raises(OSError, match="No space left on device"):
        shards.commit(store, 5, {}, {}, lambda draft: None)


def test_shards_that_are_empty_on_this_rank_are_copied_each_for_itself() -> None:
    """As biases of four numbers and of one on the sixth of six ranks."""
    mesh = init_device_mesh("cpu", (1,))

    def empty(whole: int) -> DTensor:
        local = torch.empty(4)[:0]
        return DTensor.from_local(
            local, mesh, [Shard(0)], run_check=False, shape=torch.Size([whole]), stride=(1,)
        )

    copier = TorchCopier()
    for _ in range(2):
        copy = copier.copy({"four": empty(4), "one": empty(1)})
        assert [copy["four"].shape, copy["one"].shape] == [(4,), (1,)]
