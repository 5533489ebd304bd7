"""Commands of hpcext, run in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcext.cli import main as cli


def simulate(
    capsys: pytest.CaptureFixture[str], *words: str | Path, status: int = 0
) -> tuple[str, str]:
    """Run ``hpcext simulate``; what it printed, and what it said beside."""
    code = cli.main(["simulate", *map(str, words)])
    told = capsys.readouterr()
    assert code == status, told
    return told
