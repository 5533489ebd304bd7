"""The examples really train, and say what they reached."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(tmp_path: Path, *command: str) -> float:
    result = tmp_path / "result"
    process = subprocess.run(
        [sys.executable, *command, "--result", str(result)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=EXAMPLES,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert process.returncode == 0, process.stderr
    accuracy = float(result.read_text())
    assert f"accuracy {accuracy:.4f}" in process.stdout
    return accuracy


@pytest.mark.slow
def test_cnn_alone(tmp_path: Path) -> None:
    assert run(tmp_path, "digits_cnn.py", "--epochs", "8") >= 0.97


@pytest.mark.slow
def test_cnn_on_three_ranks(tmp_path: Path) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    assert run(tmp_path, *launcher, "digits_cnn.py", "--epochs", "8") >= 0.97


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "target"), [("digits_resnet.py", "0.6"), ("text_transformer.py", "0.2")]
)
def test_adaptive_ones(tmp_path: Path, name: str, target: str) -> None:
    assert run(tmp_path, name, "--adapt", "--target", target) >= float(target)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [["--adapt"], ["--batch", "64"]])
@pytest.mark.parametrize(
    ("name", "target"), [("digits_resnet.py", 0.95), ("text_transformer.py", 0.4)]
)
def test_adaptive_ones_reach_their_target(
    tmp_path: Path, name: str, target: float, batch: list[str]
) -> None:
    assert run(tmp_path, name, *batch) >= target


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher", [[], ["-m", "hpcext", "launch", "--ranks", "2", sys.executable]]
)
def test_jax(tmp_path: Path, launcher: list[str]) -> None:
    assert run(tmp_path, *launcher, "digits_jax.py") >= 0.95


def test_logistic_regression(tmp_path: Path) -> None:
    assert run(tmp_path, "logistic.py") >= 0.93


def test_logistic_regression_goes_on(tmp_path: Path) -> None:
    """Ten epochs in two goes are ten epochs in one."""
    whole = run(tmp_path, "logistic.py", "--epochs", "10")
    where = ["--dir", str(tmp_path / "saved")]
    run(tmp_path, "logistic.py", "--epochs", "4", *where)
    assert run(tmp_path, "logistic.py", "--epochs", "10", *where) == whole


@pytest.mark.parametrize(
    "name",
    ["digits_cnn.py", "digits_jax.py", "digits_keras.py", "digits_lightning.py", "logistic.py"],
)
def test_five_lines_at_most(name: str) -> None:
    lines = (EXAMPLES / name).read_text().splitlines()
    marked = [line for line in lines if line.endswith("# hpcext")]
    assert 3 <= len(marked) <= 5
    # Without them nothing of the session is there but the sampler, reports and the device.
    rest = "\n".join(line for line in lines if line not in marked)
    for needed in ("Session(", ".parallel(", ".epochs(", ".batches(", "Callback(", "Suspend("):
        assert needed not in rest
