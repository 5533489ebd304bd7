"""A command that a keeper runs for a check, and ends with it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from hpcext.doctor import keeper
from hpcext.text import clean

END_S = 4 * keeper.END_S
"""Seconds to wait for a keeper to end everything."""

_TAIL_BYTES = 4096


class Kept:
    """A command under a keeper.

    Parameters
    ----------
    command : sequence of str
        A manager of the pilot ``DIRECTORY/pilot``, or a command that SIGTERM ends with all that it
        has begun.
    directory : pathlib.Path
        It is removed at the end.
    jobs : sequence of str
        Jobs of batch systems that are cancelled at the end, as ``SYSTEM:NAME``.
    """

    def __init__(self, command: Sequence[str], directory: Path, jobs: Sequence[str] = ()) -> None:
        self._directory = directory
        words = [sys.executable, "-m", keeper.__name__, str(directory), *jobs, "--", *command]
        self._keeper = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Ctrl-C is for the check; the keeper notices its end.
            start_new_session=True,
        )

    def ended(self) -> bool:
        """Return whether the command has ended, or its keeper."""
        return (self._directory / keeper.ENDED).exists() or self._keeper.poll() is not None

    def output(self) -> list[str]:
        """Return the lines that the command has printed, to either stream."""
        try:
            return (self._directory / keeper.OUTPUT).read_text(errors="replace").splitlines()
        except OSError:
            return []

    def end(self) -> None:
        """Have the keeper end everything, and wait for it."""
        if self._keeper.stdin:
            self._keeper.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._keeper.wait(END_S)


def last_line(path: Path) -> str:
    """Return the last line of a file that another process writes; empty if there is none."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        lines = file.read().decode(errors="replace").strip().splitlines()
        return clean(lines[-1]) if lines else ""
    return ""
