"""Trainings that a test resizes itself, in the place of a manager."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nursery import Nursery
from resized import Training

from hpcext import protocol


@pytest.fixture(autouse=True, scope="module")
def news_harmless() -> Iterator[None]:
    """Ranks take this process for their supervisor, and tell it of news as long as they live."""
    before = signal.signal(protocol.NEWS_SIGNAL, signal.SIG_IGN)
    yield
    # What this process ignores, the programs of later tests would, too.
    signal.signal(protocol.NEWS_SIGNAL, before)


@pytest.fixture(scope="module")
def nursery(news_harmless: None) -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture
def start(tmp_path: Path, nursery: Nursery) -> Iterator[Any]:
    """Begin a training; whatever is left of it is killed at the end.

    With ``forked=False`` each rank is a program of its own, else a fork: what is imported before
    and after there is a group, and when, differs.
    """
    begun: list[Training] = []

    def make(*argv: str, size: int, forked: bool = True, **options: Any) -> Training:
        parent = nursery if forked else None
        begun.append(Training(tmp_path, *argv, size=size, nursery=parent, **options))
        return begun[-1]

    yield make
    for training in begun:
        training.process.kill()
        training.process.wait()
