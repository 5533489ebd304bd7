"""The shards of a PyTorch training, divided anew in memory when its ranks change.

A change has three parts: in the old group, ranks that leave part with what nobody else has; in the
new group, the rest goes where it is needed; then the model is wrapped for the new group. A rank
that was started for it learns from rank 0 which tensors there are.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

from hpcext.rendezvous import Group
from hpcext.training.redistribution import Change, Division, Move, Rows, exchanges
from hpcext.training.torch.sharded import separated
from hpcext.training.torch.state import TorchState, unwrapped
from hpcext.training.torch.wrapping import Wrapped, forget_meshes, settle

Pieces = dict[int, dict[Rows, torch.Tensor]]
"""Rows that ranks which leave have left here, by tensor."""


@dataclass
class Held:
    """A tensor that the ranks hold in shards.

    Attributes
    ----------
    names : list of str
        Its names among the objects that are saved; several where modules share it.
    shape : list of int
        That of the whole tensor.
    dtype : torch.dtype
    divided : bool
        Whether each rank has other rows of it; otherwise each has all of them.
    model : int
        The wrapped model to which it belongs.
    object : DTensor or None
        The tensor itself; None on a new rank for the states of optimizers, which it has not yet.
    """

    names: list[str]
    shape: list[int]
    dtype: torch.dtype
    divided: bool
    model: int
    object: DTensor | None = None

    @property
    def row_bytes(self) -> int:
        """The bytes of a row."""
        size = self.dtype.itemsize
        for length in self.shape[1:]:
            size *= length
        return size

    def empty(self, rows: int, device: torch.device) -> torch.Tensor:
        """Return memory for some rows."""
        return torch.empty((rows, *self.shape[1:]), dtype=self.dtype, device=device)


@dataclass
class Redivision:
    """The division of a training's shards anew.

    Attributes
    ----------
    models : sequence of Wrapped
    tensors : list of Held
        In the same order on all ranks.
    before, after : int
        The numbers of ranks.
    stay : tuple of int
        Ranks of the old group that stay; the index of each is its new rank.
    copies : Mapping of int to int
        Ranks of the old group that have died, and for each the new rank that has a copy.
    own : sequence of tensors or None
        The shards of this rank to go on from; None: those that the tensors hold now.
    """

    models: Sequence[Wrapped]
    tensors: list[Held]
    before: int
    after: int
    stay: tuple[int, ...]
    copies: Mapping[int, int] = field(default_factory=dict)
    own: Sequence[torch.Tensor] | None = None
    _pieces: Pieces = field(default_factory=lambda: defaultdict(dict))

    @classmethod
    def begin(cls, state: TorchState, models: Sequence[Wrapped], group: Group) -> Redivision:
        """Begin the change into a group, on a rank of the old one.

        Parameters
        ----------
        state : TorchState
        models : sequence of Wrapped
        group : Group
            The next one.
        """
        tensors = held(state, models)
        return cls(models, tensors, dist.get_world_size(), group.size, group.stay)

    def described(self) -> dict[str, Any]:
        """Describe the change for new ranks, in plain values."""
        known = [[t.names, t.shape, t.dtype, t.divided, t.model] for t in self.tensors]
        return {"before": self.before, "stay": list(self.stay), "tensors": known}

    @classmethod
    def join(
        cls, state: TorchState, models: Sequence[Wrapped], group: Group, said: Mapping[str, Any]
    ) -> Redivision:
        """Take part in a change on a new rank.

        Parameters
        ----------
        state : TorchState
        models : sequence of Wrapped
        group : Group
            The group that it joins.
        said : Mapping[str, Any]
            What :meth:`described` says on rank 0.
        """
        own = {name: each.object for each in held(state, models) for name in each.names}
        tensors = [
            Held(names, shape, dtype, divided, model, own.get(names[0]))
            for names, shape, dtype, divided, model in said["tensors"]
        ]
        return cls(models, tensors, said["before"], group.size, tuple(said["stay"]))

    def hold(self, rank: int, shards: Sequence[torch.Tensor]) -> None:
        """Hold the shards of a rank of the old group that has died."""
        for tensor, content in enumerate(shards):
            if rows := self._division(tensor, self.before).rows(rank, self._rows(tensor)):
                self._pieces[tensor][rows] = content

    def depart(self, device: torch.device) -> None:
        """Let ranks that leave part with their rows; all ranks of the old group call it."""
        departures, _ = self._moves
        self._carry_out(departures, dist.get_rank(), device, self._keep)

    def arrive(self, device: torch.device) -> dict[str, DTensor]:
        """Give every rank its new shards; all ranks of the new group call it.

        Parameters
        ----------
        device : torch.device
            That of this rank.

        Returns
        -------
        dict of str to DTensor
            All tensors by name.
        """
        _, arrivals = self._moves
        rank = dist.get_rank()
        new = [self._own(number, rank, device) for number in range(len(self.tensors))]

        def put(tensor: int, rows: Rows, content: torch.Tensor) -> None:
            start = self._division(tensor, self.after).rows(rank, self._rows(tensor)).start
            new[tensor][rows.start - start : rows.stop - start].copy_(content)

        self._carry_out(arrivals, self._old(rank), device, put)
        for model in self.models:
            model.meet(device)
        # From here on nobody waits for others, so that it is done as a whole or not at all.
        self._pieces.clear()
        by_object = {id(each.object): new[place] for place, each in enumerate(self.tensors)}
        for model in self.models:
            model.renew(lambda parameter: by_object[id(parameter)])
        forget_meshes()
        return {
            name: self._settled(each, new[place])
            for place, each in enumerate(self.tensors)
            for name in each.names
        }

    # The moves.

    def _rows(self, tensor: int) -> int:
        return self.tensors[tensor].shape[0]

    def _division(self, tensor: int, ranks: int) -> Division:
        each = self.tensors[tensor]
        return Division(ranks, self.models[each.model].shards(ranks) if each.divided else 1)

    @functools.cached_property
    def _moves(self) -> tuple[list[Move], list[Move]]:
        """The departures and arrivals of all tensors."""
        departures: list[Move] = []
        arrivals: list[Move] = []
        for place in range(len(self.tensors)):
            before, after = (self._division(place, each) for each in (self.before, self.after))
            change = Change(before, after, self.stay, self.copies)
            leaving, coming = change.moves(place, self._rows(place))
            departures += leaving
            arrivals += coming
        return departures, arrivals

    def _old(self, rank: int) -> int | None:
        """Return what rank this was in the old group; None if it is new."""
        return self.stay[rank] if rank < len(self.stay) else None

    def _own(self, tensor: int, rank: int, device: torch.device) -> torch.Tensor:
        """Return memory for a new shard, with the rows that are here already."""
        each, old = self.tensors[tensor], self._old(rank)
        rows = self._division(tensor, self.after).rows(rank, self._rows(tensor))
        shard = each.empty(len(rows), device)
        parts = list(self._pieces[tensor])
        if old is not None:
            parts.append(self._division(tensor, self.before).rows(old, self._rows(tensor)))
        for part in parts:
            if here := rows.common(part):
                content = self._read(tensor, here, old)
                shard[here.start - rows.start : here.stop - rows.start].copy_(content)
        return shard

    def _read(self, tensor: int, rows: Rows, old: int | None) -> torch.Tensor:
        """Return rows that this rank has, in its old shard or from one that has left."""
        for part, content in self._pieces[tensor].items():
            if len(part.common(rows)) == len(rows):
                return content[rows.start - part.start : rows.stop - part.start]
        assert old is not None
        start = self._division(tensor, self.before).rows(old, self._rows(tensor)).start
        return self._shard(tensor)[rows.start - start : rows.stop - start]

    def _shard(self, tensor: int) -> torch.Tensor:
        if self.own is not None:
            return self.own[tensor]
        held = self.tensors[tensor].object
        assert held is not None
        return held._local_tensor.detach()

    def _keep(self, tensor: int, rows: Rows, content: torch.Tensor) -> None:
        self._pieces[tensor][rows] = content

    def _carry_out(
        self,
        moves: Iterable[Move],
        old: int | None,
        device: torch.device,
        put: Callable[[int, Rows, torch.Tensor], None],
    ) -> None:
        """Carry out moves in the present group; all its ranks call it with the same moves."""
        rank, ranks = dist.get_rank(), dist.get_world_size()
        for group in exchanges(moves, [each.row_bytes for each in self.tensors]):
            going = sorted((m for m in group if m.source == rank), key=lambda move: move.target)
            coming = sorted((m for m in group if m.target == rank), key=lambda move: move.source)
            contents = [
                self._read(move.tensor, move.rows, old).reshape(-1).view(torch.uint8)
                for move in going
            ]
            nothing = torch.empty(0, dtype=torch.uint8, device=device)
            sent = contents[0] if len(contents) == 1 else torch.cat([nothing, *contents])
            sizes = [len(move.rows) * self.tensors[move.tensor].row_bytes for move in coming]
            received = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
            dist.all_to_all_single(
                received,
                sent,
                _by_rank(ranks, [move.source for move in coming], sizes),
                _by_rank(ranks, [move.target for move in going], [len(c) for c in contents]),
            )
            parts = torch.split(received, sizes) if sizes else ()
            for move, part in zip(coming, parts, strict=True):
                each = self.tensors[move.tensor]
                # A view as larger numbers must begin at a multiple of their size.
                whole = part if part.storage_offset() % each.dtype.itemsize == 0 else part.clone()
                shape = (len(move.rows), *each.shape[1:])
                put(move.tensor, move.rows, whole.view(each.dtype).view(shape))

    def _settled(self, each: Held, local: torch.Tensor) -> DTensor:
        """Give a tensor its new shard; make it, on a rank that does not have it yet."""
        model = self.models[each.model]
        stride = tuple(torch.empty(each.shape, device="meta").stride())
        placements = model.placements(divided=each.divided)
        if each.object is None:
            return DTensor.from_local(
                local, model.mesh, placements, shape=torch.Size(each.shape), stride=stride
            )
        if not isinstance(each.object, torch.nn.Parameter):
            meta = TensorMeta(torch.Size(each.shape), stride, each.dtype)
            settle(each.object, local, DTensorSpec(model.mesh, placements, tensor_meta=meta))
        return cast(DTensor, each.object.detach())


def _by_rank(ranks: int, numbers: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Return the sum of sizes for each rank."""
    sums = [0] * ranks
    for number, size in zip(numbers, sizes, strict=True):
        sums[number] += size
    return sums


