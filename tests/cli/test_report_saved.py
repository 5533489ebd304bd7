"""``hpcext report --saved``: the estimate beside what was counted, or why there is none."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from made_pilots import HOUR_S, STORY, Story, make

from hpcext.cli.main import main
from hpcext.core import facts as f
from hpcext.core.values import Node
from hpcext.harvest.leases import Terms

SOLO: Story = [
    (0.0, [f.NodeJoined(Node("a", 4))]),
    (0.0, [f.Started("1", 1, ("a:0", "a:1")), f.Registered("1", 1, 0)]),
    (36.0, [f.Progressed("1", 1, 1, done=1.0, rate=1.0, resume_s={"first_step_s": 36.0})]),
    (HOUR_S, [f.Progressed("1", 1, 3564, done=3564.0, rate=1.0)]),
    (HOUR_S + 36, [f.Ended("1", 1, f.Outcome.COMPLETED, 0)]),
    (2 * HOUR_S, []),
]
"""An hour, 36 s to start and 36 s to leave, on two of four GPUs; nothing in the second hour."""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HPCEXT_STATE_DIR", str(tmp_path / "state"))
    return tmp_path


def report(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["report", "--saved", *words]) == 0
    return capsys.readouterr().out


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    return dict(json.loads(report(capsys, *words, "--json")))


def test_the_figures_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    """Alone it has the whole node for 36 s, 3,564 s at one a second, and 36 s."""
    make("solo", SOLO, gpus=4)
    (pilot,) = document(capsys)["pilots"]
    (job,) = pilot["jobs"]
    hours = (36 + 3564 + 36) / HOUR_S
    assert job["estimated_alone_gpu_h"] == pytest.approx(4 * hours)
    assert job["estimated_alone_used_gpu_h"] == pytest.approx(2 * hours)
    assert pilot["held_gpu_h"] == 8.0
    assert pilot["estimated_alone_gpu_h"] == pytest.approx(4 * hours)
    assert pilot["estimated_saved_gpu_h"] == pytest.approx(4 * hours - 8)
    assert pilot["estimated_saved_used_gpu_h"] == pytest.approx(2 * hours - 8)
    assert (pilot["busy_s"], pilot["estimated_busy_s"]) == pytest.approx((HOUR_S + 36,) * 2)
    assert pilot["estimated_unknown"] is None


def test_without_being_asked_it_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    make("solo", SOLO, gpus=4)
    assert main(["report", "--json"]) == 0
    assert "estimated" not in capsys.readouterr().out


def test_the_sum_is_of_those_that_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    first, second, bad = make("one", SOLO, gpus=4), make("two", SOLO, gpus=4), make("bad")
    found = document(capsys)
    (user,) = found["users"]
    known = [each for each in found["pilots"] if each["id"] in {first, second}]
    for key in ("estimated_alone_gpu_h", "estimated_saved_gpu_h", "estimated_saved_used_gpu_h"):
        assert user[key] == pytest.approx(sum(each[key] for each in known))
    assert (user["estimated_pilots"], user["estimated_against"]) == (2, "exclusive")
    assert (user["held_gpu_h"], user["estimated_of_held_gpu_h"]) == (22.0, 16.0)
    told = report(capsys)
    assert "estimated by simulation, not measured" in told
    assert f"{first} (equal_share)  8.00  4.04   -3.96  2.02           -5.98" in told
    assert "2 of 3 pilots" in told
    assert f"{bad}: what sharing saved is unknown: one did not complete" in told


def test_in_a_spreadsheet_what_is_not_known_is_empty(capsys: pytest.CaptureFixture[str]) -> None:
    make("solo", SOLO, gpus=4)
    make("bad")
    lines = list(csv.DictReader(io.StringIO(report(capsys, "--format", "csv"))))
    of = {line["name"]: line for line in lines if line["level"] == "pilot"}
    assert float(of["solo"]["estimated_saved_gpu_h"]) == pytest.approx(-3.96)
    assert of["solo"]["estimated_unknown"] == of["bad"]["estimated_saved_gpu_h"] == ""
    assert of["bad"]["estimated_unknown"].startswith("one did not complete")
    (user,) = (line for line in lines if line["level"] == "user")
    assert float(user["estimated_alone_gpu_h"]) == pytest.approx(4.04)


def test_on_the_page(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    make("solo", SOLO, gpus=4)
    bad = make("bad")
    report(capsys, "-o", str(home / "page.html"))
    html = (home / "page.html").read_text()
    for told in (
        "Saved by sharing: an estimate",
        "(equal_share)",
        "<td>-3.96</td>",
        "not measured:",
    ):
        assert told in html
    assert f"{bad}: what sharing saved is unknown: one did not complete" in html


SLOW: Story = [
    *SOLO[:2],
    (36.0, [f.Progressed("1", 1, 1)]),
    (HOUR_S, [f.Ended("1", 1, f.Outcome.FAILED, -9)]),
    (2 * HOUR_S - 36, []),
    (2 * HOUR_S, [f.Started("1", 2, ("a:0", "a:1")), f.Registered("1", 2, 0)]),
    (3 * HOUR_S, [f.Ended("1", 2, f.Outcome.COMPLETED, 0)]),
]
"""It ran twice, and never said how fast it was."""

LOST: Story = [*SOLO, (9 * HOUR_S, [f.Began()]), (9 * HOUR_S, [f.NodeJoined(Node("a", 4))])]


@pytest.mark.parametrize(
    ("story", "told"),
    [
        (STORY, "one did not complete: it is unknown how much was left to do"),
        (SLOW, "job one: its speed on 2 GPUs, its best size, was not measured; next time,"),
        (LOST, "it lacked nodes or a manager for some of the time"),
        ([(0.0, [f.Cancel("1")]), *SOLO[:1], (9.0, [])], "no job of it has completed"),
    ],
)
def test_savings_that_cannot_be_estimated_say_why(
    capsys: pytest.CaptureFixture[str], story: Story, told: str
) -> None:
    make("one", story, gpus=4)
    refused(document(capsys), told)


def test_of_half_a_pilot_it_is_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    make("solo", SOLO, gpus=4, ago_s=2 * HOUR_S)
    refused(document(capsys, "--since", "1h"), "it began before that date")
    assert document(capsys, "--since", "3h")["users"][0]["estimated_pilots"] == 1


def test_of_a_harvester_it_is_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    make("trainers", SOLO, gpus=4, terms=Terms(partition="idle", gpus=4))
    refused(document(capsys), "it is a harvester")


def refused(found: dict[str, Any], told: str) -> None:
    """No figure, in no place; and why."""
    (pilot,), (user,) = found["pilots"], found["users"]
    assert pilot.pop("estimated_unknown").startswith(told)
    assert (user.pop("estimated_pilots"), user.pop("estimated_of_held_gpu_h")) == (0, 0)
    assert user.pop("estimated_against") == "exclusive"
    assert user.pop("estimated_unknown") == "it is unknown for every pilot"
    rows = (user, pilot, *pilot["jobs"])
    figures = [row[key] for row in rows for key in row if key.startswith("estimated")]
    assert figures == [None] * (5 + 5 + 2)
