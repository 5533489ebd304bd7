"""Policies: a snapshot in, a target out. One paper, one module; this is their registry.

A policy is named as in ``pollux``, or with options of its own as in ``pollux:p=-1,interval_s=30``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from hpcext.checks import read_options
from hpcext.core.engine import Policy
from hpcext.core.errors import InputError
from hpcext.core.values import Target
from hpcext.policies import (
    bftrainer,
    bftrainer_lifetime,
    doubling,
    equal_share,
    exclusive,
    fixed,
    marble,
    optimus,
    pollux,
    seats,
    tiresias,
    total_time,
)
from hpcext.text import did_you_mean, shown


class Known(NamedTuple):
    """A policy.

    Attributes
    ----------
    allocate : callable
    options : type or None
        Its options with their defaults, where it has any.
    quick : bool
        It goes once over the queue and solves nothing: however many jobs there are, its answer
        comes in some milliseconds, and a manager does not need another process for it.
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
    """The policy of this name, with the options that are given behind it.

    Raises
    ------
    InputError
        There is none, or it has no such option, or not this value of it.
    """
    name, _, given = text.partition(":")
    if name not in POLICIES:
        raise InputError(
            f"unknown policy {shown(name)}",
            where=where,
            valid=", ".join(POLICIES),
            do=did_you_mean(name, POLICIES),
        )
    known = POLICIES[name]
    if known.options is None:
        if given:
            raise InputError(f"{name} has no options", where=where, do=f"say {name} alone")
        return functools.partial(seats.allocate, policy=known.allocate)
    options = read_options(known.options, given, f"{where} {name}")
    policy = functools.partial(known.allocate, options=options)
    return functools.partial(seats.allocate, policy=policy)


def is_quick(text: str) -> bool:
    """Whether a policy, named as for :func:`find_policy`, answers at once."""
    known = POLICIES.get(text.partition(":")[0])
    return known is not None and known.quick
