"""A user's own view of the site's broker: what a harvester may have, and why it is no more."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made_pilots import make

from hpcext.cli.main import main
from hpcext.cli.top import view as top_view
from hpcext.core import facts as f
from hpcext.core.values import Node
from hpcext.harvest import account
from hpcext.harvest.account import Account
from hpcext.harvest.leases import Terms
from hpcext.manager.views import reading
from hpcext.manager.views.harvest_report import part

PART = "the site's broker grants it 3 of 8 nodes now: other users have the rest, by their weights"
NODES = [(0.0, [f.NodeJoined(Node("a", 2))]), (9.0, [])]


@pytest.fixture
def harvester(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One with a node and a job that waits, whose manager lives."""
    monkeypatch.setenv("HPCEXT_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(reading.Follower, "alive", lambda self: True)
    found = tmp_path / "state" / "pilots" / make("h", NODES, terms=Terms(partition="p", gpus=2))
    account.save(Account(broker=PART), found)
    return found


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(words) == 0
    return capsys.readouterr().out


def test_status_why_and_report_show_it(harvester: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (("status",), ("why",), ("harvest", "report")):
        assert said(capsys, *words, harvester.name).splitlines().count(PART) == 1, words
    for words in (("status",), ("harvest", "report")):
        assert json.loads(said(capsys, *words, harvester.name, "--json"))["broker"] == PART


def test_top_shows_it_beside_why_a_job_waits(harvester: Path) -> None:
    found = reading.read(harvester)
    lines = top_view.why(found, found.world.jobs["1"])
    assert lines[-1] == PART
    assert len(lines) > 1


def test_why_says_it_once_if_that_is_why_there_is_no_lease(
    harvester: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    none = harvester.with_name(make("none", [(1.0, [])], terms=Terms(partition="p", gpus=2)))
    account.save(Account(broker=PART, missing=PART), none)
    assert said(capsys, "why", none.name).count(PART) == 1


def test_it_is_nothing_without_a_broker_or_a_manager(
    harvester: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert part(reading.read(harvester)) == PART
    account.save(Account(broker="\x1b[2J" + "x" * 10_000), harvester)
    shown = part(reading.read(harvester))
    assert "\x1b" not in shown
    assert len(shown) <= 300
    account.save(Account(), harvester)
    assert part(reading.read(harvester)) == ""
    account.save(Account(broker=PART), harvester)
    monkeypatch.setattr(reading.Follower, "alive", lambda self: False)
    assert part(reading.read(harvester)) == ""
    pilot = harvester.with_name(make("pilot", NODES))
    monkeypatch.setattr(reading.Follower, "alive", lambda self: True)
    assert part(reading.read(pilot)) == ""
