"""``hpcext top`` in a real terminal of 80 columns and 24 lines: what it shows, what keys do."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pexpect
import pyte
import pytest
from made_pilots import HOUR_S, make
from msgspec.structs import replace
from site_of_test import Site, wait_for
from textual.app import App

from hpcext.cli.main import main
from hpcext.cli.top import view as top_view
from hpcext.cli.top.app import KeyedTable
from hpcext.core import facts as f
from hpcext.core.errors import InputError
from hpcext.core.values import Job, Node
from hpcext.executors.gpu_facts import GpuFacts
from hpcext.manager.views import reading

WAIT_S = 120.0
RECORDED = Path(__file__).parent / "recorded" / "top.txt"

# Of the keyboard; pyte prints the end of these.
UNKNOWN = re.compile(rb"\x1b\[[<=>][0-9;]*u")

EVIL = "red\x1b[31m[bold]\u202e"

STORY = [
    (0.0, [f.NodeJoined(Node("gpu-node-1", 4)), f.Submitted(Job("2", EVIL, 2, (1,), 1))]),
    (1.0, [f.Started("1", 1, ("gpu-node-1:0", "gpu-node-1:1")), f.Registered("1", 1, 0)]),
    (1.0, [f.Started("2", 2, ("gpu-node-1:2",))]),
    (1.0, [f.Submitted(Job("3", "next", 3, (4,), 4))]),
    (HOUR_S, [f.Progressed("1", 1, 980, 980)]),
]
"""One job trains, one with a hostile name has begun, one waits."""


class Terminal:
    """``hpcext`` in a terminal, and what is on its screen."""

    def __init__(self, *words: str, environ: dict[str, str]) -> None:
        self._screen = pyte.Screen(80, 24)
        self._stream = pyte.ByteStream(self._screen)
        self.child: Any = pexpect.spawn(
            sys.executable,
            ["-m", "hpcext", *words],
            dimensions=(24, 80),
            env={**environ, "TERM": "xterm-256color", "COLORTERM": "", "LANG": "C.UTF-8"},
        )

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip("\n")

    def until(self, shown: str | Callable[[str], object]) -> str:
        """Wait until something is on the screen; all of it."""
        deadline = time.monotonic() + WAIT_S
        while not (shown in self.text if isinstance(shown, str) else shown(self.text)):
            assert time.monotonic() < deadline, f"waited for {shown!r}:\n{self.text}"
            self._read()
        return self.text

    def press(self, keys: str) -> None:
        self.child.send(keys)

    def quit(self) -> int:
        """Press q; the exit status."""
        self.press("q")
        deadline = time.monotonic() + WAIT_S
        while self.child.isalive():
            assert time.monotonic() < deadline, self.text
            self._read()
        return int(self.child.exitstatus)

    def _read(self) -> None:
        try:
            data = self.child.read_nonblocking(65536, timeout=0.1)
        except pexpect.TIMEOUT:
            return
        except pexpect.EOF:
            self.child.wait()
            return
        self._stream.feed(UNKNOWN.sub(b"", data))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HPCEXT_STATE_DIR", str(tmp_path / "state"))
    return tmp_path


@pytest.fixture
def open_top() -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def open_(*words: str, environ: dict[str, str] | None = None) -> Terminal:
        opened.append(Terminal("top", *words, environ=environ or dict(os.environ)))
        return opened[-1]

    yield open_
    for each in opened:
        each.child.kill(9)
        each.child.wait()


def test_the_screen_is_as_it_was_recorded(home: Path, open_top: Callable[..., Terminal]) -> None:
    """No time is on it; hostile names are escaped."""
    make("jobs", STORY, gpus=4)
    top = open_top()
    text = top.until(lambda text: "next" in text and "quit" in text)
    if "HPCEXT_RECORD" in os.environ:
        RECORDED.write_text(text + "\n")
    assert text + "\n" == RECORDED.read_text()
    assert top.quit() == 0


def test_keys_suspend_and_resume_a_job_once_confirmed(
    site: Site, open_top: Callable[..., Terminal]
) -> None:
    site.write_jobs(site.counter("one", gated=True), site.counter("two", gated=True))
    site.start("run", str(site.jobs), "--gpus", "2", "--name", "pair", "--dir", str(site.pilot))
    wait_for(lambda: site.steps("two"), "a step")
    top = open_top("pair", environ=dict(site.environ))
    top.until(lambda text: text.count("running") == 2)
    top.press("s")
    # A dialog is a box with a border of its own.
    top.until(lambda text: "Suspend one of pair?" in text and "╭" in text)
    top.press("n")
    top.until(lambda text: "Suspend one" not in text)
    top.press("s")
    top.until("Suspend one of pair?")
    top.press("y")
    top.until(r"suspended")
    top.press("\x1b[B")  # The other one, below or above it.
    top.press("w")
    top.until(lambda text: re.search(r"(one|two) is ", text))
    top.press("q")
    top.until(lambda text: "escape: back" not in text)
    top.press("/")
    top.until("name or state")
    top.press("one\r")
    top.until(lambda text: "two" not in text)
    top.press("r")
    top.until("Resume one of pair?")
    top.press("y")
    top.until(lambda text: "running" in text)
    top.press("l")
    top.until("--- attempt 2, 1 GPU")
    top.press("q")
    top.until("GPUs")
    top.press("\x1b")
    top.until(lambda text: text.count("running") == 2)
    site.open("one")
    site.open("two")
    top.until(lambda text: text.count("completed") == 2)
    assert top.quit() == 0


def test_it_says_what_is_wrong(home: Path, open_top: Callable[..., Terminal]) -> None:
    name = make("jobs")
    (home / "state" / "pilots" / name / "journal.jsonl").write_text("broken\n")
    top = open_top(name)
    top.until(lambda text: "line1isdamaged" in "".join(text.split()))
    assert top.quit() == 0


def test_without_a_terminal(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top"]) == 2
    assert "needs a terminal; see hpcext status" in capsys.readouterr().err
    assert main(["top", "nobody"]) == 3


def test_rows_of_gpus_say_who_has_them_and_how_busy_they_are(home: Path) -> None:
    name = make("jobs", STORY, gpus=4)
    found = reading.read(home / "state" / "pilots" / name)
    gib = 2**30
    use = {
        "0": GpuFacts(0, "NVIDIA H100", 0.9, 80 * gib, 60 * gib),
        "1": GpuFacts(1, "NVIDIA H100", None, 80 * gib, 0),
    }
    assert top_view.node_rows(found, use) == {
        "gpu-node-1": ("gpu-node-1", "3/4", "1 1 2 -", "90% ?", "60 of 160 GiB")
    }
    assert top_view.node_rows(found, {})["gpu-node-1"][3:] == ("", "")


def test_pilots_that_run_are_first(home: Path) -> None:
    ended, running = (
        reading.read(home / "state" / "pilots" / make(name, STORY, gpus=4)) for name in "ab"
    )
    running = replace(running, alive=True)
    assert [row[0] for row in top_view.pilot_rows([ended, running]).values()] == ["b", "a"]
    assert top_view.headline([ended, running]) == "1 of 2 pilots run; jobs have 3 of 4 GPUs"
    error = InputError("is damaged")
    assert top_view.headline([ended, error]).endswith("0 of 0 GPUs; 1 cannot be read")


def test_jobs_that_ended_are_last_and_not_all_of_them(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = [f.Ended("2", 2, f.Outcome.COMPLETED, 0)]
    found = reading.read(
        home / "state" / "pilots" / make("jobs", [*STORY, (HOUR_S, ended)], gpus=4)
    )
    assert list(top_view.job_rows(found, "")) == ["1", "3", "2"]
    assert list(top_view.job_rows(found, "pend")) == ["3"]
    monkeypatch.setattr(top_view, "MOST_JOBS", 2)
    assert list(top_view.job_rows(found, "")) == ["1", "3"]


def test_columns_fit_their_cells_though_they_were_drawn_at_once() -> None:
    """Textual measures cells once it is idle, and keeps the lines that it drew before that."""

    class Tables(App[None]):
        def compose(self) -> Iterator[KeyedTable]:
            yield KeyedTable("jobs", ("id", "state"))

    async def shown() -> str:
        app = Tables()
        async with app.run_test() as pilot:
            table = app.query_one(KeyedTable)
            table.show({"1": ("1", "")})
            await pilot.pause()
            table.show({"1": ("1", "running")})
            table.render_line(1)
            await pilot.pause()
            return table.render_line(1).text

    assert "running" in asyncio.run(shown())
