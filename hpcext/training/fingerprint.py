"""Fingerprints, which tell two values apart without storing them: batches, states of processes."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

_PLAIN = (type(None), bool, int, float, complex, str, bytes)


def fingerprint(value: Any) -> str | None:
    """Return the same text for the same content of numbers, text, arrays, tensors and containers.

    Returns
    -------
    str or None
        None if a part of the value is none of these, so that it is unknown.
    """
    digest = hashlib.sha256()
    return digest.hexdigest() if _feed(digest, value) else None


def unordered(values: Iterable[Any]) -> str | None:
    """Return a fingerprint of several values that does not depend on their order."""
    prints = [fingerprint(value) for value in values]
    known = [each for each in prints if each is not None]
    return fingerprint(sorted(known)) if len(known) == len(prints) else None


def _feed(digest: Any, value: Any) -> bool:
    if isinstance(value, _PLAIN):
        digest.update(f"{type(value).__name__} {value!r};".encode())
        return True
    if isinstance(value, Mapping):
        digest.update(b"{")
        items = sorted(value.items(), key=lambda item: str(item[0]))
        return all(_feed(digest, str(key)) and _feed(digest, item) for key, item in items)
    if isinstance(value, list | tuple):
        digest.update(b"[")
        return all(_feed(digest, item) for item in value)
    array = _array(value)
    if array is None:
        return False
    digest.update(f"{array.dtype.str} {array.shape};".encode())
    digest.update(np.ascontiguousarray(array).tobytes())
    return True


def _array(value: Any) -> np.ndarray[Any, Any] | None:
    """Return the content of an array, or of a tensor of any framework."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _of_torch(torch, value)
    if isinstance(value, np.ndarray | np.generic):
        return None if value.dtype.hasobject else np.asarray(value)
    convert = getattr(value, "numpy", None)
    if convert is None:
        return None
    try:
        array = np.asarray(convert())
    # It is not a concrete tensor after all; it may be symbolic.
    except Exception:
        return None
    return None if array.dtype.hasobject else array


def _of_torch(torch: Any, tensor: Any) -> np.ndarray[Any, Any] | None:
    piece = tensor.detach()
    local = getattr(piece, "to_local", None)
    piece = piece if local is None else local()
    try:
        # As bytes, since NumPy has no bfloat16.
        content = piece.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    # Sparse or quantized tensors, or those of a subclass.
    except Exception:
        return None
    about = f"{piece.dtype} {tuple(piece.shape)};".encode()
    return np.concatenate([np.frombuffer(about, np.uint8), content])
