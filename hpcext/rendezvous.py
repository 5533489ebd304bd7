"""The rendezvous of an attempt's ranks: a directory, and the writers of its files.

``hpcext launch`` makes it and starts the ranks; a session in each rank watches it. A *group* is the
ranks that train together; number 0 is the first group of the attempt. Rescaling in place replaces
one group by the next, in this order:

==========================  =========  =======================================================
``rescale.json``            manager    the number of GPUs wanted (in the attempt's directory)
``ready-NUMBER-RANK``       new rank   it has done all that it can without the others
``group.json``              launcher   the next group: its number, its size, and who stays
``begun-NUMBER``            rank 0     the old group has stopped between two steps
``store-NUMBER``            rank 0     how to reach the group's store (on several nodes)
``meeting-NAME``            rank 0     how to reach another of its services (on several nodes)
``formed.json``             rank 0     the group has done its first step, or refuses to change
``rescaled.json``           launcher   the ranks that left have ended (in the attempt's directory)
==========================  =========  =======================================================

If ranks of this group die, those that are left may form a group of their own, a *repair*:

==========================  =========  =======================================================
``mends``                   rank 0     the others go on without ranks that die, by how many
``group.json``              launcher   the group of those that are left
``formed.json``             rank 0     it has done its first step
``cut-NUMBER``              any rank   it cannot communicate any more
==========================  =========  =======================================================

Ranks of a node that is lost are those that ``rescale.json`` says are lost. If ranks die while a
group is being formed, a repair of the last group that had made a step takes its place.

Each file is renamed into place, and SIGUSR1 announces it. The signal reaches only this node, so
that processes that wait for another node poll. On several nodes two more files abandon a change:

==========================  =========  =======================================================
``failed-NUMBER``           any other  a new rank will not come, and why
``dropped-NUMBER``          launcher   (of the first node) the new ranks are not needed
==========================  =========  =======================================================

Ranks of one node meet in a private directory of that node. Ranks of several nodes, or of one node
whose job may get more, meet in the attempt's directory, which all of them see. A file that
temporarily cannot be read there (its file system is away, or the file is being replaced) counts as
missing, and the next poll reads it again. Rank 0 is on the first node and stays in every group. It
needs only the standard library.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hpcext import documents, protocol
from hpcext.numerals import whole
from hpcext.process import Process

STORE = "store"
"""Name of the file for ``torch.distributed.FileStore``; it belongs to no rank, so any may leave."""

SHARED = "ranks"
"""Name of the directory, in the attempt's, in which ranks of several nodes meet."""

REPAIRS = 1000
"""Numbers of groups from one resize of the manager to the next; those between are of repairs, and
of ranks that replace the dead ones."""

FULL_PAUSE_S = 0.5
"""Seconds until a failed write is repeated."""

_GROUP = "group.json"
_FORMED = "formed.json"
_MENDS = "mends"
_CUT = "cut-"
_HERE, _SPREAD = "file:", "tcp:"


@dataclass(frozen=True)
class Group:
    """A group: the ranks that train together.

    Attributes
    ----------
    number : int
        The group's number, larger with each change: the manager's number of a resize times
        :data:`REPAIRS`, and one more with each repair.
    size : int
        Number of ranks.
    stay : tuple of int
        Ranks of the previous group that are also in this one, ascending, beginning with 0. The
        index of each is its rank in this group; all other ranks here are new.
    repairs : bool
        Whether the others have died, so that this group is formed without asking them.
    of : int or None
        The number of that previous group, if the launcher says it: groups that were proposed later
        may have come to nothing.
    """

    number: int
    size: int
    stay: tuple[int, ...] = ()
    repairs: bool = False
    of: int | None = None

    @property
    def kept(self) -> int:
        """Return the number of ranks that stay; ranks from this one on are new."""
        return len(self.stay)


@dataclass(frozen=True)
class Formed:
    """The answer of rank 0 to a change.

    Attributes
    ----------
    number : int
    why : str
        Why the ranks stay unchanged; empty if they changed.
    stall_s : float or None
        Seconds without progress: from the last step of the old group to the first one of the new
        group, less the duration of a step.
    """

    number: int
    why: str = ""
    stall_s: float | None = None


