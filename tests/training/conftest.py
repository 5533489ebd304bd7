"""The tests of this folder share modules with the scripts that they run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from nursery import Nursery

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """The process that has imported PyTorch, for all files of tests/conftest.py's SHARED."""
    nursery = Nursery()
    yield nursery
    nursery.close()
