"""Of tests with many like cases some run in every run, and all in ``make test-slow``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FILE = """
import pytest

@pytest.mark.cases(3)
@pytest.mark.parametrize("number", range(10))
def test_number(number):
    pass

def test_other():
    pass
"""


@pytest.mark.parametrize(
    ("words", "cases"),
    [((), [0, 3, 6]), (("-m", "slow or hypothesis or cases"), range(10))],
    ids=["few", "all"],
)
def test_so_many_cases_run(words: tuple[str, ...], cases: Sequence[int], tmp_path: Path) -> None:
    (tmp_path / "test_numbers.py").write_text(FILE)
    options = ["-c", str(HERE.parent / "setup.cfg"), "-p", "conftest", "--collect-only", "--quiet"]
    argv = [sys.executable, "-m", "pytest", *options, *words, str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(HERE)}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    assert re.findall(r"test_number\[(\d+)\]", done.stdout) == [str(case) for case in cases]
    assert ("test_other" in done.stdout) == (not words)


def test_make_runs_the_rest() -> None:
    assert 'pytest -m "slow or hypothesis or cases"' in (HERE.parent / "Makefile").read_text()
