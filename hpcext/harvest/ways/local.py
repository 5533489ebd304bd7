"""The way to a broker on the same host: a Unix socket, of which the kernel says who is there."""

from __future__ import annotations

import contextlib
import socket
import stat
import struct
import time
from pathlib import Path

from hpcext.harvest.leave import MOST_ANSWER_BYTES, BrokerError
from hpcext.harvest.ways import places
from hpcext.harvest.ways.lines import read_line

_PEER = struct.Struct("3i")
"""pid, uid and gid, as SO_PEERCRED has them (unix(7))."""

AGAIN_S = 0.02
"""Seconds after which a call is tried again for which the broker's queue had no room."""


class Local:
    """A Unix socket.

    Parameters
    ----------
    path : pathlib.Path
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def __str__(self) -> str:
        """Return its path."""
        return str(self._path)

    def call(self, message: bytes, answer_s: float) -> bytes:
        """Send one line, and return the answer."""
        where = str(self)
        owner = self._owner()
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
                _connect(line, where, answer_s)
                _, uid, _ = _PEER.unpack(
                    line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
                )
                if uid not in {0, owner}:
                    raise BrokerError(
                        f"is served by uid {uid}, and belongs to {owner}", where=where
                    )
                # It refuses a call before it has read it: then its answer is there all the same.
                with contextlib.suppress(BrokenPipeError):
                    line.sendall(message)
                return read_line(line, where, most=MOST_ANSWER_BYTES, answer_s=answer_s)
        except OSError as error:
            raise BrokerError(f"does not answer ({error.strerror or error})", where=where) from None

    def _owner(self) -> int:
        """Return the uid that the socket belongs to, if nobody else could have put one there."""
        with contextlib.suppress(OSError):
            if not stat.S_ISSOCK(self._path.lstat().st_mode):
                raise BrokerError("is not a socket", where=str(self))
        return places.owner(self._path, self._path.parent)


def _connect(line: socket.socket, where: str, answer_s: float) -> None:
    """Connect; if many others do, wait for room as long as for an answer."""
    line.settimeout(answer_s)
    until_s = time.monotonic() + answer_s
    while True:
        try:
            line.connect(where)
            return
        except BlockingIOError:
            # The queue of a Unix socket is full: with a time-out Linux does not wait for room.
            if time.monotonic() >= until_s:
                raise
            time.sleep(AGAIN_S)
