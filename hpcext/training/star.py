"""Communication of the ranks on one node, apart from the training's own traffic; for any framework.

Each rank has one connection to rank 0, a socket in the private directory that ``hpcext launch``
makes: a message takes a few microseconds and no network, and the end of a rank is noticed.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from hpcext.protocol import environ
from hpcext.rendezvous import Rendezvous
from hpcext.training.ranks import Control, Ranks

_PAUSE_S = 0.01
_LENGTH = struct.Struct("<q")
_VECTOR = struct.Struct(f"<{len(Control())}q")


class Launched(NamedTuple):
    """A rank that ``hpcext launch`` has started, one of several.

    Attributes
    ----------
    directory : pathlib.Path
        A directory in which only this user may write.
    rank, size : int
    """

    directory: Path
    rank: int
    size: int


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
        This process was started to join running ranks, or the ranks are on several nodes.
    """
    env = environ()
    size = int(env.get("WORLD_SIZE", "1"))
    place = Rendezvous.from_environ()
    if place is not None and place.joins:
        raise SystemExit(
            f"hpcext: {framework}'s workers cannot change in number while they run; "
            "the job is suspended and resumed instead"
        )
    if size > int(env.get("LOCAL_WORLD_SIZE", size)):
        raise SystemExit(f"hpcext: workers of {framework} on several nodes: give the job one node")
    size = size if place is not None else max(size, told)
    if place is None and size > 1:
        raise RuntimeError(
            f"{size} workers that did not start under `hpcext launch`: "
            f"start them with `hpcext launch --ranks {size} python ...`"
        )
    if place is None or size == 1:
        return None
    return Launched(place.directory, int(env["RANK"]), size)


class StarRanks(Ranks):
    """Ranks on one node that meet in a directory, with rank 0 at the centre.

    Parameters
    ----------
    directory : pathlib.Path
        A directory in which only this user may write.
    rank, size : int
    name : str
        Name of the socket: each group has its own.

    Raises
    ------
    RuntimeError
        A worker has ended; every method may raise it.
    """

    def __init__(self, directory: Path, rank: int, size: int, name: str = "ranks.socket") -> None:
        self.rank = rank
        self.size = size
        self._own: Control | None = None
        self._others: list[Control] = []
        # Numbers that this rank has begun to send, and on rank 0 also those of the others.
        self._numbers: list[float] | None = None
        self._told: list[list[float]] = []
        with _entry(directory, name) as path:
            self._peers = self._listen(path) if rank == 0 else {0: self._connect(path)}

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
        parts = self.gather(_LENGTH.pack(value))
        least = min((_LENGTH.unpack(part)[0] for part in parts), default=0)
        result: int = _LENGTH.unpack(self.broadcast(_LENGTH.pack(least)))[0]
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

    # The connections.

    def _listen(self, path: Path) -> dict[int, socket.socket]:
        peers: dict[int, socket.socket] = {}
        with socket.socket(socket.AF_UNIX) as listener:
            draft = path.with_name(f".{path.name}")
            listener.bind(str(draft))
            listener.listen(self.size)
            # It gets its final name only when it accepts connections.
            draft.rename(path)
            while len(peers) < self.size - 1:
                line, _ = listener.accept()
                peers[_LENGTH.unpack(_read(line, _LENGTH.size))[0]] = line
        path.unlink()
        return peers

    def _connect(self, path: Path) -> socket.socket:
        line = socket.socket(socket.AF_UNIX)
        # Without a time limit, because the launcher ends all ranks when one fails.
        while True:
            try:
                line.connect(str(path))
                break
            except (FileNotFoundError, ConnectionRefusedError):
                time.sleep(_PAUSE_S)
        line.sendall(_LENGTH.pack(self.rank))
        return line

    def _put(self, peer: int, data: bytes) -> None:
        try:
            self._peers[peer].sendall(_LENGTH.pack(len(data)) + data)
        except OSError as error:
            raise _gone(peer) from error

    def _get(self, peer: int) -> bytes:
        line = self._peers[peer]
        try:
            return _read(line, _LENGTH.unpack(_read(line, _LENGTH.size))[0])
        except OSError as error:
            raise _gone(peer) from error


def _packed(values: list[float]) -> bytes:
    return struct.pack(f"<{len(values)}d", *values)


def _unpacked(data: bytes) -> list[float]:
    return list(struct.unpack(f"<{len(data) // 8}d", data))


def _gone(peer: int) -> RuntimeError:
    return RuntimeError(f"worker {peer} has ended; the job goes on from its last checkpoint")


def _read(line: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        part = line.recv(length - len(data))
        if not part:
            raise ConnectionResetError("the other side has ended")
        data += part
    return bytes(data)


@contextlib.contextmanager
def _entry(directory: Path, name: str) -> Iterator[Path]:
    """Yield a path of the socket that is always short, since unix(7) allows 107 bytes."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield Path(f"/proc/self/fd/{fd}/{name}")
    finally:
        os.close(fd)
