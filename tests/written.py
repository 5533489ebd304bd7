"""What other processes have written so far."""

from __future__ import annotations

from pathlib import Path


def whole_lines(path: Path) -> list[str]:
    """The lines of a file that is being written, without one whose end is not there yet.

    None if there is no file.
    """
    try:
        text = path.read_text()
    except FileNotFoundError:
        return []
    return text.split("\n")[:-1]
