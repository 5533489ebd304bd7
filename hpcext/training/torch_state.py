"""The state of a PyTorch process: modules, optimizers, whatever has a state_dict, random states."""

from __future__ import annotations

import base64
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import torch

from hpcext.training.checkpoint import CheckpointError
from hpcext.training.hashing import HashingFile
from hpcext.training.state import State, Tree

_NDARRAY = "hpcext.ndarray"
_LEAVES = (type(None), bool, int, float, complex, str, bytes)
_TORCH_LEAVES = (torch.Tensor, torch.Size, torch.dtype, torch.device)
_MAPPINGS = (dict, OrderedDict, Counter)


class TorchState(State):
    """As :class:`~hpcext.training.state.State`, and tensors, modules and torch generators.

    Written by ``torch.save`` and read with ``weights_only=True``: only plain values and tensors,
    which is checked when the session begins and not when the first checkpoint is due.
    """

    format = "torch/1"
    file = "state.pt"
    valid = "a module, an optimizer, a tensor, an array, a generator, or an object with both"

    def knows(self, value: Any) -> bool:
        """Whether this value's state can be taken and given back."""
        return isinstance(value, torch.Tensor) or super().knows(value)

    def draws(self, value: Any) -> bool:
        """Whether it is a source of random numbers."""
        return isinstance(value, torch.Generator) or super().draws(value)

    def check(self) -> None:
        """Whether all of it can be saved; raises TypeError."""
        _plain(self.capture(), "Session")

    def follow(self, model: torch.nn.Module) -> None:
        """Move optimizers after the parameters of a model that went to another device."""
        mine = {id(parameter) for parameter in model.parameters()}
        for value in self._objects.values():
            if isinstance(value, torch.optim.Optimizer) and mine & _parameters(value):
                # Loading puts every tensor where its parameter is.
                value.load_state_dict(value.state_dict())

    def _capture(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value
        return super()._capture(unwrapped(value))

    def _apply(self, value: Any, saved: Any) -> None:
        if not isinstance(value, torch.Tensor):
            super()._apply(unwrapped(value), saved)
            return
        if value.shape != saved.shape or value.dtype != saved.dtype:
            raise ValueError(f"{saved.dtype}{saved.shape} into {value.dtype}{value.shape}")
        with torch.no_grad():
            value.copy_(saved)

    def random(self) -> Tree:
        """The random states of this process: Python, NumPy, PyTorch, its GPU."""
        states = {**super().random(), "torch": _text(torch.get_rng_state())}
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            states["cuda"] = _text(torch.cuda.get_rng_state())
        return states

    def set_random(self, states: Tree) -> None:
        """Set the random numbers to states that :meth:`random` gave."""
        super().set_random(states)
        torch.set_rng_state(_bytes(states["torch"]))
        if "cuda" in states and torch.cuda.is_available():
            torch.cuda.set_rng_state(_bytes(states["cuda"]))

    def seed(self, seed: int) -> None:
        """Seed the global sources, those of the GPUs too."""
        super().seed(seed)
        torch.manual_seed(seed)

    def _generator_state(self, generator: Any) -> Any:
        if isinstance(generator, torch.Generator):
            return _text(generator.get_state())
        return super()._generator_state(generator)

    def _set_generator(self, generator: Any, state: Any) -> None:
        if isinstance(generator, torch.Generator):
            generator.set_state(_bytes(state))
        else:
            super()._set_generator(generator, state)

    def write(self, file: HashingFile, tree: Tree) -> None:
        """Write a tree."""
        torch.save(_plain(tree, "Session"), cast(IO[bytes], file))

    def read(self, path: Path) -> Tree:
        """Read a tree; raises CheckpointError."""
        try:
            tree = torch.load(path, map_location="cpu", weights_only=True)
        # What torch raises for a file it cannot read has no common base.
        except Exception as error:
            first = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise CheckpointError(f"cannot be read ({first})", where=path) from error
        restored: Tree = _with_arrays(tree)
        return restored


def unwrapped(value: Any) -> Any:
    """The user's own module inside DistributedDataParallel and torch.compile."""
    while isinstance(value, torch.nn.Module):
        if isinstance(value, torch.nn.parallel.DistributedDataParallel):
            value = value.module
        elif hasattr(value, "_orig_mod"):
            value = value._orig_mod
        else:
            break
    return value


def _parameters(optimizer: torch.optim.Optimizer) -> set[int]:
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}


def _text(state: torch.Tensor) -> str:
    return base64.b64encode(state.cpu().numpy().tobytes()).decode()


def _bytes(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)


def _plain(value: Any, where: str) -> Any:
    """The same value if torch can read it back with ``weights_only``; arrays become tensors.

    Raises
    ------
    TypeError
        Something is neither plain nor a tensor.
    """
    # By exact type: a subclass (an enum is an int) would be pickled as that class.
    if type(value) in _LEAVES or isinstance(value, _TORCH_LEAVES):
        return value
    if isinstance(value, np.ndarray | np.generic):
        return {_NDARRAY: torch.from_numpy(np.array(value))}
    if type(value) in _MAPPINGS or type(value) in (list, tuple, set):
        return _mapped(value, lambda key, item: _plain(item, f"{where}[{key!r}]"))
    raise TypeError(
        f"{where}: a {type(value).__name__} cannot be saved; "
        "a state_dict may hold numbers, text, tensors, arrays, and lists and dicts of these"
    )


def _with_arrays(value: Any) -> Any:
    """What :func:`_plain` was given."""
    if isinstance(value, Mapping) and value.keys() == {_NDARRAY}:
        return value[_NDARRAY].numpy()
    if isinstance(value, Mapping) or type(value) in (list, tuple):
        return _mapped(value, lambda _, item: _with_arrays(item))
    return value


def _mapped(value: Any, change: Callable[[Any, Any], Any]) -> Any:
    """A container with changed items; the very same one where no item changes, because the
    OrderedDict of a module carries version numbers beside its items."""
    if isinstance(value, Mapping):
        items = {key: change(key, item) for key, item in value.items()}
        return value if all(items[key] is value[key] for key in items) else items
    before = list(value)
    after = [change(place, item) for place, item in enumerate(before)]
    same = all(old is new for old, new in zip(before, after, strict=True))
    return value if same else type(value)(after)
