"""The sharding of a model over the ranks, and its part in a session."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from hpcext.rendezvous import Group
from hpcext.training.checkpoint.shards import Shards
from hpcext.training.checkpoint.state import Tree
from hpcext.training.feature import Feature
from hpcext.training.ranks import Ranks
from hpcext.training.torch.framework import Torch
from hpcext.training.torch.group import Member
from hpcext.training.torch.ranks import TorchRanks, join, own_device
from hpcext.training.torch.state import FORMAT_SHARDED
from hpcext.training.torch.whole import parameters_of

if TYPE_CHECKING:
    from hpcext.training.torch.division import Redivision
    from hpcext.training.torch.wrapping import Wrapped

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
        self._shards: Shards | None = None
        self._change: Redivision | None = None

    # The change of the number of ranks in place.

    def why_not(self, group: Group | None = None) -> str:
        """Return why the shards cannot be divided anew in place; empty if they can.

        Parameters
        ----------
        group : Group, optional
            The next group, if there is one.
        """
        state = self._framework.state
        if not state.sharded:
            return ""
        otherwise = "the number of ranks changes by suspending and resuming"
        try:
            from hpcext.training.torch.division import held  # noqa: PLC0415
        except ImportError:
            return f"the model is sharded, and this PyTorch is older than 2.6: {otherwise}"

        models, device = self._models(), self._framework.device
        ranks = None if group is None else group.size
        why = next(filter(None, (model.why_not(device, ranks) for model in models)), "")
        if not why:
            try:
                held(state, models)
            except ValueError as error:
                why = str(error)
        return f"{why}: {otherwise}" if why else ""

    def depart(self, group: Group) -> None:
        """Move the shards of ranks that leave to others; all ranks of the old group call it."""
        if not self._framework.state.sharded:
            return
        from hpcext.training.torch.division import Redivision  # noqa: PLC0415

        self._change = Redivision.begin(self._framework.state, self._models(), group)
        self._change.depart(self._framework.device)

    def captured(self) -> Tree:
        """Return the objects that are saved, with a mark in place of each shard."""
        tree = self._framework.state.capture()
        if self._change is None:
            return tree
        from hpcext.training.torch.sharded import separated  # noqa: PLC0415

        return separated(tree)[0]

    def described(self) -> dict[str, Any] | None:
        """Return what new ranks must know of the change; None if nothing is sharded."""
        return None if self._change is None else self._change.described()

    def join(self, group: Group, said: Mapping[str, Any] | None) -> None:
        """Take part in the change on a new rank, as :meth:`described` says on rank 0."""
        if said is not None:
            from hpcext.training.torch.division import Redivision  # noqa: PLC0415

            state = self._framework.state
            self._change = Redivision.join(state, self._models(), group, said)

    def arrive(self, received: Tree | None) -> Tree | None:
        """Divide the shards anew; all ranks of the new group call it.

        Parameters
        ----------
        received : Tree or None
            On a new rank, the objects that rank 0 has sent.

        Returns
        -------
        Tree or None
            The same with the shards of this rank.
        """
        change, self._change = self._change, None
        if change is None:
            return received
        found = change.arrive(self._framework.device)
        if received is None:
            return None
        from hpcext.training.torch.sharded import joined  # noqa: PLC0415

        tree: Tree = joined(received, found)
        return tree

    def _models(self) -> list[Wrapped]:
        from hpcext.training.torch.wrapping import Wrapped  # noqa: PLC0415

        return [each for model in self._framework.state.modules() for each in Wrapped.all_of(model)]

    # The hooks of a feature.

    def shards(self) -> Shards | None:
        """Return how the ranks write and read their shards; None if the model is not sharded."""
        if not self._framework.state.sharded:
            return None
        # Importing DTensor takes a while, and few trainings need it.
        from hpcext.training.torch.sharded import TorchShards  # noqa: PLC0415

        ranks = TorchRanks() if dist.is_initialized() else self.coordinator.ranks
        self._shards = TorchShards(self._framework.state, ranks)
        return self._shards

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
        """Write checkpoints in the new group, which a sharded model needs even for one rank."""
        if self._framework.state.sharded:
            _be_in_a_group(self._framework.device)
            if self._shards is not None:
                self._shards.ranks = TorchRanks()

    def finished(self) -> None:
        """Let go of the group in which checkpoints were written."""
        if self._shards is not None:
            self._shards.ranks = Ranks()


def _has_flattened(models: Iterable[torch.nn.Module]) -> bool:
    """Return whether a part of a model is wrapped by PyTorch's first FSDP."""
    module = sys.modules.get("torch.distributed.fsdp")
    return module is not None and any(
        isinstance(part, module.FullyShardedDataParallel)
        for model in models
        for part in model.modules()
    )


def shard(
    model: torch.nn.Module,
    *layers: type[torch.nn.Module],
    replica_ranks: int | None = None,
    **options: Any,
) -> torch.nn.Module:
    """Shard the parameters of a model over all ranks (FSDP2), on the device of each.

    Call it before the optimizer is made, and make the session last: a session restores when it is
    made, and every rank then reads its own shards. Scripts with their own process group or mesh may
    call ``fully_shard`` themselves instead; then the number of ranks does not change in place.

    Parameters
    ----------
    model : torch.nn.Module
        The model, equal on every rank.
    *layers : type
        Submodules of these classes become separate units: their parameters are gathered when they
        compute and freed afterwards. Without classes, the model is one unit.
    replica_ranks : int, optional
        Ranks that hold the model together (HSDP), such as those of a node; their number divides
        that of all ranks. By default all ranks do.
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
    ValueError
        `replica_ranks` does not divide the number of ranks, or there is also a mesh.
    """
    from hpcext.training.torch.wrapping import Wrapped  # noqa: PLC0415

    device = own_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    joining = _join_ranks(device)
    # A new rank is alone until the others send it its shards.
    wrapped = Wrapped(model, layers, replica_ranks, options, alone=joining)
    # Parameters on the meta device get memory later, each rank for its own shards.
    if not any(parameter.is_meta for parameter in model.parameters()):
        model.to(device)
    wrapped.wrap(device)
    return model


def _join_ranks(device: torch.device) -> bool:
    """Join the ranks of this job; return whether that is to be done later."""
    if dist.is_initialized():
        return Member.joins_later()
    member = Member.before_session(device)
    if member is None:
        join(device)
    elif not member.joining:
        member.form_early()
    _be_in_a_group(device)
    return member is not None and member.joining


def _be_in_a_group(device: torch.device) -> None:
    """Be in a process group, which FSDP needs even for one rank."""
    if not dist.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=0, world_size=1)
        atexit.register(_leave_group)


def _leave_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
