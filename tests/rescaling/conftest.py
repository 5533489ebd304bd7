"""Trainings that a test resizes itself, in the place of a manager."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from resized import Training

from hpcext import protocol


@pytest.fixture(autouse=True, scope="session")
def _news_harmless() -> None:
    """Ranks take this process for their supervisor, and tell it of news as long as they live."""
    signal.signal(protocol.NEWS_SIGNAL, signal.SIG_IGN)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    """Begin a training; whatever is left of it is killed at the end."""
    begun: list[Training] = []

    def make(*argv: str, size: int, attempt: int = 1) -> Training:
        begun.append(Training(tmp_path, *argv, size=size, attempt=attempt))
        return begun[-1]

    yield make
    for training in begun:
        training.process.kill()
        training.process.wait()
