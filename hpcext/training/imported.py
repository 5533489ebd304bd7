"""What a training has imported, and whether its later attempts may find it imported already.

An import depends on what was there before it: variables such as ``OMP_NUM_THREADS`` that a script
sets first, libraries that were loaded first, another place of the module. Only where nothing of
this can have made a difference does a script begin in the same state if its framework is there when
it begins. What is not certain counts as different.

Frameworks set variables and load libraries themselves. So a session reports what it finds, and the
process that imports the framework once more (:mod:`hpcext.launch.preload`) compares: whatever that
import does not explain was the script's.
"""

from __future__ import annotations

import importlib.machinery
import itertools
import os
import site
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

from hpcext import protocol

TORCH = "torch"

FRAMEWORKS = {
    "hpcext.training.keras": "keras",
    "hpcext.training.tensorflow": "tensorflow",
    "hpcext.training.jax": "jax",
    "hpcext.training.torch": TORCH,
}
"""Session → the framework that is imported for it. The first one that a process has imported is
the one of its script: Keras may have imported another framework, and the session for that."""

_LOCALE, _COERCED = "LC_CTYPE", {"C.UTF-8", "C.utf8", "UTF-8"}


def beforehand() -> dict[str, Any]:
    """Return what can be imported before the script of this process, and what must be so then.

    It is to be called when the session begins.

    Returns
    -------
    dict of str to Any
        ``modules``, their names, in order. ``environ``: how the environment has changed since this
        process began, digests of new values by name, None for what was removed: a value may be a
        secret. ``compiled``: packages with
        compiled modules that were imported before the framework, or by it. Empty if nothing is to
        be imported.
    """
    modules = dict(sys.modules)
    session = next((name for name in FRAMEWORKS if name in modules), "")
    framework = FRAMEWORKS.get(session, TORCH)
    changes = _changes(protocol.environ())
    if framework not in modules or changes is None:
        return {}
    places = _places(protocol.environ())
    if not _is_in(modules[framework], places) or _hidden(modules, places):
        return {}
    # In the order in which their imports were done.
    before = itertools.takewhile(lambda each: each[0] != framework, modules.items())
    return {
        "modules": [framework, *([session] if session else [])],
        "environ": changes,
        "compiled": sorted({_package(name) for name, each in before if _compiled(name, each)}),
    }


def _changes(environ: Mapping[str, str]) -> dict[str, str | None] | None:
    """Return how the environment has changed since this process began; None if unknown; proc(5)."""
    try:
        with open("/proc/self/environ", "rb") as file:
            variables = file.read().split(b"\0")
    except OSError:
        return None
    pairs = (os.fsdecode(each).partition("=") for each in variables if each)
    began, now = {name: value for name, _, value in pairs}, dict(environ)
    if now.get(_LOCALE) in _COERCED:
        # Python sets this one itself where there is no locale; PEP 538.
        del now[_LOCALE]
        began.pop(_LOCALE, None)
    return {
        name: protocol.digest(now[name]) if name in now else None
        for name in sorted(began.keys() | now.keys())
        if began.get(name) != now.get(name)
    }


def _places(environ: Mapping[str, str]) -> list[str]:
    """Return the directories in which every script of this interpreter finds packages."""
    given = environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = sysconfig.get_paths()
    found = [*given, paths["purelib"], paths["platlib"], *_site_packages()]
    return [os.path.realpath(each) for each in found if each]


def _site_packages() -> Iterable[str]:
    own = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    return [*site.getsitepackages(), *own]


def _is_in(module: ModuleType, places: Iterable[str]) -> bool:
    """Return whether a package is in one of these directories itself."""
    path = getattr(module, "__file__", None)
    if not isinstance(path, str):
        return False
    return os.path.dirname(os.path.dirname(os.path.realpath(path))) in places


def _hidden(modules: Mapping[str, ModuleType], places: Iterable[str]) -> bool:
    """Return whether a module of the script's own has the name of an installed package."""
    for name, module in modules.items():
        path = getattr(module, "__file__", None)
        if "." in name or name in sys.stdlib_module_names or not isinstance(path, str):
            continue
        own = os.path.realpath(path)
        if any(own.startswith(f"{each}{os.sep}") for each in places):
            continue
        installed = (os.path.join(each, file) for each in places for file in (name, f"{name}.py"))
        if any(map(os.path.exists, installed)):
            return True
    return False


def _compiled(name: str, module: ModuleType) -> bool:
    """Return whether a module is compiled, and does not come with Python."""
    spec = getattr(module, "__spec__", None)
    if _package(name) in sys.stdlib_module_names or spec is None:
        return False
    return isinstance(spec.loader, importlib.machinery.ExtensionFileLoader)


def _package(name: str) -> str:
    return name.partition(".")[0]
