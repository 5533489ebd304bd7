"""The line that a broker answers, read from a connection."""

from __future__ import annotations

import socket
import time

from hpcext.harvest.leave import BrokerError


def read_line(line: socket.socket, where: str, *, most: int, answer_s: float) -> bytes:
    """Return the line that the other end says.

    Parameters
    ----------
    line : socket.socket
    where : str
        For errors.
    most : int
        The longest line in bytes.
    answer_s : float
        Seconds within which all of it must come, so that nobody can dole it out.

    Raises
    ------
    OSError
        It does not come.
    BrokerError
        It is too long, or has no end.
    """
    until_s = time.monotonic() + answer_s
    data = bytearray()
    while not data.endswith(b"\n"):
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        line.settimeout(left_s)
        part = line.recv(1 << 16)
        if not part:
            raise BrokerError("hangs up in the middle of its answer", where=where)
        data += part
        if len(data) > most:
            raise BrokerError("answers too much", where=where)
    return bytes(data)
