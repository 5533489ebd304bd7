"""Access to the store of ranks on several nodes, only for processes that have its key.

A ``TCPStore`` of PyTorch (2.13) listens on every address, authenticates no peer, and lists all keys
to any peer (``list_keys``), so that an unguessable prefix hides nothing. Therefore the store itself
listens on loopback and accepts only this process, and the ranks reach it this way::

    rank's TCPStore ─ loopback ─► LocalDoor ─ network, key ─► Door ─ loopback ─► TCPStore of rank 0

A :class:`LocalDoor` accepts processes of its own user. A :class:`Door` accepts a peer that proves
that it has the key, which is passed on in the attempt's private directory. The traffic after that
is not encrypted. A filter on the store's socket (``SO_ATTACH_FILTER``, socket(7)) makes it accept
this process alone: connections are accepted only from ports that this process holds. It needs only
the standard library.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import hmac
import ipaddress
import os
import secrets
import signal
import socket
import struct
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias, TypeVar

LOOPBACK = "127.0.0.1"
PROOF_S = 10.0
"""Seconds within which a peer must prove that it has the key."""

PATIENCE_S = 300.0
"""Seconds for which a rank tries to connect; a ``TCPStore`` waits as long."""

_MOST_TRIES = 20
_MOST_UNKNOWN = 128
_PAUSE_S = 0.1
_CHUNK_BYTES = 1 << 16
_NONCE_BYTES = _PROOF_BYTES = 32
_SO_ATTACH_FILTER = 26  # asm-generic/socket.h
_MOST_PORTS = 1000
"""Largest number of ports of a filter: each takes two instructions, of which net.core.optmem_max
allows 2,500."""

LISTEN = "0A"  # of tcp_states.h

Reading: TypeAlias = asyncio.StreamReader
Writing: TypeAlias = asyncio.StreamWriter
Result = TypeVar("Result")


class _Service:
    """A server in its own thread."""

    def __init__(self, listening: Sequence[socket.socket]) -> None:
        self._listening = listening
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="hpcext-door", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port on which it listens."""
        return int(self._listening[0].getsockname()[1])

    def close(self) -> None:
        """Stop, and close all connections."""
        with contextlib.suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def serve(self, reader: Reading, writer: Writing) -> None:
        """Serve one connection."""
        raise NotImplementedError

    def _run(self) -> None:
        # Signals are for the main thread.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            for each in self._listening:
                starting = asyncio.start_server(self._handle, sock=each)
                self._loop.run_until_complete(starting)
            self._loop.run_forever()
        finally:
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._loop.run_until_complete(asyncio.sleep(0))
            for each in self._listening:
                each.close()
            self._loop.close()

    async def _handle(self, reader: Reading, writer: Writing) -> None:
        try:
            await self.serve(reader, writer)
        except (OSError, EOFError, asyncio.TimeoutError, asyncio.CancelledError):
            pass  # the peer has left, or is refused
        finally:
            writer.transport.abort()


class Door(_Service):
    """The entrance to the store, on the node of rank 0.

    Parameters
    ----------
    host : str
        Name by which other nodes reach this one; the door listens on that address alone if it is an
        address of this node.
    store : socket.socket
        The socket on which the store listens, from :func:`own_socket`.
    """

    def __init__(self, host: str, store: socket.socket) -> None:
        self.key = secrets.token_hex(_NONCE_BYTES)
        self._store = store
        self._ports: set[int] = set()
        self._unknown: list[asyncio.Task[None]] = []
        only(store, ())
        super().__init__([listening_on(host)])

    @property
    def address(self) -> str:
        """The address on which the door listens; empty for all addresses."""
        found = str(self._listening[0].getsockname()[0])
        return "" if found in {"0.0.0.0", "::"} else found

    def close(self) -> None:
        """Stop, and close all connections and the store's socket."""
        super().close()
        self._store.close()

    async def serve(self, reader: Reading, writer: Writing) -> None:
        """Connect a peer that has the key with the store."""
        await self._prove(reader, writer)
        with socket.socket() as own:
            own.bind((LOOPBACK, 0))
            port = own.getsockname()[1]
            # No other process can bind the port while this socket holds it.
            self._ports.add(port)
            try:
                only(self._store, self._ports)
                own.setblocking(False)
                await self._loop.sock_connect(own, self._store.getsockname())
                far = await asyncio.open_connection(sock=own.dup())
                await _join((reader, writer), far)
            finally:
                self._ports.discard(port)
                only(self._store, self._ports)

    async def _prove(self, reader: Reading, writer: Writing) -> None:
        me = asyncio.current_task()
        assert me is not None
        self._unknown.append(me)
        if len(self._unknown) > _MOST_UNKNOWN:
            self._unknown[0].cancel()  # the first to connect has had the most time
        try:
            await asyncio.wait_for(_challenge(reader, writer, self.key), PROOF_S)
        finally:
            self._unknown.remove(me)


