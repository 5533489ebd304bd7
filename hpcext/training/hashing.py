"""Files whose checksum is taken while they are written."""

from __future__ import annotations

import contextlib
import hashlib
import os
from concurrent.futures import Future, ThreadPoolExecutor
from io import RawIOBase
from pathlib import Path
from typing import Any

_CHUNK_BYTES = 1 << 20
_UNHASHED_BYTES = 64 << 20


def _new() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=32)


def checksum(data: bytes) -> str:
    """BLAKE2b of 256 bits (RFC 7693), in hexadecimal."""
    digest = _new()
    digest.update(data)
    return digest.hexdigest()


def checksum_of_file(path: Path) -> str:
    """The same of a file's content."""
    digest = _new()
    with path.open("rb") as file:
        while block := file.read(_CHUNK_BYTES):
            digest.update(block)
    return digest.hexdigest()


class HashingFile(RawIOBase):
    """A new file, flushed to the disk when closed, whose checksum is taken while it is written.

    The checksum is that of the bytes handed over, not of what the disk made of them, and is
    computed in a thread of its own (hashlib and the disk both release the interpreter lock), so
    that it costs next to no time. A failed write is remembered and raised by :meth:`finish`:
    native serialisers do not all survive an exception out of ``write``.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._file = path.open("xb")
        self._hash = _new()
        self._pool = ThreadPoolExecutor(1)
        self._last: Future[None] | None = None
        self._waiting_bytes = 0
        self._error: OSError | None = None
        self.size_bytes = 0

    def writable(self) -> bool:
        """Yes."""
        return True

    def write(self, data: Any, /) -> int:
        """Write bytes, and queue them to be hashed."""
        block = data if isinstance(data, bytes) else bytes(data)
        self._last = self._pool.submit(self._hash.update, block)
        self._waiting_bytes += len(block)
        if self._waiting_bytes > _UNHASHED_BYTES:
            self._last.result()
            self._waiting_bytes = 0
        if self._error is None:
            try:
                self._file.write(block)
            except OSError as error:
                self._error = error
        self.size_bytes += len(block)
        return len(block)

    def finish(self) -> dict[str, Any]:
        """Flush, sync, close; the entry of this file for a manifest.

        Raises
        ------
        OSError
            Something could not be written.
        """
        try:
            if self._error is not None:
                raise self._error
            self._file.flush()
            os.fsync(self._file.fileno())
        finally:
            self.close()
        return {
            "name": self._path.name,
            "size": self.size_bytes,
            "blake2b": self._hash.hexdigest(),
        }

    def close(self) -> None:
        """Close the file without waiting for the disk."""
        if not self.closed:
            self._pool.shutdown(wait=True)
            # What the buffer still holds cannot be written either once a write has failed.
            with contextlib.suppress(OSError):
                self._file.close()
        super().close()
