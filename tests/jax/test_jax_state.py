"""What is saved of pytrees, and what is refused; in a process of its own, because JAX takes its
time and its threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
WRITE = "write `session.state, loss = train_step(session.state, batch)`"
DIRECTORY = "use the one that it was written with, or another checkpoint directory"
KEEP_OUT = (
    "keep what is not trained out of the pytree (a static field, eqx.filter, nnx.split), or give "
    "it to Session under another name"
)


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the script says of each case, by its name."""
    flags = "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0"
    run = subprocess.run(
        [sys.executable, str(HERE / "jax_cases.py")],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"},
        cwd=tmp_path_factory.mktemp("state"),
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert run.returncode == 0, run.stderr
    return dict(line.split(": ", 1) for line in run.stdout.splitlines())


def test_kinds_of_values(lines: dict[str, str]) -> None:
    for kind in ("bfloat16", "float8", "bool", "empty", "number", "numpy", "key", "beside"):
        assert lines[kind] == "True", kind
    assert lines["weak"] == "False"


def test_restored_on_other_devices(lines: dict[str, str]) -> None:
    """However it was divided when it was saved, and whatever on."""
    told = [name for name in lines if " to " in name]
    assert len(told) == 17
    assert {lines[name] for name in told} == {"True"}


def test_what_does_not_fit_is_refused(lines: dict[str, str]) -> None:
    place = "fit/step-000000000.attempt-0001/state.npz: the state of 'state' does not fit: "
    here = f"CheckpointError {place}"
    assert lines["shape"] == (
        f"{here}leaf ['w'] is float32(2, 3) in the checkpoint, and float32(2, 4) here; {DIRECTORY}"
    )
    assert "float32(2, 3) in the checkpoint, and int32(2, 3) here" in lines["type"]
    assert lines["structure"] == (
        f"{here}the pytree has another structure: ['b'] only in the checkpoint, ['bias'] only "
        f"here; {DIRECTORY}"
    )
    assert "key of threefry2x32() in the checkpoint, and key of rbg() here" in lines["impl"]
    assert "has format numpy/1, but this session reads jax/1" in lines["format"]
    assert lines["x64"] == (
        "CheckpointError the checkpoint was written with jax_enable_x64=False, and now it is True; "
        "set JAX_ENABLE_X64=0, or use another checkpoint directory"
    )


def test_a_state_that_is_not_given_back(lines: dict[str, str]) -> None:
    """In the first attempt already, not when weights are lost by the first suspension."""
    assert lines["forgets"] == (
        "RuntimeError step 0 has not assigned session.state, so what it trains would not be "
        f"saved; {WRITE}"
    )
    own = (
        "RuntimeError session.state is assigned, but this step has not read it: the step trains a "
        f"copy that would have its initial values when the training is resumed; {WRITE}"
    )
    assert lines["trains its own"] == lines["reads early"] == own
    assert lines["donates"] == (
        "RuntimeError session.state: leaf ['w'] was donated to a function (donate_argnums), and "
        f"its result was not assigned; {WRITE}"
    )
    # A later step may leave it as it is.
    assert lines["skips"] == "[2.0, 2.0]"


def test_a_state_that_changes_its_kind(lines: dict[str, str]) -> None:
    stay = "shapes and types must stay as they were given to Session"
    leaf = "ValueError session.state: leaf ['w'] was float32(2,), and is now"
    assert lines["grows"] == f"{leaf} float32(3,); {stay}"
    assert lines["other type"] == f"{leaf} int32(2,); {stay}"
    assert lines["other structure"] == (
        "ValueError session.state has another structure: ['v'] only now"
    )
    assert lines["text"] == f"TypeError session.state: leaf ['w'] is no array but a str; {KEEP_OUT}"
    assert lines["traced"].startswith("TypeError session.state: leaf ['w'] is a tracer: ")
    assert lines["from numpy"] == "True"


def test_what_is_no_state_is_refused(lines: dict[str, str]) -> None:
    assert lines["no state"].startswith("TypeError Session(): give state=, the pytree of all")
    assert lines["function"] == (
        f"TypeError Session(state=...): leaf ['apply'] is no array but a function; {KEEP_OUT}"
    )
    assert "leaf ['name'] is no array but a str" in lines["text in it"]
    assert "leaf itself is no array but one of objects" in lines["objects"]
    assert lines["nothing"] == "TypeError Session(state=...): the pytree has no arrays"
    assert lines["apart"].startswith(
        "TypeError Session(opt_state=...): arrays of JAX do not change in place"
    )
    assert lines["misspelt"] == "TypeError Session(sed=1): no such option; did you mean seed?"
    assert lines["sharding"].startswith("TypeError Session(sharding=...): only with state= a func")


def test_data(lines: dict[str, str]) -> None:
    assert lines["loaded"] == lines["shuffled"] == lines["in the same order"] == "True"
    assert lines["length without load"].endswith("give load=, indices to batch")
    assert lines["lengths"].endswith("arrays of lengths [2, 3]: must be equal")
    where = "ValueError session.dataset(global_batch="
    assert lines["batch"] == f"{where}11): must be 1 to 10, the number of samples"
    assert lines["uneven"] == f"{where}6): must be a multiple of 4, the devices that share it"


def test_processes_that_have_not_met(lines: dict[str, str]) -> None:
    first = (
        "call hpcext.training.jax.initialize() before anything else of JAX: before an array is "
        "made, and before the devices are asked for"
    )
    assert lines["not joined"] == f"RuntimeError 2 processes, each training on its own: {first}"
    assert lines["too late"] == f"RuntimeError JAX was used before its 2 processes met: {first}"
    for name in ("alone", "alone, joined"):
        assert lines[name] == (
            "RuntimeError 2 workers that did not start under `hpcext launch`: "
            "start them with `hpcext launch --ranks 2 python ...`"
        )
