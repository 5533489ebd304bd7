"""The state of a PyTorch process: modules, optimizers, objects with a state_dict, random states."""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import torch

from hpcext.training.checkpoint import CheckpointError
from hpcext.training.checkpoint.hashing import HashingFile
from hpcext.training.checkpoint.staging import Copier, like
from hpcext.training.checkpoint.state import Source, TrainingState, Tree
from hpcext.training.torch.random import TorchRandom, from_text, to_text
from hpcext.training.torch.whole import Given, parameters_of, present, state_of

FORMAT_SHARDED = "torch-sharded/1"
_NDARRAY = "hpcext.ndarray"
_LEAVES = (type(None), bool, int, float, complex, str, bytes)
_TORCH_LEAVES = (torch.Tensor, torch.Size, torch.dtype, torch.device)
_MAPPINGS = (dict, OrderedDict, Counter)


class TorchState(TorchRandom):
    """A state with tensors, modules and torch generators.

    It is written by ``torch.save`` and read with ``weights_only=True``: only plain values and
    tensors are possible, which is checked when the session begins, not when the first checkpoint is
    due.
    """

    format = "torch/1"
    file = "state.pt"
    sources = (
        *TrainingState.sources,
        Source(
            torch.Generator,
            lambda each: to_text(each.get_state()),
            lambda each, state: each.set_state(from_text(state)),
        ),
    )
    valid = "a module, an optimizer, a tensor, an array, a generator, or an object with both"

    def __init__(self, objects: Mapping[str, Any]) -> None:
        super().__init__(objects)
        if self.sharded:
            self.format = FORMAT_SHARDED

    def refusal(self, value: Any) -> str:
        """Return the reason why this value cannot be part of the state; empty if it can."""
        kind = state_of(value)
        if not kind:
            return super().refusal(value)
        what = f"of {kind}" if kind == "tensors" else f"with the state of {kind}"
        return (
            f"a {type(value).__name__} {what} is a copy, so nothing can be restored into the "
            "original; give the object itself, model=model instead of "
            "model=model.state_dict(), and each tensor under its own name"
        )

    def missing(self, unsaved: Collection[Any], *, stepped: bool = False) -> str:
        """Return which state of the training is not saved, and what to do; empty if none."""
        given = self.given(unsaved)
        return given.lacks_model() or given.lacks_schedulers()

    def given(self, unsaved: Collection[Any]) -> Given:
        """Return which objects are saved, and which are deliberately not."""
        named = {name: unwrapped(value) for name, value in self._objects.items()}
        return Given(named, [*map(unwrapped, unsaved)], self.capture())

    def present(self) -> Tree:
        """Return the state of this process by kind, given to the session or not; this is slow."""
        return {**super().present(), **present()}

    def knows(self, value: Any) -> bool:
        """Return whether this value's state can be saved and restored."""
        return isinstance(value, torch.Tensor) or super().knows(value)

    def check(self) -> None:
        """Check that all of the state can be saved; raise TypeError if not."""
        plain(self.capture(), "Session")

    @property
    def objects(self) -> Mapping[str, Any]:
        """The objects that the user named, except sources of random numbers."""
        return self._objects

    @property
    def sharded(self) -> bool:
        """Whether ranks hold different shards of the parameters (FSDP2, tensor parallel)."""
        return any(is_sharded(parameter) for parameter in self._held())

    @property
    def data_parallel(self) -> bool:
        """Whether all shards are those of FSDP2, so that each rank has batches of its own."""
        return bool(self.fsdp_modules()) and all(
            sum(not each.is_replicate() for each in cast(Any, tensor).placements) <= 1
            for tensor in self._held()
            if is_sharded(tensor)
        )

    def fsdp_modules(self) -> list[torch.nn.Module]:
        """Return the outermost modules that FSDP2 has wrapped."""
        module = sys.modules.get("torch.distributed.fsdp")
        kind = getattr(module, "FSDPModule", ())
        found: dict[int, torch.nn.Module] = {}
        for model in self.modules():
            wrapped = [part for part in model.modules() if isinstance(part, kind)]
            inner = {id(each) for part in wrapped for each in [*part.modules()][1:]}
            found.update((id(part), part) for part in wrapped if id(part) not in inner)
        return list(found.values())

    def reshard(self) -> None:
        """Put shards in place of parameters that FSDP2 keeps gathered, as after a validation."""
        kind = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", ())
        for part in (part for model in self.modules() for part in model.modules()):
            if isinstance(part, kind):
                cast(Any, part).reshard()

    def modules(self) -> Iterator[torch.nn.Module]:
        """Yield the models among the objects."""
        for value in self._objects.values():
            if isinstance(value, torch.nn.Module):
                yield unwrapped(value)

    def _held(self) -> Iterator[torch.Tensor]:
        for model in self.modules():
            yield from model.parameters()
        for optimizer in self.optimizers():
            yield from parameters_of(optimizer)

    def follow(self, model: torch.nn.Module) -> None:
        """Move optimizer states to the device of a model that was moved."""
        mine = {id(parameter) for parameter in model.parameters()}
        for optimizer in self.optimizers():
            if any(id(parameter) in mine for parameter in parameters_of(optimizer)):
                # Loading moves every tensor to the device of its parameter.
                optimizer.load_state_dict(optimizer.state_dict())

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Return the optimizers among the objects."""
        return [v for v in self._objects.values() if isinstance(v, torch.optim.Optimizer)]

    def copier(self) -> Copier:
        """Make the copier of tensors and arrays to host memory."""
        return TorchCopier()

    def capture_object(self, value: Any) -> Any:
        """Return the state of one object; arrays and tensors are not copied."""
        if isinstance(value, torch.Tensor):
            return value
        return super().capture_object(unwrapped(value))

    def apply_to_object(self, value: Any, saved: Any) -> None:
        """Set one object to its captured state."""
        if not isinstance(value, torch.Tensor):
            if isinstance(value, torch.optim.Optimizer):
                self._load_optimizer(value, saved)
            else:
                super().apply_to_object(unwrapped(value), saved)
            return
        if value.shape != saved.shape or value.dtype != saved.dtype:
            raise ValueError(f"{saved.dtype}{saved.shape} into {value.dtype}{value.shape}")
        with torch.no_grad():
            value.copy_(saved)

    def _load_optimizer(self, optimizer: torch.optim.Optimizer, saved: Any) -> None:
        try:
            super().apply_to_object(optimizer, saved)
        except Exception:
            # The state of another kind of optimizer may fail in any way.
            check_settings(optimizer, saved["param_groups"])
            raise
        check_settings(optimizer, optimizer.param_groups)

    def write(self, file: HashingFile, tree: Tree) -> None:
        """Write a tree to a file."""
        torch.save(plain(tree, "Session"), cast(IO[bytes], file))

    def read(self, path: Path) -> Tree:
        """Read a tree from a file; raise CheckpointError if it is not one."""
        try:
            tree = torch.load(path, map_location="cpu", weights_only=True)
        # The exceptions of torch for a file it cannot read have no common base.
        except Exception as error:
            first = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise CheckpointError(f"cannot be read ({first})", where=path) from error
        restored: Tree = with_arrays(tree)
        return restored


class TorchCopier(Copier):
    """A copier of tensors to host memory, from a GPU into pinned memory."""

    def __init__(self) -> None:
        super().__init__()
        self._devices: set[torch.device] = set()
        self._pinned = False

    def forget(self) -> None:
        """Free the memory of the copy, which PyTorch would keep where it is pinned."""
        super().forget()
        # Newer releases of PyTorch have it.
        empty = getattr(getattr(torch, "accelerator", None), "empty_host_cache", None)
        if self._pinned and empty is not None:
            empty()
        self._pinned = False

    def is_array(self, value: Any) -> bool:
        """Return whether a value is a tensor or an array."""
        return isinstance(value, torch.Tensor) or super().is_array(value)

    def size(self, array: Any) -> int:
        """Return the memory that a copy of a tensor's content on this rank takes, in bytes."""
        if not isinstance(array, torch.Tensor):
            return super().size(array)
        if _special(array):
            return 0
        size = _local(array).nbytes
        # ATen/core/CachingHostAllocator.h: pinned memory is had in powers of two.
        return 1 << (size - 1).bit_length() if size and _is_pinned(array) else size

    def identity(self, array: Any) -> Any:
        """Return a key that is equal for two tensors that share the same memory."""
        if not isinstance(array, torch.Tensor):
            return super().identity(array)
        if _special(array):
            return id(array)
        piece = _local(array)
        if is_sharded(array) and not piece.numel():
            # All that is empty has the same address, whatever it is a piece of.
            return id(array)
        return piece.device, piece.data_ptr(), piece.shape, piece.stride(), piece.dtype

    def fits(self, before: Any, array: Any) -> bool:
        """Return whether an earlier copy has suitable memory for this tensor."""
        if not isinstance(array, torch.Tensor):
            return super().fits(before, array)
        if not isinstance(before, torch.Tensor) or _special(array) or before.shape != array.shape:
            return False
        held, mine = _local(before), _local(array)
        return (held.shape, held.dtype, held.stride()) == (mine.shape, mine.dtype, mine.stride())

    def fresh(self, array: Any) -> Any:
        """Allocate host memory for a copy.

        Raises
        ------
        MemoryError
            There is not enough memory.
        """
        if not isinstance(array, torch.Tensor):
            return super().fresh(array)
        try:
            if _special(array) or is_sharded(array):
                # Sparse, quantized and similar tensors are rare; the clone is the copy itself.
                return array.detach().clone().cpu()
            pinned = _is_pinned(array)
            self._pinned |= pinned
            return torch.empty_like(array, device="cpu", requires_grad=False, pin_memory=pinned)
        except RuntimeError as error:
            # PyTorch has no class of errors for memory of the host.
            raise MemoryError(str(error).partition("\n")[0]) from error

    def fill(self, copy: Any, array: Any) -> None:
        """Copy the content; from a GPU this is asynchronous until :meth:`wait`."""
        if not isinstance(array, torch.Tensor):
            super().fill(copy, array)
        elif not _special(array):
            _local(copy).copy_(_local(array), non_blocking=array.is_cuda)
            if array.is_cuda:
                self._devices.add(array.device)

    def wait(self) -> None:
        """Wait until all content is copied from GPUs."""
        while self._devices:
            torch.cuda.current_stream(self._devices.pop()).synchronize()


