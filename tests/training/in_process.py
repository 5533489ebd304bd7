"""Suspends trainings within the process of the tests."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from hpcext.training import coordinator
from hpcext.training.signals import SuspendRequest


class Left(BaseException):
    """A training has saved its state and would end its process."""


class Suspensions:
    """Requests to suspend trainings of this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requested = False
        monkeypatch.setattr(SuspendRequest, "suspend_requested", lambda _: self.requested)
        monkeypatch.setattr(coordinator, "leave", self._leave)

    def request(self) -> None:
        """What a manager does."""
        self.requested = True

    def _leave(self, *_: object) -> NoReturn:
        self.requested = False
        raise Left

    @contextlib.contextmanager
    def expected(self) -> Iterator[None]:
        with pytest.raises(Left):
            yield


def as_managed(monkeypatch: pytest.MonkeyPatch, path: Path) -> Callable[[int], None]:
    """Begin attempts of one job in this process, by their numbers."""

    def begin(attempt: int) -> None:
        report = path / f"attempt-{attempt}"
        report.mkdir(parents=True, exist_ok=True)
        environ = {
            "PROTOCOL": "1",
            "JOB_ID": "job",
            "ATTEMPT": str(attempt),
            "OP": str(attempt + 10),
            "CHECKPOINT_DIR": str(path / "checkpoint"),
            "REPORT_DIR": str(report),
            "NUM_GPUS": "1",
            "NUM_NODES": "1",
            "NOTIFY": "none",
        }
        for name, value in environ.items():
            monkeypatch.setenv(f"HPCEXT_{name}", value)

    return begin
