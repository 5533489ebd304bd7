"""The broker's socket: one line in, one line out, of users of its own host."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import stat
from pathlib import Path

from hpcext.broker import lines
from hpcext.broker.desk import Desk, refusal
from hpcext.broker.identity import Identity, Peer
from hpcext.core.errors import HpcextError, InputError
from hpcext.harvest.leave import MOST_BYTES
from hpcext.text import clean

log = logging.getLogger(__name__)


class Server:
    """A server on a Unix socket that everybody may connect to.

    Parameters
    ----------
    path : pathlib.Path
    identity : Identity
    desk : Desk
    """

    def __init__(self, path: Path, identity: Identity, desk: Desk) -> None:
        self._path = path
        self._identity = identity
        self._desk = desk
        self._server: asyncio.AbstractServer | None = None

    def __str__(self) -> str:
        """Return where it is."""
        return str(self._path)

    async def begin(self) -> None:
        """Listen; what a broker that was killed left there is replaced.

        Raises
        ------
        InputError
            Something else is at the path.
        HpcextError
            It cannot be listened at.
        """
        # Under another name first: where its name is, somebody listens, and all may connect.
        draft = self._path.with_name(f".{self._path.name}")
        try:
            with contextlib.suppress(FileNotFoundError):
                # If it is a socket, the lock says that nobody listens there.
                if not stat.S_ISSOCK(self._path.lstat().st_mode):
                    raise InputError("is there, and is no socket", where=clean(str(self._path)))
            self._server = await asyncio.start_unix_server(
                self._serve, str(draft), limit=MOST_BYTES
            )
            draft.chmod(0o666)
            draft.rename(self._path)
            closed = not self._path.parent.stat().st_mode & stat.S_IXOTH
        except OSError as error:
            raise HpcextError(
                f"cannot be listened at: {error.strerror or error}", where=clean(str(self._path))
            ) from None
        if closed:
            log.warning(
                "%s: harvesters of others cannot reach it: chmod o+x %s",
                clean(str(self._path)), clean(str(self._path.parent)),
            )  # fmt: skip

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
            if why := self._desk.enter(peer):
                await lines.say(writer, refusal(why))
                return
            try:
                await lines.say(writer, await self._answer(peer, reader))
            finally:
                self._desk.leave(peer)
        except (OSError, asyncio.TimeoutError):
            # It has hung up, or does not read.
            pass
        finally:
            lines.hang_up(writer)

    async def _answer(self, peer: Peer, reader: asyncio.StreamReader) -> bytes:
        try:
            line = await lines.heard(reader, MOST_BYTES)
        except lines.NoLineError as error:
            return refusal(str(error))
        return self._desk.answer(peer, line)
