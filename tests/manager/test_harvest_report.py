"""The account of a harvester: what was seen, and what trainings made of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcext.cli.main import main
from hpcext.core import facts as f
from hpcext.core.engine import Engine
from hpcext.core.values import Job, Node
from hpcext.executors import lease_account
from hpcext.executors.lease_account import Account
from hpcext.manager.harvest_report import harvest_document
from hpcext.policies import find_policy


def test_what_was_seen_goes_on_after_a_restart(tmp_path: Path) -> None:
    account = lease_account.load(tmp_path)
    account.passed(1800, idle=3, held=1, short=1)
    account.leases = 2
    lease_account.save(account, tmp_path)
    account = lease_account.load(tmp_path)
    account.passed(1800, idle=0, held=4, short=0)
    assert account == Account(
        seen_s=3600, offered_node_s=4 * 3600, held_node_s=9000, short_node_s=1800, leases=2
    )


@pytest.mark.parametrize("text", ["", "[]", '{"schema": "other/1"}'])
def test_a_damaged_account_is_begun_anew(tmp_path: Path, text: str) -> None:
    (tmp_path / lease_account.FILE).write_text(text)
    assert lease_account.load(tmp_path) == Account()


def test_a_full_disk_costs_the_count_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lease_account.save(Account(), tmp_path / "not there")
    assert "not there" in caplog.text


def test_what_trainings_made_of_it(tmp_path: Path) -> None:
    """Two nodes for an hour, of which it starts for a minute; then none."""
    lease_account.save(Account(offered_node_s=3 * 3600.0, held_node_s=2.5 * 3600), tmp_path)
    engine = Engine(find_policy("exclusive"))
    job = Job("1", "wide", 1, (1,), 1, nodes=(2, 2))
    engine.step(0, [f.NodeJoined(Node("a", 1)), f.NodeJoined(Node("b", 1)), f.Submitted(job)])
    op = engine.world.jobs["1"].op
    engine.step(0, [f.Started("1", op, ("a:0", "b:0"))])
    engine.step(60, [f.Registered("1", op, 0)])
    engine.step(60, [f.Progressed("1", op, 1, resume_s={"start_s": 20.0, "first_step_s": 40.0})])
    ended = f.Ended("1", op, f.Outcome.SUSPENDED, 85, suspend_s={"write_s": 18.0})
    engine.step(3600, [ended])
    found = harvest_document(tmp_path, engine.world, 7200.0)
    assert (found["offered_node_h"], found["held_node_h"]) == (3.0, 2.5)
    assert found["used_node_h"] == pytest.approx(2.0)
    assert found["starting_node_h"] == pytest.approx(2 / 60, abs=1e-4)
    assert found["stopping_node_h"] == pytest.approx(0.01)


def test_a_pilot_has_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = tmp_path / "jobs.toml"
    jobs.write_text('[[job]]\nname = "a"\ncommand = "true"\n')
    pilot = str(tmp_path / "pilot")
    assert main(["run", str(jobs), "--gpus", "1", "--dir", pilot]) == 0
    capsys.readouterr()
    assert main(["harvest", "report", pilot]) == 2
    assert "is a pilot, and no harvester" in capsys.readouterr().err
    assert json.loads((tmp_path / "pilot" / "pilot.json").read_text())["harvest"] is None
