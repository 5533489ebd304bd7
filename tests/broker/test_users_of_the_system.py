"""What the system says of users, while its directory server answers and while it does not."""

from __future__ import annotations

import grp
import os
import pwd
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_sites import Machine, weights

from hpcext.broker import identity
from hpcext.broker import settings as settings_module
from hpcext.broker.division import Share
from hpcext.broker.identity import GROUPS_S, Groups, Peer, name_of
from hpcext.broker.settings import Settings

LOTS = 100
UID = 987_654


class Directory:
    """A directory server that knows one user, and can be away."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.away = False
        self.asked = 0
        self.now_s = 0.0
        entry = SimpleNamespace(pw_name="ann", pw_gid=1)
        monkeypatch.setattr(pwd, "getpwnam", lambda _name: self._answer(entry))
        monkeypatch.setattr(os, "getgrouplist", lambda _name, gid: [gid, 2, 3])
        monkeypatch.setattr(grp, "getgrgid", self._group)
        self.groups = Groups(lambda: self.now_s)
        monkeypatch.setattr(settings_module, "groups_of", self.groups.of)

    def _answer(self, what: Any) -> Any:
        self.asked += 1
        if self.away:
            raise KeyError("not found")
        return what

    def _group(self, gid: int) -> Any:
        if gid == 3:
            raise KeyError("a group without a name")
        return SimpleNamespace(gr_name={1: "ann", 2: "physics"}[gid])


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch) -> Directory:
    return Directory(monkeypatch)


def test_a_name_that_is_not_known_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Any] = [SimpleNamespace(pw_name="ann")]

    def answers(uid: int) -> Any:
        if uid == UID and len(said) > 1:
            return said.pop()
        raise KeyError("not found")

    monkeypatch.setattr(pwd, "getpwuid", answers)
    assert name_of(UID) == str(UID)
    said *= 2
    assert name_of(UID) == "ann"
    # Once known it is not asked for any more.
    assert name_of(UID) == "ann"
    assert len(said) == 1
    identity._known_name.cache_clear()


def test_a_user_keeps_his_groups_while_they_cannot_be_asked_for(
    directory: Directory, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings("p", groups={"physics": Share(2.0, limit=3)})
    directory.away = True
    assert settings.share("ann") == Share()
    directory.away = False
    directory.now_s += GROUPS_S
    assert settings.share("ann") == Share(2.0, limit=3)
    directory.away = True
    for _ in range(3):
        directory.now_s += GROUPS_S
        assert settings.share("ann") == Share(2.0, limit=3)
    assert caplog.text.count("the system does not know ann now: the groups stay") == 1
    asked = directory.asked
    assert settings.share("ann") == Share(2.0, limit=3)
    assert directory.asked == asked


def test_a_harvester_whose_user_was_not_known_is_that_users_when_it_asks_again(
    tmp_path: Path,
) -> None:
    """A broker that begins reads names of the journal before anybody has asked."""
    machine = Machine(tmp_path / "b", 8, users=weights(ann=3))
    ann = machine.peer("ann")
    wants = {"ann": LOTS, "bob": LOTS}
    assert machine.grants(wants) == {"ann": 6, "bob": 2}
    machine.take("ann", *machine.nodes[:6])
    machine.uids = {
        str(ann.uid) if name == "ann" else name: uid for name, uid in machine.uids.items()
    }
    machine.again()
    machine.uids["ann"] = ann.uid
    assert machine.grants(wants) == {"ann": 6, "bob": 2}
    [row, _] = machine.site.status(Peer(0, "root"), machine.now_s)["users"]
    assert (row["user"], row["harvesters"], row["granted"], row["held"]) == ("ann", 1, 6, 6)
