"""MUNGE, by its programs: who has written some bytes, as the key that all hosts share says.

A credential *contains* what is said, so that it cannot be put beside other words; one account alone
can decode it, and only for a minute. munged refuses one that it has decoded before: but the munged
of each host for itself, and not over its own restart. So a question has a number that nobody can
guess, and its answer repeats the whole question's checksum.

The programs are called, and not libmunge: one that hangs can be killed, and they are wherever
munged is.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import subprocess
from collections.abc import Sequence
from typing import Final, NamedTuple

from hpcext.core.errors import HpcextError
from hpcext.numerals import whole
from hpcext.text import clean

TTL_S = 60
"""Seconds for which a credential holds: so much may the clocks of two hosts differ, too."""

PROGRAM_S = 5.0
"""Seconds in which a program must have ended."""

MOST_BYTES = 1 << 20
"""The longest credential that munged takes (MUNGE_MAXIMUM_REQ_LEN)."""

QUESTION: Final = b"hpcext.broker-question/1"
ANSWER: Final = b"hpcext.broker-answer/1"

REFUSALS = {
    15: "the credential has expired: the clocks of the two hosts differ by more than "
    f"{TTL_S} s, or it was on its way for so long",
    16: "the credential is of a time to come: the clocks of the two hosts differ",
    17: "the credential was decoded before",
    18: "the credential is for another account",
}
"""What munged says of a credential by its number (munge_enum(3)) that its sender can mend."""

_CREDENTIAL = re.compile(rb"MUNGE:[A-Za-z0-9+/=]+:\r?\n?\Z")
_FACT = re.compile(rb"([A-Z_]{1,32}):[ ]+([0-9]{1,10})\Z")

_SAID_CHARS = 200


class MungeError(HpcextError):
    """The error that something cannot be encoded, or is not believed."""


class Said(NamedTuple):
    """What somebody has proved to have said.

    Attributes
    ----------
    uid : int
    payload : bytes
    """

    uid: int
    payload: bytes


def encoder(uid: int, socket: str) -> tuple[str, ...]:
    """Return the command that makes a credential of its input.

    Parameters
    ----------
    uid : int
        Who alone can decode it.
    socket : str
        Of munged; empty: the usual one.
    """
    return ("munge", f"--restrict-uid={uid}", f"--ttl={TTL_S}", *_at(socket))


def decoder(socket: str) -> tuple[str, ...]:
    """Return the command that decodes the credential that is its input."""
    return ("unmunge", "--numeric", "--keys=STATUS,UID,LENGTH", *_at(socket))


def _at(socket: str) -> tuple[str, ...]:
    return (f"--socket={socket}",) if socket else ()


def is_credential(line: bytes) -> bool:
    """Return whether a line looks like a credential; only munged knows whether it is one."""
    return len(line) <= MOST_BYTES and _CREDENTIAL.match(line) is not None


def encoded(code: int, said: bytes, complaint: bytes) -> bytes:
    """Return the line that a command of :func:`encoder` has made.

    Parameters
    ----------
    code : int
        Its exit status.
    said, complaint : bytes
        What it printed.

    Raises
    ------
    MungeError
        It has failed.
    """
    if code or not is_credential(said):
        raise MungeError(_complaint("munge", code, complaint))
    return said.rstrip() + b"\n"


def parse_decoded(code: int, said: bytes, complaint: bytes = b"") -> Said:
    """Read what a command of :func:`decoder` has printed.

    Parameters
    ----------
    code : int
        Its exit status.
    said, complaint : bytes
        What it printed.

    Raises
    ------
    MungeError
        The credential is not valid, or not for us, or not for the first time here.
    """
    if code:
        raise MungeError(REFUSALS.get(code) or _complaint("unmunge", code, complaint))
    head, _, payload = said.partition(b"\n\n")
    facts = {}
    for line in head.split(b"\n"):
        if found := _FACT.match(line):
            facts[found[1]] = whole(found[2].decode("ascii"))
    uid = facts.get(b"UID")
    if uid is None or facts.get(b"STATUS") != 0 or facts.get(b"LENGTH") != len(payload):
        raise MungeError("unmunge printed something else than a credential's content")
    return Said(uid, payload)


def _complaint(name: str, code: int, complaint: bytes) -> str:
    said = clean(complaint.decode(errors="replace").strip())[:_SAID_CHARS]
    return f"{name} failed: {said or f'exit status {code}'}"


# What is in a credential.


def question(message: bytes) -> bytes:
    """Return what a credential contains that asks a broker something.

    Parameters
    ----------
    message : bytes
        One line.
    """
    return b"\n".join((QUESTION, secrets.token_hex(16).encode(), message))


def asked(payload: bytes) -> bytes | None:
    """Return the line that a question asks; None: the credential is for something else."""
    kind, _, rest = payload.partition(b"\n")
    number, _, message = rest.partition(b"\n")
    return message if kind == QUESTION and number and message else None


def answer(payload: bytes, line: bytes) -> bytes:
    """Return what a credential contains that answers one question, and no other.

    Parameters
    ----------
    payload : bytes
        Of the question.
    line : bytes
    """
    return b"\n".join((ANSWER, _checksum(payload), line))


def answered(payload: bytes, question: bytes) -> bytes | None:
    """Return the line that answers a question; None: it answers another one, or none.

    Parameters
    ----------
    payload : bytes
        Of the answer.
    question : bytes
        Payload of the question.
    """
    kind, _, rest = payload.partition(b"\n")
    checksum, _, line = rest.partition(b"\n")
    return line if kind == ANSWER and checksum == _checksum(question) and line else None


def _checksum(payload: bytes) -> bytes:
    return hashlib.sha256(payload).hexdigest().encode()


# Calls of the side that asks.


def encode(payload: bytes, uid: int, socket: str) -> bytes:
    """Make a credential of this user that one account can decode; one line.

    Parameters
    ----------
    payload : bytes
    uid : int
    socket : str
        Of munged; empty: the usual one.

    Raises
    ------
    MungeError
        munged does not answer, or munge is not there.
    """
    return encoded(*_run(encoder(uid, socket), payload))


def decode(line: bytes, socket: str) -> Said:
    """Return what a credential says, and who has made it; raise errors as :func:`encode` does."""
    if not is_credential(line):
        raise MungeError("it is no credential")
    return parse_decoded(*_run(decoder(socket), line))


def _run(argv: Sequence[str], data: bytes) -> tuple[int, bytes, bytes]:
    try:
        done = subprocess.run(argv, input=data, capture_output=True, timeout=PROGRAM_S, check=False)
    except subprocess.TimeoutExpired:
        raise MungeError(f"{argv[0]} has not ended in {PROGRAM_S:.0f} s") from None
    except OSError as error:
        raise MungeError(f"{argv[0]} cannot be run ({error.strerror})") from None
    return done.returncode, done.stdout, done.stderr
