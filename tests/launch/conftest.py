"""Fixtures of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from stage import Stage

pytest.register_assert_rewrite("as_is")


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A place to run supervisors in; no process of it may outlive the test."""
    place = Stage(tmp_path)
    try:
        yield place
        # Those that were killed last may still be dying.
        place.wait_for(lambda: not place.processes(), "the end of every process")
    finally:
        place.kill_all()
