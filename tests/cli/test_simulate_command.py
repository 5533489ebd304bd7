"""``hpcext simulate`` from the command line, in this process; other processes: tests/run."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from commands import simulate
from rich.console import Console

from hpcext.cli import main as cli
from hpcext.cli.bar import bar
from hpcext.cli.simulate import runs as runs_of_simulate
from hpcext.core import values as v
from hpcext.core.errors import HpcextError
from hpcext.profiles import Measurement, Profiles
from hpcext.sim.evaluate import store as sim_store
from hpcext.sim.replay import progress, tasks
from hpcext.sim.replay.tasks import NodeSource, Task, simulate_task

EXAMPLES = Path(__file__).parents[2] / "examples" / "jobs.toml"

TRAINERS = """\
name,submit_s,n_min,n_max,rescale_up_s,rescale_down_s,samples,rate_1,rate_2,rate_4
a,0,1,4,10,5,4000,1,1.9,3.6
b,0,1,2,10,5,4000,2,3.6,7
"""
IDLE = """\
time_s,joined,left
0,0-3,
600,,3
1200,,0-2
1500,1-2,
"""
LOG = [
    # number, submit, wait, run, processors; what is asked for: processors, seconds
    (1, 0, 0, 100, 4, 4, 200),
    (2, 10, 0, 50, 8, 8, 60),
    (3, 20, 0, 30, 2, 2, 30),
    (4, 30, 0, -1, 2, 2, 30),  # cancelled before it ran
    (5, 40, 0, 20, 4, 4, 20),
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a file of each kind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "t.csv").write_text(TRAINERS)
    (tmp_path / "i.csv").write_text(IDLE)
    lines = [
        f"{number} {submit} {wait} {run} {procs} -1 -1 {wanted} {limit} -1 1 1 1 1 1 1 -1 -1"
        for number, submit, wait, run, procs, wanted, limit in LOG
    ]
    (tmp_path / "log.swf").write_text("; MaxProcs: 8\n" + "\n".join(lines) + "\n")
    return tmp_path


def document(capsys: pytest.CaptureFixture[str], *words: str | Path, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(simulate(capsys, *words, "--json", **more)[0])
    assert found["schema"] == "hpcext.summary/1"
    return found


def mean(found: dict[str, Any], key: str, policy: int = 0) -> float:
    return float(found["policies"][policy]["figures"][key]["mean"])


@pytest.mark.parametrize("seeds", [(), (3,)])
def test_a_job_file_on_a_machine(
    capsys: pytest.CaptureFixture[str], here: Path, seeds: tuple[int, ...]
) -> None:
    out, err = simulate(capsys, EXAMPLES, "--nodes", "1x6", *(f"--seed={seed}" for seed in seeds))
    header, line = out.splitlines()
    assert header.split()[:2] == ["Policy", "Completed"]
    # Each job once, also those that another one waited for.
    assert line.split()[:2] == ["marble", "5"]
    assert err == ""


def test_a_comparison(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    out, err = simulate(capsys, EXAMPLES, "--nodes", "1x6", "--compare")
    first = [line.split()[:2] for line in out.splitlines()[1:7]]
    assert first == [
        [name, "5"]
        for name in ("exclusive", "marble", "equal_share", "bftrainer", "optimus", "pollux")
    ]
    assert "against exclusive:" in out
    assert [line.split(":")[1] for line in err.splitlines()] == [f" {n} of 6" for n in range(1, 7)]


def test_trainers_on_idle_nodes_by_hand(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    """Trainer a alone on one node that goes at 600 s and comes again at 1500 s."""
    (here / "t.csv").write_text("\n".join(TRAINERS.splitlines()[:2]).replace("1,4,", "1,1,") + "\n")
    (here / "i.csv").write_text("time_s,joined,left\n100,7,\n700,,7\n1600,7,\n9999,,7\n")
    # The trace begins at its first change. 10 s to begin, 590 s; 10 s again, and the rest.
    found = document(capsys, "t.csv", "--idle", "i.csv", "--policy", "equal_share")
    assert mean(found, "makespan_s") == 1500 + 10 + (4000 - 590)
    costs = document(
        capsys, "t.csv", "--idle", "i.csv", "--policy", "equal_share", "--rescale-cost", "3"
    )
    assert mean(costs, "makespan_s") == 1500 + 30 + (4000 - 570)
    # It cannot do so by the end: half an hour.
    cut = document(
        capsys, "t.csv", "--idle", "i.csv", "--policy", "equal_share", "--hours", "0.5", status=1
    )
    assert mean(cut, "unfinished") == 1


def test_only_nodes_that_are_worth_it(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    """The first one is 3.6 times as fast on four nodes as on one, so it may have all."""
    alone = TRAINERS.splitlines()[:2]
    (here / "one.csv").write_text("\n".join(alone) + "\n")
    words = (here / "one.csv", "--nodes", "4x1", "--policy", "bftrainer")
    every = document(capsys, *words)
    found = document(capsys, *words, "--autoscale", "0.95:0.99")
    assert mean(found, "offered_gpu_h") < mean(every, "offered_gpu_h")
    assert mean(found, "makespan_s") > mean(every, "makespan_s")
    assert found["policies"][0]["label"] == "bftrainer (autoscale 0.95:0.99)"
    for more in (["--autoscale", "2"], ["--nodes", "1xa:1,1xb:1", "--autoscale", "0.4:0.7"]):
        assert cli.main(["simulate", *map(str, words), *more]) == 2
        assert "--autoscale" in capsys.readouterr().err


def test_what_is_skipped_of_a_trace(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    """Of the two changes that are skipped three nodes are left, to which the third comes down."""
    words = ("t.csv", "--idle", "i.csv", "--skip", "3", "--policy", "equal_share")
    found = document(capsys, *words)
    # From 1500 s on there are nodes 1 and 2, one for each; b ends after 10 s and 2,000 s.
    b_s = 10 + 4000 / 2
    a_s = b_s + 10 + (4000 - (b_s - 10) * 1) / 1.9
    assert mean(found, "makespan_s") == pytest.approx(a_s)


def test_costs_of_the_command_line(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    (here / "jobs.toml").write_text(
        '[[job]]\nname = "a"\ncommand = "true"\nscaling = {1 = 2.0}\nwork = {steps = 100}\n'
    )
    words = ("jobs.toml", "--nodes", "1x1")
    assert mean(document(capsys, *words), "makespan_s") == 50
    assert mean(document(capsys, *words, "--launch-s", "7"), "makespan_s") == 57
    # Its attempts fail after so many seconds on average; with checkpoints it gets through.
    failing = (*words, "--fail-s", "20", "--checkpoint-s", "0")
    found = document(capsys, *failing, "--seed", "1")
    assert mean(found, "makespan_s") > 50
    assert mean(found, "completed") == 1


@pytest.mark.parametrize("policy", ["exclusive", "fixed"])
def test_a_log_on_a_machine_is_a_queue(
    capsys: pytest.CaptureFixture[str], here: Path, policy: str
) -> None:
    """Two nodes of four processors: jobs 1, 2, then 3 and 5 of the log, which need one each."""
    words = ("log.swf", "--nodes", "2x1", "--per-node", "4", "--policy", policy)
    found = document(capsys, *words)
    assert mean(found, "jobs") == 4
    assert mean(found, "makespan_s") == 100 + 50 + 30


def test_the_holes_of_a_main_queue(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    """Job 1 has four of eight nodes, job 3 two of the rest; no job of the log is run here."""
    words = ("t.csv", "--main", "log.swf", "--main-nodes", "8", "--policy", "equal_share")
    found = document(capsys, *words)
    assert found["policies"][0]["source"] == "holes of log.swf on 8 nodes"
    assert mean(found, "completed") == 2
    assert any("without notice" in said for said in found["assumed"])


def test_watts_are_energy(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    """Job a draws 400 W for 50 s, then b for 100 s; the other GPU 60 W all the time."""
    text = '[[job]]\nname="{}"\ncommand="true"\nscaling={{1=2.0}}\nwork={{steps={}}}\n'
    (here / "jobs.toml").write_text(text.format("a", 100) + text.format("b", 200))
    words = ("jobs.toml", "--nodes", "1x2", "--policy", "exclusive", "--watts", "400:60")
    found = document(capsys, *words)
    energy = found["policies"][0]["energy_kwh"]["mean"]
    assert energy == pytest.approx(150 * (400 + 60) / 3.6e6)
    assert found["watts"] == {"busy": 400, "idle": 60}


def test_what_is_learned_is_not_told(
    capsys: pytest.CaptureFixture[str], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: list[tuple[bool, bool]] = []
    find = tasks.find_policy

    def spying(name: str) -> Any:
        policy = find(name)

        def spy(now: v.Snapshot) -> v.Target:
            known.extend((bool(j.estimate.stated), bool(j.estimate.measured)) for j in now.jobs)
            return policy(now)

        return spy

    monkeypatch.setattr(tasks, "find_policy", spying)
    words = ("t.csv", "--nodes", "2x1", "--policy", "equal_share")
    told = document(capsys, *words)
    assert {stated for stated, _ in known} == {True}
    known.clear()
    learned = document(capsys, *words, "--learn")
    assert {stated for stated, _ in known} == {False}
    assert any(measured for _, measured in known)
    # What is true is the same: this policy does not look at speeds.
    assert mean(learned, "makespan_s") == pytest.approx(mean(told, "makespan_s"))


@pytest.mark.parametrize(
    ("where", "planned"),
    [(("--idle", "i.csv"), set()), (("--main", "log.swf", "--main-nodes", "8"), {200.0})],
    ids=["idle", "main"],
)
def test_known_ends_are_told_and_labelled(
    capsys: pytest.CaptureFixture[str],
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: tuple[str, ...],
    planned: set[float],
) -> None:
    """Job 2 of the log is planned when job 1 ends at the latest. The nodes that a run is compared
    with are known to stay."""
    seen: set[float | None] = set()
    find = tasks.find_policy

    def spying(name: str) -> Any:
        policy = find(name)

        def spy(now: v.Snapshot) -> v.Target:
            seen.update(node.ends_s for node in now.nodes.values())
            return policy(now)

        return spy

    monkeypatch.setattr(tasks, "find_policy", spying)
    words = ("t.csv", *where, "--policy", "equal_share")
    plain = document(capsys, *words)
    assert seen == planned | {None, math.inf}
    seen.clear()
    known = document(capsys, *words, "--known-ends")
    assert None not in seen
    if "i.csv" in where:
        assert seen == {600.0, 1200.0, math.inf}
    (of,) = known["policies"]
    assert of["label"] == "equal_share (known ends)"
    assert any("when each idle node will leave" in said for said in known["assumed"])
    assert not any("when each idle node will leave" in said for said in plain["assumed"])
    # It does not look at ends.
    assert of["figures"] == plain["policies"][0]["figures"]


def files(folder: Path) -> dict[str, bytes]:
    """All that is written, but for what it took."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "timings.json"
    }


