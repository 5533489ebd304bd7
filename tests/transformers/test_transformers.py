"""Trainings by the Trainer of Hugging Face, suspended, resumed and resized; their own account
judges."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from forked import Training, difference, finished, samples, suspended

SCRIPT = Path(__file__).parent / "train_transformers.py"
STEADY = ("--dropout=0",)


def training(path: Path) -> Training:
    return Training(path, SCRIPT)


@pytest.mark.parametrize(
    ("words", "asks", "steps"),
    [
        # In mid-epoch; at its last step, left in the evaluation behind it; in the midst of an
        # evaluation; at the first step of an epoch; in the last evaluation.
        pytest.param(
            (),
            ["train:2", "train:7", "evaluate:8", "epoch:8", "train:18", "evaluate:24"],
            [3, 8, 8, 9, 19, 24],
            marks=pytest.mark.slow,
        ),
        # Two batches a step, evaluations by steps, and checkpoints of the Trainer's own.
        (
            ("--accumulate=2", "--evaluate=steps", "--save-strategy=steps", "--epochs=2"),
            ["train:3", "evaluate:5", "train:7", "train:10", "evaluate:15"],
            [4, 5, 8, 11, 15],
        ),
    ],
    ids=["steps", "accumulated"],
)
def test_suspended_often_it_is_the_same_training(
    tmp_path: Path, words: tuple[str, ...], asks: list[str], steps: list[int]
) -> None:
    """Bit by bit: dropout, schedule, optimizer; and the same evaluations."""
    whole, cut = training(tmp_path / "whole"), training(tmp_path / "cut")
    finished(whole.run(*words))
    assert [suspended(cut.run(*words, f"--ask={ask}")) for ask in asks] == steps
    finished(cut.run(*words))
    for kind in ("train", "evaluated"):
        assert [line[2:] for line in cut.log(kind)] == [line[2:] for line in whole.log(kind)]
    assert cut.log("end")[-1][2:] == whole.log("end")[-1][2:]
    assert len(cut.log("callback")) == len(asks)
    # What the Trainer saves on its own is where it would be, and nothing else is there.
    theirs = [sorted(p.name for p in job.path.glob("output/*-*")) for job in (whole, cut)]
    assert theirs[0] == theirs[1]
    assert bool(theirs[0]) == ("--save-strategy=steps" in words)


@pytest.mark.slow
def test_at_any_number_of_ranks_it_is_the_same_training(tmp_path: Path) -> None:
    """1 → 2 → 3 → 2 → 1 → 2 ranks: each step has the samples it would have had; weights and the
    loss differ by the order of sums of single-precision numbers only."""
    whole, resized = training(tmp_path / "whole"), training(tmp_path / "resized")
    finished(whole.run(*STEADY))
    plan = [(1, "train:2"), (2, "train:5@1"), (3, "train:11@2"), (2, "evaluate:16@0")]
    for ranks, ask in [*plan, (1, "train:18")]:
        suspended(resized.run(*STEADY, f"--ask={ask}", ranks=ranks))
    finished(resized.run(*STEADY, ranks=2))
    assert samples(resized) == samples(whole)
    assert difference(resized, whole) < 1e-5
    losses = [
        {line[3]: float(line[4]) for line in job.log("evaluated")} for job in (whole, resized)
    ]
    assert losses[1] == pytest.approx(losses[0], abs=1e-4)
    assert losses[0]["24"] < losses[0]["8"] - 0.2


def test_a_torn_checkpoint_falls_back_to_the_one_before(tmp_path: Path) -> None:
    whole, torn = training(tmp_path / "whole"), training(tmp_path / "torn")
    finished(whole.run())
    assert suspended(torn.run("--every-steps=4", "--ask=train:9")) == 10
    with (torn.checkpoints[-1] / "checkpoint-10" / "model.safetensors").open("r+b") as file:
        file.seek(-4, 2)
        file.write(b"torn")
    steps = len(torn.log("train"))
    last = torn.run()
    finished(last)
    assert "checksum differs" in last.output
    assert [line[2:] for line in torn.log("train")[steps:]] == [
        line[2:] for line in whole.log("train")[8:]
    ]
    assert torn.log("end")[-1][2:] == whole.log("end")[-1][2:]


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("ranks", "asks"),
    [
        (1, "train:5@0"),
        pytest.param(1, "evaluate:8@0", marks=pytest.mark.slow),
        (2, "evaluate:8@0"),
    ],
)
def test_a_suspension_is_declined_if_the_state_cannot_be_saved(
    tmp_path: Path, ranks: int, asks: str
) -> None:
    """The disk is full, for rank 0: all ranks go on, and the training is the same one."""
    whole, job = training(tmp_path / "whole"), training(tmp_path / "job")
    finished(whole.run(ranks=ranks))
    declined = job.run("--full=5", f"--ask={asks}", ranks=ranks)
    finished(declined)
    assert "could not be saved" in declined.output
    assert declined.report["declined"] == 1
    assert samples(job) == samples(whole)
    assert job.log("end")[-1][2:] == whole.log("end")[-1][2:]


def test_without_its_last_checkpoint_a_training_is_not_over(tmp_path: Path) -> None:
    """The disk is full at the end; a suspension is declined meanwhile, and it waits for room."""
    whole, job = training(tmp_path / "whole"), training(tmp_path / "job")
    finished(whole.run())
    waited = job.run("--every-steps=9", "--full=23", "--ask=end")
    finished(waited)
    assert "checkpoint at step 24 not written" in waited.output
    assert waited.report["declined"] == 1
    assert job.log("end")[-1][2:] == whole.log("end")[-1][2:]


def test_a_finished_training_trains_no_more(tmp_path: Path) -> None:
    """Also one whose number of steps is no whole number of epochs, and one that stopped early."""
    for name, words in {"steps": ("--steps=11",), "early": ("--early=5",)}.items():
        job = training(tmp_path / name)
        first = job.run(*words, "--evaluate=no")
        finished(first)
        steps = len(job.log("train"))
        assert (first.report["step"], first.report["saved_step"]) == (steps, steps)
        assert "loss" in first.report["metrics"]
        finished(job.run(*words, "--evaluate=no"))
        assert len(job.log("train")) == steps
        first_end, second_end = job.log("end")
        assert first_end[2:] == second_end[2:]


def test_without_a_manager_the_exit_code_says_so(tmp_path: Path) -> None:
    job = training(tmp_path)
    words = (*STEADY, "--epochs=1", "--evaluate=no", f"--dir={tmp_path / 'saved'}")
    left = job.run(*words, "--ask=train:4", managed=False)
    assert left.codes == [85], left.output
    assert job.run(*words, managed=False).codes == [0]
    assert list(samples(job)) == [str(step) for step in range(8)]


WRONG = {
    "forgotten": ("--forget", "call trainer.train(resume_from_checkpoint=suspend.checkpoint)"),
    "callback": ("--callback", "give it the Trainer, once that is made"),
    "indivisible": ("--batch=0", "choose a batch that every number of ranks divides"),
    "batch": ("--per-device=8", "use per_device_train_batch_size=per_device(12)"),
}


@pytest.mark.parametrize("word", WRONG)
def test_wrong_use_is_one_clear_line(tmp_path: Path, word: str) -> None:
    job = training(tmp_path)
    if word in {"forgotten", "batch"}:
        suspended(job.run("--ask=train:2"))
    flag, line = WRONG[word]
    run = job.run(flag)
    assert run.codes == [1], run.output
    assert line in run.output.rstrip().splitlines()[-1]


def test_the_manifest_says_what_was_written(tmp_path: Path) -> None:
    job = training(tmp_path)
    run = job.run("--ask=train:2", "--every-steps=1")
    suspended(run)
    assert run.suspended
    manifest = json.loads(Path(run.suspended["manifest"]).read_text())
    assert (manifest["format"], manifest["global_batch"]) == ("transformers/1", 12)
    names = {entry["name"] for entry in manifest["files"]}
    assert {"checkpoint-3/model.safetensors", "checkpoint-3/optimizer.pt"} <= names
    # Two are kept.
    assert len(job.checkpoints) == 2
