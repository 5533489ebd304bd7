"""What ``hpcext plan`` prints: first steps of policies beside the best that is possible."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpcext.cli import main as cli
from hpcext.policies import POLICIES

EXAMPLES = Path(__file__).parents[2] / "examples" / "jobs.toml"
JOBS = """
[[job]]
name = "steep"
command = "true"
gpus = {min = 2, max = 4}
scaling = {2 = 3.0, 3 = 6.0}
[[job]]
name = "flat"
command = "true"
gpus = {max = 4}
scaling = {1 = 10.0, 4 = 13.0}
[[job]]
name = "unknown"
command = "true"
[[job]]
name = "later"
command = "true"
scaling = {1 = 1.0}
after = ["steep"]
"""


def plan(
    capsys: pytest.CaptureFixture[str], *words: str | Path, status: int = 0
) -> tuple[str, str]:
    assert cli.main(["plan", *map(str, words)]) == status
    return capsys.readouterr()


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.toml"
    path.write_text(JOBS)
    return path


def document(capsys: pytest.CaptureFixture[str], *words: str | Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(plan(capsys, *words, "--json")[0])
    assert found["schema"] == "hpcext.division/1"
    return found


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = plan(capsys, EXAMPLES, "--gpus", "6", "--compare")
    *table, speed, score = out.splitlines()
    rows, explained = [line.split() for line in table], [speed, score]
    assert rows == [
        ["job", *POLICIES, "optimum"],
        ["cnn", "3", "6", *"2222222", *"3333", "2"],
        ["wide", "3", *"22222222"],
        ["narrow", *"111111111"],
        ["logistic", *"111111111"],
        ["last"],
        ["GPUs", "in", "all", *"666666666", *"333", "5", "6"],
        ["total", "speed", "4.50", "1.69", *["5.55"] * 7, *["1.98"] * 3, "3.98", "5.55"],
        ["score", "665.714", "584.838", *["-69.8048"] * 3, "1.12202"],
        ["best", "score", "665.714", "594.201", "-69.8048", "1.12202"],
    ]
    # What the last rows are is said below them.
    assert [line.split(":")[0] for line in explained] == ["total speed", "score"]
    assert err == ""


def test_speeds_are_multiples_of_those_on_one_gpu(
    capsys: pytest.CaptureFixture[str], jobs: Path
) -> None:
    found = document(capsys, jobs, "--gpus", "4")
    assert found["policies"] == [
        {
            "policy": "marble",
            "gpus": {"steep": 3, "flat": 1, "unknown": 0, "later": 0},
            # 2 GPUs are the fewest that is said of the first: half as fast is one.
            "value": pytest.approx(6 / 1.5 + 1),
            "objective": None,
            "bound": None,
            "kinds": {},
        }
    ]
    assert found["optimum"]["gpus"] == {"steep": 3, "flat": 1}
    assert found["optimum"]["value"] == pytest.approx(5)
    assert found["unknown_speed"] == ["unknown"]
    _, err = plan(capsys, jobs, "--gpus", "4")
    assert err == (
        "hpcext: left out of the speeds: 1 job does not state what is needed here: "
        "unknown (scaling); add what each lacks, for example "
        "scaling = {1 = 1} (steps per second on so many GPUs)\n"
    )


def test_the_objective_of_a_policy_is_within_its_bound(
    capsys: pytest.CaptureFixture[str], jobs: Path
) -> None:
    found = document(capsys, jobs, "--gpus", "4", "--compare")
    by = {each["policy"]: each for each in found["policies"]}
    assert {name for name, each in by.items() if each["bound"] is not None} == {
        "bftrainer", "bftrainer-lifetime", "total_time", "pollux",
    }  # fmt: skip
    for name in ("bftrainer", "total_time", "pollux"):
        assert by[name]["objective"] == pytest.approx(by[name]["bound"])
    lifetime = by["bftrainer-lifetime"]
    assert 0 < lifetime["objective"] <= lifetime["bound"] + 1e-9
    for name in ("optimus", "doubling"):
        assert by[name]["objective"] <= by["total_time"]["bound"] + 1e-9


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_picture(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, jobs: Path, suffix: str
) -> None:
    path = tmp_path / f"plan.{suffix}"
    plan(capsys, jobs, "--gpus", "4", "--compare", "--plot", path)
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG" if suffix == "png" else b"<?xml")
    assert suffix == "png" or data.count(b"<path") > len(POLICIES)


KINDS = """
[[job]]
name = "steep"
command = "true"
gpus = {max = 4}
scaling = {a100 = {1 = 3.0, 4 = 12.0}, v100 = {1 = 1.0, 4 = 4.0}}
[[job]]
name = "flat"
command = "true"
gpus = {max = 4}
scaling = {1 = 1.0, 4 = 4.0}
"""


def test_nodes_of_several_kinds(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.toml"
    jobs.write_text(KINDS)
    words = (jobs, "--nodes", "1xa100:4,2xv100:2")
    found = document(capsys, *words, "--policy", "bftrainer")
    assert (found["nodes"], found["gpus_per_node"]) == (3, None)
    assert found["kinds"] == {"a100": 4, "v100": 4}
    for each in (found["policies"][0], found["optimum"]):
        assert each["kinds"] == {"steep": "a100", "flat": "v100"}
    # On the v100 there is no node with more than two.
    assert found["policies"][0]["gpus"] == {"steep": 4, "flat": 2}
    assert found["policies"][0]["value"] == pytest.approx(14)
    assert found["optimum"]["value"] == pytest.approx(16)
    assert found["optimum"]["bound"] >= 16 - 1e-9
    out, _ = plan(capsys, *words, "--policy", "bftrainer")
    assert "steep        4 a100     4 a100" in out.splitlines()


@pytest.mark.parametrize("nodes", [1, 3])
def test_no_policy_is_better_than_the_optimum(
    capsys: pytest.CaptureFixture[str], nodes: int
) -> None:
    for gpus in range(1, 13):
        words = (EXAMPLES, "--gpus", str(gpus), "--nodes", str(nodes), "--compare")
        found = document(capsys, *words)
        best = found["optimum"]
        assert sum(best["gpus"].values()) <= gpus * nodes
        for each in found["policies"]:
            assert each["value"] <= best["value"] + 1e-9


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gpus", "0"], "--gpus: 0 (valid: 1 to 1000000)"),
        (["--gpus", "4", "--nodes", "-1"], "--nodes: -1 (valid: 1 to 1000000)"),
        (["--gpus", "9999", "--nodes", "9999"], "--nodes: 99980001 GPUs in all (valid: at most"),
        (["--nodes", "2"], "--gpus: is missing; say how many GPUs each node has"),
        (["--nodes", "2xa100:4", "--gpus", "4"], "--nodes: --gpus together with kinds; leave out"),
        (["--nodes", "2xa100:4,3xv100"], "--nodes: '3xv100' (valid: a number, or NxKIND:GPUS"),
        (["--nodes", "0xa100:4"], "--nodes: 0 (valid: 1 to 1000000)"),
        (["--nodes", "9999xa:99,9999xb:99"], "--nodes: 1979802 GPUs in all (valid: at most"),
        (["--nodes", "9xa100:1,3xv100:1"], "needs at least 2 GPUs, and node1 has 1"),
        (["--gpus", "1"], "needs at least 2 GPUs, and node1 has 1"),
        (["--gpus", "4", "--policy", "marbel"], "did you mean marble?"),
        (
            ["--gpus", "4", "--policy", "marble", "--compare"],
            "--compare: already shows every policy",
        ),
        (
            ["--gpus", "4", "--policy", "pollux:p=9"],
            "--policy pollux: p=9: expected a number <= 1.0",
        ),
        (
            ["--gpus", "4", "--plot", "x.xyz"],
            "--plot: x.xyz (valid: a name that ends in .png, .svg",
        ),
        (["--gpus", "4", "--plot", "/no/x.png"], "--plot /no/x.png: No such file or directory"),
    ],
)
def test_bad_input_is_one_line(
    capsys: pytest.CaptureFixture[str], jobs: Path, words: list[str], said: str
) -> None:
    out, err = plan(capsys, jobs, *words, status=2)
    assert out == ""
    assert said in err
    assert err.count("\n") == 1
