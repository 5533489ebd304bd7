"""Edits of the site's own files: diffs that the administrator applies, to add or remove lines."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcext.core.errors import InputError
from hpcext.textfiles import read_text


@dataclass(frozen=True)
class Edit:
    """A proposed change of a file that belongs to the site.

    Attributes
    ----------
    path : pathlib.Path
        Where the file lies now.
    before : str or None
        Its text; None if there is no such file.
    after : str
        The text that it should have.
    first : str
        What must be done before the change; empty if nothing.
    why : tuple of str
        The purpose of each line, as a sentence.
    """

    path: Path
    before: str | None
    after: str
    first: str = ""
    why: tuple[str, ...] = ()

    def diff(self) -> list[str]:
        """Return the change as the lines of a unified diff, for ``patch -p1 -d /``."""
        old = "/dev/null" if self.before is None else f"a{self.path}"
        texts = (_lines(self.before or ""), _lines(self.after))
        found = []
        for line in difflib.unified_diff(*texts, old, f"b{self.path}", n=1):
            found.append(line.removesuffix("\n"))
            if not line.endswith("\n"):
                found.append("\\ No newline at end of file")
        return found


def _lines(text: str) -> list[str]:
    """Split a text at newlines alone, as patch does; ``str.splitlines`` splits at others, too."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


class StillNamedError(InputError):
    """An error because files of the site still name what is to be removed.

    Parameters
    ----------
    edits : sequence of Edit
        The changes that remove those lines.
    do : str
        What to do after the edits.
    """

    def __init__(self, edits: Sequence[Edit], do: str) -> None:
        files = ", ".join(str(edit.path) for edit in edits)
        super().__init__(
            "still names files that would be removed", where=files, do=f"remove those lines, {do}"
        )
        self.edits = edits

    def as_json(self) -> dict[str, object]:  # type: ignore[override]
        """Return the error and the diffs as a document."""
        return {**super().as_json(), "left": as_json(self.edits)}


def as_json(edits: Sequence[Edit]) -> list[dict[str, object]]:
    """Return edits as values of a JSON document."""
    return [
        {"path": str(edit.path), "first": edit.first, "why": list(edit.why), "diff": edit.diff()}
        for edit in edits
    ]


def read(path: Path) -> str | None:
    """Return the text of a file of the site; None if there is none.

    It is only compared and shown, so it may be anybody's: slurm.conf often belongs to SlurmUser,
    and lsb.queues to the administrator of LSF.

    Raises
    ------
    InputError
        It is there, but cannot be read; what it names is unknown then.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        pass  # reading it says why
    return read_text(path)


def read_ours(path: Path) -> str | None:
    """Return the text of a file that we have installed; None if it is not root's alone."""
    try:
        return read_text(path, must_be_roots=True)
    except InputError:
        return None


def added(text: str | None, lines: Sequence[str]) -> str:
    """Return a text with lines appended.

    Parameters
    ----------
    text : str or None
        None for a file that does not exist yet.
    lines : sequence of str
        Without their newlines.
    """
    before = text or ""
    newline = "\n" if before and not before.endswith("\n") else ""
    return before + newline + "".join(f"{line}\n" for line in lines)
