"""Errors that tell a person what was wrong, where, what is valid, and what to do."""

from __future__ import annotations

import errno
from collections.abc import Sequence

UNREADABLE = (ValueError, RecursionError)
"""What decoding raises for data that is not JSON, not UTF-8, or nested too deeply."""


_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_WRONG_PATH = (
    errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP,
    errno.EACCES, errno.EROFS,
)  # fmt: skip


class HpcextError(Exception):
    """The base of every error that hpcext raises on purpose.

    Parameters
    ----------
    what : str
        What was wrong, naming the value.
    where : str, optional
        File, line, key or job it came from.
    valid : str, optional
        The valid choices.
    do : str, optional
        What to do next.
    """

    exit_status = 1

    def __init__(self, what: str, *, where: str = "", valid: str = "", do: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.valid = valid
        self.do = do

    def __str__(self) -> str:
        """Return one line: ``WHERE: WHAT (valid: VALID); DO``."""
        line = f"{self.where}: {self.what}" if self.where else self.what
        if self.valid:
            line += f" (valid: {self.valid})"
        if self.do:
            line += f"; {self.do}"
        return " ".join(line.split())

    def as_json(self) -> dict[str, dict[str, str]]:
        """Return the error as a document: ``{"error": {"what", "where", "valid", "do"}}``."""
        return {
            "error": {"what": self.what, "where": self.where, "valid": self.valid, "do": self.do}
        }


class InputError(HpcextError):
    """An error for bad input: a file, a flag, a request. Nothing was done; exit status 2."""

    exit_status = 2


def refused(error: OSError, where: str = "") -> HpcextError:
    """Return our own error for an operation that the operating system refused.

    Parameters
    ----------
    error : OSError
    where : str, optional
        The path, if the error itself does not name it.

    Returns
    -------
    HpcextError
        An InputError if another path would help.
    """
    kind = InputError if error.errno in _WRONG_PATH else HpcextError
    do = "free some space and try again" if error.errno in _NO_SPACE else ""
    return kind(error.strerror or str(error), where=where or str(error.filename or ""), do=do)


class NoManagerError(HpcextError):
    """An error for a manager that does not run, or whose lock another process holds; status 3."""

    exit_status = 3


class JournalError(HpcextError):
    """An error for a journal that cannot be read or written; its contents are unchanged."""

    exit_status = 3


class BatchError(HpcextError):
    """An error for a command of the batch system that failed.

    Parameters
    ----------
    what : str
    argv : sequence of str
        The command.
    exit_code : int, optional
        None if the command was ended because it took too long.
    stdout, stderr : str
        What it printed.
    **more
        Those of :class:`HpcextError`.
    """

    def __init__(
        self,
        what: str,
        *,
        argv: Sequence[str] = (),
        exit_code: int | None = None,
        stdout: str = "",
        stderr: str = "",
        **more: str,
    ) -> None:
        super().__init__(what, **more)
        self.argv = tuple(argv)
        self.exit_code = exit_code
        self.stdout = stdout
        self.stderr = stderr
