"""What sacct, sinfo, bhist and bacct print, as values: ``recorded/README.md`` says from where."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from pathlib import Path

import pytest

from hpcext.core.errors import InputError
from hpcext.sim.traces import looks, lsf, slurm
from hpcext.sim.traces.idle import NodeChange
from hpcext.sim.traces.slurm import IdleSample, Row
from hpcext.sim.traces.swf import SwfJob

RECORDED = Path(__file__).parent / "recorded"


def recorded(name: str) -> list[str]:
    return (RECORDED / name).read_text().splitlines()


def jobs(rows: Iterable[Row]) -> list[SwfJob]:
    return [row.job for row in rows if row.job is not None]


@pytest.mark.parametrize("name", ["sacct", "sacct-local-times"])
def test_sacct(name: str) -> None:
    rows = list(slurm.parse_sacct(recorded(f"slurm-22.05/{name}.txt")))
    begin_s = 1795330514
    assert jobs(rows) == [
        SwfJob(1, begin_s, 2, 8, 2, 2, 300, 1, 0, partition=1),
        SwfJob(2, begin_s, 2, 4, 1, 1, 300, 0, 0, partition=1),
        # It was eligible when job 1, which it waits for, had ended.
        SwfJob(3, begin_s + 10, 15, 3, 3, 3, 300, 1, 0, partition=1),
        SwfJob(4, begin_s, 6, 18, 1, 1, 300, 5, 0, partition=1),
    ]


HEAD = "Partition|JobIDRaw|State|Submit|Start|ElapsedRaw|TimelimitRaw|NNodes"


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("p|7|COMPLETED|100|130|5|UNLIMITED|2", SwfJob(7, 100, 30, 5, 2, 2, -1, 1, partition=1)),
        ("|7|TIMEOUT|100|130|60|1|2", SwfJob(7, 100, 30, 60, 2, 2, 60, 0)),
        ("|7|CANCELLED by 12|100|None|0|1|2", SwfJob(7, 100, -1, 0, -1, 2, 60, 5)),
        ("|7|RUNNING|100|130|60|1|2", "running: it has not ended"),
        ("|7|NEWSTATE|100|130|60|1|2", "unknown state 'newstate'"),
        ("|7|PENDING|Unknown|Unknown|0|1|2", "pending: it has not ended"),
        ("|7.batch|COMPLETED|100|130|60||1", "a step instead of a job: use sacct --allocations"),
    ],
)
def test_rows_of_sacct(line: str, wanted: SwfJob | str) -> None:
    (row,) = slurm.parse_sacct([HEAD, line])
    assert (row.job or row.why) == wanted


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("p|7|COMPLETED|100|130|5|1", "7 columns"),
        ("p|x|COMPLETED|100|130|5|1|2", "JobIDRaw 'x'"),
        ("p|7|COMPLETED|soon|130|5|1|2", "Submit 'soon'"),
        ("p|7|COMPLETED|100|130|-5|1|2", "ElapsedRaw '-5'"),
        ("p|7|COMPLETED|100|130|5|1|9999999999999", "NNodes"),
    ],
)
def test_damaged_rows_of_sacct(line: str, what: str) -> None:
    with pytest.raises(InputError, match=what):
        list(slurm.parse_sacct([HEAD, line]))


def test_columns_of_sacct() -> None:
    with pytest.raises(InputError, match=r"no column NNodes .*did you mean NNode\?"):
        list(slurm.parse_sacct([HEAD.replace("NNodes", "NNode")]))
    with pytest.raises(InputError, match="no column JobIDRaw, Submit"):
        list(slurm.parse_sacct([]))


def test_sinfo() -> None:
    names: dict[str, int] = {}
    seen = list(slurm.parse_sinfo(recorded("slurm-22.05/sinfo-looks.txt"), names))
    assert names == {"n1": 0, "n2": 1, "n3": 2, "n4": 3}
    assert len(seen) == 14
    # n4 is drained: never idle. n1 and n2 are planned for job 3, and idle.
    assert seen[0] == IdleSample(0, frozenset({0, 1, 2}))
    assert seen[1] == IdleSample(2, frozenset())
    assert IdleSample(10, frozenset({0, 1})) in seen
    first = next(each for each in looks.changes(seen) if each.joined)
    assert first == NodeChange(10, (0, 1), ())


def test_nodes_that_cannot_be_used_are_not_idle() -> None:
    states = (
        "idle",
        "planned",
        "plnd",
        "IDLE+PLANNED",
        "idle*",
        "idle~",
        "idle$",
        "mixed",
        "drained",
    )
    lines = ["time=5.5", *(f"n{at} {state}" for at, state in enumerate(states))]
    assert list(slurm.parse_sinfo(lines, {})) == [IdleSample(0, frozenset(range(4)))]


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        (["n1 idle"], "a node before the first time"),
        (["time=5", "n1 idle", "time=4"], "time 4 after 5"),
        (["time=5", "what is this"], "'what is this'"),
        (["time=now"], "'time=now'"),
    ],
)
def test_damaged_looks(lines: list[str], what: str) -> None:
    with pytest.raises(InputError, match=what):
        list(slurm.parse_sinfo(lines, {}))


def changes(*idle: set[int]) -> list[NodeChange]:
    return list(looks.changes(IdleSample(10 * at, frozenset(each)) for at, each in enumerate(idle)))


def test_a_node_that_is_idle_in_one_look_does_not_count() -> None:
    assert changes({1}, {1}, {1, 2}, {1}, {1, 3}, {1, 3}, {3}) == [
        NodeChange(0, (1,), ()),
        NodeChange(40, (3,), ()),
        NodeChange(60, (), (1,)),
    ]
    # Nobody knows what comes behind the last look.
    assert changes(set(), {1}) == [NodeChange(0, (), ()), NodeChange(10, (), ())]
    assert changes() == []


def instant(*when: int) -> int:
    return int(datetime.datetime(*when, tzinfo=datetime.timezone.utc).timestamp())  # type: ignore[misc, arg-type]


def test_bhist() -> None:
    rows = list(lsf.parse_lsf(recorded("lsf-10.1/bhist.txt"), without="batch*"))
    assert rows[3] == Row(None, "it has not ended")
    assert jobs(rows) == [
        SwfJob(1131, instant(2025, 12, 31, 23, 51, 23), 241, 88_200, 4, 4, 88_200, 0),
        # It was requeued: its last run counts.
        SwfJob(1132, instant(2026, 1, 2, 8), 300, 330, 1, 1, -1, 1),
        SwfJob(1133, instant(2026, 1, 2, 9), run_s=0, status=5),
    ]
    (first, *_) = jobs(lsf.parse_lsf(recorded("lsf-10.1/bhist.txt")))
    assert first.procs == 5, "with the launch host"


def test_bhist_that_breaks_no_lines() -> None:
    text = "\n".join(recorded("lsf-10.1/bhist.txt")).replace("\n" + " " * 26, "")
    assert list(lsf.parse_lsf(text.splitlines())) == list(
        lsf.parse_lsf(recorded("lsf-10.1/bhist.txt"))
    )


def test_bacct() -> None:
    found = jobs(lsf.parse_lsf(recorded("lsf-10.1/bacct.txt"), year=2025))
    assert found == [
        SwfJob(101, instant(2025, 12, 31, 23, 59), 660, 7200, 2, 2, -1, 5),
        SwfJob(102, instant(2025, 12, 31, 23, 50), 50, 67, 1, 1, -1, 1),
    ]


def test_years() -> None:
    lines = recorded("lsf-10.1/bacct.txt")
    with pytest.raises(
        InputError, match="the times have no year; give the year of the first job with --year"
    ):
        list(lsf.parse_lsf(lines))
    with pytest.raises(InputError, match=r"2026-12-31 is not a Wed; .*2014, 2025, 2031"):
        list(lsf.parse_lsf(lines, year=2026))
    bad = [line.replace("Jan  1", "Jan 41") for line in lines]
    with pytest.raises(InputError, match="no such time"):
        list(lsf.parse_lsf(bad, year=2025))


def test_older_lines_of_lsf() -> None:
    lines = [
        "Job <223>, User <test>, Project <default>, Command <mpirun ./cpi>",
        "Sun Dec 20 15:05:40: Submitted from host <node69>, to Queue <default>;",
        "Sun Dec 20 15:05:46: Dispatched to 3 Hosts/Processors <16*node62> <node63> <node62>;",
        "Sun Dec 20 15:05:51: Done successfully. The CPU time used is 9.6 seconds;",
    ]
    assert jobs(lsf.parse_lsf(lines, year=2009))[0][2:6] == (6, 5, 2, 2)


def test_what_is_nothing_of_lsf() -> None:
    assert list(lsf.parse_lsf(["No matching job found", ""])) == []
    assert list(lsf.parse_lsf(["Job <5>, User <x>"])) == [
        Row(None, "no line says when it was submitted")
    ]
