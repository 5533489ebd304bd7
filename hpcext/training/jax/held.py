"""The pytree that a session holds for its script, which gives it back after each step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hpcext.training.checkpoint.state import Tree
from hpcext.training.jax.pieces import Pieces
from hpcext.training.portable import Array, restored

WRITE = "write `session.state, loss = train_step(session.state, batch)`"

_KEY = "key"


class Held:
    """The state of a training: a pytree of arrays, which is replaced and not changed.

    Numbers and NumPy arrays in it become arrays of JAX, and no array stays weakly typed: a restored
    state and one that was never saved are of the same types.

    Parameters
    ----------
    tree : pytree

    Raises
    ------
    TypeError
        A leaf is not an array.
    """

    def __init__(self, tree: Any) -> None:
        named, self._treedef = jax.tree_util.tree_flatten_with_path(tree)
        self.names = [jax.tree_util.keystr(path) for path, _ in named]
        if not named:
            raise TypeError("Session(state=...): the pytree has no arrays")
        self._leaves = [
            _strict(leaf, f"Session(state=...): leaf {name or 'itself'}")
            for name, leaf in zip(self.names, (leaf for _, leaf in named), strict=True)
        ]
        for name, leaf in zip(self.names, self._leaves, strict=True):
            if is_key(leaf) and is_divided(leaf):
                raise TypeError(
                    f"Session(state=...): leaf {name}: random keys that are divided among "
                    "processes cannot be saved; keep one key that all have, and use "
                    "jax.random.fold_in(key, jax.process_index())"
                )
        self._avals = [leaf.aval for leaf in self._leaves]
        self._kinds = {type(leaf) for leaf in self._leaves}

    @property
    def leaves(self) -> Sequence[jax.Array]:
        """The arrays, in the order of their names."""
        return self._leaves

    def get(self) -> Any:
        """Return the pytree."""
        return jax.tree_util.tree_unflatten(self._treedef, self._leaves)

    def set(self, tree: Any) -> None:
        """Replace the pytree by the one that a step has made.

        Raises
        ------
        ValueError
            It has another structure, or an array another shape or type.
        TypeError
            A leaf is not an array.
        """
        leaves, treedef = jax.tree_util.tree_flatten(tree)
        avals = [getattr(leaf, "aval", None) for leaf in leaves]
        known = treedef == self._treedef and avals == self._avals
        if not known or not {type(leaf) for leaf in leaves} <= self._kinds:
            leaves = self._checked(tree)
            self._treedef, self._avals = treedef, [leaf.aval for leaf in leaves]
        self._leaves = leaves

    def _checked(self, tree: Any) -> list[jax.Array]:
        named = jax.tree_util.tree_flatten_with_path(tree)[0]
        names = [jax.tree_util.keystr(path) for path, _ in named]
        _same_names(self.names, names, "before", "now", "session.state")
        leaves = []
        for name, (_, leaf), before in zip(names, named, self._leaves, strict=True):
            fresh = _strict(leaf, f"session.state: leaf {name or 'itself'}")
            if _kind(fresh) != _kind(before):
                raise ValueError(
                    f"session.state: leaf {name or 'itself'} was {_kind(before)}, and is now "
                    f"{_kind(fresh)}; shapes and types must stay as they were given to Session"
                )
            leaves.append(fresh)
        return leaves

    # -- in a checkpoint

    def capture(self) -> Tree:
        """Return names and arrays, which are not copied; of keys their numbers.

        Raises
        ------
        RuntimeError
            An array was donated to a function whose result was not assigned.
        """
        for name, leaf in zip(self.names, self._leaves, strict=True):
            if leaf.is_deleted():
                raise RuntimeError(
                    f"session.state: leaf {name} was donated to a function (donate_argnums), and "
                    f"its result was not assigned; {WRITE}"
                )
        return {"names": self.names, "values": [_captured(leaf) for leaf in self._leaves]}

    def apply(self, saved: Tree) -> None:
        """Set the arrays to captured ones, each divided among the devices as it is now.

        Raises
        ------
        ValueError
            They do not fit; then nothing is changed.
        """
        _same_names(saved["names"], self.names, "in the checkpoint", "here", "the pytree")
        values = [_Saved(each) for each in saved["values"]]
        for name, value, leaf in zip(self.names, values, self._leaves, strict=True):
            if value.kind != _kind(leaf):
                raise ValueError(
                    f"leaf {name or 'itself'} is {value.kind} in the checkpoint, and "
                    f"{_kind(leaf)} here"
                )
        # One by one, so that an array without another reference is freed when it is replaced.
        for place, value in enumerate(values):
            self._leaves[place] = value.like(self._leaves[place])


class _Saved:
    """A leaf of a checkpoint.

    Attributes
    ----------
    kind : str
        Its type and shape.
    """

    def __init__(self, value: Any) -> None:
        self._impl = ""
        if isinstance(value, dict) and _KEY in value:
            self._impl, value = value["impl"], value[_KEY]
        self._value: Pieces | Array = value if isinstance(value, Pieces) else restored(value)
        shape, name = self._value.shape, self._value.dtype.name
        if self._impl:
            # The last axis holds the numbers of a key.
            shape, name = shape[:-1], f"key of {self._impl}"
        self.kind = f"{name}{tuple(shape)}"

    def like(self, leaf: jax.Array) -> jax.Array:
        """Return the array, on the devices of another one."""
        array = _placed(self._value, leaf)
        return jax.random.wrap_key_data(array, impl=self._impl) if self._impl else array


def _placed(value: Pieces | Array, leaf: jax.Array) -> jax.Array:
    read = value.read if isinstance(value, Pieces) else value.__getitem__
    if leaf.committed:
        return jax.make_array_from_callback(value.shape, leaf.sharding, read, dtype=value.dtype)
    return jnp.asarray(read((slice(None),) * len(value.shape)))


def is_key(leaf: Any) -> bool:
    """Return whether an array holds random keys, not numbers."""
    return bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def is_divided(value: Any) -> bool:
    """Return whether this process has only a part of an array."""
    if not isinstance(value, jax.Array):
        return False
    return not (value.is_fully_addressable or value.is_fully_replicated)


def host(array: Any) -> Array:
    """Return the content of an array that this process has whole."""
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        array = array.addressable_data(0)
    return np.asarray(array)


def _captured(leaf: jax.Array) -> Any:
    if not is_key(leaf):
        return leaf
    local = leaf if leaf.is_fully_addressable else leaf.addressable_data(0)
    return {_KEY: jax.random.key_data(local), "impl": str(jax.random.key_impl(leaf))}


def _strict(leaf: Any, where: str) -> jax.Array:
    """Return a leaf as an array that is not weakly typed."""
    if isinstance(leaf, jax.core.Tracer):
        raise TypeError(
            f"{where} is a tracer: session.state is assigned inside a function that JAX traces; "
            "have the function return it, and assign it outside"
        )
    if isinstance(leaf, bool | int | float | complex | np.generic | np.ndarray):
        if getattr(leaf, "dtype", np.dtype(int)).kind in "biufcV":
            return jnp.array(leaf)
    elif isinstance(leaf, jax.Array):
        # Only the weak type is removed.
        return jax.lax.convert_element_type(leaf, leaf.dtype) if leaf.aval.weak_type else leaf
    what = "one of objects" if isinstance(leaf, np.ndarray) else f"a {type(leaf).__name__}"
    raise TypeError(
        f"{where} is no array but {what}; keep what is not trained out of the "
        "pytree (a static field, eqx.filter, nnx.split), or give it to Session under another name"
    )


def _kind(leaf: jax.Array) -> str:
    """Return type and shape as text for a message."""
    name = f"key of {jax.random.key_impl(leaf)}" if is_key(leaf) else leaf.dtype.name
    return f"{name}{tuple(leaf.shape)}"


def _same_names(
    theirs: Sequence[str], ours: Sequence[str], there: str, here: str, what: str
) -> None:
    """Raise ValueError unless two pytrees have the same leaves."""
    if theirs == ours:
        return
    gone, new = _listed(set(theirs) - set(ours)), _listed(set(ours) - set(theirs))
    if not (gone or new):
        raise ValueError(f"{what} has its leaves in another order {here} than {there}")
    parts = [f"{gone} only {there}"] * bool(gone) + [f"{new} only {here}"] * bool(new)
    raise ValueError(f"{what} has another structure: {', '.join(parts)}")


def _listed(names: Iterable[str]) -> str:
    ordered = sorted(name or "a single array" for name in names)
    more = f" and {len(ordered) - 3} more" if len(ordered) > 3 else ""
    return ", ".join(ordered[:3]) + more
