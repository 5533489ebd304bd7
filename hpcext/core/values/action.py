"""Actions: the orders that an executor can get."""

from __future__ import annotations

import enum

import msgspec

from hpcext.core.values.nodes import Alloc


class Kind(str, enum.Enum):
    """The kinds of actions."""

    START = "start"
    RESCALE = "rescale"
    SUSPEND = "suspend"
    KILL = "kill"
    INSPECT = "inspect"


class Action(msgspec.Struct, frozen=True):
    """One thing for the executor to do.

    Executors carry out an action once however often it is given: after a restart the manager
    gives again those that were not answered.

    Attributes
    ----------
    kind : Kind
    job : str
    op : int
        The attempt it is about, by the operation that started it. Answers carry it.
    attempt : int
    alloc : Alloc
        START and RESCALE: GPUs per node to have afterwards.
    resize : int
        RESCALE only: number of this change of size within the attempt, from 1 on.
    force : bool
        KILL only: the polite way has failed.
    """

    kind: Kind
    job: str
    op: int
    attempt: int
    alloc: Alloc = msgspec.field(default_factory=dict)
    resize: int = 0
    force: bool = False
