"""Optional packages, and the extra of hpcext that installs each.

Code that needs one requests it here before any work is done, so that a missing package is an error
of one line, and nothing was computed or written.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

from hpcext.core.errors import InputError


class Extra(NamedTuple):
    """An optional package and the extra that installs it.

    Attributes
    ----------
    package : str
        Name of the package as people write it.
    name : str
        Name of the extra, as in ``pip install 'hpcext[NAME]'``.
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
"""The extra that installs each module. A test compares this with setup.cfg."""


def need(module: str, where: str = "", otherwise: str = "") -> Any:
    """Import a module of an extra.

    Parameters
    ----------
    module : str
        Name of the module, such as ``matplotlib.figure``.
    where : str, optional
        The option that needs it, for the message.
    otherwise : str, optional
        What to do without it.

    Raises
    ------
    InputError
        It is not installed or cannot be imported; the message says what to install.
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
    """Return the command that installs an extra."""
    return f"pip install 'hpcext[{extra}]'"
