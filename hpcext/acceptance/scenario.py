"""Scenarios, and their outcomes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from hpcext.core.errors import HpcextError

if TYPE_CHECKING:
    from hpcext.acceptance.stage import Stage

VerdictWord = Literal["passed", "failed", "not tried"]


class FailedError(HpcextError):
    """An error because something unexpected has happened: the scenario has failed."""


class NotTriedError(HpcextError):
    """An error because the site does not offer something, or had no room: it was not tried."""


class StoppedError(HpcextError):
    """An error because the user has ended the run."""


class Passed(NamedTuple):
    """The result of a scenario that went as expected.

    Attributes
    ----------
    says : str
        What has happened.
    steps, lost : int
        The numbers of steps that its trainings did and lost.
    waited_s : float or None
        How long the main job waited for its host.
    """

    says: str
    steps: int = 0
    lost: int = 0
    waited_s: float | None = None


@dataclass(frozen=True)
class Scenario:
    """Something that may happen to a job.

    Attributes
    ----------
    name : str
        The key of the advice after a failure (:attr:`System.changes`).
    tried, expected : str
        What is done, and what should happen, in a few words for the table.
    run : callable
        Runs it; raises FailedError or NotTriedError.
    lacks : str
        Why it cannot be tried here; empty if it can.
    hosts : int
        The number of hosts that it has to itself; 0 if it shares one with others.
    old : bool
        Whether it acts only when its job has the age of ``--age``.
    """

    name: str
    tried: str
    expected: str
    run: Callable[[Stage, Scenario], Passed]
    lacks: str = ""
    hosts: int = 0
    old: bool = False

    @property
    def title(self) -> str:
        """The name, with the age of its job if that matters."""
        return f"{self.name}, old job" if self.old else self.name


class Result(NamedTuple):
    """A line of the table.

    Attributes
    ----------
    name, tried, expected, seen : str
    verdict : {"passed", "failed", "not tried"}
    change : str
        A file, and what to change in it; empty if nothing.
    took_s : float
    steps, lost : int
    waited_s : float or None
    """

    name: str
    tried: str
    expected: str
    seen: str
    verdict: VerdictWord
    change: str = ""
    took_s: float = 0.0
    steps: int = 0
    lost: int = 0
    waited_s: float | None = None