def test_the_same_seed_gives_the_same_bytes_however_many_workers_there_are(
    capsys: pytest.CaptureFixture[str], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One, two, and as many as there are processors, once it is seen that it takes long."""
    monkeypatch.setattr("hpcext.cli.simulate.runs.PATIENCE_S", -1.0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    begun = []
    at_once = runs_of_simulate._at_once
    monkeypatch.setattr(
        runs_of_simulate, "_at_once", lambda *words: begun.append(words[2]) or at_once(*words)
    )
    words = ("t.csv", "--idle", "summit:hours=1", "--seed", "1", "--seed", "2", "--fail-s", "900")
    words = (*words, "--policy", "bftrainer", "--watts", "400:60")
    for folder, more in (("one", ("1",)), ("two", ("2",)), ("many", ())):
        workers = ("--workers", *more) if more else ()
        _, err = simulate(capsys, *words, "--report", folder, *workers)
        assert err.count("\n") == 3
    assert begun == [2, 2]
    one, two, many = (files(here / name) for name in ("one", "two", "many"))
    assert len([name for name in one if name.startswith("runs")]) == 2
    assert one == two == many
    runs = [json.loads(one[name])["run"] for name in one if name.startswith("runs")]
    # Another seed is another trace, and other failures.
    assert len({run["end_s"] for run in runs}) == 2


def test_what_is_there_already_is_not_run_again(
    capsys: pytest.CaptureFixture[str], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("t.csv", "--idle", "i.csv", "--policy", "equal_share", "--report", "out")
    out, err = simulate(capsys, *words)
    before = files(here / "out")
    assert err == "hpcext: the report is out/report.html\n"
    with monkeypatch.context() as patch:
        patch.setattr("hpcext.cli.simulate.runs.simulate_task", None)
        again, err = simulate(capsys, *words)
    assert again == out
    assert "1 of 1 runs already exist" in err
    assert files(here / "out") == before
    # Another file under the same name is another run.
    (here / "t.csv").write_text(TRAINERS.replace("4000", "5000"))
    other, _ = simulate(capsys, *words)
    assert other != out
    assert len(list((here / "out" / "runs").iterdir())) == 2


def test_a_progress_bar_on_a_terminal_and_nothing_if_quiet(
    capsys: pytest.CaptureFixture[str], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["simulate", "t.csv", "--nodes", "2x1", "--compare"]
    assert cli.main(["-q", *words]) == 0
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert cli.main(words) == 0
    out, err = capsys.readouterr()
    assert "6/6" in err
    assert "pollux, seed 0" in err
    assert "hpcext: 1 of" not in err
    # The result is not mixed up with it.
    assert "\x1b" not in out


def test_the_bar_moves_within_a_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what a run tells of itself, so that the time that is left can be seen."""
    monkeypatch.setattr(progress, "COUNT_AFTER_S", 0.0)
    told: list[float] = []
    task = Task("poisson:jobs=60,mean_s=250", "marble", NodeSource(nodes="2x4"))
    simulate_task(task, told.append)
    # A job counts as ended from the step on that follows its end.
    assert told[0] < 0.1
    assert 0.9 < told[-1] <= 1
    assert len(set(told)) > 50
    asked = threading.Event()

    def within() -> float:
        asked.set()
        return 0.5

    with bar(Console(force_terminal=True, file=sys.stderr), 2, within) as tell:
        tell("the first")
        assert asked.wait(240)


BAD: list[tuple[list[str], str]] = [
    (["nope.toml", "--nodes", "1x1"], "nope.toml: no such file"),
    (["nope.csv", "--nodes", "1x1"], "nope.csv: no such file"),
    (["nope.swf", "--nodes", "1x1"], "nope.swf: no such file"),
    (["t.csv", "--idle", "nope.csv"], "nope.csv: no such file"),
    (["t.csv", "--idle", "sumit"], "unknown machine 'sumit' (valid: summit"),
    (["t.csv", "--idle", "summit"], "--idle: 'summit' has no end; say --hours"),
    (
        ["t.csv", "--idle", "summit", "--hours", "2", "--known-ends"],
        "--idle: 'summit' has no end; say how long the trace is, as summit:hours=48",
    ),
    (["t.csv", "--nodes", "1x1", "--known-ends"], "--known-ends: has no meaning without --idle or"),
    (["t.csv", "--idle", "summit:days=2"], "--idle: 'days=2' (valid: hours=NUMBER)"),
    (["t.csv", "--main", "nope.swf", "--main-nodes", "8"], "nope.swf: no such file"),
    (["t.csv", "--main", "log.swf"], "--main-nodes: is missing; give the number"),
    (["t.csv"], "--nodes: is missing; say where the jobs run"),
    (["t.csv", "--nodes", "1x1", "--idle", "i.csv"], "not allowed with"),
    (["t.csv", "--nodes", "4"], "--nodes: '4' (valid: NxGPUS, or"),
    (["t.csv", "--nodes", "4x0"], "--nodes: 0 (valid: 1 to 1000000)"),
    (["t.csv", "--nodes", "1x1", "--main-nodes", "4"], "--main-nodes: has no meaning without"),
    (["t.csv", "--nodes", "1x1", "--gpus-per-node", "4"], "without --idle or --main; leave it out"),
    (["t.csv", "--nodes", "1x1", "--skip", "4"], "--skip: has no meaning without"),
    (["t.csv", "--idle", "i.csv", "--skip", "4"], "--skip: 4: the trace has no more changes"),
    (["t.csv", "--nodes", "1x1", "--policy", "marbel"], "did you mean marble?"),
    (["t.csv", "--nodes", "1x1", "--policy", "pollux:p=9"], "p=9: expected a number <= 1.0"),
    (["t.csv", "--nodes", "1x1", "--policy", "marble", "--compare"], "--compare: cannot be given"),
    (["t.csv", "--nodes", "1x1", "--seed", "1", "--seed", "1"], "--seed: the same value twice"),
    (["t.csv", "--nodes", "1x1", "--seed", "-1"], "'-1': a whole number from 0 on"),
    (["t.csv", "--nodes", "1x1", "--hours", "0"], "'0': a number above 0"),
    (["t.csv", "--nodes", "1x1", "--hours", "nan"], "'nan': a number above 0"),
    (["t.csv", "--nodes", "1x1", "--interference", "1"], "'1': a share from 0 to 0.99"),
    (["t.csv", "--nodes", "1x1", "--watts", "3"], "'3': two numbers, as 400:60"),
    (["t.csv", "--nodes", "1x1", "--watts", "a:b"], "'a': a number from 0 on"),
    (["t.csv", "--nodes", "1x1", "--workers", "0"], "'0': a whole number from 1 on"),
    (["t.csv", "--nodes", "1x1", "--report", "thesis"], "thesis: is not empty, and was not made"),
    (["t.csv", "--nodes", "1x1", "--report", "t.csv"], "t.csv: Not a directory"),
    (["thesis", "--nodes", "1x1"], "WORKLOAD: unknown workload 'thesis' (valid: a job file"),
    (["log.swf", "--nodes", "4x1"], "log.swf: job job2: needs 8 nodes, but only 4 are available"),
    ([str(EXAMPLES), "--nodes", "1x1", "--wrokers", "2"], "'--wrokers'; did you mean --workers?"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "said"), BAD, ids=[" ".join(words[-2:]) for words, _ in BAD])
def test_bad_input_is_one_line(
    capsys: pytest.CaptureFixture[str], here: Path, words: list[str], said: str
) -> None:
    (here / "thesis").mkdir()
    (here / "thesis" / "chapter1.tex").write_text("mine")
    out, err = simulate(capsys, *words, status=2)
    assert out == ""
    assert said in err
    assert err.count("\n") == 1
    # A folder of its settings matplotlib makes where it is imported first.
    assert {path.name for path in here.rglob("*")} - {"config", "matplotlib"} == {
        "chapter1.tex", "i.csv", "log.swf", "t.csv", "thesis",
    }  # fmt: skip


SPOILT: list[tuple[str, bytes, bytes, str]] = [
    ("t.csv", b"b,0,", b"b,-1,", "t.csv: line 3: submit_s '-1'"),
    ("t.csv", b"a,0,", b"a,9,", "t.csv: line 3: submitted before the row above; sort"),
    ("t.csv", b"7\n", b"7", "t.csv: line 3: has no end: the file was cut short"),
    ("t.csv", b",7\n", b"\n", "t.csv: line 3: 9 fields (valid: 10)"),
    ("t.csv", b"b,", b"\xff,", "t.csv: line 3: not UTF-8: byte 0xff in column 1"),
    ("t.csv", b"b,", b"b" * 20000 + b",", "t.csv: line 3: longer than 10000 bytes"),
    ("t.csv", b"4000,2", b"-4000,2", "t.csv: line 3: samples '-4000' (valid: a number, above 0"),
    ("t.csv", b"4000,2", b"inf,2", "t.csv: line 3: samples 'inf'"),
    ("t.csv", b"1,2,10", b"3,2,10", "t.csv: line 3: n_min is 3, more than n_max, 2"),
    ("t.csv", b"1,2,10", b"1," + b"9" * 5000 + b",10", "t.csv: line 3: n_max '9999"),
    ("t.csv", b"1,2,10", b"8,9,10", "t.csv: job b: needs 8 nodes, but only 4 are available"),
    ("t.csv", b"rate_2", b"rate_" + b"9" * 5000, "t.csv: line 1: column 'rate_9999"),
    ("t.csv", b"rate_2", b"rate_1", "t.csv: line 1: column 'rate_1' occurs twice"),
    ("t.csv", b"samples", b"steps", "t.csv: line 1: no column samples"),
    ("t.csv", TRAINERS.encode(), b"", "t.csv: empty"),
    ("t.csv", TRAINERS[TRAINERS.index("\n") + 1 :].encode(), b"", "t.csv: it has no jobs that ran"),
    ("i.csv", b"600", b"-600", "i.csv: line 3: time '-600'"),
    ("i.csv", b"1500", b"1100", "i.csv: line 5: 1100 s after 1200 s; sort it by time"),
    ("i.csv", b"1-2,\n", b"1-2", "i.csv: line 5: "),
    ("i.csv", b"0-3", b"\xff", "i.csv: line 2: not UTF-8"),
    ("i.csv", b"600,,3", b"600,,9", "i.csv: line 3: node 9 leaves, but was not idle"),
    ("i.csv", b"0-3", b"0-" + b"9" * 5000, "i.csv: line 2: nodes '0-9999"),
    ("i.csv", IDLE.encode(), b"", "i.csv: empty"),
    ("log.swf", b"2 10 0 50 8", b"2 10 0 50", "log.swf: line 3: 17 fields"),
    ("log.swf", b"2 10 0 50 8", b"2 -10 0 50 8", "log.swf: line 3: submit_s -10"),
    ("log.swf", b"2 10 0 50 8", b"2 10 0 \xff 8", "log.swf: line 3: not UTF-8"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [(name, (good, bad), said) for name, good, bad, said in SPOILT],
    ids=[said[:40] for *_, said in SPOILT],
)
def test_a_damaged_file_is_one_line_before_anything_runs(
    capsys: pytest.CaptureFixture[str],
    here: Path,
    name: str,
    change: tuple[bytes, bytes],
    said: str,
) -> None:
    good, bad = change
    data = (here / name).read_bytes()
    assert good in data
    (here / name).write_bytes(data.replace(good, bad, 1))
    words = {
        "t.csv": ("t.csv", "--nodes", "4x1"),
        "i.csv": ("t.csv", "--idle", "i.csv"),
        "log.swf": ("log.swf", "--nodes", "8x1"),
    }
    out, err = simulate(capsys, *words[name], "--report", "out", status=2)
    assert (out, err.count("\n")) == ("", 1)
    assert said in err
    assert not (here / "out").exists()
    if name == "log.swf":
        _, err = simulate(capsys, "t.csv", "--main", name, "--main-nodes", "8", status=2)
        assert said in err


def test_a_job_that_fits_on_no_node(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    text = '[[job]]\nname = "wide"\ncommand = "true"\nwork = {steps = 9}\nscaling = {4 = 1.0}\n'
    (here / "jobs.toml").write_text(
        text + "gpus = {min = 4, max = 4}\nnodes = {min = 2, max = 2}\n"
    )
    for words, said in (
        (("--nodes", "9x2"), "needs at least 4 GPUs, and node1 has 2"),
        (("--nodes", "1xa:4,9xb:2"), "needs at least 2 nodes"),
        (("--idle", "i.csv"), "needs at least 4 GPUs, and an idle node has 1"),
    ):
        _, err = simulate(capsys, "jobs.toml", *words, status=2)
        assert "jobs.toml: [[job]] 1 (wide): " in err
        assert said in err


def test_a_job_that_states_no_speed(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    (here / "jobs.toml").write_text('[[job]]\nname = "a"\ncommand = "true"\n')
    _, err = simulate(capsys, "jobs.toml", "--nodes", "1x1", status=2)
    assert err == (
        "hpcext: jobs.toml: 1 job does not state what is needed here: a (scaling, work); "
        "add what each lacks, for example scaling = {1 = 1} (steps per second on so many GPUs) "
        "and work = {steps = 10000} (steps until it is done)\n"
    )


LACKING = """
[[job]]
name = "fast"
command = "true"
gpus = {min = 2, max = 4}
[[job]]
name = "whole"
command = "true"
scaling = {1 = 1.0}
work = {steps = 9}
[[job]]
name = "endless"
command = "true"
scaling = {1 = 1.0}
"""


def test_all_that_is_missing_is_said_at_once_with_lines_to_paste(
    capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    (here / "jobs.toml").write_text(LACKING)
    _, err = simulate(capsys, "jobs.toml", "--nodes", "1x4", status=2)
    assert "2 jobs do not state what is needed here: fast (scaling, work), endless (work)" in err
    # The dry run of a real pilot says the same, beside its plan.
    assert cli.main(["run", "jobs.toml", "--gpus", "4", "--dry-run"]) == 0
    planned, noted = capsys.readouterr()
    assert noted.startswith("hpcext: the time cannot be predicted: 2 jobs do not state")
    assert "whole" in planned
    # What is to be pasted is what a job file takes.
    scaling, work = re.findall(r"(?:scaling|work) = {[^}]*}", err)
    first, *others = LACKING.split("[[job]]")[1:]
    fixed = [f"{first}{scaling}\n{work}\n", others[0], f"{others[1]}{work}\n"]
    (here / "jobs.toml").write_text("".join(f"[[job]]{each}" for each in fixed))
    simulate(capsys, "jobs.toml", "--nodes", "1x4")


MEASURED = """
[[job]]
name = "a"
command = "true"
scaling = "paced"
"""


def test_a_speed_that_was_measured(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    store = Profiles(here / "state" / "hpcext" / "profiles")
    seen: dict[str, Any] = {"at": 0.0, "gpus": 1, "seconds": 10.0, "source": "profile"}
    store.add("paced", [Measurement(steps_per_s=4.0, **seen)])
    (here / "jobs.toml").write_text(MEASURED + "work = {steps = 100}")
    words = ("jobs.toml", "--nodes", "1x1", "--report", "out")
    assert mean(document(capsys, *words), "makespan_s") == pytest.approx(25)
    # Measured anew it is another run, although the file is the same.
    store.remove("paced")
    store.add("paced", [Measurement(steps_per_s=8.0, **seen)])
    assert mean(document(capsys, *words), "makespan_s") == pytest.approx(12.5)
    (here / "jobs.toml").write_text(MEASURED + "work = {samples = 100}")
    _, err = simulate(capsys, "jobs.toml", "--nodes", "1x1", status=2)
    assert "job 'a': paced was measured in another unit; state its work" in err


@pytest.mark.parametrize("workers", [1, 2])
def test_a_policy_that_fails_is_one_line(
    capsys: pytest.CaptureFixture[str], here: Path, workers: int
) -> None:
    """It is asked for what it cannot do: a file of limits that is not there any more."""
    (here / "limits.toml").write_text('[[limit]]\nname = "few"\nmax_gpus = 2\n')
    words = ("t.csv", "--nodes", "2x1", "--policy", "marble", "--workers", str(workers))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hpcext.sim.replay.tasks.find_policy", lambda _: _greedy)
        _, err = simulate(capsys, *words, status=1)
    assert err.startswith("hpcext: policy marble: it grants 9 GPUs to job 1, which takes")
    assert err.count("\n") == 1


@pytest.mark.parametrize("fails", ["at once", "later"])
def test_a_policy_that_fails_in_a_dry_run_is_one_line(
    capsys: pytest.CaptureFixture[str], here: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    (here / "one.toml").write_text(
        '[[job]]\nname = "a"\ncommand = "true"\nscaling = {1 = 1.0}\nwork = {steps = 9}\n'
    )
    where = "cli.dry_run" if fails == "at once" else "sim.evaluate.expected"
    monkeypatch.setattr(f"hpcext.{where}.find_policy", lambda _: _greedy)
    assert cli.main(["run", "one.toml", "--gpus", "4", "--dry-run"]) == 1
    _, err = capsys.readouterr()
    assert err.startswith("hpcext: policy marble: it grants 9 GPUs to job 1")
    assert err.count("\n") == 1


def _greedy(now: v.Snapshot) -> v.Target:
    return v.Target({job.id: v.Grant({"node1": 9}, v.Role.PRIMARY, "") for job in now.jobs})


def test_a_full_disk_is_one_line_and_leaves_no_half_file(
    capsys: pytest.CaptureFixture[str], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = sim_store.write_file

    def full(path: Path, data: bytes, **more: Any) -> None:
        if path.parent.name == "runs":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write(path, data, **more)

    words = ("t.csv", "--nodes", "2x1", "--policy", "marble", "--report", "out")
    with monkeypatch.context() as patch:
        patch.setattr(sim_store, "write_file", full)
        _, err = simulate(capsys, *words, status=1)
    assert err.count("\n") == 1
    assert "No space left on device" in err
    assert list((here / "out" / "runs").iterdir()) == []
    _, err = simulate(capsys, *words)
    assert err == "hpcext: the report is out/report.html\n"


@pytest.mark.parametrize("workers", ["1", "2"])
def test_an_error_is_a_document_with_json(
    capsys: pytest.CaptureFixture[str], here: Path, workers: str
) -> None:
    words = ("simulate", "t.csv", "--nodes", "0x1", "--json", "--workers", workers)
    assert cli.main(words) == HpcextError.exit_status + 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["what"], error["where"]) == ("0", "--nodes")


def test_a_speed_by_kind_is_another_one_on_another_machine(here: Path) -> None:
    """A saved run of the one is not taken for the other."""
    (here / "k.toml").write_text(
        '[[job]]\nname = "a"\ncommand = "true"\nwork = 1000\n'
        "scaling = {a100 = {1 = 2.0}, v100 = {1 = 1.0}}\n"
    )
    place = NodeSource(nodes="1x1")
    tasks_ = [
        Task("k.toml", "marble", place, profiles=str(here), gpu=gpu) for gpu in ("a100", "v100")
    ]
    ends = [simulate_task(task)[0].end_s for task in tasks_]
    assert ends[0] < ends[1]
    assert tasks_[0].options != tasks_[1].options


def test_jobs_that_the_main_queue_cannot_run_are_told(
    capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    """As where the log counts processors."""
    words = ("t.csv", "--main", "log.swf", "--hours", "0.1", "--main-nodes", "3")
    said = []
    for more in ((), ("--per-node", "4")):
        cli.main(["simulate", *words, *more])
        said.append(capsys.readouterr().err)
    assert "log.swf: left out: 3 jobs of more than 3 nodes, the largest of 8; if the" in said[0]
    assert "left out" not in said[1]


def test_a_table_may_begin_with_a_mark_of_the_byte_order(
    capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    """As Excel writes it."""
    (here / "t.csv").write_text(TRAINERS, encoding="utf-8-sig")
    document(capsys, "t.csv", "--nodes", "4x1")
