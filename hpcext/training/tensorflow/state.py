"""The state of a TensorFlow process: variables by their place in the object graph, random states.

``tf.train.Checkpoint`` writes files under names of its own, without checksums, and does not contain
seed generators of Keras. So the values are read here, and written to the one file that the store
commits and verifies. Slots of optimizers are variables as well.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from hpcext.training.checkpoint.state import Source, Tree
from hpcext.training.keras_state import KerasState, Named

_Trackable = tf.__internal__.tracking.Trackable
_GENERATOR = Source(
    tf.random.Generator,
    lambda each: {"algorithm": each.algorithm, "state": each.state.numpy().tolist()},
    lambda each, state: each.reset(np.array(state["state"], dtype=np.int64)),
)


class TensorFlowState(KerasState):
    """A :class:`~hpcext.training.keras_state.KerasState` that also accepts TensorFlow's objects.

    These are all that ``tf.train.Checkpoint`` accepts: ``tf.Module``, ``tf.Variable``,
    ``tf.train.Checkpoint`` itself.
    """

    format = "tensorflow/1"
    sources = (*KerasState.sources, _GENERATOR)
    valid = (
        "what tf.train.Checkpoint takes (a model, an optimizer, a tf.Module, a tf.Variable), "
        "a generator, a Keras callback, an array, or an object with both"
    )

    def __init__(self, objects: Mapping[str, Any]) -> None:
        super().__init__(objects)
        for name, value in self._objects.items():
            if self.variables(value) == []:
                raise TypeError(
                    f"Session({name}=...): {type(value).__name__} has no variables (yet); "
                    "make them before the session: call the model on a batch"
                )

    def knows(self, value: Any) -> bool:
        """Return whether this value's state can be saved and restored."""
        return isinstance(value, tf.Variable | _Trackable) or super().knows(value)

    def variables(self, value: Any) -> Named | None:
        """List the variables of an object by their place in its graph; None if it has none."""
        named = super().variables(value)
        if named is not None or isinstance(value, np.ndarray | dict):
            return named
        return _tracked(self, value) if isinstance(value, _Trackable) else None

    def hold_synchronised(self) -> None:
        """Read, together with the other workers, the variables that are summed when read.

        Otherwise the worker that writes a checkpoint would read alone, and wait for ever.
        """
        for value in self._objects.values():
            for _, variable in self.variables(value) or ():
                inner = getattr(variable, "value", variable)
                kind = getattr(variable if callable(inner) else inner, "synchronization", None)
                if kind == tf.VariableSynchronization.ON_READ:
                    self.hold(variable)

    def undistributed(self) -> bool:
        """Return whether some trained variables are not kept equal by a strategy."""
        every = [
            getattr(each, "_value", each) for each in self._all_variables(self._objects.values())
        ]
        trained = [each for each in every if getattr(each, "trainable", False)]
        kind = tf.distribute.DistributedValues
        return bool(trained) and not any(isinstance(each, kind) for each in every)

    def outside(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context that assigns values at once, even while a function is traced."""
        context: contextlib.AbstractContextManager[Any] = tf.init_scope()
        return context

    # -- random numbers

    def random(self) -> Tree:
        """Return the random states of this process: Python, NumPy, TensorFlow."""
        generator = _global_generator()
        return {
            **super().random(),
            "tensorflow": generator and _GENERATOR.get(generator),
            "eager": _eager_seeds(),
        }

    def set_random(self, states: Tree) -> None:
        """Set the random states to the result of :meth:`random`."""
        # Set first, because it resets TensorFlow's own sources; it draws from no other source.
        _set_eager_seeds(states["eager"])
        super().set_random(states)
        generator = _global_generator()
        if generator is not None and states["tensorflow"] is not None:
            _GENERATOR.set(generator, states["tensorflow"])

    def seed(self, seed: int) -> None:
        """Seed the global sources of random numbers."""
        super().seed(seed)
        tf.random.set_seed(seed)
        tf.random.set_global_generator(tf.random.Generator.from_seed(seed))


def _tracked(state: TensorFlowState, root: Any) -> Named:
    """List every variable below an object once, by the shortest path to it."""
    found: list[tuple[str, Any]] = []
    seen: set[int] = set()
    queue: list[tuple[str, Any]] = [("", root)]
    for path, value in queue:
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, tf.Variable):
            found.append((path, value))
            continue
        # Keras lists more variables than it tracks.
        below: Iterable[tuple[str, Any]] | None = super(TensorFlowState, state).variables(value)
        if below is not None:
            fresh = [(name, item) for name, item in below if id(item) not in seen]
            seen.update(id(item) for _, item in fresh)
            found += [(f"{path}/{name}", item) for name, item in fresh]
            continue
        children = tf.train.TrackableView.children(value)
        queue += [(f"{path}/{name}", child) for name, child in children.items()]
    return found


def _global_generator() -> Any:
    try:
        return tf.random.get_global_generator()
    except RuntimeError:
        # Deterministic operations are on, and the script has made none, so nothing draws from it.
        return None


def _eager_context() -> Any:
    """Return the object that seeds operations without a seed of their own, outside functions.

    It has no public name; None if TensorFlow stores it elsewhere.
    """
    try:
        from tensorflow.python.eager import context  # noqa: PLC0415

        found = context.context()
        return found if hasattr(found, "_rng") and hasattr(found, "_seed") else None
    except (ImportError, AttributeError):
        return None


def _eager_seeds() -> Any:
    context = _eager_context()
    if context is None or context._seed is None or context._rng is None:
        return None
    return {"seed": context._seed, "draws": context._rng.getstate()}


def _set_eager_seeds(states: Any) -> None:
    context = _eager_context()
    if context is None or states is None:
        return
    tf.random.set_seed(states["seed"])
    version, words, gauss = states["draws"]
    context._rng.setstate((version, tuple(words), gauss))
