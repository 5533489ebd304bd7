"""Directories that earlier releases wrote are gone on with; those of later ones are left alone.

``recorded`` holds, for each release, a pilot that was killed: of its jobs one had ended, one ran,
one waited for that. ``record_pilot.py`` adds that of a release.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
import record_pilot
from site_of_test import Site

RECORDED = Path(__file__).parent / "recorded"


@pytest.fixture
def pilot(site: Site, request: pytest.FixtureRequest) -> Path:
    """A recorded one, on another machine now."""
    release = getattr(request, "param", "0.1.0")
    return stored(site, RECORDED / release)


def stored(site: Site, recorded: Path) -> Path:
    shutil.copytree(recorded, site.pilot)
    site.pilot.chmod(0o700)
    facts = site.pilot / "pilot.json"
    facts.write_text(facts.read_text().replace("@PROFILES@", str(site.path / "profiles")))
    return site.pilot


@pytest.mark.parametrize("pilot", sorted(each.name for each in RECORDED.iterdir()), indirect=True)
def test_a_pilot_of_an_earlier_release_goes_on(site: Site, pilot: Path) -> None:
    goes_on(site, pilot)


def test_one_that_this_release_records_goes_on(site: Site, tmp_path: Path) -> None:
    """So the next release has something to be held to."""
    found = record_pilot.record(tmp_path / "there")
    record_pilot.write(found, tmp_path / "recorded")
    assert '"schema":"hpcext.journal/2"' in found["journal.jsonl"]
    assert not re.search(rf"\b{os.uname().nodename}\b", "".join(found.values()))
    goes_on(site, stored(site, tmp_path / "recorded"))


def goes_on(site: Site, pilot: Path) -> None:
    before = site.document("status", str(pilot))
    assert [job["state"] for job in before["jobs"]] == ["completed", "running", "pending"]
    after = site.document("run", "--resume", str(pilot), "--moved")
    assert {job["state"] for job in after["jobs"]} == {"completed"}
    first, running, waiting = (job["attempts"] for job in after["jobs"])
    assert (first, waiting) == (1, 1)
    assert running > 1


@pytest.mark.parametrize(
    ("file", "schema", "reads"), [("pilot.json", "pilot", 1), ("journal.jsonl", "journal", 2)]
)
def test_one_of_a_later_release_is_left_alone(
    site: Site, pilot: Path, file: str, schema: str, reads: int
) -> None:
    written = pilot / file
    later = written.read_text().replace(f"hpcext.{schema}/1", f"hpcext.{schema}/12", 1)
    written.write_text(later)
    said = site.run("run", "--resume", str(pilot), "--moved")
    assert said.code == 3
    assert f"later release of hpcext, and this one reads hpcext.{schema}/{reads}" in said.err
    assert said.err.count("\n") == 1
    assert written.read_text() == later
