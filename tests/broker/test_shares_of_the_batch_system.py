"""Weights by the fair share of the batch system, and limits of several users together."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest
from made_sites import Machine
from site_of_test import wait_for

from hpcext.batch.leasing import Association
from hpcext.batch.slurm.fair_share import parse_fair_share
from hpcext.broker import settings as settings_module
from hpcext.broker.division import Share
from hpcext.broker.fair_share import LEAST, FairShare, Reading
from hpcext.broker.identity import Peer
from hpcext.core.errors import BatchError

LOTS = 100
ROOT = Peer(0, "root")

SAID = """\
||root
root|1.000000| root
|| physics
||  optics
ann|0.250000|   optics
|| science
ann|0.750000|  science
bob|nan|  science
cid||  science
eve|-3|  science
"""
"""As sshare of Slurm 22.05 prints it, with values that it should not."""


def test_what_sshare_prints_is_read() -> None:
    assert parse_fair_share(SAID) == (
        Association("root", ("root",), 1.0),
        Association("ann", ("root", "physics", "optics"), 0.25),
        Association("ann", ("root", "science"), 0.75),
        Association("eve", ("root", "science"), 0.0),
    )
    for nothing in ("", "\n\n", "|\n", "no table"):
        assert parse_fair_share(nothing) == ()


class Asked:
    """A batch system that says what a test wants."""

    def __init__(self) -> None:
        self.said: Iterable[Association] | Exception = parse_fair_share(SAID)

    def __call__(self) -> Iterable[Association]:
        if isinstance(self.said, Exception):
            raise self.said
        return self.said


def test_the_last_values_stay_without_an_answer_and_it_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    asked = Asked()
    shares = FairShare(asked, 60, lambda: 7.0)
    shares.read()
    good = shares.now
    assert good.factors == {"root": 1.0, "ann": 0.75, "eve": LEAST}
    assert good.accounts["ann"] == {"root", "physics", "optics", "science"}
    assert (good.read_s, good.failed, caplog.messages) == (7.0, "", [])
    for wrong in (BatchError("sshare failed: slurmdbd is down"), ValueError("odd"), ()):
        asked.said = wrong
        shares.read()
        shares.read()
        assert shares.now._replace(failed="") == good
        assert shares.now.failed
    assert caplog.messages == [
        "sshare failed: slurmdbd is down",
        "odd",
        "the batch system shows no fair share of anybody",
    ]
    asked.said = parse_fair_share(SAID)
    shares.read()
    assert shares.now == good
    assert caplog.messages[-1] == "the fair share is read again"


def test_a_batch_system_that_does_not_answer_holds_up_nothing() -> None:
    """It is asked in a thread that nobody waits for, and once."""
    asked, answers = threading.Event(), threading.Event()

    def ask() -> Iterable[Association]:
        asked.set()
        answers.wait()
        return parse_fair_share(SAID)

    shares = FairShare(ask, 3600)
    shares.begin()
    shares.begin()
    assert asked.wait(60)
    assert shares.now == Reading()
    shares.end()
    answers.set()
    wait_for(lambda: shares.now.factors, "the answer")


def told(**factors: float) -> Reading:
    return Reading(factors, {}, 0.0)


def test_nodes_are_divided_by_fair_share(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "b", 12, shares="batch", shares_unknown=0.25)
    # Nobody is known yet.
    assert machine.grants({"ann": LOTS, "bob": LOTS}) == {"ann": 6, "bob": 6}
    machine.site.fair_share = told(ann=0.75, bob=0.25)
    assert machine.grants({"ann": LOTS, "bob": LOTS}) == {"ann": 9, "bob": 3}
    # Who is not known has what the settings say; a weight of the file counts beside it.
    users = {"bob": Share(3)}
    machine = Machine(tmp_path / "c", 12, shares="batch", shares_unknown=0.25, users=users)
    machine.site.fair_share = told(ann=0.25)
    assert machine.grants({"ann": LOTS, "bob": LOTS}) == {"ann": 3, "bob": 9}
    rows = machine.site.status(ROOT, machine.now_s)["users"]
    shown = {row["user"]: (row["weight"], row["fair_share"]) for row in rows}
    assert shown == {"ann": (0.25, 0.25), "bob": (0.75, 0.25)}


def test_weights_of_the_file_alone_take_nothing_from_the_batch_system(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "b", 12, pools={"account x": 50})
    machine.site.fair_share = told(ann=1.0, bob=LEAST)
    assert machine.grants({"ann": LOTS, "bob": LOTS}) == {"ann": 6, "bob": 6}


def test_users_of_an_account_have_a_limit_together(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "b", 12, pools={"account physics": 4})
    machine.site.fair_share = Reading(
        {}, {"ann": frozenset({"physics", "root"}), "bob": frozenset({"physics"})}
    )
    wants = dict.fromkeys(("ann", "bob", "cid"), LOTS)
    assert machine.grants(wants) == {"ann": 2, "bob": 2, "cid": 8}
    machine.take("ann", *machine.nodes[:2])
    machine.take("cid", *machine.nodes[4:])
    machine.look()
    together = machine.site.status(ROOT, machine.now_s)["together"]
    assert together == [{"name": "account physics", "limit": 4, "held": 2}]
    # What others have is not a user's business.
    assert machine.site.status(machine.peer("ann"), machine.now_s)["together"] == []


def test_members_of_a_group_have_a_limit_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever starts the leases without asking takes them from the other members."""
    groups = {"ann": {"physics"}, "bob": {"physics", "gpu"}, "rogue": {"physics"}}
    monkeypatch.setattr(settings_module, "groups_of", lambda user: groups.get(user, set()))
    machine = Machine(tmp_path / "b", 12, pools={"group physics": 6, "group gpu": 1})
    wants = dict.fromkeys(("ann", "bob", "cid"), LOTS)
    assert machine.grants(wants) == {"ann": 5, "bob": 1, "cid": 6}
    machine.take("rogue", *machine.nodes[:4])
    assert machine.grants(wants) == {"ann": 1, "bob": 1, "cid": 6}


def test_what_each_is_owed_is_shown(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "b", 8)
    machine.grants({"ann": LOTS, "bob": LOTS})
    machine.take("ann", *machine.nodes[:3])
    machine.look()
    rows = machine.site.status(ROOT, machine.now_s)["users"]
    shown = [(row["user"], row["granted"], row["held"], row["owed"]) for row in rows]
    assert shown == [("ann", 4, 3, 1), ("bob", 4, 0, 4)]
