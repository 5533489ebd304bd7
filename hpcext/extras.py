"""Packages that not everybody needs, and the extra of ours that brings each.

Whoever is about to use one asks for it here before any work is done: what is missing is then one
line, and nothing was computed or written.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

from hpcext.core.errors import InputError


class Extra(NamedTuple):
    """What brings a package.

    Attributes
    ----------
    package : str
        As people call it.
    name : str
        Of the extra, as in ``pip install 'hpcext[NAME]'``.
    """

    package: str
    name: str


EXTRAS = {
    "argcomplete": Extra("argcomplete", "completion"),
    "docutils": Extra("docutils", "admin"),
    "highspy": Extra("HiGHS", "milp"),
    "matplotlib": Extra("matplotlib", "plots"),
    "optuna": Extra("Optuna", "optuna"),
    "prometheus_client": Extra("prometheus_client", "metrics"),
    "pulp": Extra("PuLP", "milp"),
    "textual": Extra("Textual", "top"),
}
"""Module → what brings it. A test holds this against setup.cfg."""


def need(module: str, where: str = "", otherwise: str = "") -> Any:
    """Import a module of an extra.

    Parameters
    ----------
    module : str
        As ``matplotlib.figure``.
    where : str, optional
        The option that needs it.
    otherwise : str, optional
        What to do without it.

    Raises
    ------
    InputError
        It is not installed, or is and cannot be imported; says what to install.
    """
    root = module.partition(".")[0]
    extra = EXTRAS[root]
    do = " ".join(filter(None, (install(extra.name), otherwise)))
    try:
        importlib.import_module(root)
        return importlib.import_module(module)
    except ImportError as error:
        absent = isinstance(error, ModuleNotFoundError) and (error.name or "").startswith(root)
        why = "is not installed" if absent else f"cannot be imported: {error}"
        raise InputError(f"{extra.package} {why}", where=where, do=do) from None


def install(extra: str) -> str:
    """The command that installs an extra."""
    return f"pip install 'hpcext[{extra}]'"