def held(state: TorchState, models: Sequence[Wrapped]) -> list[Held]:
    """Return the tensors that the ranks of a training hold in shards, by name.

    Parameters
    ----------
    state : TorchState
    models : sequence of Wrapped

    Raises
    ------
    ValueError
        There are tensors that cannot be divided anew.
    """
    model_of = {
        id(each): place for place, model in enumerate(models) for each in model.parameters()
    }
    found: dict[int, Held] = {}
    # First, since it has FSDP2 put its shards back in place.
    names = sorted(separated(state.capture())[1])
    live = _live(state, model_of)
    for name in names:
        value, model = live.get(name, (None, None))
        if value is None or model is None:
            raise ValueError(
                f"{name} is sharded, and is neither a parameter that shard() has divided nor the "
                "state of its optimizer"
            )
        *others, last = value.placements
        divided = type(last) is Shard and last.dim == 0
        plain = all(isinstance(each, Replicate) for each in others) and value.ndim > 0
        if not plain or not (divided or isinstance(last, Replicate)):
            raise ValueError(f"{name} is sharded in a way of its own")
        one = Held([], list(value.shape), value.dtype, divided, model, value)
        found.setdefault(id(value), one).names.append(name)
    return list(found.values())


def _live(state: TorchState, model_of: Mapping[int, int]) -> dict[str, tuple[DTensor, int | None]]:
    """Return the sharded tensors themselves, by the names that they have in the saved state."""
    live: dict[str, tuple[DTensor, int | None]] = {}
    for name, value in state.objects.items():
        thing = unwrapped(value)
        if isinstance(thing, torch.nn.Module):
            for inner, parameter in thing.named_parameters(remove_duplicate=False):
                if isinstance(parameter, DTensor):
                    live[f"{name}.{inner}"] = parameter, model_of.get(id(parameter))
        elif isinstance(thing, torch.optim.Optimizer):
            parameters = (each for group in thing.param_groups for each in group["params"])
            for place, parameter in enumerate(parameters):
                for key, part in thing.state.get(parameter, {}).items():
                    if isinstance(part, DTensor):
                        live[f"{name}.state.{place}.{key}"] = part, model_of.get(id(parameter))
    return live
