"""What a session says of its goodput is in its reports, as JSON that any language reads."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcext.protocol import Attempt
from hpcext.training.reports import Reporter
from hpcext.training.session import Session

SAID = {
    "initial_batch": 128,
    "most_batch": None,
    "least_per_gpu": 1,
    "most_per_gpu": 64,
    "accumulates": True,
    "throughput": None,
    "batch": None,
}


def attempt(path: Path) -> Attempt:
    return Attempt("job", 1, 2, path / "checkpoint", path, 1)


def told(path: Path) -> Any:
    def refuse(name: str) -> float:
        raise AssertionError(f"{name} is not JSON")

    document = json.loads((path / "report.json").read_text(), parse_constant=refuse)
    return document["goodput"]


def test_the_last_one_that_makes_sense_goes_with_every_report(tmp_path: Path) -> None:
    reporter = Reporter(attempt(tmp_path), 1)
    reporter.register()
    assert told(tmp_path) is None
    for noise_scale in (900.5, np.float32(7.0), math.nan, -3.0):
        reporter.goodput(noise_scale, SAID)
    for step in (1, 2):
        reporter.stepped(step, 64.0)
        reporter.flush()
        assert told(tmp_path) == {**SAID, "noise_scale": 7.0}


def test_noise_without_end_is_a_number(tmp_path: Path) -> None:
    reporter = Reporter(attempt(tmp_path), 1)
    reporter.goodput(math.inf, SAID)
    reporter.flush()
    assert told(tmp_path)["noise_scale"] > 1e300


def test_a_session_reports_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(weights=np.zeros(2), samples_per_step=8)
    monkeypatch.setattr(session.training.coordinator, "reporter", Reporter(attempt(tmp_path), 1))
    session.report_goodput(900.5, np.int64(128), most_per_gpu=np.int64(64))  # type: ignore[arg-type]
    session.finish()
    assert told(tmp_path) == {**SAID, "noise_scale": 900.5}
    session.report_goodput(900.5, 128, most_per_gpu=64, throughput=np.arange(1, 8))
    session.finish()
    assert told(tmp_path)["throughput"] == [1, 2, 3, 4, 5, 6, 7]


def test_a_session_that_counts_steps_says_its_throughput_too() -> None:
    session = Session(weights=np.zeros(2))
    with pytest.raises(ValueError, match="samples_per_step"):
        session.report_goodput(900.5, 128)
    session.report_goodput(900.5, 128, throughput=[0.02, 1e-3, 0, 0, 0, 0, 1])
