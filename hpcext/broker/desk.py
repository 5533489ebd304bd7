"""What all doors of a broker lead to: the bound on each user, and the answer to his line.

A *door* is a way for harvesters to reach the broker, whose other side :mod:`hpcext.harvest.ways`
has. It finds out who speaks; what he may say, and what he is told, is the same at all doors.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from hpcext.broker.gate import Gate
from hpcext.broker.identity import Peer
from hpcext.core.errors import UNREADABLE
from hpcext.harvest.leave import Answer, Ask, AskStatus
from hpcext.text import clean

log = logging.getLogger(__name__)

_SAID_CHARS = 200

_decoder: msgspec.json.Decoder[Ask | AskStatus] = msgspec.json.Decoder(Ask | AskStatus)

Reply = Callable[[Peer, "Ask | AskStatus"], Any]
"""What is said to somebody's message."""


class Door(Protocol):
    """A way for harvesters to reach the broker."""

    async def begin(self) -> None:
        """Let harvesters in; raise HpcextError if that cannot be."""

    async def end(self) -> None:
        """Let nobody in any more."""


class Desk:
    """Where everybody is answered who has proved who he is.

    Parameters
    ----------
    reply : callable
    clock : callable
        Seconds, which never go back.
    """

    def __init__(self, reply: Reply, clock: Callable[[], float] = time.monotonic) -> None:
        self._reply = reply
        self._clock = clock
        self._gate = Gate()

    def enter(self, peer: Peer) -> str:
        """Let a user speak; return why not, if so. Whoever came in is to :meth:`leave`."""
        return self._gate.enter(peer.uid, self._clock())

    def leave(self, peer: Peer) -> None:
        """End the call of a user."""
        self._gate.leave(peer.uid)

    def answer(self, peer: Peer, line: bytes) -> bytes:
        """Return the line for somebody who is in."""
        try:
            message = _decoder.decode(line)
        except UNREADABLE as error:
            return refusal(clean(str(error))[:_SAID_CHARS])
        try:
            return _encoded(self._reply(peer, message))
        except Exception:
            # A mistake of ours costs an answer, not the service.
            log.exception("no answer for uid %d", peer.uid)
            return _encoded(Answer(keep="it could not answer"))


def refusal(why: str) -> bytes:
    """Return the line that says what is wrong with a message."""
    return _encoded(Answer(refused=why))


def _encoded(what: Any) -> bytes:
    return msgspec.json.encode(what) + b"\n"
