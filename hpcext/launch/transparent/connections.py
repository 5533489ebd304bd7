"""The TCP connections of a process tree, and whether both ends of each are in it.

Such a connection is part of the images as its two ends are. One to anybody else would be an end
without the other: whoever is there would go on, and hear nothing (proc_net_tcp in the kernel's
documentation, criu(8), ``--tcp-established``).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from hpcext.process import Process

_LISTENS, _CLOSED = "0A", "07"
"""The states in which a socket has no other end (include/net/tcp_states.h)."""

_SOCKET = "socket:["
_MAPPED = "0000000000000000FFFF0000"
"""How an address of IPv4 begins in a socket of IPv6."""

_WORD = 8
"""Digits of 32 bits, whose bytes are in the order of the machine."""


class Connection(NamedTuple):
    """A connection, as one of its ends sees it.

    Attributes
    ----------
    local, remote : str
        Address and port, as the kernel writes them.
    """

    local: str
    remote: str


def connections(tree: Iterable[Process]) -> dict[Connection, Process]:
    """Return the connections of the processes of a tree, which share one network namespace."""
    sockets: dict[str, Process] = {}
    for process in tree:
        for inode in _sockets(process):
            sockets.setdefault(inode, process)
    found: dict[Connection, Process] = {}
    if sockets:
        for inode, connection in _table(next(iter(sockets.values())).pid):
            if inode in sockets:
                found[connection] = sockets[inode]
    return found


def outside(tree: Iterable[Process]) -> str:
    """Return which process of a tree is connected to one that is not in it; empty if none is."""
    found = connections(tree)
    for (local, remote), process in found.items():
        if Connection(remote, local) not in found:
            return f"process {process.pid} has a connection to {_plain(remote)}, not in its job"
    return ""


def _sockets(process: Process) -> Iterator[str]:
    """Yield the inodes of the sockets that a process has open."""
    own = f"/proc/{process.pid}/fd"
    try:
        names = os.listdir(own)
    except OSError:
        return
    for name in names:
        try:
            target = os.readlink(f"{own}/{name}")
        except OSError:
            continue
        if target.startswith(_SOCKET):
            yield target[len(_SOCKET) : -1]


def _table(pid: int) -> Iterator[tuple[str, Connection]]:
    """Yield the inode and the ends of all connections in the network namespace of a process."""
    for name in ("tcp", "tcp6"):
        try:
            with open(f"/proc/{pid}/net/{name}", encoding="ascii") as file:
                lines = file.readlines()[1:]
        except OSError:
            continue
        for line in lines:
            _, local, remote, state, *_, inode = line.split()[:10]
            if state not in {_LISTENS, _CLOSED}:
                yield inode, Connection(_same(local), _same(remote))


def _same(end: str) -> str:
    """Return an end so that those of IPv4 and of IPv6 can be compared."""
    return end.removeprefix(_MAPPED)


def _plain(end: str) -> str:
    """Return an end as people write it."""
    digits, _, port = end.partition(":")
    words = (digits[i : i + _WORD] for i in range(0, len(digits), _WORD))
    address = b"".join(bytes.fromhex(word)[::-1] for word in words)
    if len(address) == _WORD // 2:
        return f"{'.'.join(map(str, address))}:{int(port, 16)}"
    return f"[{address.hex(':', 2)}]:{int(port, 16)}"
