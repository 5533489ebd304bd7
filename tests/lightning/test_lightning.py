"""Lightning trainings that are suspended, resumed and resized; their own account judges."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from forked import Training, difference, finished, samples, suspended
from site_of_test import Site, wait_for

SCRIPT = Path(__file__).parent / "train_lightning.py"
STEADY = ("--dropout=0", "--noise=0")
# What must happen once, whatever happens to the processes.
ONCE = ("train", "epoch", "ended", "batch")


def training(path: Path) -> Training:
    return Training(path, SCRIPT)


@pytest.mark.parametrize(
    ("words", "asks", "steps"),
    [
        # In mid-epoch; at its last step, left in the validation behind it; in the midst of a
        # validation; at the first step of an epoch; in the last validation.
        (
            (),
            ["train:0.3", "train:0.9", "validate:0.1", "epoch:1", "train:1.4", "validate:2.2"],
            [4, 10, 10, 11, 15, 30],
        ),
        # Two batches a step, two validations an epoch, the first in the midst of a step.
        pytest.param(
            ("--accumulate=2", "--validate-every=0.5"),
            ["train:0.2", "validate:0.1", "train:0.8", "train:1.7", "validate:1.0", "epoch:2"],
            [2, 3, 5, 9, 10, 11],
            marks=pytest.mark.slow,
        ),
    ],
    ids=["steps", "accumulated"],
)
def test_suspended_often_it_is_the_same_training(
    tmp_path: Path, words: tuple[str, ...], asks: list[str], steps: list[int]
) -> None:
    """Bit by bit: dropout, noise drawn where samples are read, schedule, optimizer."""
    whole, cut = training(tmp_path / "whole"), training(tmp_path / "cut")
    finished(whole.run(*words))
    assert [suspended(cut.run(*words, f"--ask={ask}")) for ask in asks] == steps
    finished(cut.run(*words))
    assert [line[2:] for line in cut.log(*ONCE)] == [line[2:] for line in whole.log(*ONCE)]
    assert cut.log("end")[-1][2:] == whole.log("end")[-1][2:]
    assert len(cut.log("callback")) == len(asks)


@pytest.mark.slow
def test_at_any_number_of_ranks_it_is_the_same_training(tmp_path: Path) -> None:
    """1 → 2 → 3 → 2 → 1 → 2 ranks: each step has the samples it would have had, and the weights
    differ by the order of sums of single-precision numbers only."""
    whole, resized = training(tmp_path / "whole"), training(tmp_path / "resized")
    finished(whole.run(*STEADY))
    plan = [(1, "train:0.3"), (2, "train:0.7@1"), (3, "train:1.1@2"), (2, "validate:1.0@0")]
    for ranks, ask in [*plan, (1, "train:2.4")]:
        suspended(resized.run(*STEADY, f"--ask={ask}", ranks=ranks))
    finished(resized.run(*STEADY, ranks=2))
    assert samples(resized) == samples(whole)
    assert difference(resized, whole) < 1e-6
    accuracy = {line[-1] for line in (*whole.log("end"), *resized.log("end"))}
    assert len(accuracy) == 1
    assert float(accuracy.pop()) > 0.7


def test_unequal_batches_count_by_their_samples(tmp_path: Path) -> None:
    """Batches of 7 on three ranks, the last one of an epoch of 1 sample."""
    whole, other = training(tmp_path / "whole"), training(tmp_path / "other")
    words = (*STEADY, "--batch=7", "--epochs=1")
    finished(whole.run(*words))
    finished(other.run(*words, ranks=3))
    for step, numbers in samples(whole).items():
        assert set(samples(other)[step]) == set(numbers)
    assert difference(other, whole) < 1e-6


def test_a_batch_of_each_gpu_changes_the_length_of_epochs(tmp_path: Path) -> None:
    """30 steps an epoch on one rank, 10 on three: validation after each epoch all the same."""
    job = training(tmp_path)
    words = (*STEADY, "--gpu-batch=4")
    suspended(job.run(*words, "--ask=train:0.14"))
    suspended(job.run(*words, "--ask=validate:1.0@1", ranks=3))
    finished(job.run(*words))
    epochs: dict[str, list[str]] = defaultdict(list)
    for step, numbers in samples(job).items():
        epochs[step.partition(".")[0]] += numbers
    assert [sorted(map(int, numbers)) for numbers in epochs.values()] == [list(range(120))] * 3
    ended = [line[3] for line in job.log("ended") if line[1] == "0"]
    assert ended == ["0", "1", "2"]
    assert {f"{epoch}.0" for epoch in range(3)} <= {line[3] for line in job.log("validate")}


def test_workers_read_ahead_and_nothing_is_lost(tmp_path: Path) -> None:
    whole, cut = training(tmp_path / "whole"), training(tmp_path / "cut")
    words = ("--noise=0", "--epochs=1", "--workers=1")
    finished(whole.run(*words))
    suspended(cut.run(*words, "--ask=train:0.4"))
    finished(cut.run(*words))
    assert [line[2:] for line in cut.log(*ONCE)] == [line[2:] for line in whole.log(*ONCE)]
    assert cut.log("end")[-1][2:] == whole.log("end")[-1][2:]


def test_a_torn_checkpoint_falls_back_to_the_one_before(tmp_path: Path) -> None:
    whole, torn = training(tmp_path / "whole"), training(tmp_path / "torn")
    finished(whole.run())
    assert suspended(torn.run("--every-steps=4", "--ask=train:0.9")) == 10
    with (torn.checkpoints[-1] / "lightning.ckpt").open("r+b") as file:
        file.seek(600)
        file.write(b"torn")
    last = torn.run()
    finished(last)
    assert "checksum differs" in last.output
    assert torn.log("found")[-1][3].startswith("step-000000008")
    again = [line[2:] for line in torn.log("train") if line[0] == "2"]
    assert again == [line[2:] for line in whole.log("train")][8:]
    assert torn.log("end")[-1][2:] == whole.log("end")[-1][2:]


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("ranks", "asks"),
    [(1, "train:0.6@0"), (1, "validate:0.1@0"), (2, "train:0.6@0"), (2, "validate:0.1@0")],
)
def test_a_suspension_is_declined_if_the_state_cannot_be_saved(
    tmp_path: Path, ranks: int, asks: str
) -> None:
    """The disk is full, for rank 0: every rank goes on, and the training is the same one."""
    whole, job = training(tmp_path / "whole"), training(tmp_path / "job")
    finished(whole.run(ranks=ranks))
    words = ("--full=0.5", f"--ask={asks}")
    declined = job.run(*words, ranks=ranks)
    finished(declined)
    assert "could not be saved" in declined.output
    assert declined.report["declined"] == 1
    assert sorted(job.log(*ONCE, "end")) == sorted(whole.log(*ONCE, "end"))
    assert not job.log("callback")


def test_a_periodic_checkpoint_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    job = training(tmp_path)
    words = (*STEADY, "--epochs=1", "--every-steps=3")
    run = job.run(*words, "--full=0.4", "--ask=ended:0", ranks=2)
    assert "not written (File too large); the previous one is kept" in run.output
    assert len(job.log("train")) == 20
    assert [path.name[:14] for path in job.checkpoints] == ["step-000000003", "step-000000010"]


def test_without_its_last_checkpoint_a_training_is_not_over(tmp_path: Path) -> None:
    """The disk is full at the end; a suspension is declined meanwhile, and it waits for room."""
    whole, job = training(tmp_path / "whole"), training(tmp_path / "job")
    finished(whole.run())
    waited = job.run("--every-steps=8", "--full=2.9", "--ask=ended:2")
    finished(waited)
    assert "checkpoint at step 30 not written" in waited.output
    assert waited.report["declined"] == 1
    assert job.log("end")[-1][2:] == whole.log("end")[-1][2:]


def test_checkpoints_by_the_clock(tmp_path: Path) -> None:
    """As often as possible: what rank 0 asks for at one step is written after the next, and it asks
    again after that."""
    job = training(tmp_path)
    finished(job.run(*STEADY, "--epochs=1", "--every-s=0", ranks=2))
    assert [path.name[:14] for path in job.checkpoints] == ["step-000000008", "step-000000010"]


def test_a_finished_training_trains_no_more(tmp_path: Path) -> None:
    job = training(tmp_path)
    run = job.run("--epochs=1")
    finished(run)
    report = run.report
    assert (report["step"], report["saved_step"], report["world_size"]) == (10, 10, 1)
    assert {"loss", "accuracy"} <= set(report["metrics"])
    steps = len(job.log("train"))
    # The accuracy of a training that did not run is not known to the script: it fails there.
    again = job.run("--epochs=1")
    assert len(job.log("train")) == steps, again.output
    finished(job.run("--epochs=2"))
    assert len(job.log("train")) == 2 * steps


@pytest.mark.parametrize("ranks", [1, 2])
def test_without_a_manager_the_exit_code_says_so(tmp_path: Path, ranks: int) -> None:
    whole, cut = training(tmp_path / "whole"), training(tmp_path / "cut")
    place = f"--dir={tmp_path / 'saved'}"
    finished_codes = whole.run(*STEADY, "--epochs=1", managed=False).codes
    left = cut.run(*STEADY, "--epochs=1", "--ask=train:0.4", place, managed=False, ranks=ranks)
    assert (finished_codes, left.codes) == ([0], [85] * ranks), left.output
    done = cut.run(*STEADY, "--epochs=1", place, managed=False, ranks=ranks)
    assert set(done.codes) == {0}, done.output
    assert samples(cut) == samples(whole)


def test_the_example_reaches_its_accuracy_and_takes_five_lines(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "digits_lightning.py"
    result = tmp_path / "result"
    job = training(tmp_path / "job")
    finished(job.run("example", str(example), "--result", str(result)))
    assert float(result.read_text()) >= 0.94
    assert job.checkpoints
    lines = example.read_text().splitlines()
    assert len([line for line in lines if line.endswith("# hpcext")]) == 5


WRONG = {
    "forgotten": ("--forget", "call trainer.fit(..., ckpt_path=suspend.checkpoint)"),
    "other": ("--loader=other", "the training must read this loader and no other one"),
    "twice": ("--twice", "make a new callback for each training"),
}


@pytest.mark.parametrize("word", WRONG)
def test_wrong_use_is_one_clear_line(tmp_path: Path, word: str) -> None:
    job = training(tmp_path)
    if word == "forgotten":
        suspended(job.run("--ask=train:0.2"))
    flag, line = WRONG[word]
    run = job.run(flag, "--epochs=1")
    assert run.codes == [1], run.output
    assert line in run.output.rstrip().splitlines()[-1]


def test_a_loader_that_cannot_resume_is_read_up_to_with_a_warning(tmp_path: Path) -> None:
    whole, cut = training(tmp_path / "whole"), training(tmp_path / "cut")
    words = (*STEADY, "--epochs=1", "--loader=plain")
    finished(whole.run(*words))
    first = cut.run(*words, "--ask=train:0.4")
    assert suspended(first) == 5
    assert "the training data is not from suspend.loader()" in first.output
    finished(cut.run(*words))
    assert samples(cut) == samples(whole)
    assert cut.log("end")[-1][2:] == whole.log("end")[-1][2:]


def slurm(path: Path) -> dict[str, str]:
    """A job of Slurm, as far as Lightning looks; a scontrol that writes down what it is asked."""
    tools = path / "tools"
    tools.mkdir()
    scontrol = tools / "scontrol"
    scontrol.write_text(f'#!/bin/sh\necho "$@" >> {path}/asked\n')
    scontrol.chmod(0o755)
    return {
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "SLURM_NTASKS": "1",
        "SLURM_JOB_ID": "42",
        "SLURM_JOB_NAME": "train",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "0",
    }


def test_lightnings_own_requeueing_under_slurm_goes_on(tmp_path: Path) -> None:
    """SIGUSR1: Lightning saves and requeues. SIGTERM: a handler from before is called too."""
    whole, job = training(tmp_path / "whole"), training(tmp_path / "job")
    finished(whole.run(*STEADY))
    environ = slurm(tmp_path)
    job.cwd = tmp_path / "submitted"
    job.cwd.mkdir()
    words = (*STEADY, f"--dir={tmp_path / 'saved'}", "--every-steps=3")
    told = job.run(*words, "--signal", "0.6=SIGUSR1", "0.7=SIGTERM", managed=False, **environ)
    assert (tmp_path / "asked").read_text() == "requeue 42\n", told.output
    assert len(job.log("sigterm")) == 1
    trained = len(job.log("train"))
    again = job.run(*words, managed=False, **environ)
    assert again.codes == [0], again.output
    assert "hpc_ckpt_1.ckpt" in again.output
    # Theirs, of the batch that the signal came in, is newer than the periodic one of step 6.
    assert job.log("train")[trained][3] == "0.6"
    twice = {step: sorted(2 * samples(whole)[step]) for step in ("0.6", "0.7")}
    assert samples(job) == {**samples(whole), **twice}


def test_under_a_supervisor_slurms_signals_are_the_supervisors(tmp_path: Path) -> None:
    job = training(tmp_path)
    environ = slurm(tmp_path)
    run = job.run(*STEADY, "--signal", "0.2=SIGUSR1", "--ask=train:0.4", **environ)
    assert suspended(run) == 5
    assert not (tmp_path / "asked").exists()
    finished(job.run(*STEADY, **environ))
    assert {len(numbers) for numbers in samples(job).values()} == {12}


@pytest.mark.slow
def test_under_a_manager_on_two_ranks_of_hpcext_launch(site: Site) -> None:
    account = site.path / "account"
    words = [*STEADY, "--epochs=2", "--hold=0.5"]
    command = [sys.executable, "-m", "hpcext", "launch", "--", sys.executable, str(SCRIPT), *words]
    environ = {
        "SCRIPT_LOG": str(account),
        "PYTHONPATH": str(SCRIPT.parents[1] / "training"),
        "OMP_NUM_THREADS": "1",
    }
    site.write_jobs({"name": "job", "command": command, "gpus": 2, "env": environ})
    manager = site.start("run", str(site.jobs), "--gpus", "2", "--dir", str(site.pilot))
    wait_for(lambda: account.exists() and "train 0.5" in account.read_text(), "six steps")
    site.run_until_done("suspend", str(site.pilot), "job")
    wait_for(lambda: not site.left_behind(), "the end of both ranks")
    site.run_until_done("resume", str(site.pilot), "job")
    out, err = manager.communicate(timeout=500)
    assert manager.returncode == 0, (out, err, site.run("logs", str(site.pilot), "job").out)
    (job,) = site.document("status", str(site.pilot))["jobs"]
    assert (job["state"], job["suspends"], job["lost_steps"]) == ("completed", 1, 0)
    steps: dict[str, list[str]] = defaultdict(list)
    for line in account.read_text().splitlines():
        attempt, _, kind, *rest = line.split()
        if kind == "train":
            steps[rest[0]] += rest[1:]
            assert attempt in {"1", "2"}
    assert list(steps) == [f"{epoch}.{batch}" for epoch in range(2) for batch in range(10)]
    for epoch in range(2):
        trained = [int(n) for step in steps if step[0] == str(epoch) for n in steps[step]]
        assert sorted(trained) == list(range(120))
