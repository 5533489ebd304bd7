"""Random numbers that a script draws between its session and its epochs: alike in all attempts."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from in_process import Suspensions, as_managed

from hpcext.training.session import Session

STEPS, EPOCHS = 4, 3


class Drawn:
    """What one attempt draws: before its epochs, as each epoch begins, and in each step."""

    def __init__(self, *, seed: int | None, suspend_at: int = 0, stop: Suspensions) -> None:
        np.random.seed(3)
        random.seed(3)
        session = Session(w=np.zeros(2), seed=seed)
        self.split = [float(np.random.random()), random.random()]
        self.epochs: dict[int, float] = {}
        self.steps: dict[int, float] = {}
        for epoch in session.epochs(EPOCHS):
            self.epochs[epoch] = float(np.random.random())
            for _ in session.batches(range(STEPS)):
                step = session.step + 1
                self.steps[step] = float(np.random.random())
                if step == suspend_at:
                    stop.request()
        self.after = random.random()


@pytest.mark.parametrize("suspend_at", [1, 3, 4, 6, 11])
@pytest.mark.parametrize("seed", [None, 7])
def test_a_split_is_the_same_and_the_steps_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int | None, suspend_at: int
) -> None:
    stop = Suspensions(monkeypatch)
    as_managed(monkeypatch, tmp_path / "whole")(1)
    whole = Drawn(seed=seed, stop=stop)
    begin = as_managed(monkeypatch, tmp_path / "parts")
    begin(1)
    with stop.expected():
        Drawn(seed=seed, suspend_at=suspend_at, stop=stop)
    begin(2)
    rest = Drawn(seed=seed, stop=stop)
    assert rest.split == whole.split
    assert rest.steps == {at: each for at, each in whole.steps.items() if at > suspend_at}
    assert rest.epochs == {at: whole.epochs[at] for at in rest.epochs}
    assert rest.after == whole.after
