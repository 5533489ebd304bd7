"""Several trainings of one script, or of one job, do not go on from each other's checkpoints."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from in_process import Suspensions, as_managed

from hpcext.training import succession
from hpcext.training.checkpoint import CheckpointError, Store
from hpcext.training.coordinator import Coordinator
from hpcext.training.library import LibraryCheckpoints
from hpcext.training.ranks import Ranks
from hpcext.training.session import Session
from hpcext.training.torch import Session as TorchSession
from hpcext.training.torch.resizing import InPlace


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Begin a process of an attempt, which runs a command."""
    as_attempt = as_managed(monkeypatch, tmp_path)

    def begin(attempt: int, *command: str) -> None:
        as_attempt(attempt)
        monkeypatch.setattr(succession, "here", succession.Succession())
        monkeypatch.setattr(sys, "argv", ["train.py", *command])

    return begin


def report(path: Path, attempt: int) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((path / f"attempt-{attempt}/report.json").read_text())
    return document


def train(
    epochs: int = 2, *, at: Callable[[int], object] = lambda _: None, **options: Any
) -> tuple[int, float]:
    """Train; return the number of steps that were made, and what came of it."""
    weights, steps = np.zeros(1), 0
    session = Session(w=weights, checkpoint_every_s=None, **options)
    for _ in session.epochs(epochs):
        for number in session.batches(range(3)):
            weights += number
            steps += 1
            at(session.step)
    return steps, float(weights[0])


# One after the other in a script.


@pytest.mark.parametrize("named", [True, False])
def test_each_training_of_a_script_is_made(
    begin: Callable[..., None], tmp_path: Path, named: bool
) -> None:
    begin(1)
    dirs = [tmp_path / f"fold-{fold}" if named else None for fold in range(3)]
    assert [train(checkpoint_dir=each) for each in dirs] == [(6, 6.0)] * 3
    assert not any(each and each.exists() for each in dirs)
    place = tmp_path / "checkpoint"
    found = [Store(each).newest() for each in (place, place / "training-2", place / "training-3")]
    assert [each and each.manifest["step"] for each in found] == [6, 6, 6]
    assert len({each.manifest["run_id"] for each in found if each}) == 3
    # The manager counts the steps of all.
    assert report(tmp_path, 1)["step"] == report(tmp_path, 1)["saved_step"] == 18


def test_a_script_goes_on_in_the_training_that_was_suspended(
    begin: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    suspensions = Suspensions(monkeypatch)
    begin(1)
    assert train() == (6, 6.0)
    with suspensions.expected():
        train(at=lambda step: suspensions.request() if step == 3 else None)
    suspended = json.loads((tmp_path / "attempt-1/suspended.json").read_text())
    assert suspended["step"] == 6 + 4
    begin(2)
    capsys.readouterr()
    assert [train(), train(), train()] == [(0, 6.0), (2, 6.0), (6, 6.0)]
    said = capsys.readouterr().err
    assert said.count("\n") == said.count("the training was complete before, after step 6") == 1
    assert report(tmp_path, 2)["step"] == 18


def test_a_training_that_is_tried_again_goes_on(begin: Callable[..., None]) -> None:
    begin(1)

    def fails(step: int) -> None:
        if step == 4:
            raise OSError("the network is down")

    with pytest.raises(OSError, match="network"):
        train(checkpoint_every_steps=1, staging=False, at=fails)
    assert train() == (2, 6.0)
    assert train() == (6, 6.0)


def test_a_further_session_with_the_same_directory_trains_longer(
    begin: Callable[..., None], tmp_path: Path
) -> None:
    begin(1)
    assert train(2, checkpoint_dir=tmp_path / "a") == (6, 6.0)
    assert train(3, checkpoint_dir=tmp_path / "b") == (9, 9.0)
    # As without a manager.
    assert train(4, checkpoint_dir=tmp_path / "a") == (6, 12.0)


def test_sessions_that_are_all_made_first_are_refused(begin: Callable[..., None]) -> None:
    begin(1)
    first, second = (Session(w=np.zeros(1)) for _ in range(2))
    for _ in first.epochs(1):
        assert [*first.batches(range(2))] == [0, 1]
    with pytest.raises(CheckpointError, match="make each session when the training before it is"):
        next(second.epochs(1))


# One after the other in a job.


def test_a_second_command_that_would_train_nothing_is_refused(
    begin: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    begin(1, "--lr", "0.1")
    assert train() == (6, 6.0)
    begin(1, "--lr", "0.01")
    # One that looks at the result is not.
    weights = np.zeros(1)
    assert Session(w=weights).resumed
    assert weights == 6
    begin(1, "--lr", "0.01")
    with pytest.raises(CheckpointError, match="another command of this attempt has completed"):
        train()
    begin(1, "--lr", "0.01")
    assert train(epochs=3) == (3, 9.0), "it trains longer"
    capsys.readouterr()
    # A launcher may start the same command again, and another attempt have other arguments.
    for attempt, word in ((1, "0.01"), (2, "0.02")):
        begin(attempt, "--lr", word)
        assert train(epochs=3) == (0, 9.0)
        assert "no more steps are made" in capsys.readouterr().err


def test_without_a_manager_nothing_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for word in ("a", "b"):
        monkeypatch.setattr(sys, "argv", ["train.py", word])
        assert train(checkpoint_dir=tmp_path)[1] == 6
    assert not list(tmp_path.glob("training-*"))


# Trainings of libraries.


def fit(*, longer: bool = False) -> LibraryCheckpoints:
    coordinator = Coordinator(checkpoint_every_s=None)
    checkpoints = LibraryCheckpoints(coordinator, rank=0, format="test/1")
    checkpoints.join(Ranks())
    if checkpoints.found is None or longer:
        checkpoints.begin(checkpoints.found.manifest["step"] if checkpoints.found else 0)
        for step in range(coordinator.step + 1, coordinator.step + 4):
            checkpoints.stepped(step, {})
        checkpoints.save_last(checkpoints.writing({}, lambda draft: (draft / "f").touch()))
        coordinator.reporter.flush()
    else:
        coordinator.enter(left=False)
    return checkpoints


def test_trainings_of_a_library_have_places_of_their_own(
    begin: Callable[..., None], tmp_path: Path
) -> None:
    begin(1)
    assert [fit().found, fit().found] == [None, None]
    assert report(tmp_path, 1)["saved_step"] == 6
    begin(2)
    found = [fit().found, fit().found]
    assert [each and each.path.parent.name for each in found] == ["checkpoint", "training-2"]
    begin(2, "--longer")
    assert fit(longer=True).found
    begin(2)
    with pytest.raises(CheckpointError, match="another command of this attempt has completed"):
        fit()


def test_the_ranks_of_a_further_training_do_not_change_in_place(
    begin: Callable[..., None],
) -> None:
    begin(1)
    reasons = []
    for _ in range(2):
        session = TorchSession(weights=torch.zeros(1), checkpoint_every_s=None)
        for _ in session.epochs(1):
            for _ in session.batches(session.batch_sampler(4, global_batch=2)):
                assert isinstance(session.training.resizing, InPlace)
                reasons.append(session.training.resizing.why_not())
    # New ranks would begin with the first one.
    assert reasons[0] == "no model is wrapped by session.parallel(model)"
    assert reasons[2] == "it is not the first training of its process"
