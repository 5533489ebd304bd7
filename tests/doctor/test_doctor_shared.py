"""What hpcext doctor finds out about files in the state directory, and of the pilots in it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from told_journal import tell

from hpcext import config
from hpcext.core import facts as f
from hpcext.core.values import Job, Node
from hpcext.doctor import shared
from hpcext.doctor.checkup import CheckOptions, Finding
from hpcext.doctor.measured import saving_s
from hpcext.manager import journal, pilot


def found(state: Path) -> dict[str, Finding]:
    settings = config.load_settings(environ={"HPCEXT_STATE_DIR": str(state)})
    return {each.name: each for each in shared.check(CheckOptions(settings))}


def test_all_is_well(tmp_path: Path) -> None:
    state = tmp_path / "state"
    said = found(state)
    assert set(said) == {"rename", "clock of files", "lock", "visibility"}
    assert {each.verdict for each in said.values()} == {"ok"}
    assert os.listdir(tmp_path) == []  # it leaves nothing behind


def test_a_pilot_that_others_may_enter(tmp_path: Path) -> None:
    pilot = tmp_path / "pilots" / "one"
    pilot.mkdir(mode=0o700, parents=True)
    pilot.parent.chmod(0o700)
    (pilot / "pilot.json").touch()
    (pilot.parent / "ghost").mkdir(mode=0o700)
    assert (
        found(tmp_path)["spool"].says == "1 pilot; nobody else can read them or give them commands"
    )
    pilot.chmod(0o755)
    spool = found(tmp_path)["spool"]
    assert (spool.verdict, spool.do) == ("wrong", f"chmod 700 {pilot}")
    assert spool.says == f"{pilot}: other users may enter it (mode 755)"


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that grants them to everybody: another process gets the lock that is held."""
    text = shared._OTHER.replace("fcntl.flock(lock", "(lambda *_: None)(lock")
    monkeypatch.setattr(shared, "_OTHER", text)
    lock = found(tmp_path)["lock"]
    assert (lock.verdict, lock.why) == ("wrong", "two managers could run one pilot")


def test_a_file_server_with_another_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 100)
    clock = found(tmp_path)["clock of files"]
    assert (clock.verdict, clock.says) == ("wrong", "100 s apart from this machine's")


def test_how_long_saving_took(tmp_path: Path) -> None:
    """By the journals of this user's pilots, whatever else lies there."""
    settings = config.load_settings(environ={"HPCEXT_STATE_DIR": str(tmp_path)})
    assert saving_s(tmp_path) is None
    for name, seconds in (("one", 1.5), ("two", 0.5), ("damaged", None), ("new", None)):
        directory = pilot.create(
            (),
            pilot.NewPilot(
                name=name,
                gpus=[0],
                logical=True,
            ),
            settings=settings,
            where="",
        )
        if name == "damaged":
            (directory / "journal.jsonl").write_text("no\n")
        if seconds is None:
            continue
        parts = {"agree_s": 1.0, "write_s": seconds}
        tell(
            directory / "journal.jsonl",
            journal.Header(began_at=0.0, policy="marble"),
            (0.0, (f.NodeJoined(Node("n", 1)), f.Submitted(Job("1", "j", 1, (1,), 1)))),
            (1.0, (f.Started("1", 1, ("n:0",)), f.Registered("1", 1, 0))),
            (2.0, (f.Ended("1", 1, f.Outcome.SUSPENDED, 85, parts),)),
        )
    assert saving_s(tmp_path) == 2.5
