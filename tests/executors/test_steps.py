"""Steps of a batch job whose process cannot be written down."""

from __future__ import annotations

import errno
import os
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from hpcext.backends.slurm.steps import DEAF_S, SlurmSteps
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


@pytest.mark.parametrize("ends", [False, True])
def test_an_srun_that_does_not_end_when_its_step_is_late_is_killed(*, ends: bool) -> None:
    """As one did that waited for a controller's answer for ever."""
    executor: Any = object.__new__(SlurmSteps)
    sent: list[int] = []
    process = SimpleNamespace(send=sent.append)
    files: Any = SimpleNamespace(begun=lambda: False, job="1")
    watch: Any = Watch(files, ())
    watch.process = process
    executor._watches = {7: watch}
    later: list[Any] = []
    executor._loop = SimpleNamespace(call_later=lambda s, do, op: later.append((s, do, op)))
    executor._end_late_step(7)
    assert (sent, watch.why) == ([signal.SIGTERM], "its step did not start within 120 s")
    if ends:
        executor._watches = {}
    ((after_s, do, op),) = later
    do(op)
    assert after_s == DEAF_S
    assert sent == ([signal.SIGTERM] if ends else [signal.SIGTERM, signal.SIGKILL])


def test_a_step_that_has_ended_already_needs_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed 170 of the virtual pilots: its end was seen twice."""
    assert launched(monkeypatch, None).why == ""
