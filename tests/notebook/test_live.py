"""What a notebook shows of a pilot: harmless HTML, in a cell that is kept up to date."""

from __future__ import annotations

import html.parser
import json
import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import Chromium
from msgspec.structs import replace
from pilot_views import HOSTILE, busy, job, reading
from site_of_test import Site, wait_for

from hpcext.core.errors import HpcextError
from hpcext.core.values import Record, Role, Segment, State
from hpcext.dashboard import page
from hpcext.manager.views.reading import Reading
from hpcext.notebook import Pilot, live
from hpcext.notebook.live import Look, View

LOADS = "<img src=x onerror=\"window.ran = 'yes'\"><svg onload=\"window.ran = 'yes'\">"
"""What would run in a page even when it is put there by a script, as notebooks do it."""


LATER = """new Promise(done => {
    const image = new Image(); image.onerror = done; image.src = "none-later";
})"""
"""When an image that is asked for now is known not to be there, as those before it are."""


class Shape(html.parser.HTMLParser):
    """Elements with their attributes, text, and the rows of the table."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in {"th", "td"}:
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data
        if {"th", "td"}.intersection(self.open):
            self.rows[-1][-1] += data


class OneReading:
    """In the place of a follower: always the same."""

    def __init__(self, found: Reading | HpcextError) -> None:
        self._found = found

    def begun(self) -> bool:
        return True

    def read(self) -> Reading:
        if isinstance(self._found, HpcextError):
            raise self._found
        return self._found


def look(found: Reading | HpcextError) -> Look:
    view = View(Path("/nowhere"))
    view._follower = OneReading(found)  # type: ignore[assignment]
    return view.look()


def hostile(text: str) -> Reading:
    """A pilot in which all that comes from jobs is this text."""
    ran = Segment(0.0, (f"{text}:0",), Role.PRIMARY)
    record = Record(segments=(ran,), metrics={text: 1.0}, notes=(text,))
    running = replace(job("1", State.RUNNING, gpus=(f"{text}:0",), why=text), name=text)
    failed = replace(job("2", State.FAILED, why=text), name=text)
    found = reading((running, record), (failed, Record()), name="night")
    return replace(found, pilot=replace(found.pilot, name=text, id=text))


def test_jobs_are_a_table_and_gpus_a_timeline() -> None:
    shape = Shape(look(busy()).html)
    rows = {row[0].split()[-1]: row[1:] for row in shape.rows}
    assert rows["Job"][:2] == ["State", "Role"]
    assert rows["job-1"][:4] == ["running", "primary", "1", " 50% step 40"]
    assert rows["job-3"][0] == "pending"
    assert rows["job-4"][0] == "completed"
    titles = [tag for tag, _ in shape.found if tag == "title"]
    assert len(titles) == 5
    assert "3 of 4 GPUs held" in shape.text


@pytest.mark.parametrize("text", [HOSTILE, LOADS, '"><script>x</script>', "</style><script>"])
def test_nothing_that_jobs_say_is_more_than_text(text: str) -> None:
    seen = look(hostile(text))
    shape = Shape(seen.html)
    assert {tag for tag, _ in shape.found} <= {
        "div", "style", "svg", "defs", "pattern", "rect", "header", "h1", "p", "span", "table",
        "caption", "thead", "tr", "th", "tbody", "td", "ul", "li", "b", "line", "title", "text",
        "progress",
    }  # fmt: skip
    names = {name for _, attributes in shape.found for name in attributes}
    assert not {name for name in names if name.startswith("on") or name in {"href", "src"}}
    assert shape.text.count(text.replace("\u202e", "\\u202e")) >= 5
    assert "\u202e" not in seen.html + seen.text
    # No mathematics either, which notebooks look for in HTML.
    assert "tex2jax_ignore mathjax_ignore" in (shape.found[0][1]["class"] or "")


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    started = Chromium(tmp_path_factory.mktemp("chromium"))
    yield started
    started.close()


def test_a_browser_runs_nothing_of_it_and_its_style_stays_inside(
    chromium: Chromium, tmp_path: Path
) -> None:
    path = tmp_path / "page.html"
    path.write_text(
        f'<!DOCTYPE html><body data-jp-theme-light="false"><h1 id="mine">A</h1><table><tr><td>1'
        "</table><style>.jp td { text-align: right } .jp table { color: black }</style>"
        f"<div id=cell class=jp></div><template>{look(hostile(LOADS)).html}</template>"
    )
    chromium.open(path.as_uri())
    colour = "getComputedStyle(document.querySelector('{}')).{}"
    before = chromium.value(colour.format("#mine", "color"))
    # As a notebook does it.
    chromium.value(
        "document.querySelector('#cell').innerHTML = document.querySelector('template').innerHTML"
    )
    chromium.value(LATER)
    assert chromium.value("window.ran") is None
    assert chromium.value(colour.format("#mine", "color")) == before
    assert chromium.value(colour.format("body > table td", "borderBottomStyle")) == "none"
    assert chromium.value(colour.format(".hpcext td", "borderBottomStyle")) == "solid"
    # Other styles of the page do not reach into it.
    assert chromium.value(colour.format(".hpcext td", "textAlign")) == "left"
    assert chromium.value(colour.format(".hpcext td", "color")) == "rgb(232, 234, 238)"
    # The dark theme of JupyterLab.
    assert chromium.value(colour.format(".hpcext", "backgroundColor")) == "rgb(20, 23, 28)"
    assert chromium.value(colour.format(".hpcext .lane rect.c0", "fill")) == "rgb(0, 114, 178)"
    # The same as it is would have run.
    chromium.value(f"document.querySelector('#cell').innerHTML = {json.dumps(LOADS)}")
    chromium.value(LATER)
    assert chromium.value("window.ran") == "yes"


def test_of_many_jobs_some_are_shown() -> None:
    jobs = [(job(str(number), State.COMPLETED), Record()) for number in range(1, 1001)]
    seen = look(reading(*jobs, (job("1001", State.RUNNING), Record())))
    assert len(seen.text.splitlines()) == 2 + live.MOST_JOBS + 1
    assert "job-1001" in seen.text
    assert seen.text.endswith(f"{1001 - live.MOST_JOBS} more; hpcext status shows all")
    shape = Shape(seen.html)
    assert len(shape.rows) == 1 + page.MOST_IN_EXCERPT
    assert f"{1001 - page.MOST_IN_EXCERPT} more; hpcext status shows all" in shape.text
    failed = [(job(str(number), State.FAILED, why="x"), Record()) for number in range(1, 101)]
    assert "1 more line: hpcext status" in Shape(look(reading(*failed)).html).text


def test_an_error_is_shown_in_its_place() -> None:
    seen = look(HpcextError("is damaged", where=f"{HOSTILE}\x1b[2J"))
    assert "is damaged" in Shape(seen.html).text
    assert "\x1b" not in seen.text
    assert seen.rest_s == math.inf


class Cell:
    """A stand-in for IPython's handle of an output, which `update`\\ s it with a bundle."""

    def __init__(self) -> None:
        self.seen: list[dict[str, str]] = []

    def update(self, obj: Any, *, raw: bool) -> None:
        assert raw
        assert set(obj) == {"text/plain", "text/html"}
        self.seen.append(obj)

    def shows(self, text: str) -> bool:
        return bool(self.seen) and text in Shape(self.seen[-1]["text/html"]).text


