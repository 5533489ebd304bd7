"""Access to a service of rank 0 from other nodes, only for processes that have its key.

A ``TCPStore`` of PyTorch (2.13) listens on every address, authenticates no peer, and lists all keys
to any peer (``list_keys``), so that an unguessable prefix hides nothing. The coordinator of JAX
(0.10) authenticates no peer either. Therefore such a service listens on this node and for this
process alone (:mod:`hpcext.training.sockets`), and the ranks reach it this way::

    rank's client ─ this node ─► LocalDoor ─ network, key ─► Door ─ this node ─► service of rank 0

A :class:`LocalDoor` accepts processes of its own user. A :class:`Door` accepts a peer that proves
that it has the key, which is passed on in the attempt's private directory. The traffic between them
is authenticated (:mod:`hpcext.training.keyed`) and not encrypted.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import time
from collections.abc import Sequence

from hpcext.rendezvous import Rendezvous, ServiceAddress, write_repeatedly
from hpcext.training.forwarding import (
    Ends,
    Reading,
    Service,
    Writing,
    answer,
    challenge,
    join,
    peer_of,
)
from hpcext.training.keyed import NUMBER_BYTES, Seals
from hpcext.training.sockets import LOOPBACK, is_loopback, listening_on, nameless, only, user_of

PROOF_S = 10.0
"""Seconds within which a peer must prove that it has the key."""

PATIENCE_S = 300.0
"""Seconds for which a rank tries to connect; a ``TCPStore`` waits as long."""

_MOST_UNKNOWN = 128
_PAUSE_S = 0.1


class Gate(Service):
    """A port of this node on which other nodes connect, and must prove that they have the key.

    Parameters
    ----------
    host : str
        Name by which other nodes reach this one; it listens on that address alone if it is an
        address of this node.

    Attributes
    ----------
    key : str
    address : str
        The address on which it listens; empty for all addresses.
    """

    def __init__(self, host: str) -> None:
        self.key = secrets.token_hex(NUMBER_BYTES)
        listening = listening_on(host)
        found = str(listening.getsockname()[0])
        self.address = "" if found in {"0.0.0.0", "::"} else found
        self._reached = ""
        self._unknown: list[asyncio.Task[None]] = []
        super().__init__([listening])

    @property
    def reached(self) -> str:
        """The address by which other nodes have reached this one; empty if it is not known."""
        return self.address or self._reached

    def publish(self, place: Rendezvous, name: str) -> None:
        """Tell the other ranks how to reach this node.

        Parameters
        ----------
        place : Rendezvous
        name : str
            Name of the file.
        """
        hosts = [self.address] if self.address else []
        address = ServiceAddress((*hosts, place.host), self.port, self.key)
        write_repeatedly(lambda: place.publish(name, address))

    async def prove(self, reader: Reading, writer: Writing) -> Seals:
        """Have a peer prove that it has the key, and prove the same to it."""
        me = asyncio.current_task()
        assert me is not None
        self._unknown.append(me)
        if len(self._unknown) > _MOST_UNKNOWN:
            self._unknown[0].cancel()  # the first to connect has had the most time
        peer = peer_of(writer)
        try:
            seals = await asyncio.wait_for(challenge(reader, writer, self.key), PROOF_S)
        except (OSError, EOFError, asyncio.TimeoutError):
            self.warn_once("did not prove that it has this job's key", f"a connection of {peer}")
            raise
        finally:
            self._unknown.remove(me)
        mine = str(writer.get_extra_info("sockname")[0]).removeprefix("::ffff:")
        if not is_loopback(mine):
            self._reached = mine
        return seals


class Door(Gate):
    """The entrance to a store, on the node of rank 0.

    Parameters
    ----------
    host : str
        As for a :class:`Gate`.
    store : socket.socket
        The socket on which the store listens, from :func:`hpcext.training.sockets.own_socket`.
    """

    def __init__(self, host: str, store: socket.socket) -> None:
        self._store = store
        self._ports: set[int] = set()
        only(store, ())
        super().__init__(host)

    def close(self) -> None:
        """Stop, and close all connections and the store's socket."""
        super().close()
        self._store.close()

    async def serve(self, reader: Reading, writer: Writing) -> None:
        """Connect a peer that has the key with the store."""
        seals = await self.prove(reader, writer)
        with socket.socket() as own:
            own.bind((LOOPBACK, 0))
            port = own.getsockname()[1]
            # No other process can bind the port while this socket holds it.
            self._ports.add(port)
            try:
                only(self._store, self._ports)
                own.setblocking(False)
                await self._loop.sock_connect(own, self._store.getsockname())
                near = await asyncio.open_connection(sock=own.dup())
                await join(near, (reader, writer), seals)
            finally:
                self._ports.discard(port)
                only(self._store, self._ports)