class ServiceAddress(NamedTuple):
    """The address of a service of rank 0 for ranks on several nodes.

    Attributes
    ----------
    hosts : tuple of str
        Names and addresses of the node of rank 0, in the order in which to try them.
    port : int
    key : str
        The secret that admits to the service; only the user can read this directory.
    """

    hosts: tuple[str, ...]
    port: int
    key: str


class Rendezvous:
    """The rendezvous of an attempt.

    Parameters
    ----------
    directory : pathlib.Path
    launcher : Process or None
        The launcher, which a signal tells of news.
    joins : int
        Number of the group for which this process was started; 0 for the first group.
    host : str
        Address by which other nodes reach that of rank 0; empty if all ranks are on one node.
    replaces : bool
        Whether ranks that die are replaced, if the others can go on without them.
    """

    def __init__(
        self,
        directory: Path,
        *,
        launcher: Process | None = None,
        joins: int = 0,
        host: str = "",
        replaces: bool = False,
    ) -> None:
        self.directory = directory
        self.joins = joins
        self.host = host
        self.replaces = replaces
        self._launcher = launcher

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> Rendezvous | None:
        """Return the rendezvous of this process, or None if ``hpcext launch`` did not start it."""
        env = protocol.environ() if environ is None else environ
        place = env.get("HPCEXT_RENDEZVOUS", "")
        launcher = Process.parse(env.get("HPCEXT_LAUNCHER", ""))
        if not place.startswith((_HERE, _SPREAD)) or launcher is None:
            return None
        host = ""
        if place.startswith(_SPREAD):
            # The address of a node may contain colons, but no slash.
            host, _, path = place.removeprefix(_SPREAD).partition(":/")
            place = f"/{path}"
        return cls(
            Path(place.removeprefix(_HERE)),
            launcher=launcher,
            joins=whole(env.get("HPCEXT_JOINS")) or 0,
            host=host,
            replaces=env.get("HPCEXT_REPLACES") == "1",
        )

    def environ(self) -> dict[str, str]:
        """Return the environment variables that lead a rank to this rendezvous."""
        place = f"{_SPREAD}{self.host}:" if self.host else _HERE
        return {
            "HPCEXT_RENDEZVOUS": f"{place}{self.directory}",
            "HPCEXT_LAUNCHER": str(self._launcher),
            "HPCEXT_JOINS": str(self.joins),
            "HPCEXT_REPLACES": "1" if self.replaces else "0",
        }

    @property
    def store(self) -> Path:
        """Return the file through which process groups meet."""
        return self.directory / STORE

    # Written by ranks.

    def ready(self, rank: int) -> None:
        """Announce that this new rank waits for the others."""
        (self.directory / f"ready-{self.joins}-{rank}").touch()
        self._tell()

    def formed(self, answer: Formed) -> None:
        """Announce that the group has changed, or that it will not."""
        self._write(_FORMED, asdict(answer))
        self._tell()

    def group(self) -> Group | None:
        """Return the newest group, or None if there has been no change."""
        document = self._read(_GROUP)
        if document is None:
            return None
        return Group(
            document["number"],
            document["size"],
            tuple(document["stay"]),
            document["repairs"],
            # A launcher of an earlier release does not say it.
            document.get("of"),
        )

    def mends(self, multiple: int = 1) -> None:
        """Announce that the others go on without a rank that dies.

        Parameters
        ----------
        multiple : int
            What their number must be a multiple of.
        """
        documents.write_file(self.directory / _MENDS, str(multiple).encode(), durable=False)

    def cut(self, number: int) -> None:
        """Announce that ranks of this group cannot communicate any more, before it is known why."""
        # Without it the manager hears of a lost node a little later.
        with contextlib.suppress(OSError):
            (self.directory / f"{_CUT}{number}").touch()
        self._tell()

    def begin(self, number: int) -> None:
        """Announce that the old group has stopped, so that the members of the new one form it."""
        (self.directory / f"begun-{number}").touch()

    def has_begun(self, number: int) -> bool:
        """Return whether the new group is being formed."""
        return self._has(f"begun-{number}")

    def publish(self, name: str, address: ServiceAddress) -> None:
        """Publish, on rank 0, the address of a service.

        Parameters
        ----------
        name : str
            Name of the file.
        address : ServiceAddress
        """
        self._write(name, address._asdict())

    def published(self, name: str) -> ServiceAddress | None:
        """Return the address of a service, or None if it is not published yet."""
        document = self._read(name)
        if document is None:
            return None
        return ServiceAddress(tuple(document["hosts"]), int(document["port"]), str(document["key"]))

    # Written by the launcher.

    def is_ready(self, number: int, rank: int) -> bool:
        """Return whether a new rank waits for the others."""
        return self._has(f"ready-{number}-{rank}")

    def can_mend(self) -> bool:
        """Return whether the others go on without a rank that dies."""
        return self._has(_MENDS)

    def multiple(self) -> int:
        """Return what the number of those that go on must be a multiple of."""
        with contextlib.suppress(OSError):
            # A training of an earlier release says nothing.
            return whole((self.directory / _MENDS).read_bytes().decode(errors="replace")) or 1
        return 1

    def propose(self, group: Group) -> None:
        """Propose a group whose ranks are all ready, so that the present one may change into it."""
        self._write(_GROUP, asdict(group))

    def answer(self, number: int) -> Formed | None:
        """Return the answer of rank 0 to a change, or None if it has not answered."""
        document = self._read(_FORMED)
        found = Formed(**document) if document else None
        return found if found and found.number == number else None

    def fail(self, number: int, why: str) -> None:
        """Announce that a new rank of a change will not come, and why.

        Parameters
        ----------
        number : int
            Number of the group.
        why : str
        """
        documents.write_file(self.directory / f"failed-{number}", why.encode(), durable=False)
        self._tell()

    def failure(self, number: int) -> str:
        """Return why a change is abandoned; empty if it is not."""
        if not self._has(f"failed-{number}"):
            return ""
        with contextlib.suppress(OSError):
            said = (self.directory / f"failed-{number}").read_bytes().decode(errors="replace")
            return said or "a new rank failed"
        return ""

    def drop(self, number: int) -> None:
        """Announce that the ranks that should join by a change are not needed."""
        # If this fails, they end with the attempt.
        with contextlib.suppress(OSError):
            (self.directory / f"dropped-{number}").touch()

    # Read by the launcher and the manager.

    def cuts(self) -> set[str]:
        """Return what :meth:`cut` has announced so far."""
        with contextlib.suppress(OSError):
            return {name for name in os.listdir(self.directory) if name.startswith(_CUT)}
        return set()

    def last_cut(self) -> int:
        """Return the number of the last group of which :meth:`cut` has said so; -1 for none."""
        return max((whole(name.removeprefix(_CUT)) or 0 for name in self.cuts()), default=-1)

    def is_cut(self) -> bool:
        """Return whether ranks of the present group have said so, for all that can be read."""
        with contextlib.suppress(ValueError, KeyError, TypeError):
            group = self.group()
            return self.last_cut() >= (group.number if group else 0)
        return False

    def dropped(self, number: int) -> bool:
        """Return whether :meth:`drop` was called for a change."""
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
            # Opening the directory makes a caching file system look it up again (nfs(5)).
            return name in os.listdir(self.directory)
        return False

    def _read(self, name: str) -> dict[str, Any] | None:
        if self.host and not self._has(name):
            return None
        with contextlib.suppress(OSError if self.host else FileNotFoundError):
            document: dict[str, Any] = json.loads((self.directory / name).read_bytes())
            return document
        return None


def write_repeatedly(write: Callable[[], None]) -> None:
    """Write a file that the other ranks wait for; on a full disk, repeat until there is room.

    If the launcher gives up, it ends this process, and the job goes on from its last checkpoint.
    """
    while True:
        try:
            write()
            return
        except OSError:
            time.sleep(FULL_PAUSE_S)
