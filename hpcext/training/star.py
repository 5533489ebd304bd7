"""Communication of the ranks of a job, apart from the training's own traffic; for any framework.

Each rank has one connection to rank 0, so that the end of a rank is noticed. On one node it is a
socket in the private directory that ``hpcext launch`` makes: a message takes a few microseconds and
no network. Between nodes it is one that requires a key (:mod:`hpcext.training.lines`).
"""

from __future__ import annotations

import socket
import struct
import time
from pathlib import Path
from typing import NamedTuple

from hpcext.protocol import environ
from hpcext.rendezvous import Rendezvous
from hpcext.training.door import places
from hpcext.training.keyed import AlteredError
from hpcext.training.lines import RANK, Hall, Line, enter, read
from hpcext.training.ranks import Control, Ranks
from hpcext.training.sockets import short

_PAUSE_S = 0.01
_FAR_PAUSE_S = 0.05
_NUMBER = struct.Struct("<q")
_VECTOR = struct.Struct(f"<{len(Control())}q")


class Launched(NamedTuple):
    """A rank that ``hpcext launch`` has started, one of several.

    Attributes
    ----------
    place : Rendezvous
    rank, size : int
    local_rank, local_size : int
        The same among the ranks of this node.
    """

    place: Rendezvous
    rank: int
    size: int
    local_rank: int
    local_size: int


def launched(framework: str, told: int = 1) -> Launched | None:
    """Return how ``hpcext launch`` has started this process; None if it is alone.

    Parameters
    ----------
    framework : str
        Name for messages. Its ranks cannot change in number while they run.
    told : int
        Number of ranks according to other sources than ``hpcext launch``.

    Raises
    ------
    RuntimeError
        There are several ranks, and ``hpcext launch`` did not start them.
    SystemExit
        This process was started to join running ranks.
    """
    env = environ()
    size = int(env.get("WORLD_SIZE", "1"))
    place = Rendezvous.from_environ()
    if place is not None and place.joins:
        raise SystemExit(
            f"hpcext: {framework}'s workers cannot change in number while they run; "
            "the job is suspended and resumed instead"
        )
    size = size if place is not None else max(size, told)
    if place is None and size > 1:
        raise RuntimeError(
            f"{size} workers that did not start under `hpcext launch`: "
            f"start them with `hpcext launch --ranks {size} python ...`"
        )
    if place is None or size == 1:
        return None
    rank = int(env["RANK"])
    local_rank, local_size = env.get("LOCAL_RANK", rank), env.get("LOCAL_WORLD_SIZE", size)
    return Launched(place, rank, size, int(local_rank), int(local_size))


