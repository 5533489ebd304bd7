"""Ports for servers that are begun later, as by another program."""

from __future__ import annotations

import os
import random
import socket

# Below those that Linux gives to connections (ip_local_port_range), which might take a port before
# its server does.
FIRST, LAST = 24_000, 32_000
BLOCK = 16

_locks: list[socket.socket] = []
# What is left of the blocks of each process; one that is forked has none.
_left: dict[int, list[int]] = {}


def free_ports(count: int) -> list[int]:
    """Return ports that nobody has, and that no other process of the tests is given.

    Each process has blocks of ports, locked while it lives, and gives each of their ports once.
    """
    left = _left.setdefault(os.getpid(), [])
    found: list[int] = []
    while len(found) < count:
        if not left:
            left += _block()
        port = left.pop()
        if not listens(port):
            found.append(port)
    return sorted(found)


def free_port() -> int:
    """Return one of :func:`free_ports`."""
    return free_ports(1)[0]


def _block() -> list[int]:
    firsts = list(range(FIRST, LAST, BLOCK))
    random.shuffle(firsts)
    for first in firsts:
        # A name that is as wide as the ports are: of the network, in whatever root directory.
        lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            lock.bind(f"\0hpcext-ports-{first}")
        except OSError:
            lock.close()
            continue
        _locks.append(lock)
        return list(range(first, first + BLOCK))
    raise OSError("no block of ports is free")


def listens(port: int) -> bool:
    """Return whether somebody listens there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
