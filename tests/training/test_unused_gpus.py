"""More ranks than GPUs, or one rank on several: what is idle is said."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hpcext.protocol import Attempt
from hpcext.training.torch import Session


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, ""), (1, "this node has 4 ranks, but shows them 1 GPU;"), (3, "shows them 3 GPUs;")],
)
def test_gpus_that_are_fewer_than_the_ranks_are_said_to_be_idle(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], count: int, said: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    session = Session(model=torch.nn.Linear(1, 1))
    assert session.device.type == "cpu"
    told = capsys.readouterr().err
    assert said in told
    assert bool(told) == (count > 0)


@pytest.mark.parametrize(
    ("gpus_nodes", "said"), [((1, 1), ""), ((2, 1), "1 process on 2 GPUs"), ((1, 3), "on 3 GPUs")]
)
def test_one_process_on_several_gpus_is_told_that_most_may_be_idle(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    gpus_nodes: tuple[int, int],
    said: str,
) -> None:
    attempt = Attempt("1", 1, 1, tmp_path / "c", tmp_path, *gpus_nodes)
    for name, value in attempt.environ().items():
        monkeypatch.setenv(name, value)
    Session(model=torch.nn.Linear(1, 1))
    told = capsys.readouterr().err
    assert told.count("trains with 1 process on") == (1 if said else 0)
    assert said in told
