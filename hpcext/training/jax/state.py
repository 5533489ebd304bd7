"""The state of a JAX training: a pytree that each step replaces, and what else is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from hpcext.training.checkpoint.hashing import HashingFile
from hpcext.training.checkpoint.staging import Copier
from hpcext.training.checkpoint.state import TrainingState, Tree
from hpcext.training.jax.held import Held, host, is_divided
from hpcext.training.portable import portable

STATE = "state"
"""Name of the pytree among the objects of a session."""


class JaxState(TrainingState):
    """A :class:`~hpcext.training.checkpoint.state.TrainingState` with a pytree of arrays.

    Parameters
    ----------
    objects : Mapping[str, Any]
        Those of the base class, and the pytree, or a function that makes it, under "state".
    sharding : sharding, function or pytree, optional
        As for :class:`hpcext.training.jax.Session`.

    Attributes
    ----------
    held : Held
    """

    format = "jax/1"

    def __init__(self, objects: Mapping[str, Any], sharding: Any = None) -> None:
        given = objects.get(STATE)
        if given is None:
            raise TypeError(
                "Session(): give state=, the pytree of all that is trained (parameters, state of "
                "the optimizer, random keys), or a function that makes it"
            )
        # A callable module may be a pytree; a function is a leaf.
        if callable(given) and jax.tree_util.all_leaves([given]):
            given = given() if sharding is None else _made(given, sharding)
        elif sharding is not None:
            raise TypeError(
                "Session(sharding=...): only with state= a function, which then makes the pytree "
                "on all devices"
            )
        self.held = Held(given)
        super().__init__({**objects, STATE: self.held})

    def knows(self, value: Any) -> bool:
        """Return whether this value's state can be saved and restored."""
        return isinstance(value, Held) or super().knows(value)

    def refusal(self, value: Any) -> str:
        """Return why this value cannot be part of the state; empty if it can."""
        if any(isinstance(leaf, jax.Array) for leaf in jax.tree_util.tree_leaves(value)):
            return (
                "arrays of JAX do not change in place, so nothing can be restored into them; put "
                "them into one pytree, Session(state={'params': params, 'opt_state': opt_state})"
            )
        return super().refusal(value)

    def plain(self) -> Tree:
        """Return the captured objects whose values must be checked before they can be saved."""
        return {
            name: self.capture_object(value)
            for name, value in self._objects.items()
            if value is not self.held
        }

    def present(self) -> Tree:
        """Return the state of this process by kind, given to the session or not; slow."""
        captured = self.capture()
        values = [_local(value) for value in captured[STATE]["values"]]
        return {
            "what the session holds": {**captured, STATE: values},
            "random numbers": self.random(),
        }

    def copier(self) -> Copier:
        """Make the copier for the arrays of a captured state."""
        return JaxCopier()

    def capture_object(self, value: Any) -> Any:
        """Return the state of one object; arrays and tensors are not copied."""
        return value.capture() if isinstance(value, Held) else super().capture_object(value)

    def apply_to_object(self, value: Any, saved: Any) -> None:
        """Set one object to its captured state."""
        if isinstance(value, Held):
            value.apply(saved)
        else:
            super().apply_to_object(value, saved)

    def write(self, file: HashingFile, tree: Tree) -> None:
        """Write a tree to a file."""
        held = tree["objects"][STATE]
        written = {**held, "values": [_portable(value) for value in held["values"]]}
        super().write(file, {**tree, "objects": {**tree["objects"], STATE: written}})


def _made(make: Callable[[], Any], sharding: Any) -> Any:
    """Make a pytree on the devices of a sharding, be they of one process or of several."""
    if callable(sharding):
        sharding = jax.tree_util.tree_map(sharding, jax.eval_shape(make))
    return jax.jit(make, out_shardings=sharding)()


class JaxCopier(Copier):
    """A copier of JAX arrays into host memory: the next step may reuse theirs (donation)."""

    def copy(self, tree: Any) -> Any:
        """Return a copy that shares nothing with the tree, except immutable values."""
        for _, array in list(self._arrays(tree, ())):
            if isinstance(array, jax.Array) and array.is_fully_addressable:
                # All at once, because a device copies while it computes.
                array.copy_to_host_async()
        return super().copy(tree)

    def is_array(self, value: Any) -> bool:
        """Return whether a value has content that must be copied."""
        return isinstance(value, jax.Array) or super().is_array(value)

    def identity(self, array: Any) -> Any:
        """Return a key that is equal for two arrays that are the same memory."""
        return id(array) if isinstance(array, jax.Array) else super().identity(array)

    def fresh(self, array: Any) -> Any:
        """Allocate memory for a copy."""
        return np.empty(array.shape, array.dtype)

    def fill(self, copy: Any, array: Any) -> None:
        """Copy the content of an array."""
        np.copyto(copy, host(array))


def _local(value: Any) -> Any:
    """Return this process's part of a captured value."""
    if isinstance(value, dict):
        return {name: _local(each) for name, each in value.items()}
    if not isinstance(value, jax.Array):
        return value
    if is_divided(value):
        return [np.asarray(each.data) for each in value.addressable_shards]
    return host(value)


def _portable(value: Any) -> Any:
    """Return a captured value in a form that a file can hold."""
    if isinstance(value, jax.Array):
        return portable(host(value))
    if isinstance(value, np.ndarray):
        return portable(value)
    if isinstance(value, dict):
        return {name: _portable(each) for name, each in value.items()}
    return value
