"""Trainings whose ranks are unequal: divided as fast as they are, and the same model in the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from forked_job import Forked
from nursery import Nursery
from torch.utils.data import DataLoader
from train_balance import BATCH, SAMPLES

from hpcext.training.torch import Session

SCRIPT = "train_balance.py"


def lines(job: Forked, kind: str) -> list[list[str]]:
    return [line for line in job.log if line[2] == kind]


def trained(job: Forked) -> dict[int, list[int]]:
    """Step → samples of each rank; checks that all ranks trained, alike, each sample once."""
    epochs: dict[int, list[int]] = {}
    steps: dict[int, dict[int, int]] = {}
    weights: dict[int, set[str]] = {}
    for line in lines(job, "step"):
        step, epoch = int(line[3]), int(line[4])
        seen = [] if line[5] == "-" else [int(each) for each in line[5].split(",")]
        epochs.setdefault(epoch, []).extend(seen)
        steps.setdefault(step, {})[int(line[1])] = len(seen)
        weights.setdefault(step, set()).add(line[6])
    assert all(sorted(seen) == list(range(SAMPLES)) for seen in epochs.values())
    assert sorted(steps) == list(range(len(steps)))
    assert all(len(each) == 1 for each in weights.values())
    return {step: [of[rank] for rank in sorted(of)] for step, of in sorted(steps.items())}


def final(job: Forked) -> torch.Tensor:
    """The weights that it trained."""
    return torch.tensor([float(each) for each in lines(job, "ends")[-1][3:]]).double()


@pytest.fixture(scope="module")
def alone(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> torch.Tensor:
    """What one rank trains, of the same steps: bulk synchronous, by definition."""
    job = Forked(nursery, tmp_path_factory.mktemp("alone"), SCRIPT, "--plain", ranks=1)
    run = job.run()
    assert run.code == 0, run.output
    return final(job)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--mode=cpu",), marks=pytest.mark.slow),
        pytest.param(("--mode=gpu", "--workers=1", "--passes=3", "--amp"), marks=pytest.mark.slow),
        ("--mode=cpu", "--rule=speeds", "--swap=25"),
        pytest.param(("--mode=gpu", "--rule=leader"), marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_unequal_ranks_train_what_one_would_have_trained(
    nursery: Nursery, tmp_path: Path, alone: torch.Tensor, options: tuple[str, ...]
) -> None:
    job = Forked(nursery, tmp_path, SCRIPT, *options, ranks=3)
    run = job.run()
    assert run.code == 0, run.output
    steps = trained(job)
    assert all(sum(sizes) == BATCH for sizes in steps.values())
    assert steps[0] == [8, 8, 8]
    # The second rank is the slowest one, however busy the machine.
    assert min(sizes[1] for sizes in steps.values()) < 7
    torch.testing.assert_close(final(job), alone, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_a_suspended_training_is_balanced_at_once_on_other_ranks(
    nursery: Nursery, tmp_path: Path, alone: torch.Tensor
) -> None:
    job = Forked(nursery, tmp_path, SCRIPT, ranks=2)
    first = job.run("--ask=step:31")
    assert first.suspended is not None, first.output
    job.ranks = 3
    second = job.run()
    assert second.code == 0, second.output
    steps = trained(job)
    at = first.suspended["step"]
    assert len(steps[at - 1]) == 2
    assert steps[at][0] > steps[at][1], "known, and not learned anew"
    assert sum(steps[at]) == BATCH
    torch.testing.assert_close(final(job), alone, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_a_training_that_adapts_is_balanced_too(nursery: Nursery, tmp_path: Path) -> None:
    job = Forked(nursery, tmp_path, SCRIPT, "--adapt", "--epochs=4", ranks=2)
    run = job.run()
    assert run.code == 0, run.output
    steps = trained(job)
    totals = {sum(sizes) for sizes in steps.values()}
    assert BATCH in totals
    assert any(sizes[0] > sizes[1] + 1 for sizes in steps.values())


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"mode": "tpu"}, "auto, cpu, gpu"),
        ({"rule": "fair"}, "affine, best, speeds, leader"),
        ({"min_batch": 0}, "min_batch=0"),
        ({"min_batch": 4, "max_batch": 3}, "max_batch=3"),
    ],
)
def test_what_is_not_valid_is_refused(options: dict[str, Any], match: str) -> None:
    model = torch.nn.Linear(2, 1)
    session = Session(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(RuntimeError, match="does not balance"):
        _ = session.balanced_batches
    with pytest.raises(ValueError, match=match):
        session.balance(**options)
    session.training.framework.deterministic = True
    with pytest.raises(ValueError, match="deterministic"):
        session.balance()
    session.training.framework.deterministic = False
    session.balance()
    with pytest.raises(ValueError, match="called before"):
        session.balance()
    for _ in session.epochs(1):
        with pytest.raises(ValueError, match="must divide the batches"):
            next(session.batches(DataLoader(torch.zeros(10, 2), batch_size=2)))
        break
