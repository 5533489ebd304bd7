"""What a job wrote, on the terminal of whoever looks at its log, and in a pipe."""

from __future__ import annotations

import subprocess
import sys

import pexpect
import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st
from site_of_test import Site

from hpcext.text import Harmless

HOSTILE = (
    b"\x1b[32mgreen\x1b[0m \xc3\xa4\n"
    b" 10 %\r100 %\x1b[K\n"
    b"a\x1b[2J\x1b[H\x1b]0;title\x07b\n"
    b"\x1b[6n\x1bP$q\x1b\\\xc2\x9b2J\n"
    b"\xff\xe2\x80\xae.\n"
    b"\x1b[8"
)


def shown(data: bytes, at: int = 0) -> str:
    one = Harmless()
    return one.feed(data[:at]) + one.feed(data[at:]) + one.end()


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"50 %\r100 %\b\t.\n", "50 %\r100 %\b\t.\n"),
        (b"\x1b[1;38;5;200mx\x1b[m", "\x1b[1;38;5;200mx\x1b[m\x1b[0m"),
        (b"\x1b[2Kx\x1b[3K", "\x1b[2Kx\\x1b[3K\x1b[0m"),
        (b"\x1b[2J\x1b[A\x1b]52;c;eA==\x07", "\\x1b[2J\\x1b[A\\x1b]52;c;eA==\\x07"),
        (b"\x1b[?25l\x1b[>1m\x1bc\x1b", "\\x1b[?25l\\x1b[>1m\\x1bc\\x1b"),
        ("\x9b2J\u202e\u2028".encode(), "\\x9b2J\\u202e\\u2028"),
        (b"\xff\xc3", "\\xff\\xc3"),
        (b"\x1b[" + b"1;" * 50 + b"m", "\\x1b[" + "1;" * 50 + "m"),
    ],
)
def test_what_a_terminal_gets(data: bytes, text: str) -> None:
    assert shown(data) == text


@given(st.lists(st.sampled_from([*b"\x1b[]0;9mKJA\n\r\x07\xc2\x9b\xe2\x80\xaex"])).map(bytes))
def test_nothing_else_gets_through_however_it_is_cut(data: bytes) -> None:
    text = shown(data)
    for at in range(len(data) + 1):
        assert shown(data, at) == text
    # pyte is a terminal: its cursor leaves a line for the next one only.
    screen = pyte.Screen(2000, 200)
    stream = pyte.Stream(screen)
    for row, part in enumerate(text.split("\n")):
        stream.feed(part)
        assert (screen.cursor.y, screen.title) == (row, "")
        stream.feed("\n")


def test_a_log_is_filtered_on_a_terminal_and_unchanged_in_a_pipe(site: Site) -> None:
    program = f"import sys; sys.stdout.buffer.write({HOSTILE!r})"
    site.write_jobs({"name": "one", "command": [sys.executable, "-c", program]})
    words = ("run", str(site.jobs), "--gpus", "1", "--dir", str(site.pilot))
    assert site.run(*words).code == 0
    asked = ["-m", "hpcext", "logs", str(site.pilot), "one"]
    piped = subprocess.check_output([sys.executable, *asked], env=site.environ, timeout=500)
    # Its first line says which attempt it is of.
    assert piped.partition(b"\n")[2] == HOSTILE
    child = pexpect.spawn(
        sys.executable,
        asked,
        env={**site.environ, "LANG": "C.UTF-8"},
        timeout=500,
    )
    said = child.read().replace(b"\r\n", b"\n").decode()
    assert said.partition("\n")[2] == (
        "\x1b[32mgreen\x1b[0m ä\n"
        " 10 %\r100 %\x1b[K\n"
        "a\\x1b[2J\\x1b[H\\x1b]0;title\\x07b\n"
        "\\x1b[6n\\x1bP$q\\x1b\\\\x9b2J\n"
        "\\xff\\u202e.\n"
        "\\x1b[8\x1b[0m"
    )
