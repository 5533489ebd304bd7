"""Seams: where packages that are not ours plug in, found by their entry points.

What hpcext brings itself is in tables of its own and wins; installed packages are looked through
only for a name that is not in these, since that reads files of every package there is.
"""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint
from typing import Any

POLICIES = "hpcext.policies"
"""A module with ``allocate(snapshot, *, options)`` and, if it has options, a struct ``Options``."""

PAPERS = "hpcext.papers"
"""A module with ``study(how)``, as those of :mod:`hpcext.sim.papers` have it."""

PREDICTORS = "hpcext.predictors"
"""A callable ``(seed, background)`` that makes a :class:`hpcext.scaling.speed.Predictor`."""


class SeamError(Exception):
    """An installed package promises something that it does not keep; says which, and what."""


@functools.cache
def _found(group: str) -> Mapping[str, Sequence[EntryPoint]]:
    """Entry points of a group by name; a package that is found twice on the path counts once."""
    found: dict[str, dict[str, EntryPoint]] = {}
    for point in importlib.metadata.entry_points(group=group):
        found.setdefault(point.name, {}).setdefault(_package(point), point)
    return {name: tuple(points.values()) for name, points in found.items()}


def names(group: str) -> tuple[str, ...]:
    """Return the names that installed packages bring to a group, sorted."""
    return tuple(sorted(_found(group)))


def load(group: str, name: str) -> Any:
    """Import what an installed package brings under a name.

    Parameters
    ----------
    group : str
        As :data:`POLICIES`.
    name : str

    Raises
    ------
    KeyError
        No package brings it.
    SeamError
        Several packages do, or it cannot be imported.
    """
    first, *others = _found(group)[name]
    if others:
        packages = " and ".join(sorted(map(_package, (first, *others))))
        raise SeamError(f"{packages} both bring {name} ({group}): uninstall one of them")
    try:
        return first.load()
    except (Exception, SystemExit) as error:
        # Whatever a foreign module does while it is imported is its own.
        said = f"{type(error).__name__}: {error}"
        raise SeamError(f"{name} of {_package(first)} cannot be imported: {said}") from error


def source(group: str, name: str) -> str:
    """Return which package brings a name, with its version."""
    return _package(_found(group)[name][0])


def _package(point: EntryPoint) -> str:
    brought_by = point.dist
    return f"{brought_by.name} {brought_by.version}" if brought_by else point.value
