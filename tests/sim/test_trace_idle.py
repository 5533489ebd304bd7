"""Traces of idle nodes: read, written, refused where they are damaged, and in figures."""

from __future__ import annotations

import gzip
import itertools
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcext.core.errors import InputError
from hpcext.sim.traces import lines
from hpcext.sim.traces.fragments import idle_stats
from hpcext.sim.traces.idle import HEADER, PLANNED, NodeChange, fold, read_idle, unfold, write_idle

TRACE = [
    NodeChange(0.0, (0, 1, 2, 5), ()),
    NodeChange(90.0, (), (1,)),
    NodeChange(100.5, (7,), (0, 2)),
    NodeChange(700.0, (1,), (5, 7)),
]
TEXT = f"{HEADER}\n0,0-2 5,\n90,,1\n100.5,7,0 2\n700,1,5 7\n"


def written(folder: Path, text: str | bytes, name: str = "idle.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize("name", ["idle.csv", "idle.csv.gz"])
def test_what_is_written_is_read(tmp_path: Path, name: str) -> None:
    write_idle(tmp_path / name, TRACE)
    assert list(read_idle(tmp_path / name)) == TRACE
    text = (tmp_path / name).read_bytes()
    assert (gzip.decompress(text) if name.endswith(".gz") else text).decode() == TEXT
    write_idle(tmp_path / f"again-{name}", iter(TRACE))
    assert (tmp_path / f"again-{name}").read_bytes() == text
    assert {each.name for each in tmp_path.iterdir()} == {name, f"again-{name}"}


def test_gzip_is_known_by_its_content(tmp_path: Path) -> None:
    path = written(tmp_path, gzip.compress(TEXT.encode()), "trace")
    assert list(read_idle(path)) == TRACE


def test_with_a_plan(tmp_path: Path) -> None:
    trace = [
        NodeChange(0.0, (3, 4), (), 60.0, (3,)),
        NodeChange(5.5, (), (3,)),
        NodeChange(6.0, (), (), 7.25, (4,)),
    ]
    write_idle(tmp_path / "a.csv", trace, planned=True)
    assert (tmp_path / "a.csv").read_text().splitlines()[:2] == [PLANNED, "0,3-4,,60,3"]
    assert list(read_idle(tmp_path / "a.csv")) == trace


@given(st.sets(st.integers(0, 999_999), max_size=60))
def test_folding(nodes: set[int]) -> None:
    ordered = tuple(sorted(nodes))
    assert unfold(fold(ordered)) == ordered


def test_folding_is_short() -> None:
    assert fold(range(1000)) == "0-999"
    assert fold((0, 1, 3)) == "0-1 3"


@pytest.mark.parametrize(
    ("rows", "line", "what"),
    [
        ("0,1,\n-5,2,\n", 3, "time '-5'"),
        ("nan,1,\n", 2, "time 'nan'"),
        ("inf,1,\n", 2, "time 'inf'"),
        ("soon,1,\n", 2, "time 'soon'"),
        ("5,1,\n4,2,\n", 3, "4 s after 5 s"),
        ("0,1,\n5,2\n", 3, "2 fields"),
        ("0,1,,\n", 2, "4 fields"),
        ("0,1,\n5,2", 3, "cut short"),
        ("0,1,\n1,1 2,\n", 3, "node 1 joins, but was idle"),
        ("0,2 2,\n", 2, "node 2 joins"),
        ("0,1,\n1,,2\n", 3, "node 2 leaves, but was not idle"),
        ("0,1,\n1,,1 1\n", 3, "node 1 leaves"),
        ("0,5-3,\n", 2, "nodes '5-3'"),
        ("0,-3,\n", 2, "nodes '-3'"),
        ("0,1000000,\n", 2, "nodes '1000000'"),
        ("0,0-9999999999999999,\n", 2, "nodes '0-9999999999999999'"),
        ("0,0-999999 " + "0-999999 " * 50 + ",\n", 2, "more than 1000000 nodes"),
        ("0,\u0663,\n", 2, "nodes"),
        ("0,x,\n", 2, "nodes 'x'"),
        ("0,1,\n\n", 3, "1 fields"),
    ],
)
def test_impossible_lines_are_refused_by_number(
    tmp_path: Path, rows: str, line: int, what: str
) -> None:
    path = written(tmp_path, f"{HEADER}\n{rows}")
    with pytest.raises(InputError) as caught:
        list(read_idle(path))
    assert caught.value.where == f"{path}: line {line}"
    assert what in caught.value.what
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "where", "what"),
    [
        (b"", "", "empty"),
        (f"{HEADER}\n".encode(), "", "no changes"),
        (b"time,in,out\n0,1,\n", ": line 1", "time,in,out"),
        (TEXT.encode()[:-3] + b"\xff\n", ": line 5", "not UTF-8: byte 0xff"),
        (gzip.compress(TEXT.encode())[:-12], ": line", "cut short"),
        (gzip.compress(TEXT.encode())[:10] + b"\x07" * 40, ": line 1", "cannot be read"),
    ],
    ids=["empty", "header", "columns", "bytes", "gzip-short", "gzip-bad"],
)
def test_damaged_files_are_refused(tmp_path: Path, data: bytes, where: str, what: str) -> None:
    path = written(tmp_path, data)
    with pytest.raises(InputError) as caught:
        list(read_idle(path))
    assert caught.value.where.startswith(f"{path}{where}")
    assert what in caught.value.what


