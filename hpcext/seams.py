"""Seams, where other packages add functions; they are found by their entry points.

hpcext's own policies, backends, papers and predictors are in its own tables and take precedence.
Installed packages are searched only for names that are in none of these, since that reads files of
every installed package.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

POLICIES = "hpcext.policies"
"""A module with ``allocate(snapshot, *, options)`` and, if it has options, a struct ``Options``."""

BACKENDS = "hpcext.backends"
"""A class that is a :class:`hpcext.backends.base.Backend`."""

PAPERS = "hpcext.papers"
"""A module with ``study(how)``, like those of :mod:`hpcext.papers`."""

PREDICTORS = "hpcext.predictors"
"""A callable ``(seed, background)`` that makes a :class:`hpcext.scaling.speed.Predictor`."""


class SeamError(Exception):
    """An error in what an installed package provides; the message names both."""


@functools.cache
def _found(group: str) -> Mapping[str, Sequence[EntryPoint]]:
    """Return the entry points of a group by name; a package that is found twice counts once."""
    import importlib.metadata  # noqa: PLC0415  (slow, and needed for foreign names alone)

    found: dict[str, dict[str, EntryPoint]] = {}
    for point in importlib.metadata.entry_points(group=group):
        found.setdefault(point.name, {}).setdefault(_package(point), point)
    return {name: tuple(points.values()) for name, points in found.items()}


def names(group: str) -> tuple[str, ...]:
    """Return the names that installed packages provide for a group, sorted."""
    return tuple(sorted(_found(group)))


def load(group: str, name: str) -> Any:
    """Import the object that an installed package provides under a name.

    Parameters
    ----------
    group : str
        Name of the group, such as :data:`POLICIES`.
    name : str

    Raises
    ------
    KeyError
        No package provides it.
    SeamError
        Several packages provide it, or it cannot be imported.
    """
    first, *others = _found(group)[name]
    if others:
        packages = " and ".join(sorted(map(_package, (first, *others))))
        raise SeamError(f"{packages} both bring {name} ({group}): uninstall one of them")
    try:
        return first.load()
    except (Exception, SystemExit) as error:
        # A foreign module may raise any exception while it is imported.
        said = f"{type(error).__name__}: {error}"
        raise SeamError(f"{name} of {_package(first)} cannot be imported: {said}") from error


def source(group: str, name: str) -> str:
    """Return the package that provides a name, with its version."""
    return _package(_found(group)[name][0])


def _package(point: EntryPoint) -> str:
    brought_by = point.dist
    return f"{brought_by.name} {brought_by.version}" if brought_by else point.value