def is_sharded(value: Any) -> bool:
    """Return whether a value is a DTensor, a shard of a tensor that ranks hold together."""
    # If the module is not imported there are none, and the import takes a while.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def _special(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is more than one block of memory."""
    return tensor.layout != torch.strided or tensor.is_quantized


def _is_pinned(tensor: torch.Tensor) -> bool:
    """Return whether the copy of a tensor is in pinned memory, from which GPUs copy faster."""
    return tensor.is_cuda and not _special(tensor) and not is_sharded(tensor)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the shard of a tensor on this rank, or the tensor itself."""
    piece = tensor.detach()
    return cast(Any, piece).to_local() if is_sharded(piece) else piece


def unwrapped(value: Any) -> Any:
    """Return the user's own module inside DistributedDataParallel and torch.compile."""
    while isinstance(value, torch.nn.Module):
        if isinstance(value, torch.nn.parallel.DistributedDataParallel):
            value = value.module
        elif hasattr(value, "_orig_mod"):
            value = value._orig_mod
        else:
            break
    return value


def check_settings(optimizer: torch.optim.Optimizer, groups: Iterable[Mapping[str, Any]]) -> None:
    """Check that groups of parameters have the settings that an optimizer needs.

    An earlier release of PyTorch may have written fewer settings, which loading adds.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
    groups : iterable of Mapping
        The groups that were saved.

    Raises
    ------
    ValueError
        The settings are those of another kind of optimizer.
    """
    for group in groups:
        lost = sorted(optimizer.defaults.keys() - group.keys())
        if lost:
            raise ValueError(
                f"it is the state of another optimizer: it lacks {', '.join(lost)}, which "
                f"{type(optimizer).__name__} needs"
            )


