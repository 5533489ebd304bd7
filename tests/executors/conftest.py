"""Fixtures of this folder; the stage and its job are those of tests/launch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "launch"))

from stage import Stage


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """A place for attempts; no process of it may outlive the test."""
    place = Stage(tmp_path)
    name, _, value = place.mark.partition("=")
    # Reaches what is started from here on, not the environment that /proc shows of this process.
    monkeypatch.setenv(name, value)
    try:
        yield place
        place.wait_for(lambda: not place.processes(), "the end of every process")
    finally:
        place.kill_all()
