"""The sharding of a model over the ranks, and its part in a session."""

from __future__ import annotations

import atexit
import contextlib
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
from hpcext.training.torch.state import FORMAT_SHARDED, TorchState
from hpcext.training.torch.whole import parameters_of

if TYPE_CHECKING:
    from hpcext.training.torch.copies import Copies
    from hpcext.training.torch.division import Redivision
    from hpcext.training.torch.past import Past
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
    copy_every : int or None
        Steps between two copies of the shards, if ranks that die are replaced; None: as many as
        their cost asks for.

    Attributes
    ----------
    copies : Copies or None
        Those from which the training goes on when ranks die, if it does.
    is_behind : bool
        Whether others had begun the next epoch already when a rank died, at the end of this one.
    """

    def __init__(self, framework: Torch, copy_every: int | None) -> None:
        self._framework = framework
        self._copy_every = copy_every
        self.copies: Copies | None = None
        self.is_behind = False
        self._asked: object = None  # the tensors of which it is known that there is no reason
        self._shards: Shards | None = None
        self._change: Redivision | None = None

    @property
    def state(self) -> TorchState:
        """The state of the training."""
        return self._framework.state

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

        known = None
        if self.copies is not None:
            with contextlib.suppress(ValueError):
                known = self.copies.tensors()
        if group is None and known is not None and known is self._asked:
            return ""
        models, device = self.models(), self._framework.device
        ranks = None if group is None else group.size
        why = next(filter(None, (model.why_not(device, ranks) for model in models)), "")
        if not why:
            try:
                _ = held(state, models) if self.copies is None else self.copies.tensors()
            except ValueError as error:
                why = str(error)
        self._asked = None if why else known
        return f"{why}: {otherwise}" if why else ""

    def depart(self, group: Group) -> None:
        """Move the shards of ranks that leave to others; all ranks of the old group call it.

        After deaths there is nobody to move them: the training goes on from copies.
        """
        self._change = None
        if not self._framework.state.sharded or group.repairs:
            return
        from hpcext.training.torch.division import Redivision  # noqa: PLC0415

        self._change = Redivision.begin(self._framework.state, self.models(), group)
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
            self._change = Redivision.join(state, self.models(), group, said)

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
        self._is_divided()
        if received is None:
            return None
        from hpcext.training.torch.sharded import joined  # noqa: PLC0415

        tree: Tree = joined(received, found)
        return tree

    def models(self) -> list[Wrapped]:
        """Return the models that :func:`shard` has wrapped."""
        from hpcext.training.torch.wrapping import Wrapped  # noqa: PLC0415

        return [each for model in self._framework.state.modules() for each in Wrapped.all_of(model)]

    # The hooks of a feature.

    def shards(self) -> Shards | None:
        """Return how the ranks write and read their shards; None if the model is not sharded."""
        if not self._framework.state.sharded:
            return None
        # Importing DTensor takes a while, and few trainings need it.
        from hpcext.training.torch.sharded import TorchShards  # noqa: PLC0415

        ranks = self._further_ranks() if dist.is_initialized() else self.coordinator.ranks
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

    def began(self) -> None:
        """Make copies from now on, if ranks that die are replaced."""
        member = self._framework.member
        if member is None or not member.replaces or not self._framework.state.sharded:
            return
        device, models = self._framework.device, self.models()
        if not models or any(model.why_not(device, None) for model in models):
            return
        from hpcext.training.torch.copies import Copies  # noqa: PLC0415

        self.copies = Copies(self, self._copy_every)
        self.copies.attach(self.coordinator, self.loop)
        if not member.joining:
            self.copies.connect(member)
            self._is_divided()

    def _further_ranks(self) -> TorchRanks:
        """Connect the ranks once more, for a traffic of its own."""
        member = self._framework.member
        alone = member is None or dist.get_world_size() == 1
        return TorchRanks() if member is None or alone else member.further_ranks()

    def why_no_copies(self) -> str:
        """Return why there are no copies of the shards; empty if there are, or are no shards."""
        if not self._framework.state.sharded:
            return ""
        if self.copies is None:
            return "the model is sharded, and not by shard(model, ...) alone"
        return self.copies.why_not()

    def _is_divided(self) -> None:
        """Take note that the shards are divided over the present ranks."""
        if self.copies is not None and self._framework.member is not None:
            self.copies.divided(self._framework.member.group.number)

    def go_on(self) -> Past:
        """Go on from copies that the ranks have, without those that have died; all ranks call it.

        Returns
        -------
        Past
            What the training was then.

        Raises
        ------
        RuntimeError
            There are no copies of all shards.
        """
        copies, ranks, place = self.copies, self.coordinator.ranks, self.loop.place
        assert copies is not None
        ranks.begin_gather([place.epoch, self.loop.validates, *copies.told()])
        found = ranks.gathered() or []
        between = len({epoch for epoch, *_ in found}) > 1
        choice = copies.choose([numbers for _, _, *numbers in found])
        if choice is None or (between and any(validates for _, validates, *_ in found)):
            when = " between two epochs" if between else ""
            raise RuntimeError(
                f"a rank has died{when}, and the others have no copies of all shards that are of "
                "the same step; the job goes on from its last checkpoint"
            )
        self.is_behind = place.epoch < max(epoch for epoch, *_ in found)
        self._framework.state.reshard()
        past, change = copies.begin_again(choice)
        change.arrive(self._framework.device)
        self._is_divided()
        return past

    def epoch_begins(self) -> None:
        """Check that the model was not sharded after the session was made."""
        self._framework.state.reshard()
        self.beginning()

    def regrouped(self) -> None:
        """Write checkpoints in the new group, which a sharded model needs even for one rank."""
        if self._framework.state.sharded:
            _be_in_a_group(self._framework.device)
            if self._shards is not None:
                self._shards.ranks = self._further_ranks()
            if self.copies is not None and self._framework.member is not None:
                self.copies.connect(self._framework.member)

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
    member = _join_ranks(device)
    # A new rank is alone until the others send it its shards.
    joining = member is not None and member.joining
    connect = member.surviving if member is not None and member.replaces else None
    wrapped = Wrapped(model, layers, replica_ranks, options, alone=joining, connect=connect)
    # Parameters on the meta device get memory later, each rank for its own shards.
    if not any(parameter.is_meta for parameter in model.parameters()):
        model.to(device)
    wrapped.wrap(device)
    return model


def _join_ranks(device: torch.device) -> Member | None:
    """Join the ranks of this job, unless that is to be done later; return the membership."""
    if dist.is_initialized():
        return Member.early()
    member = Member.before_session(device)
    if member is None:
        join(device)
    elif not member.joining:
        member.form_early()
    _be_in_a_group(device)
    return member


def _be_in_a_group(device: torch.device) -> None:
    """Be in a process group, which FSDP needs even for one rank."""
    if not dist.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        store = dist.HashStore()  # type: ignore[attr-defined]
        # PyTorch adds one that puts the rank before each line of a traceback.
        hook = sys.excepthook
        dist.init_process_group(backend, store=store, rank=0, world_size=1)
        sys.excepthook = hook
        atexit.register(_leave_group)


def _leave_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
