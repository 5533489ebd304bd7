"""Disk space for one small file, reserved early, so that it can be replaced on a full disk."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

SIZE = 4096
"""Number of reserved bytes: one block of most file systems."""


class Reserve:
    """Reserved disk space from which a file is replaced when the disk is full.

    Parameters
    ----------
    path : pathlib.Path
        The file; the reserve is beside it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._spare = path.with_name(f".{path.name}.spare")
        self._kept = False

    def keep(self) -> None:
        """Reserve the space, unless that is done; do nothing if there is none."""
        if self._kept:
            return
        with contextlib.suppress(OSError):
            fd = os.open(self._spare, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                # Not zeros, which some file systems store as a hole.
                self._kept = os.write(fd, os.urandom(SIZE)) == SIZE
            finally:
                os.close(fd)

    def replace(self, data: bytes) -> None:
        """Replace the file as a whole by its reserve; the old file becomes the reserve.

        Parameters
        ----------
        data : bytes
            Data, at most :data:`SIZE` bytes, padded with blanks.

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
        # The file exists at every instant, because readers take its absence for the session's end.
        os.link(self._path, old)
        self._spare.replace(self._path)
        old.replace(self._spare)
