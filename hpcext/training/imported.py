"""What a training has imported, and whether its later attempts may find it imported already.

An import depends on what was there before it: variables such as ``OMP_NUM_THREADS`` that a script
sets first, libraries that were loaded first, another place of the module. Only where nothing of
this can have made a difference does a script begin in the same state if PyTorch is there when it
begins. What is not certain counts as different.
"""

from __future__ import annotations

import importlib.machinery
import os
import site
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from types import ModuleType

from hpcext import protocol

TORCH, SESSION = "torch", "hpcext.training.torch"

_WITH = frozenset({"torch", "numpy"})
"""Packages whose compiled modules PyTorch imports itself."""

_LOCALE, _COERCED = "LC_CTYPE", {"C.UTF-8", "C.utf8", "UTF-8"}


def beforehand() -> list[str]:
    """Return the modules that can be imported before the script of this process; perhaps none.

    It is to be called when the session begins.
    """
    modules = dict(sys.modules)
    if TORCH not in modules or not _unchanged(protocol.environ()):
        return []
    places = _places(protocol.environ())
    if not _is_in(modules[TORCH], places) or _hidden(modules, places):
        return []
    # In the order in which their imports were done.
    for name, module in modules.items():
        if name == TORCH:
            break
        if _compiled(name, module):
            return []
    return [TORCH, *([SESSION] if SESSION in modules else [])]


def _unchanged(environ: Mapping[str, str]) -> bool:
    """Return whether the environment is that with which this process began; proc(5)."""
    try:
        with open("/proc/self/environ", "rb") as file:
            variables = file.read().split(b"\0")
    except OSError:
        return False
    pairs = (os.fsdecode(each).partition("=") for each in variables if each)
    began, now = {name: value for name, _, value in pairs}, dict(environ)
    if now.get(_LOCALE) in _COERCED:
        # Python sets this one itself where there is no locale; PEP 538.
        del now[_LOCALE]
        began.pop(_LOCALE, None)
    return now == began


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
    """Return whether a module is compiled and comes neither with Python nor with PyTorch."""
    package, spec = name.partition(".")[0], getattr(module, "__spec__", None)
    if package in _WITH or package in sys.stdlib_module_names or spec is None:
        return False
    return isinstance(spec.loader, importlib.machinery.ExtensionFileLoader)
