"""The sharding of a model over the ranks, and its part in a session."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist

from hpcext.training.checkpoint import CheckpointError
from hpcext.training.checkpoint.shards import Shards
from hpcext.training.feature import Feature
from hpcext.training.torch.framework import Torch
from hpcext.training.torch.group import Member
from hpcext.training.torch.ranks import TorchRanks, join, own_device
from hpcext.training.torch.state import FORMAT_SHARDED
from hpcext.training.torch.whole import parameters_of

_ORDER = (
    "first make the model, then model = shard(model) (or fully_shard), then the optimizer from its "
    "parameters, and then the session"
)


class Sharding(Feature):
    """The shards of a session's model, if it is sharded: each rank writes and reads its own.

    Parameters
    ----------
    framework : Torch
    """

    def __init__(self, framework: Torch) -> None:
        self._framework = framework

    @property
    def why_not_in_place(self) -> str:
        """The reason why the number of ranks cannot change in place; empty if it can."""
        if self._framework.state.sharded:
            return (
                "the model is sharded, and its shards are redistributed only when a checkpoint is "
                "loaded: the number of ranks changes by suspending and resuming"
            )
        return ""

    # The hooks of a feature.

    def shards(self) -> Shards | None:
        """Return how the ranks write and read their shards; None if the model is not sharded."""
        if not self._framework.state.sharded:
            return None
        # Importing DTensor takes a while, and few trainings need it.
        from hpcext.training.torch.sharded import TorchShards  # noqa: PLC0415

        ranks = TorchRanks() if dist.is_initialized() else self.coordinator.ranks
        return TorchShards(self._framework.state, ranks)

    def beginning(self) -> None:
        """Check that model, optimizer and session were made in a valid order.

        Raises
        ------
        RuntimeError
            The model was sharded too late.
        TypeError
            The model is sharded in a way that cannot be saved.
        """
        state = self._framework.state
        if _has_flattened(state.modules()):
            raise TypeError(
                "Session(): FullyShardedDataParallel keeps flattened parameters, which cannot be "
                "divided anew; use hpcext.training.torch.shard(model) or fully_shard(model)"
            )
        if not state.sharded:
            return
        if state.format != FORMAT_SHARDED:
            raise RuntimeError(f"the model was sharded after the session was made; {_ORDER}")
        mine = {id(parameter) for model in state.modules() for parameter in model.parameters()}
        for name, value in state.objects.items():
            if isinstance(value, torch.optim.Optimizer) and not mine.issuperset(
                map(id, parameters_of(value))
            ):
                raise RuntimeError(
                    f"Session({name}=...): holds parameters that no given model has; {_ORDER}"
                )

    def epoch_begins(self) -> None:
        """Check that the model was not sharded after the session was made."""
        self.beginning()

    def regrouped(self) -> None:
        """Raise RuntimeError if the model is sharded, since shards cannot be divided in place."""
        if self.why_not_in_place:
            raise RuntimeError(self.why_not_in_place)


def _has_flattened(models: Iterable[torch.nn.Module]) -> bool:
    """Return whether a part of a model is wrapped by PyTorch's first FSDP."""
    module = sys.modules.get("torch.distributed.fsdp")
    return module is not None and any(
        isinstance(part, module.FullyShardedDataParallel)
        for model in models
        for part in model.modules()
    )


def shard(
    model: torch.nn.Module, *layers: type[torch.nn.Module], **options: Any
) -> torch.nn.Module:
    """Shard the parameters of a model over all ranks (FSDP2), on the device of each.

    Call it before the optimizer is made, and make the session last: a session restores when it is
    made, and every rank then reads its own shards. Scripts with their own process group or mesh may
    call ``fully_shard`` themselves instead.

    Parameters
    ----------
    model : torch.nn.Module
        The model, equal on every rank.
    *layers : type
        Submodules of these classes become separate units: their parameters are gathered when they
        compute and freed afterwards. Without classes, the model is one unit.
    **options
        Arguments of :func:`torch.distributed.fsdp.fully_shard`: ``mp_policy``,
        ``offload_policy``, ``reshard_after_forward``; ``mesh``, if not one of all ranks.

    Returns
    -------
    torch.nn.Module
        The model itself.

    Raises
    ------
    ImportError
        This PyTorch is older than 2.6.
    CheckpointError
        This process was started to join a running training, which sharded models do not support.
    """
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415

    device = own_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    _join_ranks(device)
    if "mesh" not in options:
        options["mesh"] = init_device_mesh(device.type, (dist.get_world_size(),))
    # Parameters on the meta device get memory later, each rank for its own shards.
    if not any(parameter.is_meta for parameter in model.parameters()):
        model.to(device)
    for part in [each for each in model.modules() if layers and isinstance(each, layers)]:
        fully_shard(part, **options)
    fully_shard(model, **options)
    return model


def _join_ranks(device: torch.device) -> None:
    """Join the ranks of this job; FSDP needs a process group even for one rank."""
    if dist.is_initialized():
        return
    member = Member.here(device)
    if member is None:
        join(device)
    elif member.joining:
        raise CheckpointError(
            "a sharded training cannot be joined while it runs", do="suspend and resume it"
        )
    else:
        member.ranks()
    if not dist.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=0, world_size=1)
        atexit.register(_leave_group)


def _leave_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
