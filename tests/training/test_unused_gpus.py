"""More ranks than GPUs: the training runs on CPUs, and says so."""

from __future__ import annotations

import pytest
import torch

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
