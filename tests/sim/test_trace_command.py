"""``hpcext trace``: each way to a trace, what is printed of it, and what is refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from hpcext.cli import main as cli
from hpcext.sim.traces import lsf, slurm
from hpcext.sim.traces.idle import HEADER, NodeChange, read_idle
from hpcext.sim.traces.swf import SwfJob, read_header, read_swf, write_swf

RECORDED = Path(__file__).parent / "recorded"


def trace(capsys: pytest.CaptureFixture[str], *words: object, status: int = 0) -> tuple[str, str]:
    assert cli.main(["trace", *map(str, words)]) == status
    return capsys.readouterr()


def document(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(trace(capsys, *words, "--json")[0])
    return found


def test_slurm(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    source, log = RECORDED / "slurm-22.05" / "sacct.txt", tmp_path / "log.swf"
    out, err = trace(capsys, "slurm", "--from", source, "-o", log)
    assert out == f"{log}: 4 jobs of 10.0 s\n"
    assert not err
    assert read_header(log)["UnixStartTime"] == "1795330514"
    assert [(job.number, job.submit_s) for job in read_swf(log)] == [
        (1, 0),
        (2, 0),
        (4, 0),
        (3, 10),
    ]
    found = document(capsys, "slurm", "--from", source, "-o", log)
    assert (found["schema"], found["jobs"], found["left_out"]) == ("hpcext.job-log/1", 4, {})


def test_lsf(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "log.swf"
    source = RECORDED / "lsf-10.1" / "bhist.txt"
    _, err = trace(capsys, "lsf", "--from", source, "--without", "batch*", "-o", log)
    assert err == "hpcext: left out: 1 (it has not ended)\n"
    assert [job.procs for job in read_swf(log)] == [4, 1, -1]
    source = RECORDED / "lsf-10.1" / "bacct.txt"
    trace(capsys, "lsf", "--from", source, "--year", "2025", "-o", log)
    assert [job.number for job in read_swf(log)] == [102, 101]
    _, err = trace(capsys, "lsf", "--from", source, "-o", tmp_path / "no.swf", status=2)
    assert err.startswith(f"hpcext: {source}: line 13: the times have no year; give")
    assert not (tmp_path / "no.swf").exists()


def test_idle(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    source, goal, names = (
        RECORDED / "slurm-22.05" / "sinfo-looks.txt",
        tmp_path / "a",
        tmp_path / "n",
    )
    out, _ = trace(capsys, "idle", "--from", source, "-o", goal, "--names", names)
    assert "1 change in 29.0 s, 4 nodes; 14 records" in out
    assert names.read_text() == "n1\nn2\nn3\nn4\n"
    assert list(read_idle(goal)) == [
        NodeChange(0, (), ()), NodeChange(10, (0, 1), ()), NodeChange(29, (), ()),
    ]  # fmt: skip
    short = tmp_path / "short"
    short.write_text("time=5\nn1 idle\n")
    _, err = trace(capsys, "idle", "--from", short, "-o", goal, status=2)
    assert err == f"hpcext: {short}: 1 records (valid: two or more)\n"
    short.write_text("time=5\nn1 idle\nwhat is this\n")
    _, err = trace(capsys, "idle", "--from", short, "-o", goal, status=2)
    assert err.startswith(f"hpcext: {short}: line 3: 'what is this'")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    jobs = [
        SwfJob(1, 0, -1, 100, 3, 3, 120), SwfJob(2, 10, -1, 50, 4, 4, 60),
        SwfJob(3, 20, -1, 40, 1, 1, 50), SwfJob(4, 30, -1, -1, 1, 1, 50),
        SwfJob(5, 200, -1, 5, 9, 9, 50), SwfJob(6, 600, -1, 1, 1, 1, 2),
    ]  # fmt: skip
    write_swf(tmp_path / "log.swf", jobs, {"MaxNodes": 4, "MaxProcs": 4})
    return tmp_path / "log.swf"


def test_holes(capsys: pytest.CaptureFixture[str], tmp_path: Path, log: Path) -> None:
    goal = tmp_path / "idle.csv.gz"
    out, err = trace(capsys, "holes", "--from", log, "-o", goal)
    assert "6 changes in 10 min 00 s, 4 nodes; 4 jobs started, after 0.0063 h on average" in out
    assert err == (
        "hpcext: left out: 1 job of more than 4 nodes, the largest of 9\n"
        "hpcext: left out: 1 job that did not run or that the log does not describe\n"
    )
    assert list(read_idle(goal)) == [
        NodeChange(0, (3,), ()), NodeChange(20, (), (3,)), NodeChange(60, (3,), ()),
        NodeChange(100, (), (3,)), NodeChange(150, (0, 1, 2, 3), ()), NodeChange(600, (), (0,)),
    ]  # fmt: skip
    trace(capsys, "holes", "--from", log, "--nodes", "9", "--planned", "-o", goal)
    assert next(read_idle(goal)).joined == (3, 4, 5, 6, 7, 8)
    found = document(capsys, "holes", "--from", log, "--depth", "0", "-o", goal)
    assert (found["started"], found["too_large"], found["skipped"]) == (4, 1, 1)
    assert found["mean_wait_s"] == pytest.approx((90 + 130 + 0) / 4)
    found = document(capsys, "holes", "--from", log, "--backfill", "conservative", "-o", goal)
    assert found["mean_wait_s"] == pytest.approx(90 / 4)


def test_processors_of_a_node(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log, goal = tmp_path / "log", tmp_path / "idle"
    write_swf(log, [SwfJob(1, 0, -1, 9, 65, 65, 9)], {"MaxNodes": 4, "MaxProcs": 256})
    for words, idle in (((), (2, 3)), (("--procs-per-node", 30), (3,)), (("--nodes", 3), (2,))):
        trace(capsys, "holes", "--from", log, *words, "-o", goal)
        assert next(read_idle(goal)).joined == idle


def test_generate(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.csv", "b.csv", "c.csv")]
    for path, seed in zip(paths, (3, 3, 4), strict=True):
        words = ("generate", "summit", "--hours", "24", "--seed", seed, "--nodes", 100, "-o", path)
        out, _ = trace(capsys, *words)
        assert "changes in 24 h 00 min, 100 nodes; like summit" in out
    assert paths[0].read_bytes() == paths[1].read_bytes() != paths[2].read_bytes()
    out, _ = trace(capsys, "stat", paths[0], "--nodes", 100)
    rows = {line.rpartition("  68.1")[0].split("  ")[0] for line in out.splitlines()}
    assert "changes an hour" in rows
    assert "Theta" in out


def test_stat(capsys: pytest.CaptureFixture[str], tmp_path: Path, log: Path) -> None:
    found = document(capsys, "stat", log)
    assert (found["schema"], found["jobs"], found["ran"]) == ("hpcext.job-log/1", 6, 5)
    assert found["load"] == pytest.approx((300 + 200 + 40 + 45 + 1) / 2400)
    out, _ = trace(capsys, "stat", log)
    assert "load of 4 processors       24%" in out
    path = tmp_path / "idle.csv.gz"
    path.write_bytes(gzip.compress(f"{HEADER}\n0,0-9,\n300,,0-4\n3600,,5-9\n".encode()))
    found = document(capsys, "stat", path, "--nodes", "100")
    assert (found["schema"], found["events"], found["inc"]) == ("hpcext.idle-trace/1", 3, 1)
    assert found["eq_nodes"] == pytest.approx((10 * 300 + 5 * 3300) / 3600)
    assert found["ratio"] == pytest.approx(found["eq_nodes"] / 100)
    assert found["per_hour"] == {"events": 3, "inc": 1, "dec": 2}
    ten = next(each for each in found["lengths"] if each["minutes"] == 10)
    assert (ten["by_count"], ten["by_time"]) == (0.5, pytest.approx(300 / 3900))


@pytest.mark.parametrize(
    ("words", "text", "what"),
    [
        (["stat"], "", "FILE: empty"),
        (["stat"], "hello\n", "FILE: neither a trace of idle nodes nor a log of jobs"),
        (["stat"], f"{HEADER}\n5,1,\n4,2,\n", "FILE: line 3: 4 s after 5 s"),
        (["stat"], "; Version: 2\n1 2\n", "FILE: line 2: 2 fields"),
        (["holes", "-o", "x", "--from"], "1" + " 1" * 17 + "\n", "FILE: no MaxNodes in its header"),
        (["slurm", "-o", "x", "--from"], "JobID|State\n", "FILE: line 1: no column JobIDRaw"),
        (["slurm", "-o", "x", "--from"], "", "FILE: empty"),
        (["lsf", "-o", "x", "--from"], "none\n", "FILE: no job that has ended"),
        (["idle", "-o", "x", "--from"], "\n", "FILE: 0 records"),
    ],
)
def test_bad_files(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: list[str], text: str, what: str
) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    words = [str(tmp_path / "x") if word == "x" else word for word in words]
    out, err = trace(capsys, *words, path, status=2)
    assert not out
    assert err.count("\n") == 1
    assert err.startswith(f"hpcext: {what.replace('FILE', str(path))}")
    assert {each.name for each in tmp_path.iterdir()} == {"file"}


@pytest.mark.parametrize(
    "words",
    [
        ["generate", "sumit"], ["generate", "summit", "--hours", "0"],
        ["generate", "summit", "--hours", "nan"], ["generate", "summit", "--seed", "-1"],
        ["generate", "summit", "--nodes", "0"], ["holes", "--from", "LOG", "--nodes", "0"],
        ["holes", "--from", "LOG", "--depth", "-1"], ["holes", "--from", "LOG", "--reorder", "-1"],
        ["holes", "--from", "LOG", "--procs-per-node", "0"],
        ["lsf", "--from", "LOG", "--year", "20000"],
    ],
)  # fmt: skip
def test_bad_options(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, log: Path, words: list[str]
) -> None:
    words = [str(log) if word == "LOG" else word for word in words]
    _, err = trace(capsys, *words, "-o", tmp_path / "x", status=2)
    assert err.count("\n") == 1
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("name", "command"), [("slurm", slurm.SACCT), ("lsf", lsf.BHIST), ("idle", slurm.SINFO)]
)
def test_the_help_has_the_command_to_export_with(
    capsys: pytest.CaptureFixture[str], name: str, command: str
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["trace", name, "--help"])
    assert command in capsys.readouterr().out
