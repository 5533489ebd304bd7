"""The terminal application of ``hpcext top``, in Textual; ``top/view.py`` makes its text.

Pilots are read in a thread, and only cells that changed are drawn again.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual import on, work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen, Screen
from textual.widgets import DataTable, Footer, Input, RichLog, Static
from textual.widgets.data_table import ColumnKey

from hpcext.cli.top import view as top_view
from hpcext.cli.top.view import Look
from hpcext.core.errors import HpcextError
from hpcext.core.values import Job
from hpcext.executors.gpu_facts import GpuFacts, gpu_facts
from hpcext.manager.directory import host
from hpcext.manager.views.reading import Reading
from hpcext.manager.waiting import asked
from hpcext.text import clean

REFRESH_S = 2.0
LOG_S = 1.0
LOG_BYTES = 65_536
"""The number of bytes at the end of a log that are shown at first."""


class KeyedTable(DataTable[Text]):
    """A table whose rows have keys, and that draws only what has changed."""

    def __init__(self, name: str, columns: tuple[str, ...]) -> None:
        super().__init__(id=name, cursor_type="row")
        self._names = columns
        self._shown: dict[str, tuple[str, ...]] = {}

    def on_mount(self) -> None:
        """Add the columns."""
        for column in self._names:
            self.add_column(column, key=column, width=len(column))

    @property
    def chosen(self) -> str | None:
        """The key of the row under the cursor."""
        keys = list(self._shown)
        return keys[self.cursor_row] if 0 <= self.cursor_row < len(keys) else None

    def show(self, rows: top_view.Rows) -> None:
        """Show these rows; the cursor stays on its row."""
        self._fit(rows)
        if list(rows) != list(self._shown):
            at, row = self.chosen, self.cursor_row
            self._shown = dict(rows)
            self.clear()
            for key, cells in rows.items():
                self.add_row(*map(_cell, cells), key=key)
            keys = list(rows)
            self.move_cursor(row=keys.index(at) if at in keys else min(row, len(keys) - 1))
            return
        for key, cells in rows.items():
            for column, before, now in zip(self._names, self._shown[key], cells, strict=True):
                if before != now:
                    self.update_cell(key, column, _cell(now), update_width=True)
        self._shown = dict(rows)

    def _fit(self, rows: top_view.Rows) -> None:
        """Make each column as wide as the longest of its cells.

        Textual would do so once it is idle. What is drawn before that would stay too narrow, for
        drawn lines are kept until a cell changes.
        """
        for column, *cells in zip(self._names, *rows.values(), strict=True):
            self.columns[ColumnKey(column)].width = max(
                _cell(text).cell_len for text in (column, *cells)
            )


def _cell(text: str) -> Text:
    """Return text for a cell, without markup or control characters."""
    return Text(clean(text), no_wrap=True)


class Dialog(ModalScreen[bool]):
    """A dialog that shows a text, or asks a yes-or-no question.

    Parameters
    ----------
    text : str
    question : bool
        Whether the text is a question, which a key answers.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "yes"),
        Binding("n,escape,q,enter", "answer(False)", "no"),
    ]

    def __init__(self, text: str, *, question: bool = False) -> None:
        super().__init__()
        self._text = text
        self._keys = "y: yes    n: no" if question else "escape: back"

    def compose(self) -> ComposeResult:
        """Yield the box in the middle of the screen."""
        with Vertical():
            yield Static(Text(self._text))
            yield Static(Text(self._keys), classes="keys")

    def action_answer(self, yes: bool) -> None:
        """Close the dialog."""
        self.dismiss(yes)


