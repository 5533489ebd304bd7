"""Pilots as others than their managers read them: while they grow, and when they cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcext.config import Settings
from hpcext.core import facts as f
from hpcext.core import values as v
from hpcext.core.engine import Engine
from hpcext.core.errors import HpcextError, JournalError
from hpcext.jobspec import JobSpec
from hpcext.manager import pilot as pilots
from hpcext.manager.journal import Header, Journal
from hpcext.manager.views import reading


def pilot(root: Path, name: str) -> Path:
    return pilots.create(
        (JobSpec("only", ("true",)),),
        pilots.NewPilot(
            name=name,
            gpus=(0, 1),
            logical=True,
        ),
        settings=Settings(state_dir=root / "state"),
        where="jobs.toml",
    )


def begun(directory: Path) -> Journal:
    book = Journal(directory / "journal.jsonl", Header(began_at=1000.0, policy="marble"))
    book.append(0.0, (f.Began(), f.NodeJoined(v.Node("n", 2))))
    return book


def test_what_was_added_is_read_and_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = pilot(tmp_path, "one")
    monkeypatch.setattr(reading, "REPLAY_SHARE", 0)
    replays = []
    replayed = Engine.step
    monkeypatch.setattr(Engine, "step", lambda *words: replays.append(words[1]) or replayed(*words))
    book = begun(directory)
    follower = reading.Follower(directory)
    first = follower.read()
    assert (first.policy, first.pilot.name, first.began_at) == ("marble", "one", 1000.0)
    assert (first.alive, first.now_s, dict(first.world.jobs)) == (False, 0.0, {})
    assert follower.read().world is first.world
    assert replays == [0.0]
    book.append(9.0, (f.Submitted(v.Job("1", "only", 1, (1, 2), 2)),))
    second = follower.read()
    assert second.now_s == 9.0
    assert list(second.world.jobs) == ["1"]
    assert replays == [0.0, 9.0]
    assert not first.world.jobs, "a reading stays what it was"
    assert second.node_time.held_s == pytest.approx(9.0)
    assert follower.read().node_time.held_s == pytest.approx(9.0)


def test_one_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    good, damaged = pilot(tmp_path, "good"), pilot(tmp_path, "damaged")
    begun(good)
    (damaged / "journal.jsonl").write_text("{}\n")
    never = pilot(tmp_path, "never")
    followers = reading.Followers(tmp_path / "state")
    for _ in range(2):
        found = list(followers.read())
        assert [each.directory for each in found if isinstance(each, reading.Reading)] == [good]
        wrong = [each for each in found if isinstance(each, HpcextError)]
        assert {Path(each.where).parent for each in wrong} == {damaged, never}
        assert all(isinstance(each, JournalError) for each in wrong)