def test_paths_that_are_not_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        list(read_idle(tmp_path / "none"))
    with pytest.raises(InputError, match="not a regular file"):
        list(read_idle(tmp_path))


def test_a_huge_line_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, f"{HEADER}\n0,{'1 ' * 5000},\n")
    monkeypatch.setattr("hpcext.sim.traces.idle.MOST_LINE_BYTES", 4096)
    with pytest.raises(InputError, match="line 2: longer than 4096 bytes"):
        list(read_idle(path))


def test_a_long_trace_streams(tmp_path: Path) -> None:
    def endless() -> Iterator[NodeChange]:
        for second in itertools.count(0, 2):
            yield NodeChange(second, tuple(range(40)), ())
            yield NodeChange(second + 1, (), tuple(range(40)))

    path = tmp_path / "long.csv.gz"
    tracemalloc.start()
    write_idle(path, itertools.islice(endless(), 6_000))
    stats = idle_stats(read_idle(path))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert stats.events == 6_000
    # The numbers of the nodes alone would be twice that.
    assert peak_bytes < 1.2e6


def test_nothing_is_left_of_what_could_not_be_written(tmp_path: Path) -> None:
    def broken() -> Iterator[NodeChange]:
        yield TRACE[0]
        raise InputError("enough")

    (tmp_path / "idle.csv").write_text("old")
    with pytest.raises(InputError, match="enough"):
        write_idle(tmp_path / "idle.csv", broken())
    assert [each.read_text() for each in tmp_path.iterdir()] == ["old"]
    with pytest.raises(FileNotFoundError) as caught:
        lines.write_lines(tmp_path / "no" / "file", ["x"])
    assert caught.value.filename == str(tmp_path / "no" / "file")


def test_figures_of_a_trace() -> None:
    stats = idle_stats(TRACE, nodes=10)
    assert (stats.events, stats.inc, stats.dec) == (4, 3, 3)
    assert (stats.seen, stats.most, stats.nodes) == (5, 4, 10)
    node_s = 4 * 90 + 3 * 10.5 + 2 * 599.5
    assert stats.eq_nodes == pytest.approx(node_s / 700)
    assert stats.ratio == pytest.approx(node_s / 7000)
    # 1: 90 s, 0 and 2: 100.5 s, 5: 700 s, 7: 599.5 s; node 1 stays.
    lengths = [90, 100.5, 100.5, 700, 599.5]
    assert stats.fragments == 5
    assert stats.mean_s == pytest.approx(sum(lengths) / 5)
    assert stats.short.by_count == pytest.approx(4 / 5)
    assert stats.short.by_time == pytest.approx(1 - 700 / sum(lengths))
    assert stats.per_hour(stats.inc) == pytest.approx(3 * 3600 / 700)


def test_the_end_may_be_later_than_the_last_change() -> None:
    stats = idle_stats([NodeChange(100.0, (1,), ())], end_s=200.0)
    assert (stats.eq_nodes, stats.hours) == (1.0, pytest.approx(100 / 3600))
    assert idle_stats([]).eq_nodes == 0.0
