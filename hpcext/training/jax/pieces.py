"""An array of a checkpoint that several processes have written, each its pieces."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from hpcext.training.checkpoint import CheckpointError
from hpcext.training.portable import Array, portable

_INDEX = "index"

Index = tuple[slice, ...]


class Piece(NamedTuple):
    """A piece of an array, in a file.

    Attributes
    ----------
    path : pathlib.Path
    name : str
        Name in the file.
    start, shape : tuple of int
        Where it begins in the array, and its own shape.
    dtype : str
    """

    path: Path
    name: str
    start: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str


class Pieces:
    """An array of a checkpoint, of which any part can be read.

    Parameters
    ----------
    shape : sequence of int
    dtype : str
        Name of its type.
    pieces : sequence of Piece

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype
    """

    def __init__(self, shape: Sequence[int], dtype: str, pieces: Sequence[Piece]) -> None:
        self.shape = tuple(shape)
        self.dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, dtype, dtype))
        self._pieces = pieces

    def read(self, index: Index) -> Array:
        """Read a part of the array.

        Raises
        ------
        CheckpointError
            A piece of it is missing.
        """
        first, end = _bounds(index, self.shape)
        part = np.empty([b - a for a, b in zip(first, end, strict=True)], self.dtype)
        missing = part.size
        for piece in self._pieces:
            begins = tuple(map(max, zip(first, piece.start, strict=True)))
            ends = tuple(
                min(mine, start + length)
                for mine, start, length in zip(end, piece.start, piece.shape, strict=True)
            )
            if any(a >= b for a, b in zip(begins, ends, strict=True)):
                continue
            found = _content(piece)[_within(begins, ends, piece.start)]
            part[_within(begins, ends, first)] = found
            missing -= found.size
        if missing:
            raise CheckpointError(
                f"{missing} numbers of an array of shape {self.shape} are in none of its files",
                do="remove this checkpoint: the one before it is used then",
            )
        return part


def write(file: Any, pieces: Iterable[tuple[str, Sequence[int], Array]]) -> None:
    """Write pieces to a file.

    Parameters
    ----------
    file : writable file
    pieces : iterable of (array, start, content)
        `array` is the name of the array that the piece belongs to.
    """
    listed: list[dict[str, Any]] = []
    contents: dict[str, Array] = {}
    for array, start, content in pieces:
        saved, name = portable(content), str(len(listed))
        # Only the bits, for types that NumPy does not know.
        contents[name] = next(iter(saved.values())) if isinstance(saved, Mapping) else saved
        listed.append(
            {
                "array": array,
                "name": name,
                "start": list(start),
                "shape": list(content.shape),
                "dtype": content.dtype.name,
            }
        )
    contents[_INDEX] = np.frombuffer(json.dumps(listed).encode(), dtype=np.uint8)
    np.savez(file, **contents)  # type: ignore[arg-type]


def listed(path: Path) -> dict[str, list[Piece]]:
    """Return the pieces in a file, by the array that they belong to.

    Raises
    ------
    CheckpointError
        The file is not one that :func:`write` wrote.
    """
    found: dict[str, list[Piece]] = {}
    try:
        with np.load(path, allow_pickle=False) as arrays:
            for each in json.loads(arrays[_INDEX].tobytes()):
                piece = Piece(
                    path, each["name"], tuple(each["start"]), tuple(each["shape"]), each["dtype"]
                )
                found.setdefault(each["array"], []).append(piece)
    # zipfile, zlib, struct and numpy raise errors of their own for damaged files.
    except Exception as error:
        raise CheckpointError(f"cannot be read ({error})", where=path) from error
    return found


def _content(piece: Piece) -> Array:
    with np.load(piece.path, allow_pickle=False) as arrays:
        content: Array = arrays[piece.name]
    kind = getattr(ml_dtypes, piece.dtype, None)
    return content if kind is None else content.view(kind)


def _bounds(index: Index, shape: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    spans = [part.indices(length) for part, length in zip(index, shape, strict=True)]
    return tuple(first for first, _, _ in spans), tuple(end for _, end, _ in spans)


def _within(begins: Sequence[int], ends: Sequence[int], origin: Sequence[int]) -> Index:
    return tuple(slice(a - at, b - at) for a, b, at in zip(begins, ends, origin, strict=True))
