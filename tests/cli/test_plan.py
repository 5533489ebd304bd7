"""What ``hpcext plan`` prints: first steps of policies beside the best that is possible."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpcext.cli import main as cli

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
    assert [line.split() for line in out.splitlines()] == [
        ["job", "marble", "exclusive", "bftrainer", "optimum"],
        ["cnn", "3", "6", "2", "2"],
        ["wide", "3", "2", "2"],
        ["narrow", "1", "1"],
        ["logistic", "1", "1"],
        ["last"],
        ["GPUs", "in", "all", "6", "6", "6", "6"],
        ["speed", "in", "all", "4.50", "1.69", "5.55", "5.55"],
    ]
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
        }
    ]
    assert found["optimum"]["gpus"] == {"steep": 3, "flat": 1}
    assert found["optimum"]["value"] == pytest.approx(5)
    assert found["unknown_speed"] == ["unknown"]
    _, err = plan(capsys, jobs, "--gpus", "4")
    assert err == "hpcext: no scaling is known of unknown: not counted in the speeds\n"


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
        (["--gpus", "1"], "needs at least 2 GPUs, and node1 has 1"),
        (["--gpus", "4", "--policy", "marbel"], "did you mean marble?"),
        (["--gpus", "4", "--policy", "marble", "--compare"], "--compare: shows every policy"),
    ],
)
def test_bad_input_is_one_line(
    capsys: pytest.CaptureFixture[str], jobs: Path, words: list[str], said: str
) -> None:
    out, err = plan(capsys, jobs, *words, status=2)
    assert out == ""
    assert said in err
    assert err.count("\n") == 1