def plain(value: Any, where: str) -> Any:
    """Return a value as torch can read it back with ``weights_only``; arrays become tensors.

    Parameters
    ----------
    value : Any
    where : str
        The name of the value, for messages.

    Raises
    ------
    TypeError
        A part is neither plain nor a tensor.
    """
    # By exact type, since a subclass (an enum is an int) would be pickled as that class.
    if type(value) in _LEAVES or isinstance(value, _TORCH_LEAVES):
        return value
    if isinstance(value, np.ndarray | np.generic):
        return {_NDARRAY: torch.from_numpy(np.array(value))}
    if type(value) in _MAPPINGS or type(value) in (list, tuple, set):
        return mapped(value, lambda key, item: plain(item, f"{where}[{key!r}]"))
    raise TypeError(
        f"{where}: a {type(value).__name__} cannot be saved; "
        "a state_dict may hold numbers, text, tensors, arrays, and lists and dicts of these"
    )


def with_arrays(value: Any) -> Any:
    """Reverse :func:`plain`."""
    if isinstance(value, Mapping) and value.keys() == {_NDARRAY}:
        return value[_NDARRAY].numpy()
    if isinstance(value, Mapping) or type(value) in (list, tuple):
        return mapped(value, lambda _, item: with_arrays(item))
    return value


def mapped(value: Any, change: Callable[[Any, Any], Any]) -> Any:
    """Return a container with changed items; the same object if no item changes.

    Parameters
    ----------
    value : Any
    change : callable
        Given the key or index of an item and the item, returns the new item.
    """
    if isinstance(value, Mapping):
        items = {key: change(key, item) for key, item in value.items()}
        return value if all(items[key] is value[key] for key in items) else like(value, items)
    before = list(value)
    after = [change(place, item) for place, item in enumerate(before)]
    same = all(old is new for old, new in zip(before, after, strict=True))
    return value if same else type(value)(after)
