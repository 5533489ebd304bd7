"""Where the ranks of an attempt meet on one node: a private directory, and who says what in it.

``hpcext launch`` makes it and starts the ranks; a session in each rank looks. A *group* is the
ranks that train together; number 0 is the one that the attempt began with. To change their
number without stopping, in this order:

==========================  =========  =======================================================
``rescale.json``            manager    the GPUs to have (in the attempt's directory)
``ready-NUMBER-RANK``       new rank   it has done all that it can do without the others
``group.json``              launcher   the next group: its number and its size
``begun-NUMBER``            rank 0     the old group has stopped between two steps
``formed.json``             rank 0     the group has done its first step, or refuses to change
``rescaled.json``           launcher   who left has ended (in the attempt's directory)
==========================  =========  =======================================================

Each is renamed into place, and SIGUSR1 says to look. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpcext import protocol

STORE = "store"
"""A file for ``torch.distributed.FileStore``; outside every rank, since any of them may leave."""

_GROUP = "group.json"
_FORMED = "formed.json"
_SCHEME = "file:"


@dataclass(frozen=True)
class Group:
    """Ranks that train together.

    Attributes
    ----------
    number : int
        Counts up with each change.
    size : int
        How many ranks.
    kept : int
        Those from this rank on are new.
    """

    number: int
    size: int
    kept: int = 0


@dataclass(frozen=True)
class Formed:
    """What rank 0 answers to a change.

    Attributes
    ----------
    number : int
    why : str
        Why the ranks stay as they are; empty if they changed.
    stall_s : float or None
        Seconds without progress: from the last step of the old group to the first one of the
        new, less the time of a step.
    """

    number: int
    why: str = ""
    stall_s: float | None = None


class Rendezvous:
    """One attempt's meeting place.

    Parameters
    ----------
    directory : pathlib.Path
    launcher : protocol.Process or None
        Who is told to look.
    joins : int
        Number of the group that this process was started for; 0 for the first one.
    """

    def __init__(
        self, directory: Path, *, launcher: protocol.Process | None = None, joins: int = 0
    ) -> None:
        self.directory = directory
        self.joins = joins
        self._launcher = launcher

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> Rendezvous | None:
        """That of this process; None if ``hpcext launch`` did not start it."""
        env = protocol.environ() if environ is None else environ
        place = env.get("HPCEXT_RENDEZVOUS", "")
        launcher = protocol.Process.parse(env.get("HPCEXT_LAUNCHER", ""))
        if not place.startswith(_SCHEME) or launcher is None:
            return None
        joins = env.get("HPCEXT_JOINS", "")
        return cls(
            Path(place.removeprefix(_SCHEME)),
            launcher=launcher,
            joins=int(joins) if joins.isdecimal() else 0,
        )

    def environ(self) -> dict[str, str]:
        """The variables that lead a rank here."""
        return {
            "HPCEXT_RENDEZVOUS": f"{_SCHEME}{self.directory}",
            "HPCEXT_LAUNCHER": str(self._launcher),
            "HPCEXT_JOINS": str(self.joins),
        }

    @property
    def store(self) -> Path:
        """The file through which process groups find each other."""
        return self.directory / STORE

    # What a rank says.

    def ready(self, rank: int) -> None:
        """This new rank waits for the others."""
        (self.directory / f"ready-{self.joins}-{rank}").touch()
        self._tell()

    def formed(self, answer: Formed) -> None:
        """The group has changed, or will not."""
        self._write(_FORMED, asdict(answer))
        self._tell()

    def group(self) -> Group | None:
        """The newest group, or None if there never was a change."""
        document = self._read(_GROUP)
        return Group(**document) if document else None

    def begin(self, number: int) -> None:
        """The old group has stopped: whoever is in the new one forms it now."""
        (self.directory / f"begun-{number}").touch()

    def has_begun(self, number: int) -> bool:
        """Whether the new group is being formed."""
        return (self.directory / f"begun-{number}").exists()

    # What the launcher says.

    def is_ready(self, number: int, rank: int) -> bool:
        """Whether a new rank waits for the others."""
        return (self.directory / f"ready-{number}-{rank}").exists()

    def propose(self, group: Group) -> None:
        """Every rank of this group is there: the present one may change into it."""
        self._write(_GROUP, asdict(group))

    def answer(self, number: int) -> Formed | None:
        """What rank 0 has answered to a change, if it has."""
        document = self._read(_FORMED)
        found = Formed(**document) if document else None
        return found if found and found.number == number else None

    def _tell(self) -> None:
        if self._launcher is not None:
            self._launcher.send(protocol.NEWS_SIGNAL)

    def _write(self, name: str, document: Mapping[str, Any]) -> None:
        protocol.write_json(self.directory / name, document, durable=False)

    def _read(self, name: str) -> dict[str, Any] | None:
        with contextlib.suppress(FileNotFoundError):
            document: dict[str, Any] = json.loads((self.directory / name).read_bytes())
            return document
        return None
