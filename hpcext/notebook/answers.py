"""What commands say, kept to be shown in a notebook; and their errors, shown as one line."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpcext.cli.main import parse
from hpcext.cli.output import Output, Row, aligned
from hpcext.core.errors import HpcextError, refused
from hpcext.text import Harmless, clean


class Text(str):
    """A text that a notebook shows as it is, without quotes."""

    def __repr__(self) -> str:
        return str(self)


class Kept(Output):
    """Output that is kept; remarks go to stderr as ever, which a notebook shows below the cell.

    Attributes
    ----------
    lines : list of str
        What was not in a table.
    said : dict
        The document, if a command has one.
    """

    def __init__(self) -> None:
        # Not that of the base, which changes the stdout of this process.
        self._copied = Harmless()
        self.lines: list[str] = []
        self.said: dict[str, Any] = {}
        self._parts: list[str] = []

    def text(self) -> Text:
        """Return all of it."""
        return Text("".join(self._parts).rstrip("\n"))

    def line(self, text: str) -> None:
        """Keep one line."""
        self.lines.append(text)
        self._parts.append(f"{clean(text)}\n")

    def table(self, columns: Row, rows: Sequence[Row]) -> None:
        """Keep a table, as aligned columns."""
        self._parts += (f"{line}\n" for line in aligned([columns, *rows]))

    def document(self, document: Mapping[str, Any]) -> None:
        """Keep a document."""
        self.said = dict(document)

    def copy(self, data: bytes) -> None:
        """Keep some of a job's output, made safe for a terminal."""
        self._parts.append(self._copied.feed(data))

    def copy_end(self) -> None:
        """End the copy of a job's output."""
        self._parts.append(self._copied.end())


@contextlib.contextmanager
def one_line() -> Iterator[None]:
    """Have IPython show an error of ours as one line, in place of a traceback through our code."""
    try:
        try:
            yield
        except OSError as error:
            raise refused(error) from None
    except HpcextError as error:
        line = f"{type(error).__name__}: {clean(str(error))}"
        # IPython asks the exception itself; see InteractiveShell.showtraceback.
        error._render_traceback_ = lambda: [line]  # type: ignore[attr-defined]
        raise


def ask(*words: str) -> Kept:
    """Run a command of hpcext in this process, and return what it said.

    Raises
    ------
    HpcextError
        It was refused, or has failed.
    """
    args, out = parse(words), Kept()
    if status := args.run(args, out):
        error = HpcextError(out.lines[-1] if out.lines else f"exit status {status}")
        error.exit_status = status
        raise error
    return out
