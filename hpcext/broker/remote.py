"""The broker's port, for harvesters on other hosts: a credential of MUNGE in, and one out.

Nothing is looked at but credentials, by a few programs at a time; each ends soon. Until then
nothing is known of a caller but his address (:mod:`hpcext.broker.callers`); from then on the bounds
of his user hold. The loop of the service waits for none of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Sequence

from hpcext.addresses import ACCOUNT, MungeAddress
from hpcext.broker import lines
from hpcext.broker.callers import Callers, Crowd, address_of
from hpcext.broker.desk import Desk, refusal
from hpcext.broker.identity import Peer, name_of
from hpcext.core.errors import HpcextError, InputError
from hpcext.harvest.leave import MOST_BYTES
from hpcext.harvest.ways import munge
from hpcext.text import clean

log = logging.getLogger(__name__)

PROGRAMS = 4
"""Programs of MUNGE that run at a time, and as many more for answers."""

PROVE_S = 15.0
"""Seconds within which a caller must have had his turn, and proved who he is."""

SAY_S = 60.0
"""Seconds between two lines of the log about calls without an answer."""

MOST_LINE_BYTES = (MOST_BYTES + 1024) * 4 // 3 + 1024
"""The longest credential of a harvester: its message, which base64 makes longer."""


class Munge:
    """The programs of MUNGE, a few at a time.

    Parameters
    ----------
    socket : str
        Of munged; empty: the usual one.
    programs : int
    """

    def __init__(self, socket: str, programs: int = PROGRAMS) -> None:
        self._socket = socket
        # Questions that nobody has proved yet do not delay the answers of others.
        self._decoders = asyncio.Semaphore(programs)
        self._encoders = asyncio.Semaphore(programs)

    async def decode(self, line: bytes) -> munge.Said:
        """Return what a credential says, and who has made it; raise MungeError if it is none."""
        if not munge.is_credential(line):
            raise munge.MungeError("it is no credential of MUNGE")
        async with self._decoders:
            return munge.parse_decoded(*await _run(munge.decoder(self._socket), line))

    async def encode(self, payload: bytes, uid: int) -> bytes:
        """Make a credential that one user can decode; raise MungeError if munged does not."""
        async with self._encoders:
            return munge.encoded(*await _run(munge.encoder(uid, self._socket), payload))


async def _run(argv: Sequence[str], data: bytes) -> tuple[int, bytes, bytes]:
    """Run a program, which is killed if it takes too long or nobody waits for it any more."""
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe, stderr=pipe)
    except OSError as error:
        raise munge.MungeError(f"{argv[0]} cannot be run ({error.strerror})") from None
    try:
        said, complaint = await asyncio.wait_for(process.communicate(data), munge.PROGRAM_S)
    except asyncio.TimeoutError:
        raise munge.MungeError(f"{argv[0]} has not ended in {munge.PROGRAM_S:.0f} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
    return process.returncode or 0, said, complaint


class Remote:
    """A server on a port, where each side proves by MUNGE who it is.

    Parameters
    ----------
    address : MungeAddress
    desk : Desk
    callers : Callers, optional
    """

    def __init__(self, address: MungeAddress, desk: Desk, callers: Callers | None = None) -> None:
        self._address = address
        self._desk = desk
        self._callers = callers or Callers()
        self._munge: Munge | None = None
        self._server: asyncio.AbstractServer | None = None
        self._unanswered = 0
        self._said_s: float | None = None

    def __str__(self) -> str:
        """Return where it is."""
        return str(self._address)

    async def begin(self) -> None:
        """Listen.

        Raises
        ------
        InputError
            Harvesters would not believe this account.
        HpcextError
            The address cannot be listened at, or munged does not answer: that may pass.
        """
        at, where = self._address, clean(str(self))
        self._munge = Munge(at.socket)
        # What is wrong with munged is said now, and not to each harvester.
        try:
            credential = await self._munge.encode(b"begins\n", os.geteuid())
            said = await self._munge.decode(credential)
        except munge.MungeError as error:
            raise HpcextError(
                f"cannot be served: {error}", where=where, do="see systemctl status munge"
            ) from None
        if at.account and at.account not in {str(said.uid), name_of(said.uid)}:
            raise InputError(
                f"harvesters would believe {clean(at.account)} alone, and this is "
                f"{name_of(said.uid)}",
                where=where,
            )
        try:
            self._server = await asyncio.start_server(
                self._serve, at.host, at.port, limit=MOST_LINE_BYTES
            )
        except OSError as error:
            raise HpcextError(
                f"cannot be listened at: {error.strerror or error}",
                where=where,
                do="give an address of this host, or 0.0.0.0 for all of them",
            ) from None
        if not at.account and name_of(said.uid) != ACCOUNT:
            log.info("harvesters are to ask at munge://%s@HOST:%d", name_of(said.uid), at.port)

    async def end(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one call; whatever it is, it ends soon and harms nobody else."""
        address = address_of(writer.get_extra_info("peername"))
        try:
            with self._callers.one(address) as crowd:
                said = await self._proved(crowd, reader)
            await lines.say(writer, await self._answer(said))
        except (lines.NoLineError, munge.MungeError) as error:
            self._count(address, str(error))
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                # It proves nothing either: to whom should it be?
                await lines.say(writer, refusal(str(error)))
        except (OSError, asyncio.TimeoutError):
            # It has hung up, or does not read.
            pass
        finally:
            lines.hang_up(writer)

    async def _proved(self, crowd: Crowd, reader: asyncio.StreamReader) -> munge.Said:
        """Return what a caller has proved to say."""
        line = await lines.heard(reader, MOST_LINE_BYTES)
        try:
            return await asyncio.wait_for(self._decoded(crowd, line), PROVE_S)
        except asyncio.TimeoutError:
            raise munge.MungeError("too many calls of this address") from None

    async def _decoded(self, crowd: Crowd, line: bytes) -> munge.Said:
        assert self._munge is not None
        async with crowd.turns:
            return await self._munge.decode(line)

    async def _answer(self, said: munge.Said) -> bytes:
        """Return the credential that answers a question, for the user alone who has asked."""
        assert self._munge is not None
        message = munge.asked(said.payload)
        if message is None:
            raise munge.MungeError("the credential asks a broker nothing")
        if len(message) > MOST_BYTES:
            raise munge.MungeError(f"more than {MOST_BYTES} bytes")
        peer = Peer(said.uid, name_of(said.uid))
        if why := self._desk.enter(peer):
            # A flood is not worth a program each time.
            return refusal(why)
        try:
            line = self._desk.answer(peer, message)
        finally:
            self._desk.leave(peer)
        return await self._munge.encode(munge.answer(said.payload, line), said.uid)

    def _count(self, address: str, why: str) -> None:
        """Say from time to time that calls are not answered, however many they are."""
        self._unanswered += 1
        now_s = time.monotonic()
        if self._said_s is None or now_s - self._said_s >= SAY_S:
            log.warning(
                "calls without an answer: %d, the last one from %s: %s",
                self._unanswered,
                address,
                clean(why),
            )
            self._unanswered, self._said_s = 0, now_s
