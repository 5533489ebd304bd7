"""The state of a PyTorch process: modules, optimizers, whatever has a state_dict, random states."""

from __future__ import annotations

import base64
from collections import Counter, OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpcext.training.checkpoint import CheckpointError, HashingFile
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
        return isinstance(value, torch.Tensor) or super().knows(value)

    def draws(self, value: Any) -> bool:
        return isinstance(value, torch.Generator) or super().draws(value)

    def check(self) -> None:
        _plain(self.capture(), "Session")

    def replace(self, old: torch.nn.Module) -> None:
        """Optimizers follow their parameters, which were moved to another device."""
        mine = {id(parameter) for parameter in old.parameters()}
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
        states = {**super().random(), "torch": _text(torch.get_rng_state())}
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            states["cuda"] = _text(torch.cuda.get_rng_state())
        return states

    def set_random(self, states: Tree) -> None:
        super().set_random(states)
        torch.set_rng_state(_bytes(states["torch"]))
        if "cuda" in states and torch.cuda.is_available():
            torch.cuda.set_rng_state(_bytes(states["cuda"]))

    def seed(self, seed: int) -> None:
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
        torch.save(_plain(tree, "Session"), file)

    def read(self, path: Path) -> Tree:
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
    if type(value) in _MAPPINGS:
        items = {key: _plain(item, f"{where}[{key!r}]") for key, item in value.items()}
        # The same object where possible: a module's OrderedDict carries versions with it.
        return value if all(items[key] is value[key] for key in items) else items
    if type(value) in (list, tuple, set):
        return type(value)(_plain(item, f"{where}[...]") for item in value)
    raise TypeError(
        f"{where}: a {type(value).__name__} cannot be saved; "
        "a state_dict may hold numbers, text, tensors, arrays, and lists and dicts of these"
    )


def _with_arrays(value: Any) -> Any:
    if isinstance(value, Mapping):
        if len(value) == 1 and _NDARRAY in value:
            return value[_NDARRAY].numpy()
        changed = {key: _with_arrays(item) for key, item in value.items()}
        return value if all(changed[key] is value[key] for key in changed) else changed
    if type(value) in (list, tuple):
        return type(value)(_with_arrays(item) for item in value)
    return value
