"""``hpcext-broker metrics``: a file for node_exporter, without names unless they are asked for."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from made_sites import Machine
from prometheus_client.parser import text_string_to_metric_families
from running_doors import Running

from hpcext.broker import view
from hpcext.broker.account import Had
from hpcext.broker.identity import Peer
from hpcext.broker.metrics import METRICS, UP, USERS
from hpcext.broker.reservations import Reservation
from hpcext.cli.broker import main

LOTS = 100


class Site:
    """A broker that two users have asked, at a socket, and the file."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.peer = Peer(0, "root")
        reserved = tuple(
            Reservation("user", "bartholomew", 2, begins_at, 1e11) for begins_at in (0.0, 9e10)
        )
        machine = Machine(path / "b", 8, administrators=("adm",), reservations=reserved)
        machine.grants({"annabel": LOTS, "bartholomew": LOTS})
        machine.take("annabel", *machine.nodes[:3])
        machine.take("rogue", *machine.nodes[6:])
        machine.look()
        self.machine = machine

        # Keys of a status that the broker does not send.
        self.lacks: tuple[str, ...] = ()

        def reply(running: Running, _peer: Peer, _message: Any) -> dict[str, Any]:
            running.calls += 3600
            document = machine.site.status(self.peer, machine.now_s)
            return {key: each for key, each in document.items() if key not in self.lacks}

        monkeypatch.setattr(Running, "_reply", reply)
        (path / "run").mkdir(mode=0o755)
        self.running = Running(path / "run" / "socket")
        self.file = path / "broker.prom"

    def write(self, *words: str) -> int:
        file = ("--textfile", str(self.file))
        return main(["metrics", *file, "--socket", str(self.running.path), *words])

    def read(self) -> dict[str, dict[str, float]]:
        """Metric → user, or nobody → value."""
        found: dict[str, dict[str, float]] = {}
        for family in text_string_to_metric_families(self.file.read_text()):
            for each in family.samples:
                found.setdefault(each.name, {})[each.labels.get("user", "")] = each.value
        return found


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    one = Site(tmp_path, monkeypatch)
    yield one
    one.running.end()


def test_all_users_together_without_their_names(site: Site) -> None:
    assert site.write() == 0
    found = site.read()
    assert found.keys() == METRICS.keys()
    wanted = {
        UP: 1, "hpcext_broker_decides": 1, "hpcext_broker_users": 2,
        "hpcext_broker_harvesters": 2, "hpcext_broker_wanted_nodes": 200,
        "hpcext_broker_held_nodes": 5, "hpcext_broker_reserved_nodes": 2,
        "hpcext_broker_fair_share_failed": 0,
    }  # fmt: skip
    assert {name: found[name][""] for name in wanted} == wanted
    granted, owed = (found[f"hpcext_broker_{name}_nodes"][""] for name in ("granted", "owed"))
    assert owed == granted - 3
    assert found["hpcext_broker_without_leave_seconds_total"][""] > 0
    assert "annabel" not in site.file.read_text()
    assert site.file.stat().st_mode & 0o777 == 0o644


def test_users_are_named_if_that_is_asked_for(site: Site) -> None:
    assert site.write("--users") == 0
    found = site.read()
    assert found.keys() == METRICS.keys() | USERS.keys()
    held = {"annabel": 3, "bartholomew": 0, "rogue": 2}
    assert found["hpcext_broker_user_held_nodes"] == held
    assert found["hpcext_broker_user_weight"] == dict.fromkeys(held, 1)


def test_promtool_finds_no_fault(site: Site) -> None:
    promtool = shutil.which("promtool")
    assert promtool is not None, "make test-environment installs it"
    assert site.write("--users") == 0
    checked = subprocess.run(
        [promtool, "check", "metrics"],
        input=site.file.read_text(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_a_broker_that_is_away_is_down(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert site.write() == 0
    code = main(["metrics", "--textfile", str(site.file), "--socket", f"{site.running.path}x"])
    assert code == 1
    assert site.read() == {UP: {"": 0}}
    said = capsys.readouterr().err
    assert "is not there" in said
    assert said.count("\n") == 1


def test_users_without_a_row_are_in_the_status_as_one(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view, "MOST_ROWS", 3)
    site.machine.account.users |= {f"gone-{number}": Had(1e10, 3600.0) for number in range(2)}
    assert main(["status", "--socket", str(site.running.path)]) == 0
    out = capsys.readouterr().out
    assert "gone-" not in out
    assert ["2", "others", "5555555.56", "2.00"] in [line.split() for line in out.splitlines()]
    assert site.write() == 0
    assert site.read()["hpcext_broker_held_seconds_total"][""] >= 2e10


def test_who_sees_his_own_part_alone_writes_no_sums(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.peer = Peer(77_001, "annabel")
    assert site.write() == 2
    assert "valid: root, the account of the broker, or one of its" in capsys.readouterr().err
    assert not site.file.exists()
    site.peer = Peer(77_002, "adm")
    assert site.write() == 0


def test_a_broker_that_was_not_restarted_after_an_upgrade_is_said_to_be_old(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.lacks = ("all", "shares")
    assert main(["status", "--socket", str(site.running.path)]) == 1
    assert "is of an older hpcext than this command; systemctl" in capsys.readouterr().err


def test_wrong_use_is_one_line(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.file = site.file.with_suffix(".txt")
    assert site.write() == 2
    said = capsys.readouterr().err
    assert "a name that ends in .prom" in said
    site.file = Path("/nowhere/at/all.prom")
    assert site.write() != 0
    said += capsys.readouterr().err
    assert said.count("\n") == 2
    assert os.path.lexists("/nowhere") is False
