"""Policies: a snapshot in, a target out. One paper, one module; this is their registry."""

from __future__ import annotations

import difflib

from hpcext.core.engine import Policy
from hpcext.core.errors import InputError
from hpcext.policies import bftrainer, exclusive, marble

POLICIES: dict[str, Policy] = {
    "marble": marble.allocate,
    "exclusive": exclusive.allocate,
    "bftrainer": bftrainer.allocate,
}


def find_policy(name: str) -> Policy:
    """The policy of this name.

    Raises
    ------
    InputError
        There is none.
    """
    if name in POLICIES:
        return POLICIES[name]
    near = difflib.get_close_matches(name, POLICIES, n=1)
    raise InputError(
        f"unknown policy {name!r}",
        where="--policy",
        valid=", ".join(POLICIES),
        do=f"did you mean {near[0]}?" if near else "",
    )
