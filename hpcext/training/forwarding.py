"""Connections between nodes that only processes with a key can make, served by a thread.

The two sides of such a connection prove to each other that they have the key, and authenticate what
they say (:mod:`hpcext.training.keyed`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
import signal
import socket
import threading
from collections.abc import Sequence
from typing import TypeAlias

from hpcext.training.checkpoint.errors import warn
from hpcext.training.keyed import (
    LENGTH,
    NUMBER_BYTES,
    PROOF_BYTES,
    AlteredError,
    Handshake,
    Seal,
    Seals,
)

CHUNK_BYTES = 1 << 16

Reading: TypeAlias = asyncio.StreamReader
Writing: TypeAlias = asyncio.StreamWriter
Ends: TypeAlias = tuple[Reading, Writing]


class Service:
    """A server in its own thread."""

    def __init__(self, listening: Sequence[socket.socket]) -> None:
        self._listening = listening
        self._loop = asyncio.new_event_loop()
        self._serving: set[asyncio.Task[None]] = set()
        self._told: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="hpcext-door", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port on which it listens."""
        return int(self._listening[0].getsockname()[1])

    def finish(self, limit_s: float) -> None:
        """Wait until all connections have ended, but not longer than so many seconds."""

        async def end() -> None:
            if self._serving:
                await asyncio.wait(self._serving, timeout=limit_s)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result()

    def close(self) -> None:
        """Stop, and close all connections."""
        with contextlib.suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def serve(self, reader: Reading, writer: Writing) -> None:
        """Serve one connection."""
        raise NotImplementedError

    def warn_once(self, what: str, of: str) -> None:
        """Say in the log what a peer did, and not again when another one does it."""
        if what not in self._told:
            self._told.add(what)
            warn(f"{of} {what}; it was sent away, and the training goes on (this is said once)")

    def _run(self) -> None:
        # Signals are for the main thread.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            for each in self._listening:
                starting = asyncio.start_server(self._handle, sock=each)
                self._loop.run_until_complete(starting)
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(_cancel_others())
            for each in self._listening:
                each.close()
            self._loop.close()

    async def _handle(self, reader: Reading, writer: Writing) -> None:
        me = asyncio.current_task()
        assert me is not None
        self._serving.add(me)
        try:
            await self.serve(reader, writer)
        except AlteredError as error:
            self.warn_once(
                f"sent what cannot be used: {error}", f"a connection of {peer_of(writer)}"
            )
        except (OSError, EOFError, asyncio.TimeoutError, asyncio.CancelledError):
            pass  # the peer has left, or is refused
        finally:
            self._serving.discard(me)
            writer.transport.abort()


async def _cancel_others() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def challenge(reader: Reading, writer: Writing, key: str) -> Seals:
    """Prove to each other that both have the key, on the side that listens.

    Parameters
    ----------
    reader : asyncio.StreamReader
    writer : asyncio.StreamWriter
    key : str

    Raises
    ------
    PermissionError
        The peer does not have it.
    """
    number = secrets.token_bytes(NUMBER_BYTES)
    writer.write(number)
    hands = Handshake(key, number + await reader.readexactly(NUMBER_BYTES))
    if not hmac.compare_digest(await reader.readexactly(PROOF_BYTES), hands.of_connecting):
        raise PermissionError
    writer.write(hands.of_listening)
    await writer.drain()
    return hands.listens()


async def answer(reader: Reading, writer: Writing, key: str) -> Seals:
    """Do as :func:`challenge`, on the side that connects."""
    number = secrets.token_bytes(NUMBER_BYTES)
    hands = Handshake(key, await reader.readexactly(NUMBER_BYTES) + number)
    writer.write(number + hands.of_connecting)
    if not hmac.compare_digest(await reader.readexactly(PROOF_BYTES), hands.of_listening):
        raise PermissionError
    return hands.connects()


async def message(reader: Reading, seal: Seal, most_bytes: int = CHUNK_BYTES) -> bytes:
    """Return the next message of a peer.

    Parameters
    ----------
    reader : asyncio.StreamReader
    seal : Seal
        Of what the peer sends.
    most_bytes : int
        Length of the longest message.

    Raises
    ------
    AlteredError
        The peer did not send it so.
    EOFError
        The peer has left.
    """
    (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    if length > most_bytes:
        raise AlteredError(f"has announced {length} bytes, more than a message has")
    content = await reader.readexactly(length)
    seal.check(content, await reader.readexactly(PROOF_BYTES))
    return content


async def join(near: Ends, far: Ends, seals: Seals) -> None:
    """Forward the data of each side to the other, until one has left.

    Parameters
    ----------
    near : (asyncio.StreamReader, asyncio.StreamWriter)
        A connection on this node.
    far : (asyncio.StreamReader, asyncio.StreamWriter)
        A connection to another node.
    seals : Seals
        Of the latter.
    """
    for _, writer in (near, far):
        # When a side has left, what it said last must have gone, too.
        writer.transport.set_write_buffer_limits(0)
    ways = [
        asyncio.ensure_future(_send(near[0], far[1], seals.sends)),
        asyncio.ensure_future(_receive(far[0], near[1], seals.receives)),
    ]
    try:
        ended, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for error in [way.exception() for way in ended]:
            if error is not None:
                raise error
    finally:
        for way in ways:
            way.cancel()
        for _, writer in (near, far):
            writer.transport.abort()


async def _send(reader: Reading, writer: Writing, seal: Seal) -> None:
    while data := await reader.read(CHUNK_BYTES):
        writer.write(seal.seal(data))
        await writer.drain()


async def _receive(reader: Reading, writer: Writing, seal: Seal) -> None:
    while True:
        writer.write(await message(reader, seal))
        await writer.drain()


def peer_of(writer: Writing) -> str:
    """Return the address of the other side."""
    found = writer.get_extra_info("peername")
    return str(found[0]) if isinstance(found, tuple) else "this node"
