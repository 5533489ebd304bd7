"""Where the ranks of an attempt meet: a directory, and who says what in it.

``hpcext launch`` makes it and starts the ranks; a session in each rank looks. A *group* is the
ranks that train together; number 0 is the one that the attempt began with. To change their
number without stopping, in this order:

==========================  =========  =======================================================
``rescale.json``            manager    the GPUs to have (in the attempt's directory)
``ready-NUMBER-RANK``       new rank   it has done all that it can do without the others
``group.json``              launcher   the next group: its number, its size, and who stays
``begun-NUMBER``            rank 0     the old group has stopped between two steps
``store-NUMBER``            rank 0     how the group's store is reached (on several nodes)
``formed.json``             rank 0     the group has done its first step, or refuses to change
``rescaled.json``           launcher   who left has ended (in the attempt's directory)
==========================  =========  =======================================================

Each is renamed into place, and SIGUSR1 says to look; it reaches this node only, so whoever waits
for another node looks now and then. There, a change also comes to nothing by two files:

==========================  =========  =======================================================
``failed-NUMBER``           any other  a new rank will not come, and why
``dropped-NUMBER``          launcher   of the first node: the new ranks are not needed
==========================  =========  =======================================================

Ranks of one node meet in a private directory of that node; those of several, or of one whose job
may get others, in the directory of the attempt, which all of them see. What cannot be read there
just now (its file system is away, or replaces what is read) is not there yet, for whoever looks
looks again. Rank 0 is on the first node, and stays. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hpcext import documents, protocol
from hpcext.numerals import whole

STORE = "store"
"""A file for ``torch.distributed.FileStore``; outside every rank, since any of them may leave."""

SHARED = "ranks"
"""Directory of those of several nodes, in that of the attempt."""

_GROUP = "group.json"
_FORMED = "formed.json"
_HERE, _SPREAD = "file:", "tcp:"


@dataclass(frozen=True)
class Group:
    """Ranks that train together.

    Attributes
    ----------
    number : int
        Counts up with each change.
    size : int
        How many ranks.
    stay : tuple of int
        Ranks of the group before that are in this one, too, ascending, and 0 the first of them:
        the place of each is its rank here. All others here are new.
    """

    number: int
    size: int
    stay: tuple[int, ...] = ()

    @property
    def kept(self) -> int:
        """Those from this rank on are new."""
        return len(self.stay)


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


class Way(NamedTuple):
    """How the store of a group on several nodes is reached.

    Attributes
    ----------
    hosts : tuple of str
        Names and addresses of the node of rank 0, to be tried in this order.
    port : int
    key : str
        Who has it is let in; this directory is its user's alone.
    """

    hosts: tuple[str, ...]
    port: int
    key: str


class Rendezvous:
    """One attempt's meeting place.

    Parameters
    ----------
    directory : pathlib.Path
    launcher : protocol.Process or None
        Who is told to look.
    joins : int
        Number of the group that this process was started for; 0 for the first one.
    host : str
        How other nodes reach the one of rank 0; empty: all ranks are on one node.
    """

    def __init__(
        self,
        directory: Path,
        *,
        launcher: protocol.Process | None = None,
        joins: int = 0,
        host: str = "",
    ) -> None:
        self.directory = directory
        self.joins = joins
        self.host = host
        self._launcher = launcher

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> Rendezvous | None:
        """That of this process; None if ``hpcext launch`` did not start it."""
        env = protocol.environ() if environ is None else environ
        place = env.get("HPCEXT_RENDEZVOUS", "")
        launcher = protocol.Process.parse(env.get("HPCEXT_LAUNCHER", ""))
        if not place.startswith((_HERE, _SPREAD)) or launcher is None:
            return None
        host = ""
        if place.startswith(_SPREAD):
            # The address of a node may have colons, but no slash.
            host, _, path = place.removeprefix(_SPREAD).partition(":/")
            place = f"/{path}"
        return cls(
            Path(place.removeprefix(_HERE)),
            launcher=launcher,
            joins=whole(env.get("HPCEXT_JOINS")) or 0,
            host=host,
        )

    def environ(self) -> dict[str, str]:
        """The variables that lead a rank here."""
        place = f"{_SPREAD}{self.host}:" if self.host else _HERE
        return {
            "HPCEXT_RENDEZVOUS": f"{place}{self.directory}",
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
        if document is None:
            return None
        return Group(document["number"], document["size"], tuple(document["stay"]))

    def begin(self, number: int) -> None:
        """The old group has stopped: whoever is in the new one forms it now."""
        (self.directory / f"begun-{number}").touch()

    def has_begun(self, number: int) -> bool:
        """Whether the new group is being formed."""
        return self._has(f"begun-{number}")

    def publish(self, number: int, way: Way) -> None:
        """On rank 0: the store of a group can be reached."""
        self._write(f"store-{number}", way._asdict())

    def published(self, number: int) -> Way | None:
        """How the store of a group is reached, if it is there."""
        document = self._read(f"store-{number}")
        if document is None:
            return None
        return Way(tuple(document["hosts"]), int(document["port"]), str(document["key"]))

    # What the launcher says.

    def is_ready(self, number: int, rank: int) -> bool:
        """Whether a new rank waits for the others."""
        return self._has(f"ready-{number}-{rank}")

    def propose(self, group: Group) -> None:
        """Every rank of this group is there: the present one may change into it."""
        self._write(_GROUP, asdict(group))

    def answer(self, number: int) -> Formed | None:
        """What rank 0 has answered to a change, if it has."""
        document = self._read(_FORMED)
        found = Formed(**document) if document else None
        return found if found and found.number == number else None

    def fail(self, number: int, why: str) -> None:
        """Somebody of this change will not come."""
        documents.write_file(self.directory / f"failed-{number}", why.encode(), durable=False)
        self._tell()

    def failure(self, number: int) -> str:
        """Why this change comes to nothing; empty: nothing says so."""
        if not self._has(f"failed-{number}"):
            return ""
        with contextlib.suppress(OSError):
            said = (self.directory / f"failed-{number}").read_bytes().decode(errors="replace")
            return said or "a new rank failed"
        return ""

    def drop(self, number: int) -> None:
        """The ranks that were to join by this change are not needed."""
        # Should it not be said, they end with the attempt.
        with contextlib.suppress(OSError):
            (self.directory / f"dropped-{number}").touch()

    def dropped(self, number: int) -> bool:
        """Whether that was said."""
        return self._has(f"dropped-{number}")

    def _tell(self) -> None:
        if self._launcher is not None:
            self._launcher.send(protocol.NEWS_SIGNAL)

    def _write(self, name: str, document: Mapping[str, Any]) -> None:
        documents.write_json(self.directory / name, document, durable=False)

    def _has(self, name: str) -> bool:
        if not self.host:
            return (self.directory / name).exists()
        with contextlib.suppress(OSError):
            # A directory that is opened is looked up anew where files are cached (nfs(5)).
            return name in os.listdir(self.directory)
        return False

    def _read(self, name: str) -> dict[str, Any] | None:
        if self.host and not self._has(name):
            return None
        with contextlib.suppress(OSError if self.host else FileNotFoundError):
            document: dict[str, Any] = json.loads((self.directory / name).read_bytes())
            return document
        return None
