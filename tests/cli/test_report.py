"""``hpcext report``: what GPU time went into, counted once, told in four forms."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from made_pilots import HOUR_S, SPEC, make
from msgspec.structs import replace
from told_journal import tell

from hpcext.checkpointers import PRESETS
from hpcext.cli.main import main
from hpcext.cli.report import read_since
from hpcext.config import load_settings
from hpcext.core import facts as f
from hpcext.core.errors import InputError
from hpcext.core.values import Node
from hpcext.harvest.leases import Terms
from hpcext.manager import journal as journals
from hpcext.manager.views.accounting import FIGURES, REASONS

DAY_S = 24 * HOUR_S


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HPCEXT_STATE_DIR", str(tmp_path / "state"))
    return tmp_path


def report(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["report", *words]) == 0
    return capsys.readouterr().out


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    found = json.loads(report(capsys, *words, "--json"))
    for pilot in found["pilots"]:
        for row in (pilot, *pilot["jobs"]):
            check(row)
    return dict(found)


def check(row: Mapping[str, Any]) -> None:
    """What was held went somewhere; and what was no training has a reason."""
    _, trained, idle, *costs, _ = FIGURES
    spent = [row[trained], row[idle]]
    assert sum(spent) + sum(row[key] for key in costs) == pytest.approx(row["held_gpu_h"])
    assert sum(spent) + sum(row[key] for key in REASONS) == pytest.approx(row["held_gpu_h"])


def test_each_gpu_hour_is_in_one_place(capsys: pytest.CaptureFixture[str]) -> None:
    make("one")
    (pilot,) = document(capsys)["pilots"]
    (job,) = pilot["jobs"]
    figures = {key: job[key] for key in FIGURES}
    assert figures == {
        "held_gpu_h": pytest.approx(2 * (1.1 + 0.02)),
        "training_gpu_h": pytest.approx(2 * (1.1 - 0.02 - 0.05)),
        "idle_gpu_h": 0.0,
        "starts_gpu_h": pytest.approx(2 * (0.02 + 0.01)),
        "suspends_gpu_h": pytest.approx(0.02),
        "resizes_gpu_h": 0.0,
        "lost_work_gpu_h": pytest.approx(2 * 0.05),
        "harvested_gpu_h": 0.0,
    }
    assert (job["attempts"], job["suspends"], job["lost_steps"]) == (2, 1, 50)
    assert pilot["held_gpu_h"] == 6.0
    assert pilot["idle_gpu_h"] == pytest.approx(6 - job["held_gpu_h"])


def test_all_pilots_together_are_the_user(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = make("one"), make("two")
    found = document(capsys)
    assert {each["id"] for each in found["pilots"]} == {first, second}
    (user,) = found["users"]
    for key in FIGURES:
        assert user[key] == pytest.approx(sum(each[key] for each in found["pilots"]))
    text = report(capsys)
    assert f"all of {user['user']}" in text
    assert re.search(r"^\d\d\.\d% of the GPU time held went into training$", text, re.M)
    assert "1   one" not in text
    assert "1   one" in report(capsys, "one")


def test_what_a_harvester_uses_is_harvested(capsys: pytest.CaptureFixture[str]) -> None:
    make("trainers", terms=Terms(partition="idle", gpus=2))
    (pilot,) = document(capsys)["pilots"]
    assert pilot["harvested_gpu_h"] == pytest.approx(pilot["held_gpu_h"] - pilot["idle_gpu_h"])
    assert pilot["jobs"][0]["harvested_gpu_h"] == pilot["jobs"][0]["held_gpu_h"]


def test_since_leaves_out_what_was_before(capsys: pytest.CaptureFixture[str]) -> None:
    """Two hours ago the failure was an hour old; a pilot that was over by then is not there."""
    make("now", ago_s=3 * HOUR_S)
    make("before", ago_s=9 * HOUR_S)
    (pilot,) = document(capsys, "--since", "2h")["pilots"]
    assert pilot["name"] == "now"
    assert pilot["held_gpu_h"] == pytest.approx(4, abs=0.01)
    assert (pilot["attempts"], pilot["suspends"], pilot["lost_steps"]) == (1, 1, 50)
    assert len(document(capsys, "--since", "1d")["pilots"]) == 2


def test_time_that_is_lost_without_a_session_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Of a job that saves by its own means no steps are known."""
    story = [
        (0.0, [f.NodeJoined(Node("a", 2))]),
        (36.0, [f.Started("1", 1, ("a:0", "a:1")), f.Registered("1", 1, 0, native=True)]),
        (HOUR_S, [f.Hold("1")]),
        (HOUR_S + 1, [f.Ended("1", 1, f.Outcome.SUSPENDED, lost_s=12.5, lost_exact=False)]),
        (2 * HOUR_S, []),
    ]
    make("own", story, spec=replace(SPEC, checkpoint=PRESETS["plain"]))
    (pilot,) = document(capsys)["pilots"]
    for row in (pilot, *pilot["jobs"]):
        assert (row["lost_s"], row["lost_s_exact"], row["lost_steps"]) == (12.5, False, 0)
    said = report(capsys)
    assert ", 0 steps lost, and at most 12.5 s of trainings that save by their own means" in said


