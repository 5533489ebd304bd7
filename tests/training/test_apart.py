"""Ranks that train the same batches, or models of their own, are told so once; others never."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from forked_job import Forked
from nursery import Nursery

from hpcext.training.data.undivided import Observation, verdict

ROOT = Path(__file__).parents[2]
PREAMBLE = """
import torch
from script import Traces
from torch.utils.data import DataLoader, TensorDataset
traces = Traces()
data = TensorDataset(torch.arange(256.0).reshape(-1, 1), torch.ones(256, 1))
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.Adam(model.parameters())
"""
STEP = """
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        traces.note(session.step, *x.flatten().int().tolist())
"""


def notes(nursery: Nursery, tmp_path: Path, loader: str, wrap: str) -> list[str]:
    """What the training of two ranks told its user, in its report and in its log."""
    run = Forked(nursery, tmp_path / "job", "train_apart.py", loader, wrap, ranks=2).run()
    assert run.code == 0, run.output
    said = run.report["notes"]
    assert run.output.count("hpcext: warning:") == len(said), run.output
    return said


@pytest.mark.parametrize(
    ("loader", "wrap"),
    [
        ("ours", "parallel"),
        ("sampler", "ddp"),
        pytest.param("distributed", "by hand", marks=pytest.mark.slow),
        pytest.param("stream", "parallel", marks=pytest.mark.slow),
        pytest.param("ours", "sharded", marks=pytest.mark.slow),
    ],
)
def test_a_training_that_divides_its_data_gets_no_warning(
    nursery: Nursery, tmp_path: Path, loader: str, wrap: str
) -> None:
    assert notes(nursery, tmp_path, loader, wrap) == []


@pytest.mark.slow
def test_the_same_batches_on_each_rank_are_told(nursery: Nursery, tmp_path: Path) -> None:
    (note,) = notes(nursery, tmp_path, "same", "parallel")
    assert note.startswith("the 2 ranks all train the same batches")
    assert "session.batch_sampler(data, global_batch=...)" in note


@pytest.mark.slow
def test_ranks_that_each_train_all_of_the_data_are_warned(nursery: Nursery, tmp_path: Path) -> None:
    (note,) = notes(nursery, tmp_path, "whole", "parallel")
    assert note.startswith("the 2 ranks each go through 24 samples")


def test_a_model_that_is_not_wrapped_gets_a_warning(nursery: Nursery, tmp_path: Path) -> None:
    (note,) = notes(nursery, tmp_path, "ours", "bare")
    assert "do not average their gradients" in note
    assert "session.parallel(model)" in note


@pytest.mark.slow
def test_the_script_of_the_readme_gives_each_rank_its_own_batches(
    nursery: Nursery, tmp_path: Path
) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    assert shown.count("\n        ...\n") == 1
    script = tmp_path / "train.py"
    (tmp_path / "script.py").symlink_to(Path(__file__).parent / "script.py")
    script.write_text(PREAMBLE + shown.replace("\n        ...\n", STEP))
    job = Forked(nursery, tmp_path / "job", str(script), ranks=2)
    run = job.run()
    assert run.code == 0, run.output
    assert run.report["notes"] == []
    batches = {(int(step), int(rank)): set(rows) for _, rank, step, *rows in job.log}
    assert len(batches) == 2 * 40
    for epoch in range(10):
        steps = range(4 * epoch, 4 * epoch + 4)
        seen = [batches[step, rank] for step in steps for rank in (0, 1)]
        assert all(len(each) == 32 for each in seen)
        assert len(set.union(*seen)) == 256, "each sample on one rank, once an epoch"


def test_gradients_that_are_not_numbers_are_not_compared() -> None:
    nan, inf = float("nan"), float("inf")
    for norms in [(nan, 1.0), (inf, 1.0), (0.0, 0.0), (1.0, 1.0 + 1e-6)]:
        seen = [Observation(gradients=(norm,)) for norm in norms]
        assert not [*verdict(seen, use="", wrap="")]
    assert [
        *verdict([Observation(gradients=(1.0,)), Observation(gradients=(1.1,))], use="", wrap="")
    ]
