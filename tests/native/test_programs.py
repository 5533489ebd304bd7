"""Trainings that know nothing of hpcext are suspended again and again, and what they lose is said.

Each is written as the documentation of its library shows it, and appends the number and the time of
each step to ``steps``. ``python tests/native/test_programs.py NAME TIMES`` suspends one so often.
"""

from __future__ import annotations

import importlib.util
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

# As a command, too.
sys.path.insert(0, str(Path(__file__).parents[1]))

from written import whole_lines

from hpcext.checkpointers import checkpoint
from hpcext.launch import supervise

PROGRAMS = Path(__file__).parent / "programs"
LIMIT_S = 120.0
CLOCK_S = 0.05
"""The clock of a file system ticks a few times in a hundred milliseconds."""


class Program(NamedTuple):
    """A training, and how its job says that it saves.

    Attributes
    ----------
    command : tuple of str
        ``{steps}`` stands for their number.
    checkpoint : object
        As in a job file.
    steps : int
    needs : str
        The package that it needs.
    word : bool
        Whether it says that it has saved, so that no step that it did before may be lost.
    """

    command: tuple[str, ...]
    checkpoint: Any
    steps: int = 300
    needs: str = ""
    word: bool = False


def python(name: str, *words: str) -> tuple[str, ...]:
    return (sys.executable, str(PROGRAMS / name), *words)


def plain(pattern: str) -> dict[str, Any]:
    return {"preset": "plain", "file": pattern}


TRAPPED = {"signal": "SIGUSR1", "done": {"exit": [0], "requeue": True, "file": "count"}}
HF = (
    "--output_dir", "out", "--max_steps", "{steps}", "--per_device_train_batch_size", "4",
    "--report_to", "none", "--save_strategy", "no", "--disable_tqdm", "1",
)  # fmt: skip
RANKS = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")

QUICK = {
    "bash": Program(("bash", str(PROGRAMS / "trap.sh"), "{steps}"), TRAPPED, word=True),
    "scikit-learn": Program(
        python("sklearn_partial.py", "{steps}"), plain("*.joblib"), needs="sklearn"
    ),
}
SLOW = {
    "torch": Program(python("torch_loop.py", "{steps}"), plain("*.pt"), needs="torch"),
    "torchrun": Program(
        (sys.executable, *RANKS, str(PROGRAMS / "torchrun_ranks.py"), "{steps}"),
        plain("*.tar"),
        needs="torch",
    ),
    "lightning": Program(
        python("lightning_demo.py", "{steps}"), "lightning", needs="lightning", word=True
    ),
    "transformers": Program(
        python("transformers_trainer.py", *HF), "transformers", needs="transformers", word=True
    ),
    "accelerate": Program(
        python("accelerate_loop.py", "{steps}"), "accelerate", needs="accelerate"
    ),
    "keras": Program(python("keras_backup.py", "{steps}"), "keras", steps=60, needs="tensorflow"),
    "jax": Program(python("orbax_preempted.py", "{steps}"), "jax", needs="orbax", word=True),
    "lightgbm": Program(
        python("lightgbm_rounds.py", "{steps}"), plain("model.txt"), needs="lightgbm"
    ),
    "xgboost": Program(
        python("xgboost_rounds.py", "{steps}"), plain("model_*.json"), needs="xgboost"
    ),
    "hydra": Program(
        python("hydra_app.py", "steps={steps}", "hydra.run.dir=.", "hydra.output_subdir=null"),
        plain("state.json"),
        needs="hydra",
    ),
    "submitit": Program(
        python("submitit_count.py", "{steps}"), "submitit", needs="submitit", word=True
    ),
    # The kernel is a session of its own.
    "notebook": Program(
        (
            sys.executable,
            "-m",
            "papermill",
            str(PROGRAMS / "notebook.ipynb"),
            "out.ipynb",
            "-p",
            "steps",
            "{steps}",
            "--no-progress-bar",
            "--kernel",
            "python3",
        ),
        plain("weights.npy"),
        needs="papermill",
    ),
}


class Course(NamedTuple):
    """What became of a training that was suspended again and again."""

    suspensions: int
    lost: list[int]
    """Steps that were done again after each suspension."""
    ends: list[dict[str, Any]]


def steps_of(place: Path) -> list[tuple[int, float]]:
    path = place / "steps"
    lines = whole_lines(path)
    return [(int(step), float(at)) for step, at in (line.split() for line in lines)]


