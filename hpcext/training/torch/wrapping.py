"""The sharding of a model by FSDP2, which can be taken off and put on again in another group.

A model keeps its modules and parameters, so optimizers and whatever else a script has made of them
stay valid: a parameter only gets another shard. PyTorch has no way back from ``fully_shard``. It
adds a class, hooks and a state to modules, all of which are removed here: hooks are told apart from
others by the module that defines them.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed._composable.contract import REGISTRY_KEY, STATE_KEY
from torch.distributed._composable_state import _module_state_mapping
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard

_FSDP = "torch.distributed.fsdp."
_DTENSOR = "torch.distributed.tensor"
_CACHED = functools._lru_cache_wrapper
_HOOKS = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)
_NOTED = (
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
)
"""Where modules note more about hooks, by the same keys."""

_BY_HAND = {
    "mesh": "it was given a mesh",
    "dp_mesh_dims": "it was given a mesh",
    "shard_placement_fn": "shard_placement_fn divides its parameters in another way",
}


_known: weakref.WeakKeyDictionary[torch.nn.Module, Wrapped] = weakref.WeakKeyDictionary()


class Wrapped:
    """A model that :func:`~hpcext.training.torch.sharding.shard` has wrapped.

    Parameters
    ----------
    model : torch.nn.Module
    layers : tuple of types
        Submodules of these classes are units of their own.
    replica : int or None
        Ranks that hold a whole model together (HSDP); None: all ranks.
    options : Mapping[str, Any]
        Arguments of ``fully_shard``.
    alone : bool
        Whether this process holds all shards for now, until it joins other ranks.
    connect : callable, optional
        Connects ranks, given a name and those of each group, and returns that of this rank; by
        default groups are those that PyTorch makes.

    Raises
    ------
    ValueError
        There is also a mesh.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        layers: tuple[type[torch.nn.Module], ...],
        replica: int | None,
        options: Mapping[str, Any],
        *,
        alone: bool = False,
        connect: Callable[[str, Sequence[Sequence[int]]], dist.ProcessGroup] | None = None,
    ) -> None:
        if replica is not None and options.get("mesh") is not None:
            raise ValueError("shard(): a mesh has its own replicas; give mesh or replica_ranks")
        self._model = weakref.ref(model)
        self._layers = layers
        self._options = dict(options)
        self.replica = replica
        self._alone = alone
        self._connect = connect
        self.mesh: DeviceMesh

    @classmethod
    def all_of(cls, model: torch.nn.Module) -> list[Wrapped]:
        """Return the wrapped models that are parts of a model, or it itself."""
        parts = (_known.get(part) for part in model.modules())
        return [part for part in parts if part is not None]

    @property
    def model(self) -> torch.nn.Module:
        """The model."""
        model = self._model()
        assert model is not None
        return model

    def shards(self, ranks: int) -> int:
        """Return how many shards a tensor has with so many ranks."""
        return ranks if self.replica is None else self.replica

    def why_not(self, device: torch.device, ranks: int | None) -> str:
        """Return why it cannot be wrapped again; empty if it can.

        Parameters
        ----------
        device : torch.device
        ranks : int or None
            The number of ranks, if it is known.
        """
        given = (why for option, why in _BY_HAND.items() if self._options.get(option) is not None)
        why = next(given, "")
        if not why and self.all_of(self.model) != [self]:
            why = "shard() was called for a part of it, too"
        if not why and device.type == "cuda" and self._options.get("offload_policy") is not None:
            why = "offload_policy keeps its shards in host memory"
        if not why and torch.__future__.get_swap_module_params_on_conversion():
            why = "torch.__future__ exchanges the parameters of modules"
        if not why and ranks is not None and ranks % self.shards(ranks):
            return f"replicas of the model have {self.replica} ranks, and {ranks} is no multiple"
        return f"the model is sharded, and {why}" if why else ""

    def wrap(self, device: torch.device) -> None:
        """Wrap the model over the present process group.

        Raises
        ------
        ValueError
            The number of ranks is no multiple of those of a replica.
        """
        self.meet(device)
        self.cover()

    def cover(self) -> None:
        """Wrap the model over its mesh."""
        options = {**self._options, "mesh": self.mesh}
        model = self.model
        for part in [each for each in model.modules() if isinstance(each, self._layers)]:
            if part is not model:
                fully_shard(part, **options)
        fully_shard(model, **options)
        _known[model] = self

    def meet(self, device: torch.device) -> None:
        """Make its mesh over the present process group; all ranks call it.

        Raises
        ------
        ValueError
            The number of ranks is no multiple of those of a replica.
        """
        mesh, ranks = self._options.get("mesh"), dist.get_world_size()
        if mesh is None:
            alone = self._alone or self.replica is None
            mesh = self._mesh(device, ranks, ranks if alone else self.shards(ranks))
        self.mesh, self._alone = mesh, False

    def _mesh(self, device: torch.device, ranks: int, shards: int) -> DeviceMesh:
        if shards < 1 or ranks % shards:
            raise ValueError(
                f"shard(replica_ranks={shards}): it must divide the number of ranks, {ranks}; "
                f"in a job file, gpus = {{max = ..., multiple = {shards}}} has it get no others"
            )
        numbers = torch.arange(ranks).view(-1, shards)
        names = None if self.replica is None else ("replicate", "shard")
        if self._connect is None or ranks == 1:
            shape = (ranks,) if names is None else tuple(numbers.shape)
            return init_device_mesh(device.type, shape, mesh_dim_names=names)
        if names is None:
            group = self._connect(f"hpcext-shards-{shards}", numbers.tolist())
            return DeviceMesh.from_group(group, device.type)
        groups = [
            self._connect(f"hpcext-replicas-{shards}", numbers.T.tolist()),
            self._connect(f"hpcext-shards-{shards}", numbers.tolist()),
        ]
        return DeviceMesh.from_group(groups, device.type, numbers, mesh_dim_names=names)

    def placements(self, *, divided: bool) -> tuple[Replicate | Shard, ...]:
        """Return how a tensor lies on the mesh."""
        last = Shard(0) if divided else Replicate()
        return (*[Replicate()] * (self.mesh.ndim - 1), last)

    def parameters(self) -> Iterator[DTensor]:
        """Yield its sharded parameters, each once."""
        for parameter in self.model.parameters():
            if isinstance(parameter, DTensor):
                yield parameter

    def renew(self, local: Callable[[DTensor], torch.Tensor]) -> None:
        """Wrap it anew over its new mesh; the parameters stay the same objects.

        Gradients are dropped.

        Parameters
        ----------
        local : callable
            Given a parameter, returns the shard that this rank has from now on.
        """
        places: dict[DTensor, list[tuple[dict[str, Any], str]]] = defaultdict(list)
        for part in self.model.modules():
            for name, value in part._parameters.items():
                if isinstance(value, DTensor):
                    places[value].append((cast(Any, part._parameters), name))
        for parameter, spots in places.items():
            # Without memory; only its shape matters.
            bare = torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")
            stand_in = torch.nn.Parameter(bare, requires_grad=parameter.requires_grad)
            for parameters, name in spots:
                parameters[name] = stand_in
        for part in self.model.modules():
            _strip(part)
        self.cover()
        for parameter, spots in places.items():
            parameters, name = spots[0]
            _let_go(parameter.device_mesh)
            settle(parameter, local(parameter), parameters[name]._spec)
            parameter.grad = None
            for parameters, name in spots:
                # FSDP takes into use, at its next forward pass, the parameter that it finds here.
                parameters[name] = parameter


