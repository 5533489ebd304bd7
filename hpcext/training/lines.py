"""Connections of two ranks that exchange messages, on one node and between nodes.

Between nodes the ranks prove to each other that they have the key of their group, and authenticate
each message (:mod:`hpcext.training.keyed`). Nothing that a peer without the key sends is read any
further than its proof.
"""

from __future__ import annotations

import contextlib
import hmac
import queue
import secrets
import socket
import struct
import time
from collections.abc import Sequence

from hpcext.training.door import PATIENCE_S, PROOF_S, Gate, unreached
from hpcext.training.forwarding import Reading, Writing, message
from hpcext.training.keyed import (
    LENGTH,
    NUMBER_BYTES,
    PROOF_BYTES,
    AlteredError,
    Handshake,
    Seals,
)

RANK = struct.Struct("<q")
"""What a rank says first: its number."""

_PAUSE_S = 0.1


class Line:
    """A connection to another rank of this node.

    Parameters
    ----------
    end : socket.socket
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def put(self, content: bytes) -> None:
        """Send a message.

        Raises
        ------
        OSError
            The other rank has ended.
        """
        self._end.sendall(LENGTH.pack(len(content)) + content)

    def get(self) -> bytes:
        """Receive a message.

        Raises
        ------
        OSError
            The other rank has ended.
        """
        return read(self._end, LENGTH.unpack(read(self._end, LENGTH.size))[0])


class KeyedLine(Line):
    """A connection to a rank of another node, which has the key.

    Parameters
    ----------
    end : socket.socket
    seals : Seals
    """

    def __init__(self, end: socket.socket, seals: Seals) -> None:
        super().__init__(end)
        self._seals = seals
        # A rank waits for each of these small messages.
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def address(self) -> str:
        """The address of this node from which the other one was reached."""
        return str(self._end.getsockname()[0])

    def put(self, content: bytes) -> None:
        """Send a message."""
        self._end.sendall(self._seals.sends.seal(content))

    def get(self) -> bytes:
        """Receive a message.

        Raises
        ------
        OSError
            The other rank has ended, or somebody has changed the message on its way.
        """
        content = super().get()
        self._seals.receives.check(content, read(self._end, PROOF_BYTES))
        return content


class Hall(Gate):
    """Where rank 0 waits for the others of its group, which connect from other nodes.

    Parameters
    ----------
    host : str
        As for a :class:`~hpcext.training.door.Gate`.
    size : int
        Number of ranks.
    """

    def __init__(self, host: str, size: int) -> None:
        self._size = size
        self._came: queue.SimpleQueue[tuple[int, KeyedLine]] = queue.SimpleQueue()
        super().__init__(host)

    def lines(self) -> dict[int, Line]:
        """Wait for all other ranks; return the connections to them, and let nobody else in."""
        found: dict[int, Line] = {}
        # Without a time limit, because the launchers end all ranks when one fails.
        while len(found) < self._size - 1:
            rank, line = self._came.get()
            found[rank] = line
        self.close()
        for each in found.values():
            # Until then a rank says nothing more, so that nothing is lost with the thread here.
            with contextlib.suppress(OSError):
                each.put(b"")
        return found

    async def serve(self, reader: Reading, writer: Writing) -> None:
        """Take up a rank that has the key."""
        seals = await self.prove(reader, writer)
        said = await message(reader, seals.receives, RANK.size)
        rank = RANK.unpack(said)[0] if len(said) == RANK.size else 0
        if not 0 < rank < self._size:
            raise AlteredError(f"does not say which of the ranks 1 to {self._size - 1} it is")
        end = socket.socket(fileno=socket.dup(writer.get_extra_info("socket").fileno()))
        end.setblocking(True)
        self._came.put((rank, KeyedLine(end, seals)))


def enter(places: Sequence[tuple[str, int]], key: str, rank: int) -> KeyedLine:
    """Connect to the hall of rank 0, and wait until all ranks have.

    Parameters
    ----------
    places : sequence of (str, int)
        Possible hosts and ports; the first that answers and has the key is used.
    key : str
    rank : int
        This rank.

    Raises
    ------
    RuntimeError
        None of them answers as rank 0 would.
    """
    until_s = time.monotonic() + PATIENCE_S
    why: OSError | None = None
    while time.monotonic() < until_s:
        for place in places:
            try:
                line = _entered(place, key)
                line.put(RANK.pack(rank))
                line.get()
                return line
            except OSError as error:
                why = error
        time.sleep(_PAUSE_S)
    raise unreached(places, why)


def _entered(place: tuple[str, int], key: str) -> KeyedLine:
    end = socket.create_connection(place, timeout=PROOF_S)
    try:
        number = secrets.token_bytes(NUMBER_BYTES)
        hands = Handshake(key, read(end, NUMBER_BYTES) + number)
        end.sendall(number + hands.of_connecting)
        if not hmac.compare_digest(read(end, PROOF_BYTES), hands.of_listening):
            raise PermissionError("it does not have the key of this job")
    except BaseException:
        end.close()
        raise
    end.settimeout(None)
    return KeyedLine(end, hands.connects())


def read(end: socket.socket, length: int) -> bytes:
    """Read as many bytes.

    Raises
    ------
    OSError
        The other side has ended.
    """
    data = bytearray()
    while len(data) < length:
        part = end.recv(length - len(data))
        if not part:
            raise ConnectionResetError("the other side has ended")
        data += part
    return bytes(data)
