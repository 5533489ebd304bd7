"""The state of Keras objects on any backend: variables, optimizer slots, seed generators.

A ``.keras`` file does not contain seed generators, and ``tf.train.Checkpoint`` does not find them
either. So a checkpoint contains ``model.variables``, in the order in which Keras lists them.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from hpcext.training.checkpoint import CheckpointError
from hpcext.training.checkpoint.state import Source, TrainingState, Tree
from hpcext.training.portable import Array, portable, restored

Named = Sequence[tuple[str, Any]]

_OPTIMIZER = keras.optimizers.Optimizer
_HOLDERS = (keras.layers.Layer, keras.metrics.Metric, keras.optimizers.Optimizer)


class KerasState(TrainingState):
    """The state of Keras models, optimizers, metrics and callbacks.

    The slots of an optimizer that is not built when it is restored are set when it is built. The
    attributes of a callback that are plain values or arrays are saved, such as EarlyStopping's
    counters and the best weights so far.
    """

    format = "keras/1"
    sources = (
        *TrainingState.sources,
        Source(
            keras.random.SeedGenerator,
            lambda each: np.asarray(each.state.numpy()).tolist(),
            lambda each, state: each.state.assign(np.array(state, dtype=each.state.dtype)),
        ),
    )
    valid = (
        "a Keras model, optimizer, metric, variable, seed generator or callback, an array, "
        "a generator, or an object with both"
    )

    def __init__(self, objects: Mapping[str, Any]) -> None:
        super().__init__(objects)
        self._late: dict[int, Tree] = {}
        self._held: dict[int, Array] = {}
        for name, value in self._objects.items():
            if isinstance(value, keras.layers.Layer) and not value.built:
                raise TypeError(
                    f"Session({name}=...): {value.name!r} has no variables yet; "
                    "build it before the session: call it on a batch, or its build(input_shape)"
                )

    def variables(self, value: Any) -> Named | None:
        """List the variables of an object, with names that are the same in each process.

        Returns
        -------
        sequence of (name, variable), or None
            None if the object has no variables.
        """
        if isinstance(value, keras.Variable):
            return [("", value)]
        if isinstance(value, keras.optimizers.Optimizer):
            # Their names count the layers that the process made before; their order does not.
            return [("", variable) for variable in value.variables]
        if isinstance(value, _HOLDERS):
            return [(variable.name, variable) for variable in value.variables]
        return None

    def missing(self, unsaved: Collection[Any], *, stepped: bool = False) -> str:
        """Return which state of the training is not saved, and what to do; empty if none."""
        saved = set(_ids(self._all_variables((*self._objects.values(), *unsaved))))
        for name, value in self._objects.items():
            trained = _trained(value)
            lost = [each for each in trained if saved.isdisjoint(_ids([each]))]
            if lost and id(value) not in map(id, unsaved):
                return (
                    f"Session({name}=...): it trains {len(lost)} of its {len(trained)} variables "
                    f"(one is {lost[0].name!r}) in no model that the session is given: when the "
                    "training is resumed they would have their initial values; give their model "
                    "too, Session(model=model, ...), or name it in unsaved=[...] if this is "
                    "intended"
                )
        return self._missing_optimizer(saved, unsaved) if stepped else ""

    def _missing_optimizer(self, saved: set[int], unsaved: Collection[Any]) -> str:
        known = set(_ids(self._all_variables((*self._objects.values(), *unsaved), own=True)))
        for value in (each for each in gc.get_objects() if issubclass(type(each), _OPTIMIZER)):
            mine = not saved.isdisjoint(_ids(_trained(value)))
            # An optimizer that is not used has made no step.
            if mine and known.isdisjoint(_ids(value.variables)) and int(value.iterations):
                return (
                    f"Session(): {type(value).__name__} makes steps but is not given to the "
                    "session, so it would start over when the training is resumed; give it, "
                    "Session(optimizer=optimizer, ...), or name it in unsaved=[...] "
                    "(unsaved=True: anything) if this is intended"
                )
        return ""

    def _all_variables(self, values: Iterable[Any], *, own: bool = False) -> Iterator[Any]:
        """Yield the variables of objects, including those of optimizers if `own`."""
        for value in values:
            if own or not isinstance(value, _OPTIMIZER):
                yield from (variable for _, variable in self.variables(value) or ())

    def knows(self, value: Any) -> bool:
        """Return whether this value's state can be saved and restored."""
        kinds = (keras.Variable, *_HOLDERS, keras.callbacks.Callback)
        return isinstance(value, kinds) or super().knows(value)

    def hold(self, variable: Any) -> None:
        """Save the present value of this variable in the next checkpoint."""
        self._held[id(variable)] = np.array(variable.numpy())

    def outside(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context that assigns values at once, even while a function is traced."""
        return contextlib.nullcontext()

    # -- one object

    def capture_object(self, value: Any) -> Any:
        """Return the state of one object; arrays and tensors are not copied."""
        if isinstance(value, keras.callbacks.Callback):
            return _attributes(value)
        if id(value) in self._late:
            return self._late[id(value)]
        named = self.variables(value)
        if named is None:
            return super().capture_object(value)
        return {
            "names": [name for name, _ in named],
            "values": [portable(self._value(variable)) for _, variable in named],
        }

    def _value(self, variable: Any) -> Array:
        held = self._held.get(id(variable))
        return np.array(variable.numpy()) if held is None else held

    def apply_to_object(self, value: Any, saved: Any) -> None:
        """Set one object to its captured state."""
        if isinstance(value, keras.callbacks.Callback):
            for name, item in saved.items():
                setattr(value, name, item)
            return
        named = self.variables(value)
        if named is None:
            super().apply_to_object(value, saved)
        elif _unbuilt(value) and len(saved["values"]) > len(named):
            self._apply_late(value, saved)
        else:
            self._assign(named, saved)

    def _assign(self, named: Named, saved: Tree) -> None:
        arrays = [restored(item) for item in saved["values"]]
        if len(arrays) != len(named):
            raise ValueError(f"{len(arrays)} variables do not fit into {len(named)}")
        triples = list(zip(saved["names"], arrays, named, strict=True))
        # Check all of them before changing any.
        for place, (theirs, array, (ours, variable)) in enumerate(triples):
            there, here = _kind(array.dtype, array.shape), _kind(variable.dtype, variable.shape)
            if theirs != ours or there != here:
                there, here = f"{theirs} {there}".strip(), f"{ours} {here}".strip()
                raise ValueError(f"variable {place}: {there} in the checkpoint, {here} here")
        with self.outside():
            for _, array, (_, variable) in triples:
                variable.assign(array)

    def _apply_late(self, optimizer: Any, saved: Tree) -> None:
        """Set the slots when the optimizer is built, which happens at the first step."""
        waiting = id(optimizer) in self._late
        self._late[id(optimizer)] = saved
        if waiting:
            return
        build = optimizer.build

        def build_and_assign(variables: Any) -> None:
            build(variables)
            # Remove the override, so that the method of the class applies again.
            object.__delattr__(optimizer, "build")
            try:
                self._assign(self.variables(optimizer) or (), self._late.pop(id(optimizer)))
            except ValueError as error:
                raise CheckpointError(
                    f"the state of the optimizer {optimizer.name!r} does not fit: {error}",
                    do="use the optimizer that it was written with, or another directory",
                ) from error

        object.__setattr__(optimizer, "build", build_and_assign)


def _trained(value: Any) -> list[Any]:
    """Return the variables that a built optimizer trains; none for other objects."""
    known = getattr(value, "_trainable_variables", None) if isinstance(value, _OPTIMIZER) else None
    return list(known or ())


def _ids(variables: Iterable[Any]) -> Iterator[int]:
    """Yield the ids of variables, and of the backend variables inside them."""
    for variable in variables:
        yield id(variable)
        yield id(getattr(variable, "_value", variable))


def _unbuilt(value: Any) -> bool:
    return isinstance(value, keras.optimizers.Optimizer) and not value.built


def _kind(dtype: Any, shape: Any) -> str:
    """Return type and shape as text for a message."""
    known = getattr(shape, "rank", 0) is not None
    return f"{getattr(dtype, 'name', dtype)}{tuple(shape) if known else '(?)'}"


def _attributes(callback: Any) -> Tree:
    """Return the attributes of a callback that are plain values."""
    kept = {}
    for name, value in vars(callback).items():
        # The loop sets these; a name that begins with an underscore is Keras's own.
        if name in {"params", "validation_data"} or name.startswith("_"):
            continue
        if _plain(value):
            kept[name] = value
    return kept


def _plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_plain(item) for item in value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and _plain(item) for key, item in value.items())
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "biufc"
    return value is None or isinstance(value, bool | int | float | str | np.number)
