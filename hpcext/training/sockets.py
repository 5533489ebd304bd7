"""Sockets of this node that only the right processes reach, and who is at the other end of one.

A filter on a listening socket (``SO_ATTACH_FILTER``, socket(7)) makes it accept one process alone:
connections are accepted only from ports that this process holds. It needs only the standard
library.
"""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import os
import socket
import struct
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

LOOPBACK = "127.0.0.1"

_MOST_TRIES = 20
_SO_ATTACH_FILTER = 26  # asm-generic/socket.h
_MOST_PORTS = 1000
"""Largest number of ports of a filter: each takes two instructions, of which net.core.optmem_max
allows 2,500."""

LISTEN = "0A"  # of tcp_states.h

Result = TypeVar("Result")


@contextlib.contextmanager
def short(directory: Path, name: str) -> Iterator[Path]:
    """Yield a path of a socket that is always short, since unix(7) allows 107 bytes."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield Path(f"/proc/self/fd/{fd}/{name}")
    finally:
        os.close(fd)


def held(path: Path | str) -> str:
    """Return a path to a socket that is for this process alone, also once its entry is removed.

    It stays for the life of the process.
    """
    return f"/proc/self/fd/{os.open(path, os.O_PATH | os.O_CLOEXEC)}"


def nameless() -> tuple[socket.socket, str]:
    """Make a Unix socket that listens, and a path to it for this process alone."""
    listening = socket.socket(socket.AF_UNIX)
    with (
        tempfile.TemporaryDirectory(prefix="hpcext-") as directory,
        short(Path(directory), "s") as path,
    ):
        listening.bind(str(path))
        listening.listen(1024)
        return listening, held(path)


def listening_on(host: str) -> socket.socket:
    """Make a socket that listens on the address of a host name of this node.

    A name that resolves to loopback, as Debian's ``/etc/hosts`` does for a node's own name, cannot
    be used by other nodes, unless it is loopback's own name. If no address is left, the socket
    listens on all.

    Parameters
    ----------
    host : str
    """
    for family, address in _addresses(host):
        with contextlib.suppress(OSError):
            return socket.create_server((address, 0), family=family, backlog=1024)
    if socket.has_dualstack_ipv6():
        everywhere = socket.AF_INET6
        return socket.create_server(("", 0), family=everywhere, backlog=1024, dualstack_ipv6=True)
    return socket.create_server(("", 0), backlog=1024)


def _addresses(host: str) -> list[tuple[socket.AddressFamily, str]]:
    with contextlib.suppress(OSError):
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        pairs = [(family, str(place[0])) for family, _, _, _, place in found]
        return [pair for pair in pairs if is_loopback(host) or not is_loopback(pair[1])]
    return []


def is_loopback(host: str) -> bool:
    """Return whether a host, or an address, is by its name loopback's."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    return host == "localhost"


def own_socket(
    make: Callable[[int, int], Result], is_empty: Callable[[Result], bool]
) -> tuple[Result, socket.socket]:
    """Make a store that listens on loopback, and to which no other process has connected.

    Parameters
    ----------
    make : callable
        Makes the store, given a port and a descriptor that listens there; it connects to itself.
    is_empty : callable
        Returns whether no process has written to the store.

    Returns
    -------
    store
    socket.socket
        The socket on which the store listens; from now on no other process can connect.

    Raises
    ------
    OSError
        Another process connected first at every try.
    """
    for _ in range(_MOST_TRIES):
        listening = socket.create_server((LOOPBACK, 0), backlog=1024)
        store = make(listening.getsockname()[1], os.dup(listening.fileno()))
        only(listening, ())
        if is_empty(store) and users_of(listening.getsockname()) <= {os.getuid()}:
            return store, listening
        listening.close()
    raise OSError(
        f"other users of this node connected to {_MOST_TRIES} stores before their ranks did"
    )


def only(listening: socket.socket, ports: Iterable[int]) -> None:
    """Make a listening socket accept connections from these ports alone.

    Parameters
    ----------
    listening : socket.socket
    ports : iterable of int
    """
    # BPF_LD|BPF_H|BPF_ABS, BPF_JMP|BPF_JEQ|BPF_K and BPF_RET|BPF_K of bpf_common.h.
    load, equal, give = 0x28, 0x15, 0x06
    program = [(load, 0, 0, 0)]  # of a segment's header its first two bytes: where it comes from
    for port in list(ports)[-_MOST_PORTS:]:
        program += [(equal, 0, 1, port), (give, 0, 0, 0xFFFFFFFF)]
    program.append((give, 0, 0, 0))
    data = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in program))
    filter_ = struct.pack("HL", len(program), ctypes.addressof(data))
    try:
        listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filter_)
    except OSError as error:
        # Linux itself supports it, but some systems that emulate Linux do not.
        warnings.warn(
            f"hpcext: other users of this node can reach the store of the ranks: {error}",
            stacklevel=2,
        )


def user_of(theirs: tuple[str, int], mine: tuple[str, int]) -> int | None:
    """Return the user id of the other end of a loopback connection; None if it has closed.

    Parameters
    ----------
    theirs, mine : (str, int)
        Address and port of each end.
    """
    for local, remote, _, uid in connections():
        if (local, remote) == (theirs, mine):
            return uid
    return None


def users_of(mine: tuple[str, int]) -> set[int]:
    """Return the ids of users connected to an address of this machine."""
    return {uid for _, remote, state, uid in connections() if remote == mine and state != LISTEN}


def connections(
    where: str = "/proc/net",
) -> Iterator[tuple[tuple[str, int], tuple[str, int], str, int]]:
    """Yield the TCP sockets of this machine: local and remote address, state and user id.

    See proc_net(5). An IPv6 socket that is connected to an IPv4 one, as PyTorch makes it, is listed
    with those of IPv6.
    """
    for name in ("tcp", "tcp6"):
        with (
            contextlib.suppress(FileNotFoundError),
            open(f"{where}/{name}", encoding="ascii") as file,
        ):
            for line in list(file)[1:]:
                words = line.split()
                yield _address_of(words[1]), _address_of(words[2]), words[3], int(words[7])


def _address_of(text: str) -> tuple[str, int]:
    digits, _, port = text.partition(":")
    # Addresses are numbers of four bytes in the machine's byte order.
    numbers = (digits[at : at + 8] for at in range(0, len(digits), 8))
    address = ipaddress.ip_address(b"".join(struct.pack("=L", int(each, 16)) for each in numbers))
    return str(getattr(address, "ipv4_mapped", None) or address), int(port, 16)
