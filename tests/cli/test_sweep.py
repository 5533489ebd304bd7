"""``hpcext sweep``: a job file that the other commands take."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcext.cli.main import main
from hpcext.core.trials import Trial
from hpcext.jobfile import read_jobs


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("print()\n")
    return path


def test_a_job_for_each_combination(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = script.with_name("jobs.toml")
    words = ["--grid", "lr=0.1,1e-3", "--grid", "opt=adam,sgd,lion", "--nodes", "1:8"]
    words += ["--gpus", "4", "-o", str(out), "--", "--epochs", "3"]
    assert main(["sweep", str(script), *words]) == 0
    assert capsys.readouterr().out == f"6 jobs in {out}\n"
    jobs = read_jobs(out)
    assert [job.name for job in jobs][:2] == ["train-1-lr0.1-optadam", "train-2-lr0.1-optsgd"]
    assert jobs[5].command[-5:] == (str(script), "--lr=1e-3", "--opt=lion", "--epochs", "3")
    assert (jobs[0].nodes.min, jobs[0].nodes.max, jobs[0].gpus.max) == (1, 8, 4)
    assert main(["sweep", str(script), *words]) == 2
    assert "exists" in capsys.readouterr().err


def test_names_are_names_whatever_the_values(script: Path, tmp_path: Path) -> None:
    out = tmp_path / "jobs.toml"
    long = "x" * 90
    words = ["--grid", f"p=a b,ü/..,{long},{long}1,'q',\N{WOMAN},\x7f", "-o", str(out)]
    assert main(["sweep", str(script), *words]) == 0
    jobs = read_jobs(out)
    assert len({job.name for job in jobs}) == 7
    assert [job.command[-1] for job in jobs] == [
        "--p=a b", "--p=ü/..", f"--p={long}", f"--p={long}1", "--p='q'",
        "--p=\N{WOMAN}", "--p=\x7f",
    ]  # fmt: skip


def test_it_is_printed(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--grid", "lr=1", "--scaling", "curve"]
    assert main(["sweep", str(script), *words]) == 0
    text = capsys.readouterr().out
    assert text.startswith('[[job]]\nname = "train-1-lr1"\n')
    assert 'scaling = "curve"\n' in text


def test_what_trials_are_compared_by(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = script.with_name("jobs.toml")
    words = ["--grid", "lr=1,2", "--metric", "val/loss", "--first", "100", "--factor", "4"]
    assert main(["sweep", str(script), *words, "--goal", "max", "-o", str(out)]) == 0
    jobs = read_jobs(out)
    rules = {"metric": "val/loss", "goal": "max", "first": 100, "factor": 4}
    assert [job.trial for job in jobs] == [
        Trial("train", {"lr": "1"}, **rules), Trial("train", {"lr": "2"}, **rules),
    ]  # fmt: skip
    assert main(["sweep", str(script), "--grid", "lr=1"]) == 0
    assert 'trial = {sweep = "train", settings = {lr = "1"}}' in capsys.readouterr().out


def test_a_draw_of_the_combinations(script: Path) -> None:
    def drawn(count: int, seed: int, values: int = 5) -> list[tuple[str, ...]]:
        out = script.with_name("drawn.toml")
        out.unlink(missing_ok=True)
        grids = [f"--grid=k{n}={','.join(map(str, range(values)))}" for n in range(3)]
        words = [*grids, "--random", str(count), "--seed", str(seed), "-o", str(out)]
        assert main(["sweep", str(script), *words]) == 0
        return [job.command[-3:] for job in read_jobs(out)]

    everything = drawn(125, 1)
    assert len(set(everything)) == 125
    assert everything[:3] != [("--k0=0", "--k1=0", f"--k2={last}") for last in range(3)]
    assert drawn(7, 3) == drawn(7, 3) != drawn(7, 4)
    # Of more than a file may hold, too.
    assert len(set(drawn(9, 1, values=500))) == 9


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--grid", "lr"), "--grid: 'lr'"),
        (("--grid", "lr="), "--grid: 'lr='"),
        (("--grid", "=1"), "--grid: '=1'"),
        (("--grid", "a b=1"), "--grid: 'a b=1'"),
        (("--grid", "a=1", "--grid", "a=2"), "one of these keys is given twice"),
        (("--grid", "a=1", "--nodes", "4:2"), "--nodes: '4:2'"),
        (("--grid", "a=1", "--gpus", "0"), "--gpus: '0'"),
        (("--grid", "a=1", "--gpus", "99999"), "gpus"),
        ((), "--grid"),
        (("--grid", "a=1,2", "--random", "3"), "--random: 3 (valid: 1 to 2)"),
        (("--grid", "a=1,2", "--random", "0"), "--random: 0"),
        (("--grid", "a=1", "--metric", "a b"), "--metric: 'a b'"),
        (("--grid", "a=1", "--goal", "max"), "--goal: needs --metric"),
        (("--grid", "a=1", "--first", "9"), "--first: needs --metric"),
        (("--grid", "a=1", "--metric", "b", "--factor", "9"), "--factor: needs --first"),
        (("--grid", "a=1", "--metric", "b", "--first", "0"), "--first: 0"),
        (("--grid", "a=1", "--metric", "b", "--first", "1", "--factor", "1"), "--factor: 1"),
        (("--grid", "a=1", "--goal", "most"), "--goal"),
        (("--range", "a=1:2"), "--range: needs --random"),
        (("--range", "a=2:1", "--random", "1"), "--range: 'a=2:1'"),
        (("--range", "a=0:1:log", "--random", "1"), "--range: 'a=0:1:log'"),
        (("--range", "a=1:2:lin", "--random", "1"), "--range: 'a=1:2:lin'"),
        (("--range", "a=1", "--random", "1"), "--range: 'a=1'"),
        (("--range", "a=nan:1", "--random", "1"), "--range: 'a=nan:1'"),
        (("--range", "a=1:inf", "--random", "1"), "--range: 'a=1:inf'"),
        (
            ("--range", "a=1:2", "--grid", "a=1", "--random", "1"),
            "one of these keys is given twice",
        ),
        (("--grid", "a=1", "--optuna", "p", "--metric", "b"), "--optuna: needs --random"),
        (("--grid", "a=1", "--optuna", "p", "--random", "1"), "--optuna: needs --metric"),
    ],
)
def test_impossible_requests_are_refused(
    script: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert main(["sweep", str(script), *words]) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert said in err


def test_too_many_combinations(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grids = [f"--grid=k{n}={','.join(map(str, range(20)))}" for n in range(4)]
    assert main(["sweep", str(script), *grids]) == 2
    assert "too many combinations" in capsys.readouterr().err


def test_no_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", str(tmp_path / "no.py"), "--grid", "a=1"]) == 2
    assert "is not a file" in capsys.readouterr().err


def test_a_name_that_no_job_file_can_hold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / os.fsdecode(b"train\xff.py")
    script.touch()
    assert main(["sweep", str(script), "--grid", "lr=1"]) == 2
    err = capsys.readouterr().err
    assert "/train\\udcff.py is not UTF-8, so a job file cannot hold it; rename it" in err
