"""The TCP connections of this process, and how to end those of a library that does not end them.

Gloo has no way to leave an operation that waits for another process. It ends with an error when
its connections do, for all processes that wait for this one as well.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Collection, Iterator


def connections() -> set[int]:
    """Return the inodes of the TCP sockets of this process."""
    return {inode for inode, _ in _sockets()}


def end(inodes: Collection[int]) -> None:
    """End connections, which stay open files of their owner.

    Parameters
    ----------
    inodes : collection of int
        Those that are not there any more are ignored.
    """
    for inode, connection in _sockets():
        if inode in inodes:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def _sockets() -> Iterator[tuple[int, socket.socket]]:
    """Yield inodes and duplicates, so that none is closed, and its number used again, meanwhile."""
    for name in os.listdir("/proc/self/fd"):
        try:
            copy = os.dup(int(name))
        except OSError:
            continue
        try:
            one = socket.socket(fileno=copy)
        except OSError:
            # Not a socket.
            os.close(copy)
            continue
        with one:
            if _is_connected(one):
                yield os.fstat(copy).st_ino, one


def _is_connected(one: socket.socket) -> bool:
    if one.family not in {socket.AF_INET, socket.AF_INET6} or one.type != socket.SOCK_STREAM:
        return False
    with contextlib.suppress(OSError):
        return bool(one.getpeername())
    return False
