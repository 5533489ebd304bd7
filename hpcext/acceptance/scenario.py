"""What a scenario is, and what may come of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from hpcext.core.errors import HpcextError

if TYPE_CHECKING:
    from hpcext.acceptance.stage import Stage

Word = Literal["passed", "failed", "not tried"]


class FailedError(HpcextError):
    """What was seen is not what was expected."""


class NotTriedError(HpcextError):
    """The site cannot have this, or had no room for it."""


class StoppedError(HpcextError):
    """Somebody has ended the run."""


class Seen(NamedTuple):
    """What came of a scenario that went as expected.

    Attributes
    ----------
    says : str
    steps, lost : int
        Of its trainings.
    waited_s : float or None
        How long a job of others waited for its hosts.
    """

    says: str
    steps: int = 0
    lost: int = 0
    waited_s: float | None = None


@dataclass(frozen=True)
class Scenario:
    """Something that befalls a job.

    Attributes
    ----------
    name : str
        What advice goes by.
    tried, expected : str
        In a few words, for the table.
    run : callable
        Tries it; raises FailedError or NotTriedError.
    lacks : str
        Why it cannot be tried here; empty where it can.
    hosts : int
        That it has for itself; 0: it shares one with others.
    old : bool
        It begins only when its job has the age of ``--age``.
    """

    name: str
    tried: str
    expected: str
    run: Callable[[Stage, Scenario], Seen]
    lacks: str = ""
    hosts: int = 0
    old: bool = False

    @property
    def title(self) -> str:
        """Its name, and the age of its job where that makes a difference."""
        return f"{self.name}, old job" if self.old else self.name


class Result(NamedTuple):
    """A line of the table.

    Attributes
    ----------
    name, tried, expected, seen : str
    verdict : {"passed", "failed", "not tried"}
    change : str
        File, and what to change there; empty where nothing is to be changed.
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
