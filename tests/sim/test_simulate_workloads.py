"""``hpcext simulate`` with measured trainings and made-up jobs, from the command line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from commands import simulate
from made_measurements import write

from hpcext.papers.marble import MarbleRun as SetCase
from hpcext.papers.marble import run as run_set
from hpcext.papers.pollux.runs import PolluxRun, simulated
from hpcext.sim.evaluate.metrics import figures
from hpcext.sim.workloads.philly import SHARES

HEADER = "name,time,application,num_replicas,batch_size\n"
ROWS = "a,5,bert,6,64\nb,9,cifar10,1,16\nc,40,ncf,1,64\nd,50,bert,8,256\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with measurements, and a workload of them beside these."""
    monkeypatch.chdir(tmp_path)
    for kind in ("CONFIG", "STATE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / "home" / kind))
    for name in ("bert", "cifar10", "ncf"):
        write(tmp_path / "pollux" / name)
    for number in (1, 2):
        (tmp_path / "pollux" / f"workload-{number}.csv").write_text(HEADER + ROWS)
    return tmp_path


def policies(capsys: pytest.CaptureFixture[str], *words: str | Path) -> dict[str, dict[str, Any]]:
    found = json.loads(simulate(capsys, *words, "--json")[0])
    return {each["label"]: each["figures"] for each in found["policies"]}


def mean(found: dict[str, Any], key: str) -> float:
    return float(found[key]["mean"])


WORKLOAD = "pollux/workload-1.csv"


@pytest.mark.parametrize("policy", ["tiresias", "pollux"])
def test_a_workload_gives_what_the_study_of_it_does(
    capsys: pytest.CaptureFixture[str], here: Path, policy: str
) -> None:
    found = policies(capsys, WORKLOAD, "--nodes", "16x4", "--policy", policy)[policy]
    ours = figures(simulated(PolluxRun(here / "pollux", policy, 1)))
    assert mean(found, "jct_mean_s") == ours.jct_mean_s
    assert mean(found, "rho_mean") == ours.rho_mean
    assert mean(found, "completed") == 4


def test_optimus_with_an_oracle_is_that_of_the_study(
    capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    policy = "optimus:interval_s=60"
    words = (WORKLOAD, "--nodes", "16x4", "--policy", policy)
    told = policies(capsys, *words, "--oracle")
    ours = figures(simulated(PolluxRun(here / "pollux", policy, 1)))
    assert list(told) == [f"{policy} (oracle)"]
    assert mean(told[f"{policy} (oracle)"], "jct_mean_s") == ours.jct_mean_s
    learned = policies(capsys, *words)
    assert mean(learned[policy], "jct_mean_s") > (ours.jct_mean_s or 0)


def test_the_comparison_of_the_paper(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    found = json.loads(simulate(capsys, WORKLOAD, "--nodes", "16x4", "--compare", "--json")[0])
    assert [each["policy"] for each in found["policies"]] == [
        "exclusive", "marble", "tiresias", "optimus:interval_s=60", "pollux",
    ]  # fmt: skip
    assert any(said.startswith("Trainings are measured ones") for said in found["assumed"])


def test_an_oracle_is_a_label_and_another_run(
    capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    words = (WORKLOAD, "--nodes", "16x4", "--policy", "optimus", "--report", "out")
    simulate(capsys, *words)
    out, err = simulate(capsys, *words, "--oracle")
    assert "runs already exist" not in err
    assert "optimus (oracle)" in out
    summary = json.loads((here / "out" / "summary.json").read_text())
    assert (summary["policies"][0]["label"], summary["policies"][0]["policy"]) == (
        "optimus (oracle)", "optimus",
    )  # fmt: skip
    assert summary["assumed"][0].startswith("With an oracle: policies are told the true speeds")
    assert not any(said.startswith("Policies know what") for said in summary["assumed"])
    _, err = simulate(capsys, *words, "--oracle")
    assert "1 of 1 runs already exist" in err
    # Other measurements are another run.
    path = here / "pollux" / "bert" / "validation-16.csv"
    path.write_text(path.read_text().replace("4.0", "5.0"))
    _, err = simulate(capsys, *words, "--oracle")
    assert "runs already exist" not in err


def test_measurements_that_lie_elsewhere(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    words = ("--nodes", "16x4", "--policy", "tiresias")
    beside = policies(capsys, WORKLOAD, *words)
    (here / "w.csv.gz").write_bytes(gzip.compress((HEADER + ROWS).encode()))
    for more in (
        ("w.csv.gz", "--data", "."),
        ("w.csv.gz", "--data", "pollux"),
        ("w.csv.gz:data=pollux",),
    ):
        assert policies(capsys, *more, *words) == beside
    _, err = simulate(capsys, "w.csv.gz", "--nodes", "1x4", "--data", "home", status=2)
    assert "home: it has no measurements" in err


def test_a_philly_workload_is_generated(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    for name in set(SHARES) - {"bert", "cifar10", "ncf"}:
        write(here / "pollux" / name)
    words = ("philly:load=0.02", "--data", ".", "--nodes", "16x4", "--policy", "tiresias")
    one, two = (policies(capsys, *words, "--seed", str(seed)) for seed in (1, 2))
    assert one == policies(capsys, *words, "--seed", "1") != two


@pytest.mark.parametrize("policy", ["marble", "exclusive"])
def test_a_set_of_marble_takes_as_long_as_in_the_study(
    capsys: pytest.CaptureFixture[str], here: Path, policy: str
) -> None:
    found = policies(capsys, "marble:1", "--nodes", "1x6", "--learn", "--policy", policy)
    assert mean(found[policy], "makespan_s") == pytest.approx(run_set(SetCase(1, policy)).time_s)


def test_jobs_come_at_random(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    words = ("poisson:jobs=5,mean_s=9", "--nodes", "1x8", "--seed", "1", "--seed", "2")
    found = policies(capsys, *words, "--policy", "fixed:gpus=8")["fixed:gpus=8"]
    # Each has the machine for 84 minutes; the first comes after some seconds.
    assert mean(found, "makespan_s") == pytest.approx(5 * 84 * 60)
    assert found["jct_mean_s"]["spread"] > 0


def test_what_nodes_that_stay_would_have_done(
    capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    """Two nodes, after 1,000 s one: 10 s to begin, 5 s to shrink."""
    (here / "t.csv").write_text(
        "name,submit_s,n_min,n_max,rescale_up_s,rescale_down_s,samples,rate_1,rate_2\n"
        "a,0,1,2,10,5,3000,1,2\n"
    )
    (here / "i.csv").write_text("time_s,joined,left\n0,0-1,\n1000,,1\n")
    words = ("t.csv", "--idle", "i.csv", "--policy", "equal_share")
    found = policies(capsys, *words)["equal_share"]
    ends_s = 1000 + 5 + 3000 - 2 * 990
    assert mean(found, "makespan_s") == ends_s
    # Without costs one node does 1 sample a second; there were 1.49 in the mean.
    assert mean(found, "ideal_share") == pytest.approx(3000 / (2 * 1000 + ends_s - 1000))
    cut = json.loads(simulate(capsys, *words, "--hours", "0.25", "--json", status=1)[0])
    assert mean(cut["policies"][0]["figures"], "ideal_share") == pytest.approx(890 / 900)
    # A machine that stays is its own ideal: nothing is said of it, but who got what is.
    found = policies(capsys, "t.csv", "--nodes", "2x1", "--policy", "equal_share")["equal_share"]
    assert found["ideal_share"] is None
    assert mean(found, "rho_mean") == pytest.approx((10 + 1500) / 1500)


BAD: list[tuple[list[str], str]] = [
    (["philly", "--nodes", "16x4"], "philly: it needs measurements of trainings; give --data DIR"),
    (["philly:data=none", "--nodes", "16x4"], "none/cifar10/placements.csv: no such file"),
    (["philly:laod=2", "--nodes", "16x4"], "unknown option 'laod=2'"),
    (["philly:load=0", "--nodes", "16x4"], "philly: load=0: expected a number > 0.0"),
    (["philly:load=nan", "--nodes", "16x4"], "philly: load=nan: expected a number > 0.0"),
    (["philly:adapt=2", "--nodes", "16x4"], "philly: adapt=2: must be true or false"),
    (["capes", "--nodes", "8x8"], "capes: it names no contention (valid: extreme, moderate, none)"),
    (["capes:low", "--nodes", "8x8"], "capes: unknown contention 'low' (valid: extreme"),
    (["marble:10", "--nodes", "1x6"], "marble: unknown set '10' (valid: 1, 2, 3"),
    (["marble:4", "--nodes", "7x6"],
     "marble:4: job ResNet-50: needs 8 nodes, but only 7 are available"),
    (["poisson:jobs=0", "--nodes", "1x8"], "poisson: jobs=0: expected a whole number >= 1"),
    (["poisson:jobs=1.5", "--nodes", "1x8"], "poisson: jobs=1.5: expected a whole number"),
    (["poisson:mean_s=-1", "--nodes", "1x8"], "poisson: mean_s=-1: expected a number > 0.0"),
    (["poisson:of=no.toml", "--nodes", "1x8"], "no.toml: no such file"),
    (["poisson:of=dag.toml", "--nodes", "1x8"], "dag.toml: job 'b' waits for another job"),
    (["poison:jobs=3", "--nodes", "1x8"], "did you mean poisson?"),
    ([WORKLOAD, "--nodes", "2x8"], "nodes with 8 GPUs (valid: at most 4"),
    ([f"{WORKLOAD}:adapt=maybe", "--nodes", "2x4"], "adapt=maybe: must be true or false"),
    ([f"{WORKLOAD}:load=2", "--nodes", "2x4"], "unknown option 'load=2'"),
    ([WORKLOAD, "--nodes", "1x4", "--policy", "tiresias"],
     "job a: needs 6 GPUs, but only 4 are available"),
    ([WORKLOAD, "--nodes", "1x4", "--policy", "pollux", "--policy", "exclusive"],
     "job a: needs 2 nodes with 3 GPUs each, but only 1 is available"),
    (["capes:none", "--nodes", "1x8", "--data", "."], "--data: has no meaning for this workload"),
    ([WORKLOAD, "--nodes", "2x4", "--oracle", "--learn"], "--oracle: tells policies what --learn"),
    (["other.csv", "--nodes", "2x4"], "other.csv: line 1: its first line is 'x,y' (valid: name"),
    (["other.csv", "--nodes", "2x4"], "or name,time,application,num_replicas,batch_size for"),
    (["t.csv:adapt=true", "--nodes", "2x4"], "a file of trainers takes no options"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "said"), BAD, ids=[" ".join(words[:1]) for words, _ in BAD])
def test_wrong_arguments_are_one_line(
    capsys: pytest.CaptureFixture[str], here: Path, words: list[str], said: str
) -> None:
    (here / "other.csv").write_text("x,y\n1,2\n")
    (here / "t.csv").write_text("name,submit_s,n_min,n_max\n")
    job = '[[job]]\nname = "{}"\ncommand = "true"\nscaling = {{1 = 2.0}}\nwork = {{steps = 9}}\n'
    (here / "dag.toml").write_text(job.format("a") + job.format("b") + 'after = ["a"]\n')
    out, err = simulate(capsys, *words, "--report", "out", status=2)
    assert (out, err.count("\n")) == ("", 1)
    assert said in err
    assert not (here / "out").exists()


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("a,5,brt,6,64\n", "line 2: unknown application 'brt' (valid: bert, cifar10, ncf"),
        ("a,5,bert,6,8\n", "line 2: batch_size 8 on 6 GPUs (valid: 24 to 256, the measured"),
        ("a,5,bert,1,512\n", "line 2: batch_size 512 on 1 GPUs (valid: 16 to 256"),
        ("a,5,bert,0,64\n", "line 2: num_replicas '0'"),
        ("a,5,bert,6,64\nb,4,bert,6,64\n", "line 3: time 4"),
        ("a,5,bert,6,64\nb,inf,bert,6,64\n", "line 3: time 'inf'"),
        ("a,5,bert,6", "line 2: has no end"),
        ("", "line 2: it has no jobs"),
    ],
)
def test_a_damaged_workload_is_one_line(
    capsys: pytest.CaptureFixture[str], here: Path, rows: str, said: str
) -> None:
    (here / WORKLOAD).write_text(HEADER + rows)
    _, err = simulate(capsys, WORKLOAD, "--nodes", "16x4", status=2)
    assert f"{WORKLOAD}: {said}" in err
    assert err.count("\n") == 1


def test_a_spoilt_measurement_is_one_line(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    path = here / "pollux" / "bert" / "scalability.csv"
    path.write_text(path.read_text().replace("6,6,4,", "6,6,-4,", 1))
    _, err = simulate(capsys, WORKLOAD, "--nodes", "16x4", "--policy", "tiresias", status=2)
    assert "pollux/bert/scalability.csv: line 2: local_bsz '-4'" in err
    assert err.count("\n") == 1