def compact(name: str) -> None:
    """Have a pilot's journal compacted, as its manager does after many entries."""
    path = load_settings().state_dir / "pilots" / name / "journal.jsonl"
    past = journals.read(path)
    engine, node_time = past.recount()
    book = journals.Journal(path, past.header)
    book.compact(past.now_s, engine.world.save(), node_time)
    book.close()


def test_of_a_compacted_journal_each_day_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    """Three days, each like the first: a job that trains for an hour."""
    name = make("long", ago_s=3 * DAY_S)
    compact(name)
    for day in (1, 2):
        prolong(name, day * DAY_S + 3 * HOUR_S, [f.Release("1")])
        prolong(name, day * DAY_S + 4 * HOUR_S, [f.Hold("1")])
        compact(name)
    whole = document(capsys)["pilots"][0]
    assert main(["report", "--since", "36h", "--json"]) == 0
    told = capsys.readouterr()
    (pilot,) = json.loads(told.out)["pilots"]
    # What was kept last before then: of the second day, after its hour.
    assert pilot["held_gpu_h"] == pytest.approx(2 * 24)
    assert pilot["counted_s"] == 24 * HOUR_S
    assert whole["held_gpu_h"] == pytest.approx(2 * 52)
    assert f"{name}: counted from " in told.err


def test_of_days_that_are_not_kept_all_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    name = make("long", ago_s=3 * HOUR_S)
    compact(name)
    assert main(["report", "--since", "2h", "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["pilots"][0]["held_gpu_h"] == 6.0
    assert "because its journal was compacted then" in told.err


def prolong(name: str, now_s: float, facts: list[f.Fact]) -> None:
    path = load_settings().state_dir / "pilots" / name / "journal.jsonl"
    tell(path, journals.read(path).header, (now_s, facts))


def test_a_line_for_each_in_a_spreadsheet(capsys: pytest.CaptureFixture[str]) -> None:
    make("one")
    lines = list(csv.DictReader(io.StringIO(report(capsys, "--format", "csv"))))
    assert [line["level"] for line in lines] == ["user", "pilot", "job"]
    assert float(lines[1]["held_gpu_h"]) == 6.0
    assert (lines[2]["job"], lines[2]["name"]) == ("1", "one")


def test_the_page_needs_nothing_else(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    name = make("one")
    path = tmp_path / "page.html"
    assert report(capsys, "one", "-o", str(path)) == ""
    html = path.read_text()
    assert not re.search(r"""(src|href)="(?!#)|https?://(?!www\.w3\.org)|<script""", html)
    assert html.count("<svg") > 1  # The timeline, and colours of its legend.
    assert f"GPUs by job: {name}" in html
    # An attempt of two GPUs, twice.
    assert html.count("stroke: var(--page)") == 4


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--since", "yesterday"], "--since: 'yesterday' is not a date (valid: 2026-11-01, or"),
        (["--since", "2999-01-01"], "--since: '2999-01-01' is in the future"),
        (["--json", "--format", "csv"], "--json: means json, but --format says csv"),
        (
            ["-o", "page.pdf"],
            "--format: the format of page.pdf is unknown (valid: html, json, csv)",
        ),
        (["--format", "text", "-o", "x"], "--format: cannot be written to x (valid: html, json"),
    ],
)
def test_impossible_requests_are_refused(
    capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    assert main(["report", *words]) == 2
    said = capsys.readouterr()
    # As a document, where one was asked for.
    found = json.loads(said.out)["error"] if said.out else {}
    assert told in (f"{found['where']}: {found['what']}" if found else said.err)


def test_dates_and_spans() -> None:
    assert read_since("7d", 1e9) == 1e9 - 7 * 86_400
    assert read_since("2026-01-01T12:00:00+00:00", 1e10) == 1767268800.0
    assert read_since("2026-01-02", 1e10) - read_since("2026-01-01", 1e10) == 86_400
    with pytest.raises(InputError):
        read_since("99999999w", 1e9)


def test_nothing_was_ever_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(capsys).splitlines()[-1] == "no GPUs were held"


def test_a_pilot_that_cannot_be_read_hides_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    """It is said of which the figures are not; one that waits in a queue has none."""
    good, broken, waiting = make("good"), make("broken"), make("waiting")
    register = load_settings().state_dir / "pilots"
    (register / broken / "journal.jsonl").write_text("no journal\n")
    (register / waiting / "journal.jsonl").unlink()
    assert main(["report", "--json"]) == 0
    told = capsys.readouterr()
    assert [each["id"] for each in json.loads(told.out)["pilots"]] == [good]
    assert told.err.count("hpcext: ") == 1
    assert broken in told.err
