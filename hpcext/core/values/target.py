"""Snapshots and targets: what a policy is shown, and what it answers."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import msgspec

from hpcext.core.history.fragments import Fragments
from hpcext.core.values.job import Job, Role
from hpcext.core.values.nodes import Alloc, Node


class Cause(enum.Flag):
    """The reasons why a policy is asked."""

    SUBMITTED = enum.auto()
    ENDED = enum.auto()
    NODES = enum.auto()
    REQUEST = enum.auto()
    STARTED = enum.auto()
    REGISTERED = enum.auto()
    PROGRESS = enum.auto()
    TIME = enum.auto()
    RESCALED = enum.auto()


class Snapshot(msgspec.Struct, frozen=True):
    """All that a policy may know.

    Attributes
    ----------
    now_s : float
    nodes : Mapping[str, Node]
    jobs : tuple of Job
        The unfinished ones, by priority and order.
    cause : Cause
    memo : dict or None
        The policy's memo from last time.
    busy : tuple of Job or None
        Those of the jobs that hold or are to have something; None: look at all of them.
    fragments : Fragments
        For how long nodes stayed that have left.
    leaving : bool
        Whether everything has to go, even what cannot save.
    """

    now_s: float
    nodes: Mapping[str, Node]
    jobs: tuple[Job, ...]
    cause: Cause
    memo: dict[str, Any] | None = None
    busy: tuple[Job, ...] | None = None
    fragments: Fragments = Fragments()
    leaving: bool = False


class Grant(msgspec.Struct, frozen=True):
    """GPUs for a job, the role that it plays with them, and why it gets no more."""

    alloc: Alloc
    role: Role
    why: str


class Target(msgspec.Struct, frozen=True):
    """A policy's answer.

    Attributes
    ----------
    grants : Mapping[str, Grant]
        Job id → what it should have.
    waits : Mapping[str, str]
        Job id → why it gets nothing.
    wake_s : float or None
        When the policy wants to be asked again at the latest.
    memo : dict or None
        JSON that the policy gets back next time.
    value, bound : float or None
        The value of the answer by the policy's own objective, over the jobs whose size it could
        choose, and an upper bound of that value; None if the policy has none.
    """

    grants: Mapping[str, Grant] = msgspec.field(default_factory=dict)
    waits: Mapping[str, str] = msgspec.field(default_factory=dict)
    wake_s: float | None = None
    memo: dict[str, Any] | None = None
    value: float | None = None
    bound: float | None = None