def attempt(
    place: Path, number: int, program: Program, steps: int, gpu: bool = False
) -> subprocess.Popen[bytes]:
    """Begin the same command again, under a supervisor."""
    directory = place / "job" / f"attempt-{number:04d}"
    directory.mkdir(parents=True)
    document = {
        "schema": "hpcext.launch/1",
        "job": "1",
        "attempt": number,
        "op": number,
        "argv": [word.format(steps=steps) for word in program.command],
        "cwd": str(place),
        "environ": {
            "HPCEXT_PROTOCOL": "1",
            "HPCEXT_REPORT_DIR": str(directory),
            "CUDA_VISIBLE_DEVICES": "0" if gpu else "-1",
            "TMPDIR": str(place),
        },
        "log": str(place / "log.txt"),
        "gpus": [],
        "kill_grace_s": 5.0,
        "suspend_timeout_s": 60.0,
        "manager": None,
        "checkpoint": msgspec.to_builtins(checkpoint(program.checkpoint)),
    }
    (directory / "launch.json").write_text(json.dumps(document))
    argv = [sys.executable, "-I", "-S", supervise.__file__, str(directory)]
    return subprocess.Popen(argv, stdin=subprocess.DEVNULL)


def suspended(place: Path, program: Program, times: int, seed: int, gpu: bool = False) -> Course:
    """Suspend a training so often, each time after a few steps more; then let it complete.

    They see no GPU, unless they are to use the first.
    """
    rng = random.Random(seed)
    lost: list[int] = []
    ends: list[dict[str, Any]] = []
    last: list[tuple[int, float]] = []
    number = 0
    # Enough for all suspensions, each of which may cost what it has done since.
    steps = max(program.steps, 0)
    while True:
        number += 1
        before = steps_of(place)
        supervisor = attempt(place, number, program, steps, gpu)
        try:
            if number <= times:
                wait_for_steps(place, len(before) + rng.randint(1, 25), supervisor)
                supervisor.send_signal(signal.SIGTSTP)
            # The last attempt may have all of the work left to do.
            supervisor.wait(LIMIT_S if number <= times else 10 * LIMIT_S)
        finally:
            supervisor.kill()
        end = json.loads((place / "job" / f"attempt-{number:04d}" / "exit.json").read_text())
        after = steps_of(place)
        new = after[len(before) :]
        if last and new:
            lost.append(max(0, last[-1][0] - new[0][0] + 1))
            check_loss(program, last, new[0][0], ends[-1])
        ends.append(end)
        last = new
        if not end["suspended"]:
            assert end["exit_code"] == 0, (place / "log.txt").read_text()[-2000:]
            assert {step for step, _ in after} >= set(range(1, steps + 1))
            return Course(number - 1, lost, ends)


def check_loss(
    program: Program, last: Sequence[tuple[int, float]], first: int, end: dict[str, Any]
) -> None:
    """No step of an attempt is done again that was done before what is said to be lost."""
    said = end["checkpoint"]
    since = end["main_ended_at"] - said["lost_s"] - CLOCK_S
    again = [(step, at) for step, at in last if step >= first]
    assert all(at >= since for _, at in again), (first, again, said)
    if program.word:
        assert said["saved"]


def wait_for_steps(place: Path, count: int, supervisor: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + LIMIT_S
    while len(steps_of(place)) < count and supervisor.poll() is None:
        assert time.monotonic() < until, (place / "log.txt").read_text()[-2000:]
        time.sleep(0.01)


def missing(program: Program) -> bool:
    return bool(program.needs) and importlib.util.find_spec(program.needs) is None


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", QUICK)
def test_it_survives_some_suspensions(tmp_path: Path, name: str) -> None:
    program = QUICK[name]
    assert not missing(program), f"needs {program.needs}: make test-slow installs it"
    course = suspended(tmp_path, program, 4, seed=1)
    assert course.suspensions >= 1


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("name", [*QUICK, *SLOW])
def test_it_survives_a_hundred_suspensions(tmp_path: Path, name: str) -> None:
    program = {**QUICK, **SLOW}[name]
    assert not missing(program), f"needs {program.needs}: make test-slow installs it"
    times = 100
    longer = program._replace(steps=program.steps * (1 if name == "keras" else 6))
    course = suspended(tmp_path, longer, times, seed=2)
    assert course.suspensions >= 1


def main(name: str, times: str, steps: str) -> None:
    program = {**QUICK, **SLOW}[name]._replace(steps=int(steps))
    with tempfile.TemporaryDirectory() as place:
        course = suspended(Path(place), program, int(times), seed=3)
    said = [end["checkpoint"]["lost_s"] for end in course.ends[:-1]]
    print(
        f"{name}: {course.suspensions} suspensions; steps lost by each: {course.lost}; "
        f"seconds said: {[round(each, 2) for each in said]}"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
