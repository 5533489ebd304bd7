"""Of tests with many like cases some run in every run, and all in ``make test-slow``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("words", "cases"), [((), 3), (("-m", "slow or hypothesis or cases"), 7)], ids=["few", "all"]
)
def test_so_many_cases_run(words: tuple[str, ...], cases: int) -> None:
    file = HERE / "training" / "test_imported.py"
    argv = [sys.executable, "-m", "pytest", "--collect-only", "--quiet", *words, str(file)]
    done = subprocess.run(argv, cwd=HERE.parent, capture_output=True, text=True, check=True)
    found = [line for line in done.stdout.splitlines() if "could_make_a_difference" in line]
    assert len(found) == cases, done.stdout


def test_make_runs_the_rest() -> None:
    assert 'pytest -m "slow or hypothesis or cases"' in (HERE.parent / "Makefile").read_text()