def settle(tensor: DTensor, local: torch.Tensor, spec: Any) -> None:
    """Give a sharded tensor another shard and another mesh; it stays the same object.

    Parameters
    ----------
    tensor : DTensor
    local : torch.Tensor
        The shard.
    spec : DTensorSpec
        The mesh, and how the tensor lies on it.
    """
    tensor._local_tensor = local
    tensor._spec = spec


def take_off(model: torch.nn.Module) -> None:
    """Remove FSDP2 from a model and all its parts; parameters stay shards, of a group that is over.

    Nothing keeps the group then, whose threads might otherwise outlive the interpreter.
    """
    meshes = [each.device_mesh for each in model.parameters() if isinstance(each, DTensor)]
    for part in model.modules():
        _strip(part)
    for mesh in meshes:
        _let_go(mesh)


def _let_go(mesh: DeviceMesh) -> None:
    """Have a mesh that is no longer used keep no process group."""
    # Some releases of PyTorch find groups by their names instead.
    getattr(mesh, "_pg_registry", {}).clear()


def forget_meshes() -> None:
    """Have DTensor forget what it has derived for meshes of groups that are over.

    Meshes of equal sizes are equal to its caches, which would keep those groups with their threads.
    """
    from torch.distributed.tensor import _redistribute, debug  # noqa: PLC0415

    for name, module in list(sys.modules.items()):
        if name.startswith(_DTENSOR):
            for value in list(vars(module).values()):
                inner = vars(value).values() if isinstance(value, type) else ()
                for each in (value, *inner):
                    kept = getattr(each, "__func__", each)
                    if isinstance(kept, _CACHED) and kept.__module__.startswith(_DTENSOR):
                        kept.cache_clear()
    # Others than those of functools; earlier releases of PyTorch have not all of them.
    getattr(debug, "_clear_sharding_prop_cache", bool)()
    getattr(_redistribute, "clear_redistribute_planner_cache", bool)()


def _strip(part: torch.nn.Module) -> None:
    """Remove from a module what ``fully_shard`` has added."""
    for name in _HOOKS:
        hooks = getattr(part, name, {})
        for key in [key for key, hook in hooks.items() if _is_of_fsdp(hook)]:
            del hooks[key]
            for other in _NOTED:
                getattr(part, other, {}).pop(key, None)
    if not isinstance(part, FSDPModule):
        return
    kind: Any = next(each for each in type(part).__mro__ if not issubclass(each, FSDPModule))
    part.__class__ = kind
    states = part.__dict__.get(STATE_KEY, {})
    for key in [key for key, state in states.items() if _is_of_fsdp(type(state))]:
        # It is in cycles of references, and would keep the old shards until they are collected.
        vars(states.pop(key)).clear()
    part.__dict__.get(REGISTRY_KEY, {}).pop(fully_shard.__name__, None)
    _module_state_mapping.pop(part, None)


def _is_of_fsdp(hook: Any) -> bool:
    hook = getattr(hook, "hook", hook)
    while isinstance(hook, functools.partial):
        hook = hook.func
    return str(getattr(hook, "__module__", "")).startswith(_FSDP)
