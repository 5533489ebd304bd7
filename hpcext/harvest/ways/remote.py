"""The way to a broker on another host: a port, where each side proves by MUNGE who it is."""

from __future__ import annotations

import pwd
import socket

from hpcext.addresses import ACCOUNT, MungeAddress
from hpcext.harvest.leave import BrokerError
from hpcext.harvest.ways import munge
from hpcext.harvest.ways.lines import read_line
from hpcext.numerals import whole
from hpcext.text import clean

_SAID_CHARS = 200


class Remote:
    """A port of a host.

    What the other end says is believed if the account of the broker has said it, to this user, and
    to this question. Whoever listens there instead, or is in between, can do no more than be
    silent: it can neither read a question nor make an answer.

    Parameters
    ----------
    address : MungeAddress
    """

    def __init__(self, address: MungeAddress) -> None:
        self._address = address

    def __str__(self) -> str:
        """Return the address, as settings have it."""
        return str(self._address)

    def call(self, message: bytes, answer_s: float) -> bytes:
        """Send one line, and return the answer."""
        where, at = str(self), self._address
        uid = self._uid()
        question = munge.question(message)
        try:
            credential = munge.encode(question, uid, at.socket)
            with socket.create_connection((at.host, at.port), answer_s) as line:
                line.sendall(credential)
                said = read_line(line, where, most=munge.MOST_BYTES, answer_s=answer_s)
            if not munge.is_credential(said):
                raise BrokerError(
                    f"does not prove who it is, and says: {_shown(said)}", where=where
                )
            found = munge.decode(said, at.socket)
        except OSError as error:
            raise BrokerError(f"does not answer ({error.strerror or error})", where=where) from None
        except munge.MungeError as error:
            raise BrokerError(f"cannot be asked by MUNGE: {error}", where=where) from None
        if found.uid != uid:
            raise BrokerError(f"is served by uid {found.uid}, and {uid} is believed", where=where)
        answer = munge.answered(found.payload, question)
        if answer is None:
            raise BrokerError("answers another question", where=where)
        return answer

    def _uid(self) -> int:
        """Return the uid of the broker's account, which alone can read a question."""
        name = self._address.account or ACCOUNT
        number = whole(name, digits=10)
        if number is not None:
            return number
        try:
            return pwd.getpwnam(name).pw_uid
        except KeyError:
            raise BrokerError(
                f"account {clean(name)} of the broker is not known on this host",
                where=str(self),
                do="give its number: munge://UID@HOST:PORT",
            ) from None


def _shown(said: bytes) -> str:
    return clean(said.decode(errors="replace").strip())[:_SAID_CHARS]