class LocalDoor(_Service):
    """A local entrance on the node of each rank, through which its processes reach the store.

    Parameters
    ----------
    places : sequence of (str, int)
        Possible hosts and ports of the door; the first that answers and has the key is used.
    key : str
    """

    def __init__(self, places: Sequence[tuple[str, int]], key: str) -> None:
        self._places, self._key = places, key
        super().__init__([listening_on(LOOPBACK)])

    async def serve(self, reader: Reading, writer: Writing) -> None:
        """Serve processes of this user, and no others on this machine."""
        theirs, mine = (writer.get_extra_info(end) for end in ("peername", "sockname"))
        if user_of(theirs, mine) != os.getuid():
            raise PermissionError
        far = await asyncio.wait_for(self._reach(), PATIENCE_S)
        await _join((reader, writer), far)

    async def _reach(self) -> tuple[Reading, Writing]:
        while True:
            for place in self._places:
                with contextlib.suppress(OSError, EOFError, asyncio.TimeoutError):
                    return await asyncio.wait_for(self._enter(*place), PROOF_S)
            await asyncio.sleep(_PAUSE_S)

    async def _enter(self, host: str, port: int) -> tuple[Reading, Writing]:
        reader, writer = await asyncio.open_connection(host, port)
        try:
            await _answer(reader, writer, self._key)
        except BaseException:
            writer.transport.abort()
            raise
        return reader, writer


async def _challenge(reader: Reading, writer: Writing, key: str) -> None:
    """Prove to each other that both have the key, without sending it."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    writer.write(nonce)
    both = nonce + await reader.readexactly(_NONCE_BYTES)
    if not hmac.compare_digest(
        await reader.readexactly(_PROOF_BYTES), _proof(key, b"window", both)
    ):
        raise PermissionError
    writer.write(_proof(key, b"door", both))
    await writer.drain()


async def _answer(reader: Reading, writer: Writing, key: str) -> None:
    nonce = secrets.token_bytes(_NONCE_BYTES)
    both = await reader.readexactly(_NONCE_BYTES) + nonce
    writer.write(nonce + _proof(key, b"window", both))
    if not hmac.compare_digest(await reader.readexactly(_PROOF_BYTES), _proof(key, b"door", both)):
        raise PermissionError


def _proof(key: str, who: bytes, nonces: bytes) -> bytes:
    return hmac.digest(key.encode(), who + nonces, "sha256")


async def _join(one: tuple[Reading, Writing], other: tuple[Reading, Writing]) -> None:
    """Forward the data of each side to the other, until one has left."""
    ways = [
        asyncio.ensure_future(_forward(one[0], other[1])),
        asyncio.ensure_future(_forward(other[0], one[1])),
    ]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        other[1].transport.abort()


async def _forward(reader: Reading, writer: Writing) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK_BYTES):
            writer.write(data)
            await writer.drain()


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
        return [pair for pair in pairs if _is_loopback(host) or not _is_loopback(pair[1])]
    return []


def _is_loopback(host: str) -> bool:
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
