"""Sharding of a model over the ranks, before the session that restores it is made."""

from __future__ import annotations

import atexit
from typing import Any

import torch
import torch.distributed as dist

from hpcext.training.checkpoint import CheckpointError
from hpcext.training.torch.group import Member
from hpcext.training.torch.ranks import join, own_device


def shard(
    model: torch.nn.Module, *layers: type[torch.nn.Module], **options: Any
) -> torch.nn.Module:
    """Shard the parameters of a model over all ranks (FSDP2), on the device of each.

    Call it before the optimizer is made, and the session last: a session restores when it is
    made, and every rank then reads its own shards. Scripts that have a process group, or a mesh,
    of their own may call ``fully_shard`` themselves instead.

    Parameters
    ----------
    model : torch.nn.Module
        The model, equal on every rank.
    *layers : type
        Submodules of these classes become units of their own: their parameters are gathered when
        they compute and freed afterwards. Without any, the model is one unit.
    **options
        For :func:`torch.distributed.fsdp.fully_shard`: ``mp_policy``, ``offload_policy``,
        ``reshard_after_forward``; ``mesh``, if not one of all ranks.

    Returns
    -------
    torch.nn.Module
        The model itself.

    Raises
    ------
    ImportError
        This PyTorch is older than 2.6.
    CheckpointError
        This process was started to join a running training, which a sharded model cannot.
    """
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415

    device = own_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    _meet(device)
    if "mesh" not in options:
        options["mesh"] = init_device_mesh(device.type, (dist.get_world_size(),))
    # Parameters on the meta device get memory later, each rank for its own shards.
    if not any(parameter.is_meta for parameter in model.parameters()):
        model.to(device)
    for part in [each for each in model.modules() if layers and isinstance(each, layers)]:
        fully_shard(part, **options)
    fully_shard(model, **options)
    return model


def _meet(device: torch.device) -> None:
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
        atexit.register(_part)


def _part() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
