"""A journal that is read as it grows: what is known is what a whole reading would say."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcext.core import facts as f
from hpcext.core import values as v
from hpcext.core.errors import JournalError
from hpcext.manager import journal
from hpcext.manager.journal import Header, Journal
from hpcext.manager.tail import Tail


@pytest.fixture(autouse=True, scope="module")
def without_waiting_for_the_disk() -> Iterator[None]:
    """What is synced, and when, is no matter of readers."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, lambda _: None)
        yield


def begun(path: Path) -> Journal:
    book = Journal(path, Header(began_at=1000.0, policy="marble"))
    book.append(0.0, (f.Began(), f.NodeJoined(v.Node("n", 2))))
    return book


def same_as_all(tail: Tail, path: Path) -> None:
    """Compare with another reader, who begins at the first line."""
    past = journal.read(path)
    engine, time = past.recount()
    assert msgspec.json.encode(tail.engine().world.save()) == msgspec.json.encode(
        engine.world.save()
    )
    assert (tail.now_s, tail.node_time, tail.header) == (past.now_s, time, past.header)


@settings(max_examples=30, deadline=None)
@given(
    does=st.lists(
        st.sampled_from(["submit", "suspect", "end", "compact", "half", "cut", "look"]),
        min_size=3,
        max_size=20,
    )
)
def test_it_is_what_a_whole_reading_says(
    tmp_path_factory: pytest.TempPathFactory, does: list[str]
) -> None:
    """After submissions, compactions, half a line, and lines that a full disk took back."""
    path = tmp_path_factory.mktemp("tail") / "journal.jsonl"
    book, tail, number = begun(path), Tail(path), 0
    for now_s, what in enumerate(does, start=1):
        if what == "submit":
            number += 1
            job = v.Job(str(number), f"job-{number}", number, (1, 2), 2)
            book.append(float(now_s), (f.Submitted(job),))
        elif what == "suspect":
            book.append(float(now_s), (f.NodeJoined(v.Node(f"n{now_s}", 1)),))
        elif what == "end" and number:
            book.append(float(now_s), (f.Cancel(str(number)),))
        elif what == "compact":
            engine, time = journal.read(path).recount()
            book.compact(float(now_s), engine.world.save(), time)
        elif what in {"half", "cut"}:
            size = path.stat().st_size
            with path.open("ab") as file:
                line = b'[%d.5,[{"type":"node_joined","node":{"name":"x","gpus":1}}]]' % now_s
                file.write(line[:20] if what == "half" else line + b"\n")
            tail.read()
            with path.open("r+b") as file:
                file.truncate(size)
        tail.read()
        same_as_all(tail, path)
    book.close()


def test_nothing_is_read_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal.jsonl"
    book, tail = begun(path), Tail(path)
    tail.read()
    seen: list[bytes] = []
    parse = journal.parse_entries
    monkeypatch.setattr(
        journal, "parse_entries", lambda *words: seen.append(words[0]) or parse(*words)
    )
    book.append(5.0, (f.Submitted(v.Job("1", "one", 1, (1,), 1)),))
    tail.read()
    tail.read()
    assert [len(each.splitlines()) for each in seen] == [1, 0]


def test_a_damaged_line_is_named_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    begun(path).close()
    tail = Tail(path)
    tail.read()
    with path.open("ab") as file:
        file.write(b"{}\n")
    for _ in range(2):
        with pytest.raises(JournalError, match="line 3 is damaged"):
            tail.read()
    assert tail.now_s == 0.0


@pytest.mark.parametrize("text", ["", "{", '{"schema": "hpcext.journal/2"'])
def test_half_a_first_line_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text(text)
    with pytest.raises(JournalError, match="is empty"):
        Tail(path).read()
    with pytest.raises(JournalError, match="is empty"):
        journal.read(path)
