"""The scaling curves of a training on several kinds of GPU, and the choice of one for a GPU."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping

from hpcext.scaling.curve import interpolate


def alike(kind: str, names: Collection[str]) -> str | None:
    """Return the name among these that means a kind of GPU; None if none does.

    The batch system, the driver and the user of a job may each use another name. Names match if the
    words of one are among those of the other.

    Parameters
    ----------
    kind : str
        As the batch system or the driver names it.
    names : collection of str
        Kinds as the user of a job names them.

    Examples
    --------
    >>> alike("NVIDIA A100-SXM4-80GB", ["h100", "a100"]), alike("v100", ["a100"])
    ('a100', None)
    """
    if kind in names:
        return kind
    words = _words(kind)
    found = [name for name in names if words and (_words(name) <= words or words <= _words(name))]
    return min(found, key=lambda name: len(words ^ _words(name)), default=None)


@functools.lru_cache(maxsize=4096)
def _words(kind: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z0-9]+", kind.lower()))


def curve_of(by_kind: Mapping[str, Mapping[int, float]], kind: str) -> Mapping[int, float]:
    """Return the curve of a kind, or else the one with the lowest speed on one GPU.

    Parameters
    ----------
    by_kind : Mapping[str, Mapping[int, float]]
        Curves by kind; not empty.
    kind : str
    """
    name = alike(kind, by_kind)
    if name is not None:
        return by_kind[name]
    return min(by_kind.values(), key=lambda curve: interpolate(curve, 1))
