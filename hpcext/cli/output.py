"""The output of commands, and the only module that prints: as text, as JSON, or errors alone."""

from __future__ import annotations

import contextlib
import datetime
import io
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

from hpcext import documents
from hpcext.core.errors import HpcextError, refused
from hpcext.text import Harmless, clean, columns, padded

if TYPE_CHECKING:
    from rich.console import Console, OverflowMethod
    from rich.live import Live
    from rich.table import Table

__all__ = ["JsonOutput", "LogOutput", "Output", "QuietOutput", "clean", "make", "write_file"]

Row = Sequence[str]
Tell = Callable[[str], None]

OTHER_LINES = 4
"""Lines of the screen that hold no rows: headings, the line above, the cursor, and one to spare."""


class Output:
    """Output as text: tables by rich on a terminal, aligned columns elsewhere.

    All text is made safe for a terminal (:func:`hpcext.text.clean`), so that a job's name or
    message cannot move the cursor. Only :meth:`raw` passes bytes on as they are, and so does
    :meth:`copy` if stdout is not a terminal.
    """

    def __init__(self) -> None:
        self._live: Console | None = None
        self._copied = Harmless()
        for stream in (sys.stdout, sys.stderr):
            # Do not fail because of a character that the locale cannot show.
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")

    def line(self, text: str) -> None:
        """Print one line."""
        if self._live:
            self._live.print(clean(text), markup=False, highlight=False, soft_wrap=True)
        else:
            # Flushed, so that the reader of a pipe can follow a long run.
            print(clean(text), flush=True)

    def event(self, at_s: float, job: str | None, event: str, text: str) -> None:
        """Print what happened to a job.

        Parameters
        ----------
        at_s : float
            Seconds since the pilot began.
        job : str or None
            None if the text is about several jobs.
        event : str
            One word for the kind of event; only the log in JSON has it.
        text : str
        """
        self.line(f"[{at_s:8.1f} s] {text if job is None else f'{job}: {text}'}")

    def note(self, text: str) -> None:
        """Print a remark beside the result, on stderr."""
        print(f"hpcext: {clean(text)}", file=sys.stderr, flush=True)

    def confirm(self, question: str) -> bool | None:
        """Ask a yes-or-no question on the terminal; return None if there is no terminal."""
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            return None
        print(f"{clean(question)} [y/N] ", end="", flush=True)
        return sys.stdin.readline().strip().casefold() in {"y", "yes"}

    def table(self, columns: Row, rows: Sequence[Row]) -> None:
        """Print a table.

        Parameters
        ----------
        columns : Row
            The headings.
        rows : sequence of Row
            Each has as many cells as there are columns.
        """
        if sys.stdout.isatty():
            _console().print(_rich_table(columns, rows))
            return
        for text in aligned([columns, *rows]):
            print(text)
        sys.stdout.flush()

    @contextlib.contextmanager
    def live(self, columns: Row) -> Iterator[Screen | None]:
        """Begin a table that is redrawn in place.

        Yields
        ------
        Screen or None
            None if there is no terminal to redraw: print lines instead.
        """
        if not sys.stdout.isatty():
            yield None
            return
        from rich.live import Live  # noqa: PLC0415  (slow to import, and only used here)

        console = _console()
        # Without the thread that redraws four times a second: rows change only on events.
        shown = Live(console=console, auto_refresh=False)
        shown.start()
        self._live = console
        try:
            yield Screen(columns, shown)
        finally:
            self._live = None
            # The terminal may be gone.
            with contextlib.suppress(OSError):
                shown.stop()

    @contextlib.contextmanager
    def progress(self, total: int, within: Callable[[], float] = lambda: 0.0) -> Iterator[Tell]:
        """Show the progress of a long command: a bar on a terminal, else a remark for each part.

        Parameters
        ----------
        total : int
            The number of parts.
        within : callable
            Returns how much is done of the parts that are not done yet, in parts. A bar asks for it
            twice a second, from another thread.

        Yields
        ------
        callable
            To be called with a description of each part that is done.
        """
        if not sys.stderr.isatty():
            done = itertools.count(1)
            if total < 2:
                yield lambda _: None
                return
            yield lambda text: self.note(f"{next(done)} of {total}: {text}")
            return
        from hpcext.cli.bar import bar  # noqa: PLC0415  (slow to import, and only used here)

        # On stderr, like remarks, because the result may go to a file.
        with bar(_console(sys.stderr), total, within) as tell:
            yield tell

    def document(self, document: Mapping[str, Any]) -> None:
        """Print one JSON document."""
        # msgspec writes NaN and infinity as null, json escapes every control character.
        plain = json.loads(msgspec.json.encode(document))
        print(json.dumps(plain, indent=2), flush=True)

    def diff(self, lines: Sequence[str]) -> None:
        """Print lines that ``patch`` can read: made safe for a terminal, except for tabs."""
        for line in lines:
            print("\t".join(clean(part) for part in line.split("\t")), flush=True)

    def raw(self, data: bytes) -> None:
        """Write bytes as they are."""
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    def copy(self, data: bytes) -> None:
        """Copy some of a job's output: unchanged, or made safe if stdout is a terminal."""
        if sys.stdout.isatty():
            print(self._copied.feed(data), end="", flush=True)
        else:
            self.raw(data)

    def copy_end(self) -> None:
        """End the copy of a job's output."""
        if sys.stdout.isatty():
            print(self._copied.end(), end="", flush=True)

    def error(self, error: HpcextError) -> None:
        """Print one line on stderr."""
        self.note(str(error))


