"""Who follows a pilot asks no more than is needed to know whether it has a manager."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from made_pilots import make

from hpcext import documents
from hpcext.manager import spool
from hpcext.manager.views import reading
from hpcext.manager.views.reading import Follower
from hpcext.process import Process


@pytest.fixture
def pilot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HPCEXT_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state" / "pilots" / make("one")


class Manager:
    """One of whom a batch system knows."""

    def __init__(self) -> None:
        self.here = True

    def alive(self) -> bool:
        return self.here

    def send(self, signum: int) -> bool:
        return False


def test_a_manager_is_looked_for_once_and_then_watched(
    pilot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []
    manager: Manager | None = None

    def manager_of(directory: Path) -> Manager | None:
        asked.append(directory)
        return manager

    monkeypatch.setattr(spool, "manager_of", manager_of)
    follower = Follower(pilot)
    assert not any(follower.read().alive for _ in range(3))
    assert len(asked) == 1
    # Another one says who it is.
    manager = Manager()
    (pilot / spool.MANAGER_FILE).write_text("it")
    assert all(follower.read().alive for _ in range(3))
    assert len(asked) == 2
    manager.here = False
    assert not follower.read().alive
    # A batch system that did not answer is asked again, and finds the same one.
    monkeypatch.setattr(reading.time, "monotonic", lambda: 1e9)
    manager.here = True
    assert follower.read().alive
    assert len(asked) == 3


def test_what_is_recent_is_known_without_reading(pilot: Path) -> None:

    follower = Follower(pilot)
    os.utime(pilot / "journal.jsonl", (0, 0))
    assert not follower.recent()
    me = Process.me()
    facts = {"schema": spool.MANAGER, "pid": me.pid, "start": me.start, "host": "here"}
    documents.write_json(pilot / spool.MANAGER_FILE, facts)
    assert follower.recent()