def begin(view: View, cell: Any, wanted: Any = lambda: True) -> threading.Thread:
    thread = threading.Thread(target=view.follow, args=(cell, view.look(), wanted), daemon=True)
    thread.start()
    return thread


def test_a_cell_follows_a_pilot_to_its_end(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "UPDATE_S", 0.1)
    folder = here.path / "<img src=x onerror=alert(1)>"
    hostile = {"name": "<img src=x onerror=alert(2)>", "command": ["false"], "retries": 0}
    here.write_jobs(here.counter("a", gated=True), hostile)
    pilot = Pilot("jobs.toml", gpus=1, dir=folder)
    cell = Cell()
    thread = begin(View(pilot.directory), cell)
    wait_for(lambda: cell.shows("step "), "a step in the cell")
    assert cell.shows("managed")
    here.open("a")
    thread.join(240)
    assert not thread.is_alive()
    shape = Shape(cell.seen[-1]["text/html"])
    rows = dict(row[:2] for row in shape.rows)
    assert rows == {"Job": "State", "A a": "completed", f"B {hostile['name']}": "failed"}
    assert f"{hostile['name']}: exit code 1" in shape.text
    assert not [tag for tag, _ in shape.found if tag == "img"]
    assert "completed" in cell.seen[-1]["text/plain"]
    # It is gone, and what says so has the name of its directory.
    folder.rename(here.path / "elsewhere")
    assert Shape(View(folder).look().html).text.count("<img src=x onerror=alert(1)>") == 1


def test_a_cell_is_left_when_another_shows_the_pilot_or_the_notebook_has_gone(
    here: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gone(Cell):
        def update(self, obj: Any, *, raw: bool) -> None:
            raise RuntimeError("no frontend")

    monkeypatch.setattr(live, "UPDATE_S", 0.1)
    pilot = Pilot(gpus=1)
    wanted = threading.Event()
    cell = Cell()
    left = begin(View(pilot.directory), cell, lambda: not wanted.is_set())
    gone = begin(View(pilot.directory), Gone())
    wait_for(lambda: cell.seen, "an update")
    wanted.set()
    for thread in (left, gone):
        thread.join(240)
        assert not thread.is_alive()
    assert "managed" in pilot._repr_html_()
