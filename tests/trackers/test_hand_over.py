"""What a tracker still keeps is handed over at a suspension, and holds that up little."""

from __future__ import annotations

import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest

from hpcext.training import trackers


def module(monkeypatch: pytest.MonkeyPatch, name: str, **attributes: Any) -> None:
    made = types.ModuleType(name)
    vars(made).update(attributes)
    monkeypatch.setitem(sys.modules, name, made)


def active(run_id: str, **tags: str) -> Any:
    info, data = types.SimpleNamespace(run_id=run_id), types.SimpleNamespace(tags=tags)
    return lambda: types.SimpleNamespace(info=info, data=data)


@pytest.fixture(autouse=True)
def none_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("wandb", "mlflow", "torch.utils.tensorboard.writer", "tensorboardX.writer"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_each_tracker_in_use_is_asked_in_its_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    class SummaryWriter:
        def flush(self) -> None:
            asked.append("tensorboard")

    writers = [SummaryWriter(), SummaryWriter()]
    module(monkeypatch, "wandb", finish=lambda exit_code: asked.append(("wandb", exit_code)))
    module(
        monkeypatch,
        "mlflow",
        active_run=active("m-1"),
        flush_async_logging=lambda: asked.append("mlflow"),
    )
    module(monkeypatch, "torch.utils.tensorboard.writer", SummaryWriter=SummaryWriter)
    trackers.hand_over()
    assert sorted(map(str, asked)) == ["('wandb', 0)", "mlflow", "tensorboard", "tensorboard"]
    assert len(writers) == 2


def test_nothing_is_imported_and_no_store_is_made_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(sys.modules)
    trackers.hand_over()
    assert not {"wandb", "mlflow"} & (set(sys.modules) - before)
    # Imported, but without a run: its flush would make a store.
    module(monkeypatch, "mlflow", active_run=lambda: None, flush_async_logging=lambda: 1 / 0)
    trackers.hand_over()


def test_an_error_or_a_server_that_does_not_answer_holds_up_no_suspension(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    never = threading.Event()
    monkeypatch.setattr(trackers, "HAND_OVER_S", 0.05)
    module(monkeypatch, "wandb", finish=lambda exit_code: never.wait())
    module(
        monkeypatch,
        "mlflow",
        active_run=active("m-1"),
        flush_async_logging=lambda: 1 / 0,
    )
    trackers.hand_over()
    never.set()


def test_the_active_run_is_noted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note, path = trackers.MlflowRun(tmp_path), tmp_path / "mlflow-run-id"
    note.note()
    assert not path.exists()
    module(monkeypatch, "mlflow", active_run=active("m-1"))
    note.note()
    assert path.read_text() == "m-1\n"
    path.unlink()
    note.note()
    assert not path.exists()
    # Another one is the one to continue from now on; one that is nested in it is not.
    module(monkeypatch, "mlflow", active_run=active("m-2"))
    note.note()
    module(monkeypatch, "mlflow", active_run=active("m-3", **{"mlflow.parentRunId": "m-2"}))
    note.note()
    assert path.read_text() == "m-2\n"


def test_a_note_that_cannot_be_written_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module(monkeypatch, "mlflow", active_run=active("m-1"))
    note = trackers.MlflowRun(tmp_path / "later")
    note.note()
    (tmp_path / "later").mkdir()
    note.note()
    assert (tmp_path / "later" / "mlflow-run-id").read_text() == "m-1\n"


def test_a_release_of_mlflow_that_answers_otherwise_ends_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module(monkeypatch, "mlflow", active_run=object)
    trackers.MlflowRun(tmp_path).note()
    assert not list(tmp_path.iterdir())
