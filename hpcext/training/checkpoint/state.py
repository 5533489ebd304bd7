"""The state of a training process without a framework: NumPy arrays, objects, random states.

A tree of plain values is written as one ``.npz`` file: the arrays under their numbers, and the tree
itself as JSON that refers to them. Nothing is pickled, so a checkpoint cannot run code.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from hpcext.training.checkpoint import CheckpointError
from hpcext.training.checkpoint.hashing import HashingFile
from hpcext.training.checkpoint.staging import Copier

Tree = dict[str, Any]


class Source(NamedTuple):
    """A kind of random number generator, and functions to get and set its state.

    Attributes
    ----------
    kind : type
    get : callable
        Given a generator, returns its state as a JSON value.
    set : callable
        Given a generator and such a state, sets it.
    """

    kind: type
    get: Callable[[Any], Any]
    set: Callable[[Any, Any], object]


def _numpy_state(generator: np.random.Generator) -> Any:
    # MT19937 and Philox hold arrays.
    text = json.dumps(generator.bit_generator.state, default=lambda array: array.tolist())
    return json.loads(text)


def _set_numpy_state(generator: np.random.Generator, state: Any) -> None:
    generator.bit_generator.state = state


class TrainingState:
    """The state that a checkpoint must contain, and its file format.

    Parameters
    ----------
    objects : Mapping[str, Any]
        Objects that the user named: NumPy arrays and dictionaries of them (restored in place),
        NumPy generators, and objects with ``state_dict`` and ``load_state_dict``. Values of None
        are ignored.

    Raises
    ------
    TypeError
        An object is none of these.

    Attributes
    ----------
    sources : tuple of Source
        Kinds of random number generators, of which each rank has its own.
    """

    format = "numpy/1"
    file = "state.npz"
    sources: tuple[Source, ...] = (Source(np.random.Generator, _numpy_state, _set_numpy_state),)

    def __init__(self, objects: Mapping[str, Any]) -> None:
        given = {name: value for name, value in objects.items() if value is not None}
        for name, value in given.items():
            refusal = self.refusal(value)
            if refusal:
                raise TypeError(f"Session({name}=...): {refusal}")
        kinds = {name: self._source(value) for name, value in given.items()}
        self._generators = {n: (given[n], source) for n, source in kinds.items() if source}
        self._objects = {n: value for n, value in given.items() if n not in self._generators}

    valid = "an array, a dict of arrays, a numpy.random.Generator, or an object with both"

    def refusal(self, value: Any) -> str:
        """Return the reason why this value cannot be part of the state; empty if it can."""
        kind = type(value).__name__
        if isinstance(value, list | tuple | set | frozenset):
            return (
                f"a {kind} is a copy, so nothing can be restored into it; give the objects in it, "
                f"each under its own name; valid: {self.valid}"
            )
        if not self.knows(value):
            return f"{kind} has no state_dict and load_state_dict; valid: {self.valid}"
        if isinstance(value, np.ndarray) and not value.flags.writeable:
            return "the array is read-only, so nothing can be restored into it"
        return ""

    def missing(self, unsaved: Collection[Any], *, stepped: bool = False) -> str:
        """Return which state of the training is not saved, and what to do; empty if none.

        Parameters
        ----------
        unsaved : collection
            Objects that are deliberately not saved.
        stepped : bool
            Whether a step has been made.
        """
        return ""

    def holds(self, value: Any) -> bool:
        """Return whether this very object is among those that are saved."""
        return any(each is value for each in self._objects.values())

    def present(self) -> Tree:
        """Return the state of this process by kind, given to the session or not; this is slow."""
        return {"what the session holds": self.capture(), "random numbers": self.random()}

    def knows(self, value: Any) -> bool:
        """Return whether this value's state can be saved and restored."""
        if isinstance(value, np.ndarray | dict) or self._source(value):
            return True
        return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")

    def _source(self, value: Any) -> Source | None:
        """Return the kind of a random number generator; None for other values."""
        return next((each for each in self.sources if isinstance(value, each.kind)), None)

    def check(self) -> None:
        """Check now, rather than when a checkpoint is due, that all of the state can be saved.

        Raises
        ------
        TypeError
            The message names what cannot be saved.
        """
        _encode(self.plain(), {}, "Session")

    def plain(self) -> Tree:
        """Return the captured objects whose values must be checked before they can be saved."""
        return self.capture()

    def copier(self) -> Copier:
        """Make the copier for the arrays of a captured state."""
        return Copier()

    # -- the objects

    def capture(self) -> Tree:
        """Return the state of every object; arrays and tensors are not copied."""
        return {name: self.capture_object(value) for name, value in self._objects.items()}

    def apply(self, tree: Tree) -> None:
        """Set every object to a captured state.

        Raises
        ------
        CheckpointError
            The tree is of other objects, or does not fit them.
        """
        if tree.keys() != self._objects.keys():
            raise CheckpointError(
                f"holds {_listed(tree)}, but the script gives Session {_listed(self._objects)}",
                do="use the names with which it was written, or another checkpoint directory",
            )
        for name, value in self._objects.items():
            try:
                self.apply_to_object(value, tree[name])
            # The objects are the user's, and may raise any exception.
            except Exception as error:
                raise unfit(name, error) from error

    def capture_object(self, value: Any) -> Any:
        """Return the state of one object; arrays and tensors are not copied."""
        return value if isinstance(value, np.ndarray | dict) else value.state_dict()

    def apply_to_object(self, value: Any, saved: Any) -> None:
        """Set one object to its captured state; raise any exception if that does not fit.

        Parameters
        ----------
        value : Any
            The object, which is changed in place.
        saved : Any
            The result of :meth:`capture_object`.
        """
        if isinstance(value, np.ndarray):
            if value.shape != saved.shape or value.dtype != saved.dtype:
                raise ValueError(f"{saved.dtype}{saved.shape} into {value.dtype}{value.shape}")
            value[...] = saved
        elif isinstance(value, dict):
            for key, item in saved.items():
                if isinstance(value.get(key), np.ndarray):
                    self.apply_to_object(value[key], item)
                else:
                    value[key] = item
        else:
            value.load_state_dict(saved)

    # -- random numbers

    def has_source(self, value: Any) -> bool:
        """Return whether a value is one of the sources of random numbers that are saved."""
        return any(source is value for source, _ in self._generators.values())

    def random(self) -> Tree:
        """Return the random states of this process as JSON values."""
        kind, keys, position, has_gauss, cached = np.random.get_state()
        return {
            "python": random.getstate(),
            "numpy": [kind, np.asarray(keys).tolist(), position, has_gauss, cached],
            "generators": {n: s.get(g) for n, (g, s) in self._generators.items()},
        }

    def set_random(self, states: Tree) -> None:
        """Set the random states to the result of :meth:`random`."""
        version, words, gauss = states["python"]
        random.setstate((version, tuple(words), gauss))
        kind, keys, *rest = states["numpy"]
        np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
        self.set_generators(states)

    def set_generators(self, states: Tree) -> None:
        """Set only the generators that were given to the session, not the global sources."""
        for name, (generator, source) in self._generators.items():
            if name in states["generators"]:
                source.set(generator, states["generators"][name])

    def seed(self, seed: int) -> None:
        """Seed the global sources of random numbers."""
        random.seed(seed)
        np.random.seed(seed % 2**32)

    # -- the file

    def write(self, file: HashingFile, tree: Tree) -> None:
        """Write a tree to a file."""
        arrays: dict[str, np.ndarray[Any, Any]] = {}
        text = json.dumps(_encode(tree, arrays, "Session"))
        arrays["tree"] = np.frombuffer(text.encode(), dtype=np.uint8)
        np.savez(cast(Any, file), **cast(Any, arrays))

    def read(self, path: Path) -> Tree:
        """Read a tree from a file.

        Raises
        ------
        CheckpointError
            The file was not written by a session.
        """
        try:
            with np.load(path, allow_pickle=False) as arrays:
                document = json.loads(arrays["tree"].tobytes())
                return cast(Tree, _decode(document, arrays))
        # zipfile, zlib, struct and numpy raise errors of their own for damaged files.
        except Exception as error:
            raise CheckpointError(f"cannot be read ({error})", where=path) from error


