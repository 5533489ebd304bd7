"""FSDP2 is taken off a model and put on again, and what cannot be divided anew is said."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Shard

from hpcext.rendezvous import Group
from hpcext.training.torch.sharding import Sharding, shard
from hpcext.training.torch.state import TorchState
from hpcext.training.torch.wrapping import Wrapped

CPU = torch.device("cpu")
HOOKS = [name for name in vars(torch.nn.Module()) if name.endswith("_hooks")]


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """A process group of one rank."""
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Pair(torch.nn.Module):
    """Two layers that share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(6, 6)
        self.second = torch.nn.Linear(6, 6)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.second(torch.tanh(self.first(x)))
        return y


class Tied(torch.nn.Module):
    """Such a pair, a layer that is not trained, and a buffer that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair()
        self.still = torch.nn.Linear(6, 6).requires_grad_(False)
        self.register_buffer("scale", torch.tensor(3.0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.still(self.pair(x)) * self.scale
        return y


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> float:
    optimizer.zero_grad()
    x = torch.arange(24.0).reshape(4, 6) / 24
    loss = (model(x) ** 2).mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return float(loss.detach())


def renewed(model: torch.nn.Module) -> None:
    """Wrap a model again, with the shards that it has."""
    (wrapped,) = Wrapped.all_of(model)
    wrapped.meet(CPU)
    wrapped.renew(lambda parameter: parameter.to_local().detach().clone())


def losses(*, again: bool) -> list[float]:
    torch.manual_seed(1)
    model = Tied()
    shard(model, Pair)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    found = []
    for _ in range(5):
        found.append(step(model, optimizer))
        if again:
            renewed(model)
    return found


def test_a_model_that_is_wrapped_again_trains_as_before() -> None:
    assert losses(again=True) == losses(again=False)


def test_parameters_stay_the_same_objects_and_nothing_adds_up() -> None:
    model = Tied()
    shard(model, Pair)
    seen: list[str] = []
    model.register_forward_hook(lambda *_: seen.append("mine"))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    step(model, optimizer)
    before = dict(model.named_parameters(remove_duplicate=False))
    numbers = [len(getattr(part, name)) for part in model.modules() for name in HOOKS]
    for _ in range(3):
        renewed(model)
        step(model, optimizer)
    after = dict(model.named_parameters(remove_duplicate=False))
    assert all(after[name] is before[name] for name in before)
    assert model.pair.first.weight is model.pair.second.weight
    assert [len(getattr(part, name)) for part in model.modules() for name in HOOKS] == numbers
    assert seen == ["mine"] * 4
    assert isinstance(model, FSDPModule)
    assert type(model).__mro__.count(FSDPModule) == 1
    assert isinstance(model.still.weight, DTensor)
    assert model.still.weight.requires_grad is False


def test_what_was_taken_off_keeps_no_memory() -> None:
    """Without waiting for the collector of garbage."""
    model = Tied()
    shard(model, Pair)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    step(model, optimizer)

    def there() -> int:
        return sum(type(each).__name__ == "FSDPParam" for each in gc.get_objects())

    gc.collect()
    before = there()
    assert before
    gc.disable()
    try:
        for _ in range(2):
            renewed(model)
            step(model, optimizer)
            assert there() == before
    finally:
        gc.enable()


def why_not(ranks: int = 1, **objects: Any) -> str:
    framework = SimpleNamespace(state=TorchState(objects), device=CPU)
    return Sharding(framework, None).why_not(Group(1, ranks, (0,)))  # type: ignore[arg-type]


def test_what_can_be_divided_anew() -> None:
    model = Tied()
    assert why_not(model=model) == ""
    shard(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    step(model, optimizer)
    assert why_not(3, model=model, optimizer=optimizer) == ""


class Average:
    """An object with shards of its own."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.kept = {name: value.detach().clone() for name, value in model.named_parameters()}

    def state_dict(self) -> dict[str, Any]:
        return self.kept

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.kept = state


def by_hand(model: torch.nn.Module) -> torch.nn.Module:
    fully_shard(model)
    return model


def twice(model: torch.nn.Module) -> torch.nn.Module:
    shard(model.pair)
    return shard(model)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (by_hand, "model.pair.first.bias is sharded, and is neither a parameter that shard()"),
        (lambda model: shard(model, mesh=init_device_mesh("cpu", (1,))), "it was given a mesh"),
        (lambda model: shard(model, shard_placement_fn=lambda _: Shard(0)), "shard_placement_fn"),
        (twice, "for a part of it, too"),
    ],
)
def test_what_cannot_is_said(make: Any, said: str) -> None:
    why = why_not(model=make(Tied()))
    assert said in why
    assert why.endswith("the number of ranks changes by suspending and resuming")
    assert "\n" not in why


def test_shards_of_other_objects_cannot() -> None:
    model = shard(Tied())
    why = why_not(model=model, average=Average(model))
    assert "average.pair.first.bias is sharded" in why


def test_replicas_must_be_whole() -> None:
    model = shard(Tied(), replica_ranks=1)
    assert why_not(3, model=model) == ""
    with pytest.raises(ValueError, match=r"replica_ranks=2\): it must divide .* 1"):
        shard(Tied(), replica_ranks=2)
    with pytest.raises(ValueError, match="give mesh or replica_ranks"):
        shard(Tied(), replica_ranks=1, mesh=init_device_mesh("cpu", (1,)))
