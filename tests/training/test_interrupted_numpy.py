"""The session without a framework, in real processes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harness import Job, Started, suspend_tree

from hpcext.process import Process

SCRIPT = "train_numpy.py"
STEPS = 40


def final(job: Job) -> str:
    return [line[3] for line in job.log if line[2] == "final"][-1]


def steps(job: Job) -> list[int]:
    return [int(line[3]) for line in job.log if line[2] == "step"]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> str:
    job = Job(tmp_path_factory.mktemp("reference"), SCRIPT)
    run = job.run()
    assert run.code == 0, run.output
    assert run.report["done"] == STEPS * 8
    assert run.report["saved_step"] == STEPS
    # What is no number is said to be none, so that no older one stands for it.
    assert set(run.report["metrics"]) == {"loss", "bad"}
    assert run.report["metrics"]["bad"] is None
    return final(job)


def test_bit_identical(tmp_path: Path, reference: str) -> None:
    job = Job(tmp_path, SCRIPT)
    draw = random.Random(8)
    early = [f"step:{step}" for step in sorted(draw.sample(range(30), 3))]
    late = [f"step:{step}" for step in sorted(draw.sample(range(30, 40), 2))]
    for ask in [*early, "validation:2:1", *late, "validation:3:0"]:
        run = job.run(f"--ask={ask}")
        assert run.code == 85, run.output
        assert run.suspended is not None, ask
        assert "ZeroDivisionError" in run.output
    assert job.run().code == 0
    assert steps(job) == list(range(STEPS))
    assert final(job) == reference
    assert len(job.checkpoints) == 2


def test_left_by_break_counts_the_step(tmp_path: Path) -> None:
    whole = Job(tmp_path / "whole", SCRIPT, "--break-at=5")
    assert whole.run().code == 0
    job = Job(tmp_path / "job", SCRIPT, "--break-at=5")
    # Asked in the very step that the loop is left in: the validation is the place to stop.
    run = job.run("--ask=step:9")
    assert run.suspended is not None
    assert run.suspended["step"] == 10
    assert job.run("--ask=step:13").suspended is not None
    assert job.run().code == 0
    assert steps(job) == steps(whole) == list(range(20))
    assert final(job) == final(whole)


def test_from_outside(tmp_path: Path, reference: str) -> None:
    job = Job(tmp_path, SCRIPT)
    for step in (7, 23):
        run = job.run_held(step, suspend_tree)
        assert run.suspended is not None, run.output
        assert run.suspended["step"] == step + 1
    assert job.run().code == 0
    assert steps(job) == list(range(STEPS))
    assert final(job) == reference


DRIVER = """
import subprocess, sys
subprocess.run(sys.argv[1:], check=True)
print("published", flush=True)
"""


def test_a_program_above_it_does_not_take_its_suspension_for_the_end_of_its_work(
    tmp_path: Path,
) -> None:
    job = Job(tmp_path, SCRIPT)
    job.prefix = (sys.executable, "-c", DRIVER)
    run = job.run("--ask=step:9")
    assert run.suspended is not None
    assert run.code != 0
    assert "published" not in run.output
    run = job.run()
    assert run.code == 0
    assert "published" in run.output


def test_a_launcher_of_ranks_is_told_of_no_failure(tmp_path: Path) -> None:
    job = Job(tmp_path, SCRIPT)
    run = job.finish(job.start("--ask=step:9", RANK="0"))
    assert run.suspended is not None
    assert run.code == 0


def test_records(tmp_path: Path) -> None:
    """What the manager is told, and that it is told to look."""
    job = Job(tmp_path, SCRIPT)
    job.notify = Process.me()
    # A handler, not a mask: the test runner's other threads do not block the signal.
    news: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: news.append(number))
    try:
        process = job.start("--ask=step:2")
        run = job.finish(process)
        assert news
    finally:
        signal.signal(signal.SIGUSR1, before)
        job.notify = None
    record, report = run.suspended, run.report
    assert record is not None
    assert record["schema"] == "hpcext.suspended/1"
    assert (record["attempt"], record["op"], record["step"]) == (1, 11, 3)
    assert Path(record["manifest"]) == job.checkpoints[-1] / "manifest.json"
    assert report["schema"] == "hpcext.report/1"
    assert (report["attempt"], report["op"], report["pid"]) == (1, 11, process.pid)
    assert (report["step"], report["saved_step"], report["resumed_step"]) == (3, 3, 0)
    assert report["registered_at"] <= report["restored_at"] <= report["first_step_at"]
    assert report["first_step_at"] <= report["at"] <= record["acknowledged_at"]
    assert job.run("--ask=step:5").report["resumed_step"] == 3


def test_lost_without_notice(tmp_path: Path, reference: str) -> None:
    """SIGKILL: back to the last periodic checkpoint, and no step is left out."""
    job = Job(tmp_path, SCRIPT, "--every=10")

    def kill(process: Started) -> None:
        # The thread that writes the one of step 20 may not be done yet.
        while not any("000000020" in path.name for path in job.checkpoints):
            time.sleep(0.01)
        process.kill()

    assert job.run_held(25, kill).code == -signal.SIGKILL
    assert job.run().code == 0
    assert steps(job) == [*range(25), *range(20, STEPS)]
    assert final(job) == reference


def test_finished_early_stays_finished(tmp_path: Path) -> None:
    job = Job(tmp_path, SCRIPT, "--finish-at=1")
    assert job.run().code == 0
    assert steps(job) == list(range(20))
    assert job.run().code == 0
    assert steps(job) == list(range(20))


def without_manager(job: Job, *args: str) -> subprocess.CompletedProcess[str]:
    """As a user starts a script: no supervisor, nothing blocked, no variables of ours."""
    return subprocess.run(
        [sys.executable, str(job.script), *args],
        env={"SCRIPT_LOG": str(job.path / "log"), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )


def test_without_a_manager(tmp_path: Path, reference: str) -> None:
    """A directory is enough; the exit code then says that there is more to do."""
    job = Job(tmp_path, SCRIPT)
    where = f"--dir={tmp_path / 'mine'}"
    assert without_manager(job, where, "--ask=step:11").returncode == 85
    last = without_manager(job, where)
    assert last.returncode == 0, last.stderr
    assert steps(job) == list(range(STEPS))
    assert final(job) == reference


def test_plain_loop(tmp_path: Path, reference: str) -> None:
    """Neither a manager nor a directory: the same training, and nothing is written."""
    job = Job(tmp_path, SCRIPT)
    run = without_manager(job)
    assert run.stdout.split() == ["finished", str(STEPS), "quiet"]
    assert final(job) == reference
    assert [path.name for path in tmp_path.iterdir()] == ["log"]