def unfit(name: str, error: Exception) -> CheckpointError:
    """Return the error for a saved state that does not fit its object.

    Parameters
    ----------
    name : str
        The name of the object.
    error : Exception
        The error that restoring it raised.
    """
    said = " ".join(str(error).split())
    if not isinstance(error, ValueError | RuntimeError):
        # The message of a KeyError is the key alone.
        said = f"{type(error).__name__}: {said}"
    return CheckpointError(
        f"the state of {name!r} does not fit: {said}",
        do="use the one that it was written with, or another checkpoint directory",
    )


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(sorted(names)) or "nothing"


def _encode(value: Any, arrays: dict[str, np.ndarray[Any, Any]], where: str) -> Any:
    """Encode plain values as JSON, and arrays by reference.

    Every dictionary becomes a list of pairs, because optimizers use numbers as keys, which JSON
    would turn into strings.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if array.dtype.hasobject:
            raise TypeError(f"{where}: an array of objects cannot be saved without pickle")
        name = str(len(arrays))
        arrays[name] = array
        return {"array" if isinstance(value, np.ndarray) else "scalar": name}
    if isinstance(value, Mapping):
        pairs = [
            [_encode(key, arrays, where), _encode(item, arrays, f"{where}.{key}")]
            for key, item in value.items()
        ]
        return {"dict": pairs}
    if isinstance(value, list | tuple):
        items = [_encode(item, arrays, f"{where}[{i}]") for i, item in enumerate(value)]
        return items if isinstance(value, list) else {"tuple": items}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    raise TypeError(f"{where}: {type(value).__name__} cannot be saved without pickle")


def _decode(value: Any, arrays: Mapping[str, np.ndarray[Any, Any]]) -> Any:
    if isinstance(value, list):
        return [_decode(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    decoders: dict[str, Callable[[], Any]] = {
        "array": lambda: arrays[content],
        "scalar": lambda: arrays[content][()],
        "dict": lambda: {_decode(key, arrays): _decode(item, arrays) for key, item in content},
        "tuple": lambda: tuple(_decode(item, arrays) for item in content),
        "bytes": lambda: base64.b64decode(content),
    }
    return decoders[kind]()
