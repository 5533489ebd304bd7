"""The shards of a model go from rank to rank when the ranks change: nothing is lost."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from nursery import Nursery
from resized import Training, samples, sizes
from test_changes import CHANGES, change_at_gates
from train import LENGTH


@pytest.mark.slow
def test_five_changes(start: Any, nursery: Nursery, tmp_path: Path) -> None:
    gates = ("--gates", *map(str, CHANGES))
    disturbed = start("--shard", "--global-batch=12", *gates, size=2, forked=False)
    answers = change_at_gates(disturbed, CHANGES)
    assert disturbed.wait() == 0, disturbed.output
    assert all(answer["ok"] for answer in answers), answers
    account = disturbed.account()
    assert samples(account) == {epoch: list(range(LENGTH)) for epoch in range(4)}
    steps = Counter(line["step"] for line in account)
    assert sorted(steps) == list(range(100))
    assert sizes(account) == [2, *CHANGES.values()]
    assert all(steps[line["step"]] == line["size"] for line in account)
    assert len({line["pid"] for line in account if line["rank"] == 0}) == 1
    calm_path = tmp_path / "calm"
    calm_path.mkdir()
    calm = Training(calm_path, "--shard", "--global-batch=12", size=2, nursery=nursery)
    assert calm.wait() == 0, calm.output
    assert abs(disturbed.result()["error"] - calm.result()["error"]) < 1e-6
    parts, quiet = (torch.load(each / "parts.pt") for each in (disturbed.path, calm_path))
    torch.testing.assert_close(parts, quiet, rtol=1e-4, atol=1e-5)
