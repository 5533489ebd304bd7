"""The ways to the broker of a site, and the calls that ask it; which there are, only this says.

Whatever the way is, a call is one line of JSON each way, in the words of
:mod:`hpcext.harvest.leave`. A way proves to the broker who asks, and to whoever asks that the
broker answers; no message says it.
"""

from __future__ import annotations

import os
import time
from typing import Any, Protocol

import msgspec

from hpcext.addresses import DropAddress, MungeAddress, read_address
from hpcext.core.errors import UNREADABLE
from hpcext.harvest import leave
from hpcext.harvest.leave import Answer, Ask, AskStatus, BrokerError
from hpcext.harvest.ways.drop import Drop
from hpcext.harvest.ways.local import Local
from hpcext.harvest.ways.remote import Remote
from hpcext.text import clean

ANSWER_S = 5.0
"""Seconds for which an answer is waited for."""

TRIES, AGAIN_S = 3, 1.0
"""How often a status is asked for that is refused, and seconds in between."""

_SAID_CHARS = 200


class Way(Protocol):
    """A way to a broker. Its text is where that is."""

    def call(self, message: bytes, answer_s: float) -> bytes:
        """Send one line to a broker, and return its own.

        Parameters
        ----------
        message : bytes
        answer_s : float
            Seconds for which each step of the call may last.

        Raises
        ------
        BrokerError
            Nobody answers, or somebody who could be another user.
        """


def find(setting: str) -> Way | None:
    """Return the way to the broker of the site; None: there is none.

    Parameters
    ----------
    setting : str
        ``auto``, ``none``, or an address.

    Raises
    ------
    InputError
        It is none of these.
    """
    if setting == leave.NONE:
        return None
    if setting == leave.AUTO:
        return Local(leave.SOCKET) if os.path.lexists(leave.SOCKET) else None
    address = read_address(setting)
    if isinstance(address, MungeAddress):
        return Remote(address)
    if isinstance(address, DropAddress):
        return Drop(address.directory)
    return Local(address.path)


def ask(way: Way, message: Ask, answer_s: float = ANSWER_S) -> Answer:
    """Ask a broker how many nodes a harvester may have; raise errors as :meth:`Way.call` does."""
    line = way.call(_line(message), answer_s)
    try:
        return msgspec.json.decode(line, type=Answer)
    except UNREADABLE as error:
        raise BrokerError(f"answers what cannot be read ({error})", where=str(way)) from None


def status(way: Way) -> dict[str, Any]:
    """Return what a broker says of itself and of whoever asks.

    Parameters
    ----------
    way : Way

    Raises
    ------
    BrokerError
        Nobody answers, or not with a status.
    """
    where = str(way)
    for left in reversed(range(TRIES)):
        try:
            document = msgspec.json.decode(way.call(_line(AskStatus()), ANSWER_S))
        except UNREADABLE as error:
            raise BrokerError(f"answers what cannot be read ({error})", where=where) from None
        if not (left and isinstance(document, dict) and document.get("refused")):
            break
        # A harvester of the same user may be asking just now.
        time.sleep(AGAIN_S)
    if not isinstance(document, dict) or "users" not in document:
        said = document if isinstance(document, dict) else {}
        why = clean(str(said.get("refused") or said.get("keep") or "no status"))[:_SAID_CHARS]
        raise BrokerError(f"refuses: {why}", where=where, do="try again in a few seconds")
    return document


def _line(message: Ask | AskStatus) -> bytes:
    return msgspec.json.encode(message) + b"\n"
