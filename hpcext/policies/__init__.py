"""The registry of policies, each of which maps a snapshot to a target.

A policy is named alone, as in ``pollux``, or with options, as in ``pollux:p=-1,interval_s=30``.
Installed packages provide further ones (:data:`hpcext.seams.POLICIES`).

A policy says counts of GPUs, or what GPUs are worth to a job; those of the latter kind share the
exact division (``solve/``). All share the way from counts to nodes (``placement/``). What is
believed of the speed and the end of a job is :mod:`hpcext.scaling.estimator`'s; of the time for
which nodes stay, :mod:`hpcext.scaling.survival`'s, for ``bftrainer/lifetime.py``, which alone tells
nodes apart by it.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

import msgspec

from hpcext import seams as foreign
from hpcext.checks import read_options, unknown
from hpcext.core.engine import Policy
from hpcext.core.errors import InputError
from hpcext.core.values import Target
from hpcext.policies.placement import seats


class Known(NamedTuple):
    """A policy of this package.

    Attributes
    ----------
    module : str
        It is imported when it is needed: most need NumPy, for which each command would wait.
    quick : bool
        Whether it answers within milliseconds for any number of jobs, because it passes over the
        queue once and solves nothing. A manager then needs no other process for it.
    """

    module: str
    quick: bool = False


class Loaded(NamedTuple):
    """A policy that is imported.

    Attributes
    ----------
    allocate : callable
    options : type or None
        Its options with their defaults, where it has any.
    """

    allocate: Callable[..., Target]
    options: type[msgspec.Struct] | None = None


POLICIES: dict[str, Known] = {
    "marble": Known("hpcext.policies.marble", quick=True),
    "exclusive": Known("hpcext.policies.exclusive", quick=True),
    "equal_share": Known("hpcext.policies.equal_share"),
    "bftrainer": Known("hpcext.policies.bftrainer"),
    "bftrainer-lifetime": Known("hpcext.policies.bftrainer.lifetime"),
    "optimus": Known("hpcext.policies.optimus"),
    "doubling": Known("hpcext.policies.doubling"),
    "total_time": Known("hpcext.policies.total_time"),
    "pollux": Known("hpcext.policies.pollux"),
    "fixed": Known("hpcext.policies.fixed"),
    "easy": Known("hpcext.policies.easy"),
    "conservative": Known("hpcext.policies.conservative"),
    "tiresias": Known("hpcext.policies.tiresias"),
}


def find_policy(text: str, where: str = "--policy") -> Policy:
    """Return the policy that a text names, with its options.

    Parameters
    ----------
    text : str
        A name, or ``NAME:OPTION=VALUE,...``.
    where : str
        The option or file that the text is from, for messages.

    Raises
    ------
    InputError
        There is no such policy, it has no such option, or the value is not valid.
    """
    name, _, given = text.partition(":")
    known = find(name, where)
    if known.options is None:
        if given:
            raise InputError(f"{name} has no options", where=where, do=f"give {name} alone")
        return functools.partial(seats.allocate, policy=known.allocate)
    options = read_options(known.options, given, f"{where} {name}")
    policy = functools.partial(known.allocate, options=options)
    return functools.partial(seats.allocate, policy=policy)


def names() -> tuple[str, ...]:
    """Return the names of all policies: the built-in ones, and those of installed packages."""
    return (*POLICIES, *(each for each in foreign.names(foreign.POLICIES) if each not in POLICIES))


def find(name: str, where: str = "--policy") -> Loaded:
    """Return a policy by its name, imported.

    Parameters
    ----------
    name : str
    where : str
        The option or file that the name is from, for messages.

    Raises
    ------
    InputError
        There is none, or what an installed package provides is not a policy.
    """
    if name in POLICIES:
        return _of(importlib.import_module(POLICIES[name].module))
    try:
        module = foreign.load(foreign.POLICIES, name)
    except KeyError:
        raise unknown("policy", name, names(), where=where) from None
    except foreign.SeamError as error:
        raise InputError(str(error), where=where) from None
    loaded = _of(module)
    is_struct = inspect.isclass(loaded.options) and issubclass(loaded.options, msgspec.Struct)
    if not callable(loaded.allocate) or not (loaded.options is None or is_struct):
        raise InputError(
            f"{name} of {foreign.source(foreign.POLICIES, name)} is not a policy",
            where=where,
            valid="a module with a function allocate and, if it has options, a msgspec.Struct "
            "named Options",
        )
    return loaded


def _of(module: ModuleType) -> Loaded:
    return Loaded(getattr(module, "allocate", None), getattr(module, "Options", None))  # type: ignore[arg-type]


def is_quick(text: str) -> bool:
    """Return whether a policy, named as for :func:`find_policy`, answers at once."""
    known = POLICIES.get(text.partition(":")[0])
    return known is not None and known.quick
