"""Arrays of types that NumPy does not know (bfloat16 and similar), in files that it can write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_BITS = "hpcext.bits"


def portable(array: Array) -> Any:
    """Return an array for a file: NumPy writes bfloat16 and similar types as untyped bytes."""
    if array.dtype.kind != "V" and array.dtype.isbuiltin == 1:
        return array
    return {_BITS: array.view(f"u{array.itemsize}"), "dtype": array.dtype.name}


def restored(item: Any) -> Array:
    """Reverse :func:`portable`."""
    if isinstance(item, Mapping):
        result: Array = item[_BITS].view(getattr(ml_dtypes, item["dtype"]))
        return result
    return np.asarray(item)
