"""The account of a harvester: what was seen, and what trainings made of it."""

from __future__ import annotations

import errno
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from told_journal import tell

from hpcext import documents
from hpcext.cli.main import main
from hpcext.config import Settings
from hpcext.core import facts as f
from hpcext.core.values import Node
from hpcext.harvest import account as lease_account
from hpcext.harvest.account import Account
from hpcext.harvest.leases import Terms
from hpcext.jobspec import JobSpec
from hpcext.manager import pilot as pilots
from hpcext.manager.journal import Header
from hpcext.manager.submissions import Submissions
from hpcext.manager.views.harvest_report import PARTS


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
def test_a_damaged_account_is_replaced_and_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    path = tmp_path / lease_account.FILE
    path.write_text(text)
    # Whoever looks at it changes nothing.
    assert lease_account.load(tmp_path) == Account()
    assert path.read_text() == text
    assert not caplog.text
    assert lease_account.go_on(tmp_path) == Account()
    kept = path.with_name("harvest.json.damaged")
    assert kept.read_text() == text
    assert caplog.text.count("\n") == 1
    assert f"counted anew; the old one is {kept}" in caplog.text
    assert not path.exists()


def test_an_account_that_cannot_be_read_now_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new one, where there is none, is no loss."""
    assert lease_account.go_on(tmp_path) == Account()
    assert not caplog.text
    lease_account.save(Account(leases=3), tmp_path)

    def fails(*_: Any, **__: Any) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as context:
        context.setattr(documents, "read_untrusted", fails)
        assert lease_account.go_on(tmp_path) == Account()
    assert "Input/output error" in caplog.text
    (tmp_path / "harvest.json.damaged").replace(tmp_path / lease_account.FILE)
    assert lease_account.go_on(tmp_path).leases == 3


def test_a_full_disk_costs_the_count_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lease_account.save(Account(), tmp_path / "not there")
    assert "not there" in caplog.text


HOUR_S = 3600.0
TERMS = Terms(partition="harvest", gpus=1)


def harvester(
    path: Path, *specs: JobSpec, entries: Sequence[tuple[float, Sequence[f.Fact]]]
) -> str:
    """The directory of a harvester that is over; an idle node was not leased for half an hour."""
    directory = pilots.create(
        specs,
        pilots.NewPilot(
            name="trainers",
            gpus=range(1),
            logical=False,
            nodes=2,
            harvest=TERMS,
        ),
        settings=Settings(policy="equal_share"),
        where="jobs.toml",
        directory=path / "harvester",
    )
    account = Account(
        seen_s=2 * HOUR_S, offered_node_s=2 * HOUR_S, held_node_s=1.5 * HOUR_S, short_node_s=360.0
    )
    lease_account.save(account, directory)
    header = Header(began_at=1e9, policy="equal_share")
    jobs = map(f.Submitted, Submissions(directory / "submissions").jobs)
    tell(directory / "journal.jsonl", header, (0.0, jobs), *entries)
    return str(directory)


STORY: list[tuple[float, list[f.Fact]]] = [
    (0.0, [f.NodeJoined(Node("a", 1))]),
    (10.0, [f.Started("1", 1, ("a:0",)), f.Registered("1", 1, 0)]),
    (36.0, [f.Progressed("1", 1, 1, resume_s={"first_step_s": 26.0}, done=2.0)]),
    (3600.0, [f.Progressed("1", 1, 3564, 3564, done=7128.0, rate=2.0)]),
    (5040.0, [f.NodeJoined(Node("a", 0))]),
    (5050.0, [f.Ended("1", 1, f.Outcome.SUSPENDED, 85), f.NodeLost("a")]),
    (5400.0, [f.NodeJoined(Node("b", 1))]),
    (5410.0, [f.Started("1", 2, ("b:0",)), f.Registered("1", 2, 5004)]),
    (5436.0, [f.Progressed("1", 2, 5005, 5004, resume_s={"first_step_s": 26.0}, done=10010.0)]),
    (7200.0, [f.Progressed("1", 2, 6768, 5004, done=13536.0, rate=2.0)]),
]
"""Two hours. A node for 84 minutes, after six another one; each start takes 36 s."""

SPEC = JobSpec("one", ("true",), work=1e6, work_unit="samples", scaling={1: 1.0})


def document(capsys: pytest.CaptureFixture[str], path: str) -> dict[str, Any]:
    assert main(["harvest", "report", path, "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


def test_all_that_was_offered_is_accounted_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = document(capsys, harvester(tmp_path, SPEC, entries=STORY))
    hours = {key.removesuffix("_node_h"): found[key] for key in found if key.endswith("_node_h")}
    assert hours == {
        "offered": 2.4, "held": 1.9, "used": 1.9, "short": 0.1, "unleased": 0.4, "waiting": 0.0,
        "training": pytest.approx(1.88), "starting": 0.01, "preemption": 0.01, "rescaling": 0.0,
        "other": 0.0,
    }  # fmt: skip
    assert sum(hours[part] for part in PARTS) == pytest.approx(hours["offered"], abs=1e-3)


def test_each_trainer_has_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = msgspec.structs.replace(SPEC, name="two", work=None)
    found = document(capsys, harvester(tmp_path, SPEC, other, entries=STORY))["trainers"]
    assert found[0] == {
        "id": "1", "name": "one", "state": "running", "steps": 6768, "done": 13536.0, "work": 1e6,
        "progress": 0.0135, "nodes": 1, "most_nodes": 1, "node_h": 1.9, "restarts": 1,
        "rescales": 0, "lost_steps": 0, "lost_steps_exact": True, "lost_s": 0.0,
        "lost_s_exact": True,
    }  # fmt: skip
    assert (found[1]["state"], found[1]["node_h"], found[1]["progress"]) == ("pending", 0.0, None)


def test_the_efficiency_is_that_of_as_many_nodes_that_stay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """1.2 nodes in the mean; a node that stays does two samples a second, as it was measured."""
    found = document(capsys, harvester(tmp_path, SPEC, entries=STORY))
    assert found["mean_nodes"] == 1.2
    assert found["efficiency"] == {
        "value": pytest.approx(13536 / (2 * 7200 * 1.2)), "why": "", "done": 13536.0,
        "ideal": pytest.approx(2 * 7200 * 1.2), "unit": "samples", "nodes": 1.2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("specs", "entries", "why"),
    [
        ([SPEC], [], "no trainer has done any work yet"),
        ([msgspec.structs.replace(SPEC, work=None)], STORY, "the total work of one is not stated"),
        (
            [SPEC, JobSpec("two", ("true",), work=9.0)],
            STORY,
            "some trainers count their work in steps, others in samples",
        ),
        (
            [SPEC, JobSpec("two", ("true",), work=9.0, work_unit="samples")],
            STORY,
            "no speed of two is known",
        ),
        ([SPEC], [*STORY, (9000.0, [f.Began()])], "no manager ran for 1800 s of the time"),
    ],
)
def test_an_unknown_efficiency_is_not_shown(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    specs: list[JobSpec],
    entries: list[tuple[float, list[f.Fact]]],
    why: str,
) -> None:
    path = harvester(tmp_path, *specs, entries=entries)
    found = document(capsys, path)["efficiency"]
    assert found["value"] is None
    assert why in found["why"]
    assert main(["harvest", "report", path]) == 0
    assert f"efficiency U: unknown, {found['why']}" in capsys.readouterr().out


def test_a_person_reads_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["harvest", "report", harvester(tmp_path, SPEC, entries=STORY)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "observed for 2 h 00 min; 0 leases",
        "nodes                          hours  share",
        "idle, or leased                2.40",
        "left alone: needed too soon    0.10   4.2%",
        "idle, without a lease          0.40   16.7%",
        "leased, and no trainer had it  0.00   0.0%",
        "trained                        1.88   78.3%",
        "first starts of trainers       0.01   0.4%",
        "lost because nodes left        0.01   0.4%",
        "lost to changes by the policy  0.00   0.0%",
        "lost to requests and failures  0.00   0.0%",
        "id  trainer  state    done            nodes  most  hours  restarts  in place",
        "1   one      running  1% (step 6768)  1      1     1.90   1         0",
        "efficiency U: 78%, of the samples that 1.20 permanent nodes would have trained",
    ]


def test_a_pilot_has_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pilot = pilots.create(
        [SPEC],
        pilots.NewPilot(
            name="pilot",
            gpus=range(1),
            logical=True,
        ),
        settings=Settings(),
        where="jobs.toml",
        directory=tmp_path / "pilot",
    )
    assert main(["harvest", "report", str(pilot)]) == 2
    assert "is a pilot, not a harvester" in capsys.readouterr().err
