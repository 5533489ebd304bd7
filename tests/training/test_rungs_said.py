"""What a trial had at its rungs is in its reports, whoever reads them when."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from hpcext.protocol import Attempt
from hpcext.training.reports import Reporter


def attempt(path: Path, rungs: tuple[int, int] | None = (3, 2)) -> Attempt:
    return Attempt("job", 1, 2, path / "checkpoint", path, 1, rungs=rungs)


def told(path: Path) -> dict[str, Any]:
    document = json.loads((path / "report.json").read_text())
    assert isinstance(document, dict)
    return document


def test_it_is_said_at_the_very_step_and_kept(tmp_path: Path) -> None:
    reporter = Reporter(attempt(tmp_path), 1)
    reporter.register()
    for step in range(1, 14):
        # Said before the step is done, as by a loop.
        reporter.metrics({"loss": math.nan if step == 6 else 1 / step})
        reporter.stepped(step, float(step))
        if step in {3, 6, 12}:
            assert told(tmp_path)["step"] == step, "within the second since the last report"
    assert told(tmp_path)["rungs"] == {
        "3": {"loss": 1 / 3},
        "6": {"loss": None},
        "12": {"loss": 1 / 12},
    }


def test_those_before_a_checkpoint_are_not_said_again(tmp_path: Path) -> None:
    reporter = Reporter(attempt(tmp_path), 1)
    reporter.restored(7, 7.0)
    reporter.metrics({"loss": 1.0})
    for step in (8, 30):
        reporter.stepped(step, float(step))
    # Of several that it passed at once the last one is said.
    assert told(tmp_path)["rungs"] == {"24": {"loss": 1.0}}


def test_a_job_outside_a_sweep_has_no_rungs(tmp_path: Path) -> None:
    reporter = Reporter(attempt(tmp_path, None), 1)
    reporter.stepped(100, 100.0)
    assert told(tmp_path)["rungs"] == {}


def test_the_environment_tells_the_rungs(tmp_path: Path) -> None:
    for rungs in ((3, 2), None):
        mine = attempt(tmp_path, rungs)
        assert Attempt.from_environ(mine.environ()) == mine
    without = attempt(tmp_path).environ()
    del without["HPCEXT_RUNGS"]
    assert Attempt.from_environ(without) == attempt(tmp_path, None)
    with pytest.raises(ValueError, match="HPCEXT_RUNGS='soon'"):
        Attempt.from_environ({**without, "HPCEXT_RUNGS": "soon"})
