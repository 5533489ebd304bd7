"""Proofs that a peer has a key, and messages that only a peer with this key can have written.

Both sides send a number that is used once, and prove by it that they have the key, which itself is
never sent. What they say after that goes in messages that are numbered and authenticated
(HMAC-SHA256), so that nobody can change, repeat or reorder them unnoticed. They are not encrypted::

    side that listens     number
    side that connects    number, its proof
    side that listens     its proof
    either                length (4 bytes), content, proof of both; again and again

It needs only the standard library.
"""

from __future__ import annotations

import hmac
import struct
from typing import NamedTuple

NUMBER_BYTES = PROOF_BYTES = 32

LENGTH = struct.Struct("<I")
"""What is before the content of a message."""

_COUNT = struct.Struct("<Q")
_LISTENS, _CONNECTS = b"door", b"window"


class AlteredError(ConnectionError):
    """A message is not as its sender wrote it."""


class Seal:
    """One direction of a connection.

    Parameters
    ----------
    key : bytes
        Of this direction of this connection alone.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._count = 0

    def seal(self, content: bytes) -> bytes:
        """Return the next message with this content."""
        return LENGTH.pack(len(content)) + content + self._proof(content)

    def check(self, content: bytes, proof: bytes) -> None:
        """Check that the next message has this content.

        Raises
        ------
        AlteredError
            It has not.
        """
        if not hmac.compare_digest(proof, self._proof(content)):
            raise AlteredError("has brought a message that its sender did not write so")

    def _proof(self, content: bytes) -> bytes:
        number = _COUNT.pack(self._count)
        self._count += 1
        return hmac.digest(self._key, number + content, "sha256")


class Seals(NamedTuple):
    """Both directions of a connection, as one of its sides has them."""

    sends: Seal
    receives: Seal


class Handshake:
    """What two sides that have met prove to each other.

    Parameters
    ----------
    key : str
    numbers : bytes
        That of the side that listens, then that of the side that connects.
    """

    def __init__(self, key: str, numbers: bytes) -> None:
        self._key, self._numbers = key.encode(), numbers

    @property
    def of_listening(self) -> bytes:
        """The proof of the side that listens."""
        return self._made(_LISTENS)

    @property
    def of_connecting(self) -> bytes:
        """The proof of the side that connects."""
        return self._made(_CONNECTS)

    def listens(self) -> Seals:
        """Return the seals of the side that listens."""
        return Seals(self._seal(_LISTENS), self._seal(_CONNECTS))

    def connects(self) -> Seals:
        """Return the seals of the side that connects."""
        return Seals(self._seal(_CONNECTS), self._seal(_LISTENS))

    def _seal(self, who: bytes) -> Seal:
        return Seal(self._made(b"says " + who))

    def _made(self, what: bytes) -> bytes:
        return hmac.digest(self._key, what + self._numbers, "sha256")
