"""The tests of this folder use the harness of the session's."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from nursery import TENSORFLOW, Nursery

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "training")]


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """The process that has imported TensorFlow, for all files of tests/conftest.py's SHARED."""
    nursery = Nursery(TENSORFLOW)
    yield nursery
    nursery.close()
