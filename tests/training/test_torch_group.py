"""What the members of a process group compare and send."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch.distributed import distributed_c10d

from hpcext.rendezvous import Group, Rendezvous
from hpcext.training.torch import group
from hpcext.training.torch.group import Member
from hpcext.training.torch.transfer import _attached, _buckets, _checksum, _detached


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(1.5),
        torch.empty(0),
        torch.arange(11, dtype=torch.uint8),
        torch.arange(24, dtype=torch.float64).reshape(4, 6).t(),
        torch.arange(9, dtype=torch.bfloat16)[1:],
        torch.arange(20, dtype=torch.uint8)[3:],
    ],
    ids=["one number", "nothing", "odd length", "transposed", "odd place", "odd bytes"],
)
def test_a_checksum_is_of_every_byte(tensor: torch.Tensor) -> None:
    before = tensor.clone()
    sum_before = _checksum(tensor)
    assert sum_before == _checksum(tensor.clone())
    assert torch.equal(tensor, before)
    for index in range(tensor.numel()):
        other = tensor.clone().contiguous()
        other.reshape(-1)[index] += 1
        assert _checksum(other) != sum_before


def test_small_tensors_travel_together_and_large_ones_alone() -> None:
    small = [torch.ones(10), torch.ones(20), torch.ones(5, dtype=torch.int64)]
    large = torch.ones(1 << 19)
    buckets = list(_buckets([small[0], large, small[1], small[2]]))
    assert sorted([len(bucket) for bucket in buckets]) == [1, 1, 2]
    assert any(bucket[0] is large for bucket in buckets)


def test_a_tree_comes_back_with_room_for_its_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "get_backend", lambda: "gloo")
    tree = {"w": torch.ones(3, 4), "n": (1, [torch.tensor(2.0), torch.ones(2, dtype=torch.bool)])}
    sent: list[torch.Tensor] = []
    plan = _detached(tree, sent)
    received: list[torch.Tensor] = []
    back = _attached(plan, received, torch.device("cpu"))
    assert [t.shape for t in received] == [t.shape for t in sent] == [(3, 4)]
    assert back["w"] is received[0]
    assert (back["n"][0], back["n"][1][0].item()) == (1, 2.0)
    assert back["n"][1][1].tolist() == [True, True]


def test_tracebacks_begin_with_the_rank_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many groups this process has been in."""
    monkeypatch.setattr(sys, "excepthook", before := sys.excepthook)
    member = Member(Rendezvous(tmp_path), rank=0, size=1, device=torch.device("cpu"))
    for number in (1, 2):
        member.connect(Group(number, 1))
        assert sys.excepthook is not before
        member.leave()
        assert sys.excepthook is before
    member.connect(Group(3, 1))
    of_the_script = sys.excepthook = lambda *_: None
    member.leave()
    assert sys.excepthook is of_the_script


def test_a_group_that_was_not_formed_leaves_no_number_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups find each other by their numbers, and others may have formed that one."""

    def fails(*_args: object, **_named: object) -> None:
        distributed_c10d._process_group_name([], use_hashed_name=False)
        raise RuntimeError("gloo: Connect timeout")

    member = Member(Rendezvous(tmp_path), rank=0, size=2, device=torch.device("cpu"))
    monkeypatch.setattr(group, "init", fails)
    with pytest.raises(RuntimeError, match="Connect timeout"):
        member.form(Group(0, 2))
    member.leave()
    assert distributed_c10d._world.group_count == 0