class SocketDoor(Gate):
    """The entrance to a service that listens, now or soon, on a Unix socket of this node.

    Parameters
    ----------
    host : str
        As for a :class:`Gate`.
    path : str

    Attributes
    ----------
    path : str
        The socket's path, which may change as long as it leads there.
    """

    def __init__(self, host: str, path: str) -> None:
        self.path = path
        super().__init__(host)

    async def serve(self, reader: Reading, writer: Writing) -> None:
        """Connect a peer that has the key with the service."""
        seals = await self.prove(reader, writer)
        near = await asyncio.wait_for(self._enter(), PATIENCE_S)
        await join(near, (reader, writer), seals)

    async def _enter(self) -> Ends:
        while True:
            with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
                return await asyncio.open_unix_connection(self.path)
            await asyncio.sleep(_PAUSE_S)


class _Window(Service):
    """An entrance on the node of a rank, through which it reaches a door.

    Attributes
    ----------
    address : str
        The address of this node from which the door was reached; empty before.
    """

    def __init__(
        self, places: Sequence[tuple[str, int]], key: str, listening: socket.socket
    ) -> None:
        self._places, self._key = places, key
        self.address = ""
        self._reached: tuple[Ends, Seals] | None = None
        self._why: BaseException | None = None
        super().__init__([listening])

    def reach(self) -> None:
        """Connect with the door now, for the first process to come.

        Raises
        ------
        RuntimeError
            It does not answer as it should.
        """
        reaching = asyncio.wait_for(self._reach(), PATIENCE_S)
        try:
            self._reached = asyncio.run_coroutine_threadsafe(reaching, self._loop).result()
        except (asyncio.TimeoutError, TimeoutError):
            raise unreached(self._places, self._why) from None

    async def serve(self, reader: Reading, writer: Writing) -> None:
        """Connect a process of this node with the door."""
        found, self._reached = self._reached, None
        if found is None:
            found = await asyncio.wait_for(self._reach(), PATIENCE_S)
        far, seals = found
        await join((reader, writer), far, seals)

    async def _reach(self) -> tuple[Ends, Seals]:
        while True:
            for place in self._places:
                try:
                    return await asyncio.wait_for(self._enter(*place), PROOF_S)
                except (OSError, EOFError, asyncio.TimeoutError) as error:
                    self._why = error
            await asyncio.sleep(_PAUSE_S)

    async def _enter(self, host: str, port: int) -> tuple[Ends, Seals]:
        reader, writer = await asyncio.open_connection(host, port)
        try:
            seals = await answer(reader, writer, self._key)
        except BaseException:
            writer.transport.abort()
            raise
        self.address = str(writer.get_extra_info("sockname")[0])
        return (reader, writer), seals


class LocalDoor(_Window):
    """A local entrance on the node of each rank, through which its processes reach the store.

    Parameters
    ----------
    places : sequence of (str, int)
        Possible hosts and ports of the door; the first that answers and has the key is used.
    key : str
    """

    def __init__(self, places: Sequence[tuple[str, int]], key: str) -> None:
        super().__init__(places, key, listening_on(LOOPBACK))

    async def serve(self, reader: Reading, writer: Writing) -> None:
        """Serve processes of this user, and no others on this machine."""
        theirs, mine = (writer.get_extra_info(end) for end in ("peername", "sockname"))
        if user_of(theirs, mine) != os.getuid():
            raise PermissionError
        await super().serve(reader, writer)


class LocalSocket(_Window):
    """A local entrance for this process alone: a Unix socket that has no name.

    Parameters
    ----------
    places, key
        As for a :class:`LocalDoor`.

    Attributes
    ----------
    path : str
    """

    def __init__(self, places: Sequence[tuple[str, int]], key: str) -> None:
        listening, self.path = nameless()
        super().__init__(places, key, listening)


def unreached(places: Sequence[tuple[str, int]], why: BaseException | None) -> RuntimeError:
    """Return the error of a rank that cannot reach rank 0.

    Parameters
    ----------
    places : sequence of (str, int)
        Where it tried.
    why : BaseException or None
        What happened there last.
    """
    where = " or ".join(f"{host}, port {port}" for host, port in places)
    what = str(why or "") or "no answer"
    return RuntimeError(
        f"rank 0 of this job cannot be reached at {where} ({what}): let the nodes of a job connect "
        "to each other on all ports"
    )


def places(place: Rendezvous, name: str, pause_s: float) -> tuple[Sequence[tuple[str, int]], str]:
    """Wait until rank 0 has published how to reach it; return hosts with the port, and the key.

    Parameters
    ----------
    place : Rendezvous
    name : str
        Name of the file.
    pause_s : float
        Seconds between two looks.
    """
    # Without a time limit, because the launchers end all ranks when one fails.
    while (found := place.published(name)) is None:
        time.sleep(pause_s)
    return [(host, found.port) for host in dict.fromkeys(found.hosts)], found.key
