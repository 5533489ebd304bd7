"""Scenarios, and their outcomes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from hpcext.core.errors import HpcextError

if TYPE_CHECKING:
    from hpcext.acceptance.stage import Stage

Word = Literal["passed", "failed", "not tried"]


class FailedError(HpcextError):
    """The error that something else was seen than was expected."""


class NotTriedError(HpcextError):
    """The error that the site does not offer this, or had no room for it."""


class StoppedError(HpcextError):
    """The error that somebody has ended the run."""


class Passed(NamedTuple):
    """The result of a scenario that went as expected.

    Attributes
    ----------
    says : str
    steps, lost : int
        Of its trainings.
    waited_s : float or None
        How long another user's job waited for its hosts.
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
        The key of advice about it.
    tried, expected : str
        In a few words, for the table.
    run : callable
        Tries it; raises FailedError or NotTriedError.
    lacks : str
        Why it cannot be tried here; empty if it can.
    hosts : int
        The number of hosts that it has to itself; 0 if it shares one with others.
    old : bool
        Whether it begins only when its job has the age of ``--age``.
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
        """Its name, with the age of its job where that makes a difference."""
        return f"{self.name}, old job" if self.old else self.name


class Result(NamedTuple):
    """A line of the table.

    Attributes
    ----------
    name, tried, expected, seen : str
    verdict : {"passed", "failed", "not tried"}
    change : str
        A file, and what to change there; empty for nothing.
    took_s : float
    steps, lost : int
    waited_s : float or None
    """

    name: str
    tried: str
    expected: str
    seen: str
    verdict: Word
    change: str = ""
    took_s: float = 0.0
    steps: int = 0
    lost: int = 0
    waited_s: float | None = None
