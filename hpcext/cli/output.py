"""The only module that prints: text for people, JSON for programs, or nothing but errors."""

from __future__ import annotations

import contextlib
import datetime
import io
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

from hpcext.core.errors import HpcextError
from hpcext.text import Harmless, clean, columns, padded

if TYPE_CHECKING:
    from rich.console import Console, OverflowMethod
    from rich.live import Live
    from rich.table import Table

__all__ = ["JsonOutput", "LogOutput", "Output", "QuietOutput", "clean", "make"]

Row = Sequence[str]
Tell = Callable[[str], None]

OTHER_LINES = 4
"""Of a screen: headings, the line above them, the cursor's, and one that stays from before."""


class Output:
    """Text: tables by rich on a terminal, aligned columns elsewhere.

    Whatever is given to it is made safe for a terminal (:func:`hpcext.text.clean`), so that a
    job's name or message cannot move the cursor; :meth:`raw` alone passes bytes on as they are, and
    :meth:`copy` where no terminal is.
    """

    def __init__(self) -> None:
        self._live: Console | None = None
        self._copied = Harmless()
        for stream in (sys.stdout, sys.stderr):
            # A character that the locale cannot show is no reason to fail.
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")

    def line(self, text: str) -> None:
        """Print one line."""
        if self._live:
            self._live.print(clean(text), markup=False, highlight=False, soft_wrap=True)
        else:
            # Flushed, because whoever reads a pipe wants to see a long run as it goes.
            print(clean(text), flush=True)

    def event(self, at_s: float, job: str | None, event: str, text: str) -> None:
        """Say what happened to a job, so many seconds after its pilot began.

        Parameters
        ----------
        at_s : float
        job : str or None
            None where the text says of how many it is.
        event : str
            In one word; not said to a person.
        text : str
        """
        self.line(f"[{at_s:8.1f} s] {text if job is None else f'{job}: {text}'}")

    def note(self, text: str) -> None:
        """Print a remark beside the result, on stderr."""
        print(f"hpcext: {clean(text)}", file=sys.stderr, flush=True)

    def asks(self, question: str) -> bool | None:
        """Ask whoever sits at the terminal; None where nobody does."""
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            return None
        print(f"{clean(question)} [y/N] ", end="", flush=True)
        return sys.stdin.readline().strip().casefold() in {"y", "yes"}

    def table(self, columns: Row, rows: Sequence[Row]) -> None:
        """Print a table; every row has as many cells as there are columns."""
        if sys.stdout.isatty():
            _console().print(_rich_table(columns, rows))
            return
        for text in _aligned([columns, *rows]):
            print(text)
        sys.stdout.flush()

    @contextlib.contextmanager
    def live(self, columns: Row) -> Iterator[Screen | None]:
        """A table that is redrawn in place.

        Yields
        ------
        Screen or None
            None where there is no terminal to redraw: print lines instead.
        """
        if not sys.stdout.isatty():
            yield None
            return
        from rich.live import Live  # noqa: PLC0415  (slow to import, and only used here)

        console = _console()
        # No thread that redraws four times a second: rows change when something happens.
        with Live(console=console, auto_refresh=False) as shown:
            self._live = console
            try:
                yield Screen(columns, shown)
            finally:
                self._live = None

    @contextlib.contextmanager
    def progress(self, total: int) -> Iterator[Tell]:
        """How far a long command is: a bar on a terminal, a remark each time elsewhere.

        Parameters
        ----------
        total : int
            Parts that there are.

        Yields
        ------
        callable
            Says that one more is done, and which one.
        """
        if not sys.stderr.isatty():
            done = itertools.count(1)
            if total < 2:
                yield lambda _: None
                return
            yield lambda text: self.note(f"{next(done)} of {total}: {text}")
            return
        from rich import progress  # noqa: PLC0415  (slow to import, and only used here)

        columns = (
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TextColumn("{task.description}", markup=False),
        )
        # On stderr, as remarks are: the result may go to a file.
        with progress.Progress(
            *columns, console=_console(sys.stderr), refresh_per_second=2, transient=True
        ) as bar:
            task = bar.add_task("", total=total)
            yield lambda text: bar.update(task, advance=1, description=clean(text), refresh=True)

    def document(self, document: Mapping[str, Any]) -> None:
        """Print one JSON document."""
        # msgspec writes NaN and infinity as null, json escapes every control character.
        plain = json.loads(msgspec.json.encode(document))
        print(json.dumps(plain, indent=2), flush=True)

    def diff(self, lines: Sequence[str]) -> None:
        """Print lines that another program may read: tabs stay as they are."""
        for line in lines:
            print("\t".join(clean(part) for part in line.split("\t")), flush=True)

    def raw(self, data: bytes) -> None:
        """Pass bytes on as they are."""
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    def copy(self, data: bytes) -> None:
        """Copy some of what a job wrote: as it is, or made harmless for a terminal."""
        if sys.stdout.isatty():
            print(self._copied.feed(data), end="", flush=True)
        else:
            self.raw(data)

    def copy_end(self) -> None:
        """Nothing more is copied."""
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
        """How many rows have room on it, as large as it is now."""
        return self._live.console.size.height - OTHER_LINES

    def show(self, rows: Sequence[Row], above: str) -> None:
        """Show these, each on one line."""
        from rich.console import Group  # noqa: PLC0415  (slow to import, and only used here)
        from rich.text import Text  # noqa: PLC0415

        line = Text(clean(above), overflow="ellipsis", no_wrap=True)
        table = _rich_table(self._columns, rows, overflow="ellipsis")
        self._live.update(Group(line, table), refresh=True)


