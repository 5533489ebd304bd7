"""Errors of checkpoints, and their messages."""

from __future__ import annotations

import contextlib
import errno
import os
import sys


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or read; the message is one line and says what to do."""

    def __init__(self, what: str, *, where: object = "", do: str = "") -> None:
        head = f"{where}: {what}" if where else what
        super().__init__(f"{head}; {do}" if do else head)


class FencedError(CheckpointError):
    """A newer attempt of this job has begun, so this one must stop."""


def warn(text: str) -> None:
    """Print one line on standard error, if possible: the log may be on a full disk."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"hpcext: warning: {' '.join(text.split())}\n")
        sys.stderr.flush()


_REASONS = {
    errno.ENOSPC: "disk full",
    errno.EDQUOT: "quota exceeded",
    errno.EROFS: "read-only file system",
    errno.EIO: "input/output error",
    errno.EFBIG: "file too large",
    errno.EACCES: "permission denied",
    errno.ENOENT: "its directory is gone",
    errno.ENOTDIR: "its directory is gone",
    errno.ESTALE: "its directory is gone",
}


def reason(error: BaseException) -> str:
    """Return in a few words why a write failed."""
    each: BaseException | None = error
    while each is not None:
        standard = isinstance(each, OSError) and each.errno is not None
        if isinstance(each, OSError) and standard and each.errno in _REASONS:
            own = each.strerror == os.strerror(each.errno)
            if own or each.errno in {errno.ENOSPC, errno.EDQUOT}:
                return _REASONS[each.errno]
        each = each.__cause__
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())