class Logs(Screen[None]):
    """A screen with a job's output as it is written.

    Parameters
    ----------
    title : str
    path : pathlib.Path
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "app.pop_screen", "back")]

    def __init__(self, title: str, path: Path) -> None:
        super().__init__()
        self._title = title
        self._path = path
        self._at = -1

    def compose(self) -> ComposeResult:
        """Yield the title and the log."""
        yield Static(Text(self._title), id="head")
        yield RichLog(max_lines=5000, wrap=True)
        yield Footer()

    def on_mount(self) -> None:
        """Read the log now, and then at intervals."""
        self._read_more()
        self.set_interval(LOG_S, self._read_more)

    def _read_more(self) -> None:
        try:
            with self._path.open("rb") as file:
                end = file.seek(0, 2)
                if self._at < 0:
                    self._at = max(0, end - LOG_BYTES)
                file.seek(self._at)
                data = file.read(LOG_BYTES)
        except OSError:
            return
        # A partly written line is shown once it is complete, or too long to wait for its end.
        whole = data[: data.rfind(b"\n") + 1] or (data if len(data) == LOG_BYTES else b"")
        self._at += len(whole)
        log = self.query_one(RichLog)
        for line in whole.splitlines():
            log.write(Text(clean(line.decode(errors="replace"))))


class Main(Screen[None]):
    """The main screen: pilots, and the nodes and jobs of the chosen one.

    Parameters
    ----------
    look : callable
        Reads the pilots.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "ask('suspend')", "suspend"),
        Binding("r", "ask('resume')", "resume"),
        Binding("l", "logs", "logs"),
        Binding("w", "why", "why"),
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("tab", "app.focus_next", "next table", show=False),
        Binding("q", "app.quit", "quit"),
    ]

    def __init__(self, look: Look) -> None:
        super().__init__()
        self._look = look
        self._looking = False
        self._headline = ""
        self._readings: dict[str, Reading] = {}
        self._use: dict[str, GpuFacts] = {}

    def compose(self) -> ComposeResult:
        """Yield, from top to bottom, the headline and the tables of pilots, nodes and jobs."""
        yield Static("", id="head")
        yield KeyedTable("pilots", top_view.PILOTS)
        yield KeyedTable("nodes", top_view.NODES)
        yield KeyedTable("jobs", top_view.JOBS)
        yield Input(placeholder="name or state; enter: keep, escape: all", id="filter")
        yield Static("", id="said")
        yield Footer()

    def on_mount(self) -> None:
        """Read the pilots now, and then at intervals."""
        self.query_one("#jobs").focus()
        self._start_reading()
        self.set_interval(REFRESH_S, self._start_reading)

    def _start_reading(self) -> None:
        if not self._looking:
            # One reading at a time: a batch system may take long to answer.
            self._looking = True
            self._read_pilots()

    @work(thread=True)
    def _read_pilots(self) -> None:
        found, use = self._look(), {str(gpu.index): gpu for gpu in gpu_facts()}
        self.app.call_from_thread(self._show_pilots, found, use)

    def _show_pilots(self, found: list[Reading | HpcextError], use: dict[str, GpuFacts]) -> None:
        self._looking, self._use = False, use
        readings = [each for each in found if isinstance(each, Reading)]
        self._readings = {str(each.directory): each for each in readings}
        headline = top_view.headline(found)
        if headline != self._headline:
            self._headline = headline
            self.query_one("#head", Static).update(Text(clean(headline)))
        self._table("pilots").show(top_view.pilot_rows(readings))
        self._show_chosen()

    def _show_chosen(self) -> None:
        """Show the nodes and jobs of the pilot under the cursor."""
        reading = self._reading()
        if reading is None:
            self._table("nodes").show({})
            self._table("jobs").show({})
            return
        here = not reading.pilot.logical and reading.pilot.node == host()
        self._table("nodes").show(top_view.node_rows(reading, self._use if here else {}))
        wanted = self.query_one("#filter", Input).value.casefold()
        self._table("jobs").show(top_view.job_rows(reading, wanted))

    def _table(self, name: str) -> KeyedTable:
        return self.query_one(f"#{name}", KeyedTable)

    def _reading(self) -> Reading | None:
        return self._readings.get(self._table("pilots").chosen or "")

    def _job(self) -> tuple[Reading, Job] | None:
        """Return the job under the cursor, and its pilot."""
        reading, job = self._reading(), self._table("jobs").chosen
        if reading is None or job is None:
            return None
        return reading, reading.world.jobs[job]

    @on(DataTable.RowHighlighted, "#pilots")
    def _pilot_chosen(self) -> None:
        self._show_chosen()

    # What keys do.

    def action_ask(self, verb: str) -> None:
        """Suspend or resume the job, once the user has confirmed it."""
        if (found := self._job()) is None:
            return
        reading, job = found
        what = f"{verb.capitalize()} {job.name} of {reading.pilot.name}?"

        def answered(yes: bool | None) -> None:
            if yes:
                self._ask(reading.directory, verb, job.id)

        self.app.push_screen(Dialog(what, question=True), answered)

    @work(thread=True)
    def _ask(self, directory: Path, verb: str, job: str) -> None:
        try:
            said = str(asked(directory, verb, job=job)["text"])
        except HpcextError as error:
            said = str(error)
        self.app.call_from_thread(self.query_one("#said", Static).update, Text(clean(said)))

    def action_why(self) -> None:
        """Show why the job waits or runs as it does."""
        if found := self._job():
            reading, job = found
            said = top_view.why(reading, job)
            self.app.push_screen(Dialog("\n".join(map(clean, said))))

    def action_logs(self) -> None:
        """Show the job's output."""
        if found := self._job():
            reading, job = found
            path = reading.directory / "jobs" / job.id / "log.txt"
            self.app.push_screen(Logs(f"log of {job.name}", path))

    def action_filter(self) -> None:
        """Let the user type which jobs to show."""
        line = self.query_one("#filter", Input)
        line.display = True
        # Focused at once, because the next key may have been pressed already.
        self.set_focus(line)

    @on(Input.Changed, "#filter")
    def _filtered(self) -> None:
        self._show_chosen()

    @on(Input.Submitted, "#filter")
    def _keep_filter(self) -> None:
        self.query_one("#filter").display = bool(self.query_one("#filter", Input).value)
        self.query_one("#jobs").focus()

    def key_escape(self) -> None:
        """Show all jobs again."""
        line = self.query_one("#filter", Input)
        line.value, line.display = "", False
        self.query_one("#jobs").focus()


class Top(App[None]):
    """The application.

    Parameters
    ----------
    look : callable
        Reads the pilots to show.
    """

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #head { height: auto; max-height: 4; background: $panel; padding: 0 1; }
    #said { height: auto; max-height: 3; padding: 0 1; color: $text-muted; }
    #pilots, #nodes { height: auto; max-height: 6; margin-bottom: 1; }
    #jobs { height: 1fr; }
    #filter { display: none; height: 1; border: none; padding: 0 1; }
    DataTable { scrollbar-size: 1 1; }
    Dialog { align: center middle; }
    Dialog Vertical { width: 70; height: auto; border: round $primary; padding: 0 1; }
    Dialog .keys { color: $text-muted; margin-top: 1; }
    """

    def __init__(self, look: Look) -> None:
        super().__init__()
        self._look = look

    def get_default_screen(self) -> Screen[None]:
        """Return the main screen."""
        return Main(self._look)
