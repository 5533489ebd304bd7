"""Steps of a batch job whose process cannot be written down."""

from __future__ import annotations

import errno
import os
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from hpcext.backends.slurm.steps import SlurmSteps
from hpcext.executors.processes import ProcessExecutor, Watch
from hpcext.executors.steps import StepExecutor


def launched(monkeypatch: pytest.MonkeyPatch, process: Any) -> Watch:
    """An attempt that was launched while the disk was full."""

    def launch(_self: object, watch: Watch) -> None:
        watch.process = process

    def record(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(ProcessExecutor, "_launch", launch)
    monkeypatch.setattr(StepExecutor, "_record", record)
    files: Any = SimpleNamespace()
    watch = Watch(files, ())
    SlurmSteps._launch(object.__new__(SlurmSteps), watch)
    return watch


def test_a_step_that_cannot_be_recorded_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed 27 of the virtual pilots: it ran on beside the job's next attempt."""
    sent: list[int] = []
    watch = launched(monkeypatch, SimpleNamespace(send=sent.append))
    assert sent == [signal.SIGTERM]
    assert watch.why == "could not be started: No space left on device"


def test_a_step_that_has_ended_already_needs_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed 170 of the virtual pilots: its end was seen twice."""
    assert launched(monkeypatch, None).why == ""


@pytest.mark.parametrize(("asked_by", "news"), [("SIGUSR1", []), ("", [signal.SIGUSR1])])
def test_news_are_not_told_by_a_signal_that_asks_to_save(asked_by: str, news: list[int]) -> None:
    """Seed 1211 of the virtual pilots: srun sent it to a training that was still beginning."""
    steps, sent = object.__new__(SlurmSteps), list[int]()
    steps._told = {7}
    files: Any = SimpleNamespace(op=7, claimed=lambda: True, asked_by=lambda: asked_by)
    watch = Watch(files, ())
    watch.process = SimpleNamespace(send=sent.append)  # type: ignore[assignment]
    steps._ordered(watch)
    assert sent == news
    assert not steps._told
