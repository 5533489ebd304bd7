"""Logs in the Standard Workload Format: read in order, written, refused where they are damaged."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from hpcext.core.errors import InputError
from hpcext.sim.traces.swf import SwfJob, header_count, read_header, read_swf, swf_stats, write_swf

LOG = """; Version: 2.2
; MaxNodes: 128 (of them 4 for login)
;
1 0 5 100 4 90.5 -1 4 200 -1 1 7 8 -1 2 3 -1 -1
 3 50 0 10 -1 -1 -1 2 20 -1 0 -1 -1 -1 -1 -1 -1 -1

2 20 1 30 1 -1 -1 -1 -1 -1 5 -1 -1 -1 -1 -1 -1 -1
"""
JOBS = [
    SwfJob(1, 0, 5, 100, 4, 4, 200, 1, 7, 8, 2, 3),
    SwfJob(2, 20, 1, 30, 1, -1, -1, 5),
    SwfJob(3, 50, 0, 10, -1, 2, 20, 0),
]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.swf"
    path.write_text(LOG)
    return path


def test_reading(log: Path) -> None:
    assert list(read_swf(log)) == JOBS
    assert [job.number for job in read_swf(log, reorder=None)] == [1, 3, 2]
    assert [job.wanted for job in read_swf(log)] == [4, 1, 2]
    header = read_header(log)
    assert header == {"Version": "2.2", "MaxNodes": "128 (of them 4 for login)"}
    assert header_count(header, "MaxNodes") == 128
    assert header_count(header, "MaxProcs") is None


@pytest.mark.parametrize("name", ["a.swf", "a.swf.gz"])
def test_what_is_written_is_read(tmp_path: Path, name: str) -> None:
    jobs = [*JOBS, SwfJob(4, 50.25, -1, 0.5, 1)]
    write_swf(tmp_path / name, jobs, {"Version": "2.2", "Note": "two\nlines"})
    assert list(read_swf(tmp_path / name)) == jobs
    assert read_header(tmp_path / name) == {"Version": "2.2", "Note": r"two\nlines"}


def test_order(tmp_path: Path, log: Path) -> None:
    assert list(read_swf(log, reorder=1)) == JOBS
    with pytest.raises(InputError) as caught:
        list(read_swf(log, reorder=0))
    assert caught.value.where == f"{log}: line 7"
    assert "job 2 was submitted earlier than the job before it" in str(caught.value)
    far = tmp_path / "far.swf"
    order = [5, 6, 7, 8, 1]
    write_swf(far, [SwfJob(n, n) for n in order], {})
    assert [job.number for job in read_swf(far, reorder=4)] == sorted(order)
    with pytest.raises(
        InputError, match="line 5: job 1 was submitted earlier than a job at least 3"
    ):
        list(read_swf(far, reorder=3))


def test_equal_times_keep_the_order_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    write_swf(path, [SwfJob(n, 9) for n in (3, 1, 2)], {})
    assert [job.number for job in read_swf(path)] == [3, 1, 2]


def test_parts_of_a_job_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "log"
    write_swf(path, [SwfJob(1, 0, status=status) for status in (1, 2, 3, 4, 5)], {})
    assert [job.status for job in read_swf(path)] == [1, 5]


GOOD = "1 0 5 100 4 -1 -1 4 200 -1 1 -1 -1 -1 -1 -1 -1 -1\n"


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ("1 2 3\n", "3 fields"),
        (GOOD.replace("\n", " 9\n"), "19 fields"),
        (GOOD.replace("100", "1e3x"), "'1e3x'"),
        (GOOD.replace("100", "nan"), "run_s nan"),
        (GOOD.replace("100", "inf"), "run_s inf"),
        (GOOD.replace("100", "-2"), "run_s -2"),
        (GOOD.replace("1 0 5", "1 -1 5"), "submit_s -1"),
        (GOOD.replace("1 0 5", "-1 0 5"), "number -1"),
        (GOOD.replace("100", "9" * 5000), "run_s"),
        (GOOD[:-1], "cut short"),
        ("; " + "x" * 70_000 + "\n", "longer than 65536 bytes"),
    ],
)
def test_damaged_lines(tmp_path: Path, row: str, what: str) -> None:
    path = tmp_path / "log.swf"
    path.write_text(f"; Version: 2\n{GOOD}{row}")
    with pytest.raises(InputError) as caught:
        list(read_swf(path))
    assert caught.value.where == f"{path}: line 3"
    assert what in caught.value.what
    assert len(str(caught.value)) < 400


def test_damaged_files(tmp_path: Path) -> None:
    path = tmp_path / "log.swf"
    for data, what in (
        (b"", "empty"),
        (b"; Version: 2\n", "it has no jobs"),
        (GOOD.encode() + b"\xfe\n", "line 2: not UTF-8"),
        (gzip.compress(GOOD.encode() * 100)[:-10], "line .*cut short"),
    ):
        path.write_bytes(data)
        with pytest.raises(InputError, match=what):
            list(read_swf(path))


def test_figures() -> None:
    stats = swf_stats(JOBS)
    assert (stats.jobs, stats.ran, stats.start_s, stats.end_s) == (3, 3, 0, 50)
    assert stats.procs == pytest.approx(7 / 3)
    assert stats.run_s == pytest.approx(140 / 3)
    assert stats.wait_s == 2
    assert stats.accuracy == 0.5
    assert stats.proc_s == 4 * 100 + 30 + 2 * 10
    assert swf_stats([]).jobs == 0
