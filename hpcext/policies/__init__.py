"""The registry of policies, each of which maps a snapshot to a target.

A policy is named alone, as in ``pollux``, or with options, as in ``pollux:p=-1,interval_s=30``.
Installed packages provide further ones (:data:`hpcext.seams.POLICIES`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from hpcext import seams as foreign
from hpcext.checks import read_options, unknown
from hpcext.core.engine import Policy
from hpcext.core.errors import InputError
from hpcext.core.values import Target
from hpcext.policies import (
    bftrainer,
    doubling,
    equal_share,
    exclusive,
    fixed,
    marble,
    optimus,
    pollux,
    tiresias,
    total_time,
)
from hpcext.policies.bftrainer import lifetime as bftrainer_lifetime
from hpcext.policies.placement import seats


class Known(NamedTuple):
    """A policy.

    Attributes
    ----------
    allocate : callable
    options : type or None
        Its options with their defaults, where it has any.
    quick : bool
        Whether it answers within milliseconds for any number of jobs, because it passes over the
        queue once and solves nothing. A manager then needs no other process for it.
    """

    allocate: Callable[..., Target]
    options: type[msgspec.Struct] | None = None
    quick: bool = False


POLICIES: dict[str, Known] = {
    "marble": Known(marble.allocate, quick=True),
    "exclusive": Known(exclusive.allocate, quick=True),
    "equal_share": Known(equal_share.allocate, equal_share.Options),
    "bftrainer": Known(bftrainer.allocate, bftrainer.Options),
    "bftrainer-lifetime": Known(bftrainer_lifetime.allocate, bftrainer_lifetime.Options),
    "optimus": Known(optimus.allocate, optimus.Options),
    "doubling": Known(doubling.allocate, doubling.Options),
    "total_time": Known(total_time.allocate, total_time.Options),
    "pollux": Known(pollux.allocate, pollux.Options),
    "fixed": Known(fixed.allocate, fixed.Options),
    "tiresias": Known(tiresias.allocate, tiresias.Options),
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
    known = POLICIES.get(name) or _installed(name, where)
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


def _installed(name: str, where: str) -> Known:
    """Return a policy that an installed package provides.

    Raises
    ------
    InputError
        No package provides it, or what it provides is not a policy.
    """
    try:
        module = foreign.load(foreign.POLICIES, name)
    except KeyError:
        raise unknown("policy", name, names(), where=where) from None
    except foreign.SeamError as error:
        raise InputError(str(error), where=where) from None
    allocate, options = getattr(module, "allocate", None), getattr(module, "Options", None)
    is_struct = inspect.isclass(options) and issubclass(options, msgspec.Struct)
    if not callable(allocate) or not (options is None or is_struct):
        raise InputError(
            f"{name} of {foreign.source(foreign.POLICIES, name)} is not a policy",
            where=where,
            valid="a module with a function allocate and, if it has options, a msgspec.Struct "
            "named Options",
        )
    return Known(allocate, options)


def is_quick(text: str) -> bool:
    """Return whether a policy, named as for :func:`find_policy`, answers at once."""
    known = POLICIES.get(text.partition(":")[0])
    return known is not None and known.quick
