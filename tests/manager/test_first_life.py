"""The wait for the first life of a job, and the clock of its host."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpcext.batch.standing import Is
from hpcext.manager import first_life


@pytest.mark.parametrize("set_by_s", [-3600.0, 3600.0], ids=["back", "forward"])
def test_a_clock_that_is_set_makes_the_wait_neither_longer_nor_shorter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, set_by_s: float
) -> None:
    clock = SimpleNamespace(now_s=1e9, passed_s=50.0)

    def sleep(seconds: float) -> None:
        clock.now_s += seconds
        clock.passed_s += seconds

    monkeypatch.setattr(
        first_life,
        "time",
        SimpleNamespace(
            time=lambda: clock.now_s,
            monotonic=lambda: clock.passed_s,
            sleep=sleep,
            strftime=time.strftime,
            localtime=time.localtime,
        ),
    )
    wait = first_life.Wait(tmp_path, "h9", goes_back=False)
    began_s = clock.passed_s
    wait.turn()
    said = first_life.standing(tmp_path)
    assert said is not None
    assert said.state is Is.RUNS
    clock.now_s += set_by_s
    while clock.passed_s - began_s < first_life.MOST_S:
        wait.turn()
    with pytest.raises(first_life.FirstLifeError, match="did not end within 600 s"):
        wait.turn()
    first_life.over(tmp_path)
    assert first_life.standing(tmp_path) is None
