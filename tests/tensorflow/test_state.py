"""What is saved of TensorFlow and Keras objects, and what is refused; in a process of its own,
because TensorFlow takes its time and its threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the script says of each case, by its name."""
    run = subprocess.run(
        [sys.executable, str(HERE / "state_cases.py")],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"},
        cwd=tmp_path_factory.mktemp("state"),
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert run.returncode == 0, run.stderr
    said = dict(line.split(": ", 1) for line in run.stdout.splitlines())
    return {**said, "stderr": run.stderr}


@pytest.mark.slow
def test_late_slots(lines: dict[str, str]) -> None:
    """An optimizer that is built by the first step, in a function, has the saved slots then."""
    assert lines["late, before it is built"] == "True"
    assert lines["late, what its first step used"] == "True"
    assert lines["late, of another model"] == (
        "CheckpointError the state of the optimizer 'adam_2' does not fit: variable 2: "
        "float32(4, 3) in the checkpoint, float32(5, 3) here; use the optimizer that it was "
        "written with, or another directory"
    )


def test_kinds_of_values(lines: dict[str, str]) -> None:
    for kind in ("bfloat16", "int64", "bool", "scalar", "nested", "checkpoint", "seed generator"):
        assert lines[kind] == "True", kind
    assert lines["callback"] == "wait=2 best=0.5 weights=True"


def test_random_numbers(lines: dict[str, str]) -> None:
    for source in ("operation", "global generator", "generator", "seed", "shuffle"):
        assert lines[f"random, {source}"] == "True", source


def test_what_does_not_fit_changes_nothing(lines: dict[str, str]) -> None:
    assert lines["shape"].endswith(
        "state.npz: the state of 'model' does not fit: variable 3: bias float32(2,) in "
        "the checkpoint, bias float32(3,) here; use the one that it was written with, or another "
        "checkpoint directory"
    )
    assert lines["shape, then"] == "unchanged"
    assert "variable 0: /a float32() in the checkpoint, /b float32() here" in lines["name"]
    assert "2 variables do not fit into 3" in lines["number"]
    assert lines["format"].startswith("CheckpointError")
    assert "has format numpy/1, but this session reads tensorflow/1" in lines["format"]


def test_objects_that_cannot_be_saved_are_refused(lines: dict[str, str]) -> None:
    assert "'lazy' has no variables yet; build it before the session" in lines["unbuilt model"]
    assert "a list is a copy" in lines["copies"]
    for case in ("no model", "another model"):
        assert lines[case].startswith("ValueError Session(optimizer=...): it trains ")
        assert "in no model that the session is given" in lines[case]
    assert "Adam makes steps but is not given to the session" in lines["forgetful"]
    assert "Module has no variables (yet)" in lines["empty module"]
    assert "object has no state_dict" in lines["no state"]
    assert "give load=, indices to batch" in lines["length without load"]
    assert "arrays of lengths [2, 3]: must be equal" in lines["lengths"]
    assert "compile the model first, with an optimizer" in lines["not compiled"]
    assert "fit(x): a generator cannot be resumed in mid-epoch" in lines["fit, generator"]
    assert "an epoch here always goes through all data once" in lines["fit, steps"]
    assert lines["fit itself"].startswith("RuntimeError call callback.fit(...) in place of")
    assert lines["fit twice"].startswith(
        "RuntimeError fit(epochs=2): an earlier fit with this callback has made all of these epochs"
    )
    assert lines["fit longer"] == "3 steps, epochs [2]"
    assert lines["alone"] == (
        "RuntimeError 2 workers that did not start under `hpcext launch`: start them with "
        "`hpcext launch --ranks 2 python ...`"
    )
    assert lines["several nodes"] == (
        "hpcext: the workers of TensorFlow are on several nodes, where their servers would run "
        "whatever anybody sends them: give the job one node"
    )


def test_fit(lines: dict[str, str]) -> None:
    assert lines["together"] == "20 steps, epochs [0, 1]"
    assert lines["together, more epochs"] == "30 steps, epochs [0, 1, 2]"
    assert lines["together, again"] == "30 steps"


def test_data(lines: dict[str, str]) -> None:
    assert lines["skipped"] == "[[6, 7, 8], [9]]"
    assert lines["too short"].startswith("CheckpointError the data set ends after 4 batches, but 5")
    assert lines["loaded"] == "True"
    assert lines["stderr"].count("this data set is shuffled anew in each epoch") == 1


@pytest.mark.slow
def test_example(tmp_path: Path) -> None:
    example = HERE.parents[1] / "examples" / "digits_keras.py"
    lines = [line for line in example.read_text().splitlines() if line.endswith("# hpcext")]
    assert 3 <= len(lines) <= 5
    run = subprocess.run(
        [sys.executable, str(example), "--epochs", "6", "--result", str(tmp_path / "result")],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert run.returncode == 0, run.stderr
    accuracy = float((tmp_path / "result").read_text())
    assert accuracy >= 0.95
    assert f"accuracy {accuracy:.4f} on 360 held-out digits after 144 steps" in run.stdout
