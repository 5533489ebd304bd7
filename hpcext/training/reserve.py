"""Room for one small file, taken while there is some: it can be replaced on a full disk too."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

SIZE = 4096
"""Of the room: a block of most file systems."""


class Reserve:
    """What a file is replaced from when no other room is left.

    Parameters
    ----------
    path : pathlib.Path
        The file; the room is beside it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._spare = path.with_name(f".{path.name}.spare")
        self._kept = False

    def keep(self) -> None:
        """Take the room, unless it is taken; if there is none, nothing happens."""
        if self._kept:
            return
        with contextlib.suppress(OSError):
            fd = os.open(self._spare, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                # Not zeros, of which some file systems make a hole.
                self._kept = os.write(fd, os.urandom(SIZE)) == SIZE
            finally:
                os.close(fd)

    def replace(self, data: bytes) -> None:
        """Replace the file as a whole, by what was its room; its own becomes the room.

        Parameters
        ----------
        data : bytes
            At most :data:`SIZE`; filled up with blanks.

        Raises
        ------
        OSError
            Nothing was replaced.
        """
        if len(data) > SIZE:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(self._path))
        fd = os.open(self._spare, os.O_WRONLY | os.O_CLOEXEC)
        try:
            if os.pwrite(fd, data.ljust(SIZE), 0) != SIZE:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        finally:
            os.close(fd)
        old = self._spare.with_suffix(".old")
        old.unlink(missing_ok=True)
        # At no instant is there no file: whoever looks would take the session for gone.
        os.link(self._path, old)
        self._spare.replace(self._path)
        old.replace(self._spare)