class StarRanks(Ranks):
    """Ranks that meet where ``hpcext launch`` says, with rank 0 at the centre.

    Parameters
    ----------
    here : Launched
    name : str
        Name of the meeting: each group has its own.

    Raises
    ------
    RuntimeError
        A worker has ended, or rank 0 cannot be reached; every method may raise it.
    """

    def __init__(self, here: Launched, name: str = "ranks") -> None:
        self.rank = here.rank
        self.size = here.size
        self._own: Control | None = None
        self._others: list[Control] = []
        # Numbers that this rank has begun to send, and on rank 0 also those of the others.
        self._numbers: list[float] | None = None
        self._told: list[list[float]] = []
        meet = _between_nodes if here.place.host else _on_one_node
        self._peers = meet(here, name)

    def exchange(self, requests: Control) -> Control:
        """Return what was agreed on since the last call, and send the next requests."""
        agreed = self._take()
        if not agreed.suspend:
            self._own = requests
            if self.rank != 0:
                self._put(0, _VECTOR.pack(*requests))
        return agreed

    def settle(self) -> None:
        """Finish the running exchanges, whatever their result."""
        self._take()
        self.gathered()

    def begin_gather(self, values: list[float]) -> None:
        """Begin to send numbers to all ranks; they are transferred while the step goes on."""
        self._numbers = values
        if self.rank != 0:
            self._put(0, _packed(values))

    def gathered(self) -> list[list[float]] | None:
        """Wait for the numbers of all ranks and return them, or None if none were sent."""
        mine = self._numbers
        if mine is None:
            return None
        self._collect()
        rows = [mine, *self._told]
        self._numbers, self._told = None, []
        told = _unpacked(self.broadcast(_packed([each for row in rows for each in row])))
        return [told[at : at + len(mine)] for at in range(0, len(told), len(mine))]

    def smallest(self, value: int) -> int:
        """Return the smallest value of all ranks."""
        parts = self.gather(_NUMBER.pack(value))
        least = min((_NUMBER.unpack(part)[0] for part in parts), default=0)
        result: int = _NUMBER.unpack(self.broadcast(_NUMBER.pack(least)))[0]
        return result

    def gather(self, data: bytes) -> list[bytes]:
        """Return the data of each rank, by rank; an empty list on all ranks but 0."""
        if self.rank != 0:
            self._put(0, data)
            return []
        self._collect()
        return [data, *(self._get(peer) for peer in range(1, self.size))]

    def broadcast(self, data: bytes) -> bytes:
        """Return the data of rank 0."""
        if self.rank != 0:
            return self._get(0)
        for peer in range(1, self.size):
            self._put(peer, data)
        return data

    def _take(self) -> Control:
        """Return what the running exchange agreed on."""
        mine, self._own = self._own, self._own if self.rank == 0 else None
        if mine is None:
            return Control()
        if self.rank != 0:
            return Control(*_VECTOR.unpack(self._get(0)))
        self._collect()
        agreed = Control(*map(max, zip(mine, *self._others, strict=True)))
        self._own, self._others = None, []
        self.broadcast(_VECTOR.pack(*agreed))
        return agreed

    def _collect(self) -> None:
        """Receive requests, then numbers, on rank 0, before messages that were sent after them."""
        if self.rank != 0:
            return
        peers = range(1, self.size)
        if self._own is not None and not self._others:
            self._others = [Control(*_VECTOR.unpack(self._get(peer))) for peer in peers]
        if self._numbers is not None and not self._told:
            self._told = [_unpacked(self._get(peer)) for peer in peers]

    def _put(self, peer: int, data: bytes) -> None:
        try:
            self._peers[peer].put(data)
        except OSError as error:
            raise _gone(peer, error) from error

    def _get(self, peer: int) -> bytes:
        try:
            return self._peers[peer].get()
        except OSError as error:
            raise _gone(peer, error) from error


# The connections.


def _on_one_node(here: Launched, name: str) -> dict[int, Line]:
    with short(here.place.directory, f"{name}.socket") as path:
        return _listen(path, here.size) if here.rank == 0 else {0: _connect(path, here.rank)}


def _listen(path: Path, size: int) -> dict[int, Line]:
    peers: dict[int, Line] = {}
    with socket.socket(socket.AF_UNIX) as listener:
        draft = path.with_name(f".{path.name}")
        listener.bind(str(draft))
        listener.listen(size)
        # It gets its final name only when it accepts connections.
        draft.rename(path)
        while len(peers) < size - 1:
            end, _ = listener.accept()
            peers[RANK.unpack(read(end, RANK.size))[0]] = Line(end)
    path.unlink()
    return peers


def _connect(path: Path, rank: int) -> Line:
    end = socket.socket(socket.AF_UNIX)
    # Without a time limit, because the launcher ends all ranks when one fails.
    while True:
        try:
            end.connect(str(path))
            break
        except (FileNotFoundError, ConnectionRefusedError):
            time.sleep(_PAUSE_S)
    end.sendall(RANK.pack(rank))
    return Line(end)


def _between_nodes(here: Launched, name: str) -> dict[int, Line]:
    file = f"meeting-{name}"
    if here.rank == 0:
        hall = Hall(here.place.host, here.size)
        hall.publish(here.place, file)
        return hall.lines()
    return {0: enter(*places(here.place, file, _FAR_PAUSE_S), here.rank)}


def _packed(values: list[float]) -> bytes:
    return struct.pack(f"<{len(values)}d", *values)


def _unpacked(data: bytes) -> list[float]:
    return list(struct.unpack(f"<{len(data) // 8}d", data))


def _gone(peer: int, error: OSError) -> RuntimeError:
    what = str(error) if isinstance(error, AlteredError) else "has ended"
    return RuntimeError(f"worker {peer} {what}; the job goes on from its last checkpoint")
