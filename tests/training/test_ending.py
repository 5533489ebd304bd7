"""The last checkpoint of a training: tried until it is written, but not for ever."""

from __future__ import annotations

import errno
import itertools
import os

import pytest

from hpcext.training import ending
from hpcext.training.ranks import Ranks
from hpcext.training.reports import Reporter
from hpcext.training.signals import SuspendRequest


class Request(SuspendRequest):
    """Comes when a number of looks are over."""

    def __init__(self, after: float = float("inf")) -> None:
        super().__init__(watch=False)
        self.looks = after

    def suspend_requested(self) -> bool:
        self.looks -= 1
        return self.looks < 0

    def decline(self, pause_s: float) -> None:
        assert pause_s > 0
        self.looks = float("inf")


class Disk:
    """Full for a number of tries."""

    def __init__(self, full: float) -> None:
        self.full = full
        self.tries = 0
        self.told: list[OSError] = []
        self.reporter = Heard()

    def write(self) -> None:
        self.tries += 1
        if self.tries <= self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock of ten seconds a look; whoever leaves raises SystemExit."""
    clock = itertools.count(0.0, 10.0)
    monkeypatch.setattr(ending.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(ending.time, "sleep", lambda _s: None)

    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(ending, "leave", leave)


def end(disk: Disk, *, supervised: bool = True, asked: float = float("inf")) -> None:
    ending.write_last(
        disk.write,
        ranks=Ranks(),
        request=Request(asked),
        reporter=disk.reporter,
        supervised=supervised,
        failed=disk.told.append,
    )


class Heard(Reporter):
    """What a manager is told."""

    def __init__(self) -> None:
        super().__init__(None, 1)
        self.words: list[str] = []

    def waits_to_save(self, why: str) -> None:
        self.words.append(f"waits: {why}")

    def declined(self, why: str) -> None:
        self.words.append(f"declines: {why}")


def test_it_is_tried_until_it_is_written_and_told_once() -> None:
    disk = Disk(full=7)
    end(disk)
    assert (disk.tries, len(disk.told)) == (8, 1)
    assert disk.reporter.words == ["waits: disk full"]


def test_without_a_manager_it_is_tried_once() -> None:
    disk = Disk(full=7)
    end(disk, supervised=False)
    assert (disk.tries, len(disk.told)) == (1, 1)


def test_it_declines_a_suspension_and_goes_on_trying() -> None:
    disk = Disk(full=7)
    end(disk, asked=3)
    assert disk.tries == 8
    assert disk.reporter.words == ["waits: disk full", "declines: disk full"]


def test_it_does_not_hold_gpus_for_ever() -> None:
    disk = Disk(full=float("inf"))
    with pytest.raises(SystemExit, match="74"):
        end(disk)
    assert disk.tries == ending.GIVE_UP_S / 10 + 1
