"""What a session says of how long its steps take, and when the next one may take longer."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hpcext.protocol import LAST_STEP, Attempt
from hpcext.training import reports
from hpcext.training.reports import Reporter
from hpcext.training.step_times import LEAST, MOST, StepTimes


def test_few_steps_tell_nothing_and_pauses_do_not_count() -> None:
    times = StepTimes()
    now_s = 0.0
    times.stepped(now_s)  # the first: it compiled
    for step in range(LEAST):
        assert times.usual() is None
        if step == 7:
            times.pause()
            now_s += 500
            times.stepped(now_s)
        now_s += 0.1
        times.stepped(now_s)
    assert times.usual() == (0.1, 0.1)


def test_rare_steps_of_long_are_the_longest_and_no_percentile() -> None:
    times = StepTimes()
    now_s = 0.0
    for step in range(2 * MOST + 1):
        now_s += 9.0 if step == 3 else 2.0 if step % 50 == 1 else 0.1
        times.stepped(now_s)
    assert times.usual() == (2.0, 9.0)


def test_the_file_of_the_last_step_says_whether_one_is_to_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "_INTERVAL_S", 0.0)
    reporter = Reporter(Attempt("job", 1, 2, tmp_path / "checkpoint", tmp_path, 1), 1)
    read = (tmp_path / LAST_STEP).read_text
    reporter.restored(7, 7.0)
    assert read() == f"{7:016}\t"
    for step in range(8, 40):
        reporter.stepped(step, float(step))
        assert read() == f"{step:016}\n"
    usual = json.loads((tmp_path / "report.json").read_text())["step_s"]
    assert 0 <= usual[0] <= usual[1]
    reporter.pause()
    assert read() == f"{39:016}\t"
    # Other ranks are counted anew after a resize.
    reporter.resized(2)
    reporter.stepped(40, 40.0)
    assert json.loads((tmp_path / "report.json").read_text())["step_s"] is None
    assert os.listdir(tmp_path).count(LAST_STEP) == 1