class JsonOutput(Output):
    """One JSON document on stdout, also for an error; remarks on stderr."""

    def asks(self, question: str) -> bool | None:
        """Nobody: the document is for a program."""
        return None

    def line(self, text: str) -> None:
        """Nothing: the document says it."""

    def table(self, columns: Row, rows: Sequence[Row]) -> None:
        """Nothing: the document says it."""

    def diff(self, lines: Sequence[str]) -> None:
        """Nothing: the document says it."""

    @contextlib.contextmanager
    def live(self, columns: Row) -> Iterator[Screen | None]:
        """Nothing to redraw."""
        yield None

    def error(self, error: HpcextError) -> None:
        """Print the error as a document."""
        self.document(error.as_json())


class LogOutput(Output):
    """A JSON object a line, for programs that collect logs; tables are left out.

    Attributes
    ----------
    pilot : str
        Whose log it is.
    """

    pilot = ""

    def line(self, text: str) -> None:
        """Print it as an entry."""
        self._entry("info", text)

    def event(self, at_s: float, job: str | None, event: str, text: str) -> None:
        """Print it as an entry."""
        self._entry(event, text, job)

    def note(self, text: str) -> None:
        """Print it as an entry."""
        self._entry("note", text)

    def table(self, columns: Row, rows: Sequence[Row]) -> None:
        """Nothing: what is in it was said when it happened."""

    @contextlib.contextmanager
    def live(self, columns: Row) -> Iterator[Screen | None]:
        """Nothing to redraw."""
        yield None

    def _entry(self, event: str, text: str, job: str | None = None) -> None:
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
        entry = {"time": now, "pilot": self.pilot, "job": job, "event": event, "text": text}
        print(json.dumps(entry), flush=True)

    def error(self, error: HpcextError) -> None:
        """Print it as an entry."""
        self._entry("error", str(error))


class QuietOutput(JsonOutput):
    """Errors alone, and what a command was asked to copy out."""

    def note(self, text: str) -> None:
        """Nothing."""

    @contextlib.contextmanager
    def progress(self, total: int) -> Iterator[Tell]:
        """Nothing."""
        yield lambda _: None

    def document(self, document: Mapping[str, Any]) -> None:
        """Nothing."""

    def error(self, error: HpcextError) -> None:
        """Print one line on stderr."""
        print(f"hpcext: {clean(str(error))}", file=sys.stderr, flush=True)


def make(*, as_json: bool, quiet: bool, as_log: bool = False) -> Output:
    """The output that a command line asks for; a document is worth more than silence."""
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
        # Text, so that nothing in a cell is taken for markup.
        table.add_row(*(Text(clean(cell)) for cell in row))
    return table


def _aligned(rows: Sequence[Row]) -> Iterator[str]:
    cleaned = [[clean(cell) for cell in row] for row in rows]
    widths = [max(map(columns, column)) for column in zip(*cleaned, strict=True)]
    for row in cleaned:
        cells = (padded(cell, width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()