class Screen:
    """A table on a terminal that is redrawn in place, and a line above it.

    Parameters
    ----------
    columns : sequence of str
    live : rich.live.Live
    """

    def __init__(self, columns: Row, live: Live) -> None:
        self._columns, self._live = columns, live

    def lines(self) -> int:
        """Return how many rows fit on the screen at its present size."""
        return self._live.console.size.height - OTHER_LINES

    def show(self, rows: Sequence[Row], above: str) -> None:
        """Show these rows, each on one line.

        Parameters
        ----------
        rows : sequence of Row
        above : str
            The line above them.
        """
        from rich.console import Group  # noqa: PLC0415  (slow to import, and only used here)
        from rich.text import Text  # noqa: PLC0415

        line = Text(clean(above), overflow="ellipsis", no_wrap=True)
        table = _rich_table(self._columns, rows, overflow="ellipsis")
        self._live.update(Group(line, table), refresh=True)


class JsonOutput(Output):
    """Output as one JSON document on stdout, also for an error; remarks go to stderr."""

    def confirm(self, question: str) -> bool | None:
        """Return None: the reader of a document is a program."""
        return None

    def line(self, text: str) -> None:
        """Print nothing: the document says it."""

    def table(self, columns: Row, rows: Sequence[Row]) -> None:
        """Print nothing: the document says it."""

    def diff(self, lines: Sequence[str]) -> None:
        """Print nothing: the document says it."""

    @contextlib.contextmanager
    def live(self, columns: Row) -> Iterator[Screen | None]:
        """Yield None: there is nothing to redraw."""
        yield None

    def error(self, error: HpcextError) -> None:
        """Print the error as a document."""
        self.document(error.as_json())


class LogOutput(Output):
    """Output as one JSON object per line, for programs that collect logs; tables are left out.

    Attributes
    ----------
    pilot : str
        The id of the pilot whose log it is.
    """

    pilot = ""

    def line(self, text: str) -> None:
        """Print the text as an entry."""
        self._entry("info", text)

    def event(self, at_s: float, job: str | None, event: str, text: str) -> None:
        """Print the event as an entry."""
        self._entry(event, text, job)

    def note(self, text: str) -> None:
        """Print the remark as an entry."""
        self._entry("note", text)

    def table(self, columns: Row, rows: Sequence[Row]) -> None:
        """Print nothing: each row was an entry when it happened."""

    @contextlib.contextmanager
    def live(self, columns: Row) -> Iterator[Screen | None]:
        """Yield None: there is nothing to redraw."""
        yield None

    def _entry(self, event: str, text: str, job: str | None = None) -> None:
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
        entry = {"time": now, "pilot": self.pilot, "job": job, "event": event, "text": text}
        print(json.dumps(entry), flush=True)

    def error(self, error: HpcextError) -> None:
        """Print the error as an entry."""
        self._entry("error", str(error))


class QuietOutput(JsonOutput):
    """Output of errors alone, and of data that a command copies, such as a log."""

    def note(self, text: str) -> None:
        """Print nothing."""

    @contextlib.contextmanager
    def progress(self, total: int, within: Callable[[], float] = lambda: 0.0) -> Iterator[Tell]:
        """Show nothing."""
        yield lambda _: None

    def document(self, document: Mapping[str, Any]) -> None:
        """Print nothing."""

    def error(self, error: HpcextError) -> None:
        """Print one line on stderr."""
        print(f"hpcext: {clean(str(error))}", file=sys.stderr, flush=True)


def write_file(path: Path, data: bytes) -> None:
    """Write the output of a command to a file that others may read.

    Parameters
    ----------
    path : pathlib.Path
    data : bytes

    Raises
    ------
    InputError
        The file cannot be written.
    HpcextError
        There is no space left.
    """
    try:
        documents.write_file(path, data, mode=0o644)
    except OSError as error:
        raise refused(error, str(path)) from None


def make(*, as_json: bool, quiet: bool, as_log: bool = False) -> Output:
    """Return the output that a command line asks for; JSON takes precedence over quiet.

    Parameters
    ----------
    as_json : bool
        Whether ``--json`` is given.
    quiet : bool
        Whether ``--quiet`` is given.
    as_log : bool
        Whether ``--log-format json`` is given.
    """
    if as_json:
        return JsonOutput()
    if quiet:
        return QuietOutput()
    return LogOutput() if as_log else Output()


def _console(file: TextIO | None = None) -> Console:
    from rich.console import Console  # noqa: PLC0415  (slow to import, unused on a pipe)

    return Console(file=file or sys.stdout, highlight=False, markup=False, emoji=False)


def _rich_table(columns: Row, rows: Sequence[Row], *, overflow: OverflowMethod = "fold") -> Table:
    from rich.table import Table  # noqa: PLC0415  (slow to import, unused on a pipe)
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        no_wrap = overflow != "fold"
        table.add_column(Text(clean(column)), overflow=overflow, no_wrap=no_wrap)
    for row in rows:
        # As Text, so that rich takes nothing in a cell for markup.
        table.add_row(*(Text(clean(cell)) for cell in row))
    return table


def aligned(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of a table as plain text; its rows have as many cells as the first one."""
    cleaned = [[clean(cell) for cell in row] for row in rows]
    widths = [max(map(columns, column)) for column in zip(*cleaned, strict=True)]
    for row in cleaned:
        cells = (padded(cell, width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()
