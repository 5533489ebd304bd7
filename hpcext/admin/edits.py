"""What a file of the site lacks of ours, or still has of it: a diff, which the site applies."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcext.checks import read_text
from hpcext.core.errors import InputError


@dataclass(frozen=True)
class Edit:
    """A change of a file that is not ours to change.

    Attributes
    ----------
    path : pathlib.Path
        Where the file lies now.
    before : str or None
        None where there is no such file.
    after : str
    first : str
        What is to be done before; empty for nothing.
    why : tuple of str
        What the lines are for, a sentence each.
    """

    path: Path
    before: str | None
    after: str
    first: str = ""
    why: tuple[str, ...] = ()

    def diff(self) -> list[str]:
        """Lines that ``patch -p1 -d /`` takes."""
        old = "/dev/null" if self.before is None else f"a{self.path}"
        texts = (_lines(self.before or ""), _lines(self.after))
        found = []
        for line in difflib.unified_diff(*texts, old, f"b{self.path}", n=1):
            found.append(line.removesuffix("\n"))
            if not line.endswith("\n"):
                found.append("\\ No newline at end of file")
        return found


def _lines(text: str) -> list[str]:
    """Lines as patch has them, with their ends; str.splitlines knows of other ends, too."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


class StillNamedError(InputError):
    """Files of the site name what is to be removed.

    Parameters
    ----------
    edits : sequence of Edit
        What takes their lines away.
    do : str
        What comes after that.
    """

    def __init__(self, edits: Sequence[Edit], do: str) -> None:
        files = ", ".join(str(edit.path) for edit in edits)
        super().__init__(
            "still names what would be removed", where=files, do=f"take those lines away, {do}"
        )
        self.edits = edits

    def as_json(self) -> dict[str, object]:  # type: ignore[override]
        """The error, and the diffs."""
        return {**super().as_json(), "left": as_json(self.edits)}


def as_json(edits: Sequence[Edit]) -> list[dict[str, object]]:
    """For documents."""
    return [
        {
            "path": str(edit.path),
            "first": edit.first,
            "why": list(edit.why),
            "diff": edit.diff(),
        }
        for edit in edits
    ]


def read(path: Path) -> str | None:
    """A file of the site; one that cannot be read, or is not root's, is taken not to be there."""
    try:
        return read_text(path, must_be_roots=True)
    except InputError:
        return None


def added(text: str | None, lines: Sequence[str]) -> str:
    """A text with lines at its end."""
    before = text or ""
    newline = "\n" if before and not before.endswith("\n") else ""
    return before + newline + "".join(f"{line}\n" for line in lines)
