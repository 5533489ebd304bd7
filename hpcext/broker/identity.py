"""Who asks: what the kernel says of the other end, and nothing that is in a message."""

from __future__ import annotations

import functools
import pwd
import socket
import struct
from typing import NamedTuple, Protocol

_PEER = struct.Struct("3i")


class Peer(NamedTuple):
    """Somebody who has proved who he is.

    Attributes
    ----------
    uid : int
    user : str
        The name, as the batch system has it; the number if there is none.
    """

    uid: int
    user: str


class Identity(Protocol):
    """A way for a user to prove who he is."""

    def who(self, line: socket.socket) -> Peer:
        """Return who is at the other end; OSError if that cannot be known."""


class PeerCredentials:
    """The credentials of the process that connected to a Unix socket (SO_PEERCRED, unix(7))."""

    def who(self, line: socket.socket) -> Peer:
        """Return who is at the other end."""
        said = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        _, uid, _ = _PEER.unpack(said)
        return Peer(uid, name_of(uid))


@functools.lru_cache(maxsize=4096)
def name_of(uid: int) -> str:
    """Return the name of a user, or the number."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
