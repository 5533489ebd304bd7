"""The base of executors: they carry out actions, and emit facts.

:mod:`hpcext.backends.base` has the other parts of the support for a batch system.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from hpcext.core.facts import Fact
from hpcext.core.values import Action

Emit = Callable[[Fact], None]
"""A function by which an executor hands a fact to its driver, in the driver's thread."""


class Executor(Protocol):
    """An executor: it carries out actions on one kind of resource."""

    @property
    def left_s(self) -> float | None:
        """Seconds until it has to give back what it runs on; None if that is not known."""

    @property
    def preempted(self) -> bool:
        """Whether what it runs on is taken for somebody else."""

    def perform(self, action: Action) -> None:
        """Carry out an action; never blocks for long, never raises for a job's own fault.

        An action is carried out once however often it is given. A START given again for an
        attempt that exists *adopts* it: the executor watches it again, emits ``Started``, and
        emits ``Ended`` if it has ended meanwhile. That is all there is to recovery.
        """

    def look(self) -> None:
        """Read what jobs reported since last time and emit it (``Registered``, ``Progressed``)."""

    def close(self) -> None:
        """Stop watching. What runs goes on running."""
