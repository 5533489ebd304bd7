"""The sockets of this process, and how to end connections of a library that does not end them.

Gloo has no way to leave an operation that waits for another process. It ends with an error when
its connections do, for all processes that wait for this one as well.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Collection, Iterator


def sockets() -> set[int]:
    """Return the inodes of the sockets of this process."""
    return {inode for _, inode in _sockets()}


def end(inodes: Collection[int]) -> None:
    """End those of some sockets that are TCP connections; they stay open files of their owner.

    Parameters
    ----------
    inodes : collection of int
        Those that are not there any more are ignored.
    """
    for descriptor, inode in _sockets():
        if inode not in inodes:
            continue
        with contextlib.suppress(OSError):
            copy = os.dup(descriptor)
            # The descriptor may be that of another file by now; the copy stays what it is.
            if os.fstat(copy).st_ino != inode:
                os.close(copy)
                continue
            with socket.socket(fileno=copy) as one:
                if one.family in {socket.AF_INET, socket.AF_INET6} and one.getpeername():
                    one.shutdown(socket.SHUT_RDWR)


def end_if_silent(inodes: Collection[int], after_s: int) -> None:
    """Have those of some sockets that are TCP connections end when their other end is silent.

    A machine that has died, or cannot be reached, does not end its connections. One whose processes
    are busy or stopped does answer; tcp(7).

    Parameters
    ----------
    inodes : collection of int
    after_s : int
        Seconds of silence.
    """
    for descriptor, inode in _sockets():
        if inode not in inodes:
            continue
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as one:
            if one.family not in {socket.AF_INET, socket.AF_INET6}:
                continue
            one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            pause_s = max(1, after_s // 5)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, pause_s)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, pause_s)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
            # Of what was sent; it also overrides the number of probes.
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, after_s * 1000)


def _sockets() -> Iterator[tuple[int, int]]:
    """Yield descriptors and inodes, without touching what may be in use by others."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            facts = os.fstat(int(name))
            if stat.S_ISSOCK(facts.st_mode):
                yield int(name), facts.st_ino
