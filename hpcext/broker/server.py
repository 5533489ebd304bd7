"""The broker's socket: one line in, one line out, bounded for each user."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from hpcext.broker.gate import Gate
from hpcext.broker.identity import Identity, Peer
from hpcext.core.errors import UNREADABLE, InputError
from hpcext.harvest.leave import MOST_BYTES, Answer, Ask, AskStatus
from hpcext.text import clean

log = logging.getLogger(__name__)

LINE_S = 5.0
"""Seconds within which a whole line must have come, and the answer be taken."""

_SAID_CHARS = 200

_decoder: msgspec.json.Decoder[Ask | AskStatus] = msgspec.json.Decoder(Ask | AskStatus)

Reply = Callable[[Peer, "Ask | AskStatus"], Any]
"""What is said to somebody's message."""


class Server:
    """A server on a Unix socket that everybody may connect to.

    Parameters
    ----------
    path : pathlib.Path
    identity : Identity
    reply : callable
    clock : callable
        Seconds, which never go back.
    """

    def __init__(
        self,
        path: Path,
        identity: Identity,
        reply: Reply,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._identity = identity
        self._reply = reply
        self._clock = clock
        self._gate = Gate()
        self._server: asyncio.AbstractServer | None = None

    async def begin(self) -> None:
        """Listen; what a broker that was killed left there is replaced.

        Raises
        ------
        InputError
            The path cannot be listened at.
        """
        try:
            with contextlib.suppress(FileNotFoundError):
                if not stat.S_ISSOCK(self._path.lstat().st_mode):
                    raise InputError("is there, and is no socket", where=clean(str(self._path)))
                # The lock says that nobody listens there.
                self._path.unlink()
            self._server = await asyncio.start_unix_server(
                self._serve, str(self._path), limit=MOST_BYTES
            )
            os.chmod(self._path, 0o666)
        except OSError as error:
            raise InputError(
                f"cannot be listened at: {error.strerror or error}", where=clean(str(self._path))
            ) from None

    async def end(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()
            with contextlib.suppress(OSError):
                self._path.unlink()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one call; whatever it is, it ends soon and harms nobody else."""
        try:
            peer = self._identity.who(writer.get_extra_info("socket"))
            if why := self._gate.enter(peer.uid, self._clock()):
                await _say(writer, Answer(refused=why))
                return
            try:
                await _say(writer, await self._answer(peer, reader))
            finally:
                self._gate.leave(peer.uid)
        except (OSError, asyncio.TimeoutError):
            # It has hung up, or does not read.
            pass
        finally:
            # Not close(), which waits for whoever does not read.
            writer.transport.abort() if writer.transport.get_write_buffer_size() else writer.close()

    async def _answer(self, peer: Peer, reader: asyncio.StreamReader) -> Any:
        try:
            line = await asyncio.wait_for(reader.readuntil(b"\n"), LINE_S)
        except asyncio.LimitOverrunError:
            return Answer(refused=f"more than {MOST_BYTES} bytes")
        except asyncio.IncompleteReadError:
            return Answer(refused="no whole line")
        except asyncio.TimeoutError:
            return Answer(refused="no whole line in time")
        try:
            message = _decoder.decode(line)
        except UNREADABLE as error:
            return Answer(refused=clean(str(error))[:_SAID_CHARS])
        try:
            return self._reply(peer, message)
        except Exception:
            # A mistake of ours costs an answer, not the service.
            log.exception("no answer for uid %d", peer.uid)
            return Answer(keep="it could not answer")


async def _say(writer: asyncio.StreamWriter, what: Any) -> None:
    writer.write(msgspec.json.encode(what) + b"\n")
    await asyncio.wait_for(writer.drain(), LINE_S)
