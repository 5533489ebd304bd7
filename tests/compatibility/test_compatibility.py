"""What docs/compatibility.md promises: what was there is there, and means the same."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import manual
import pytest
import surface
from site_of_test import Site

import hpcext
from hpcext import config, jobfile

ROOT = Path(__file__).parents[2]
RECORDED = Path(__file__).parent / "recorded"
RELEASES = sorted(path.name for path in RECORDED.iterdir() if path.is_dir())
PAGE = ROOT / "docs" / "compatibility.md"

GONE = """{count} of {name} that scripts of others may use:
{lines}
What is promised of them, and how one of them may go, says docs/compatibility.md. A field that is
gone, or has another type or meaning, needs the next number of its schema. If all that is done, say
so in CHANGELOG.md, and `python tests/compatibility/surface.py --gone` forgets them."""

NEW = """{count} new in {name}; `python tests/compatibility/surface.py` records them:
{lines}
From the next release on they cannot be taken back."""


def told(text: str, name: str, lines: set[str]) -> str:
    shown = "\n".join(f"    {line}" for line in sorted(lines)[:40])
    return text.format(count=len(lines), name=name, lines=shown)


@pytest.fixture(scope="module")
def now() -> dict[str, set[str]]:
    """As the module says it in a process of its own, whose variables it changes."""
    code = (
        "import json, surface;"
        "print(json.dumps({name: sorted(set(lines())) for name, lines in surface.SURFACE.items()}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parent,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {name: set(lines) for name, lines in json.loads(done.stdout).items()}


@pytest.mark.parametrize("name", surface.SURFACE)
def test_nothing_that_scripts_use_is_gone(name: str, now: dict[str, set[str]]) -> None:
    before = surface.recorded(name)
    assert len(before) > 50
    gone = before - now[name]
    assert not gone, told(GONE, name, gone)


@pytest.mark.parametrize("name", surface.SURFACE)
def test_what_is_new_is_recorded(name: str, now: dict[str, set[str]]) -> None:
    new = now[name] - surface.recorded(name)
    assert not new, told(NEW, name, new)


def test_every_schema_has_fields(now: dict[str, set[str]]) -> None:
    """Or the comparison sees nothing of it; those that have none here are written line by line."""
    known = {line.partition(" ")[0] for line in now["documents"] if " " in line}
    bare = {name for name in surface.schemas() if name not in known}
    assert bare == {"hpcext.timings/1", "hpcext.simulate/1", "hpcext.notified/1"}


@pytest.mark.parametrize("release", RELEASES)
def test_job_files_of_earlier_releases_mean_the_same(release: str) -> None:
    """Every key of theirs, and each form that it may have."""
    found = surface.read_jobs(RECORDED / release / "jobs.toml")
    kept = json.loads((RECORDED / release / "jobs.json").read_text())
    for before, after in zip(kept, found, strict=True):
        assert without_new(after, before) == before, before["name"]


def without_new(after: Any, before: Any) -> Any:
    """Leave out keys that came later, in tables of tables, too; they have their defaults."""
    if not (isinstance(after, dict) and isinstance(before, dict)):
        return after
    return {key: without_new(after[key], before[key]) for key in before if key in after}


def test_the_recorded_job_files_have_every_key() -> None:
    said = "".join((RECORDED / release / "jobs.toml").read_text() for release in RELEASES)
    used = set(re.findall(r"^(\w+) = ", said, re.M))
    assert used == set(jobfile.KEYS), "add the key, in each of its forms, to the newest jobs.toml"


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*/[!j]*.toml")), ids=lambda path: path.name)
def test_settings_of_earlier_releases_are_read(path: Path) -> None:
    assert config.read_file(path)


def exit_values() -> dict[str, str]:
    """Value → its meaning, as the manual has it."""
    section = manual.section(manual.page("hpcext.1.rst"), "EXIT STATUS")
    return {term.astext(): manual.definition(term) for term in manual.terms(section)}


def test_the_page_has_the_exit_values_of_the_manual() -> None:
    rows = re.findall(r"^\| (\d+(?: \+ N)?) \| ([^|]+) \|", PAGE.read_text(), re.M)
    assert [value for value, _ in rows] == [*exit_values()]
    assert len(rows) == 6


FAILS = {"name": "fails", "command": "false", "retries": 0}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, ("config", "show")),
        (1, ("run", "jobs.toml", "--gpus", "1", "--dir", "pilot")),
        (2, ("run", "jobs.toml", "--gpus", "no number")),
        (2, ("no-such-command",)),
        (3, ("resume", "pilot", "fails")),
    ],
    ids=["done", "a job failed", "bad input", "no command", "no manager"],
)
def test_exit_values(value: int, words: tuple[str, ...], site: Site) -> None:
    """Of 4 test_pilot.py and test_verbs.py tell, of those of signals test_run.py."""
    site.write_jobs(FAILS)
    if value == 3:
        site.run("run", "jobs.toml", "--gpus", "1", "--dir", "pilot")
    said = site.run(*words)
    assert said.code == value, said


def test_an_error_as_json_has_four_parts(site: Site) -> None:
    said: dict[str, Any] = json.loads(site.run("status", "nothing", "--json").out)
    assert said.keys() == {"error"}
    assert said["error"].keys() == {"what", "where", "valid", "do"}


def test_an_option_cannot_be_shortened(site: Site) -> None:
    """A new option would make a shorter form mean two."""
    said = site.run("config", "show", "--orig")
    assert said.code == 2
    assert "did you mean --origin?" in said.err


def releases() -> list[tuple[str, str]]:
    """The releases of the change log, the newest first, with the words behind them."""
    text = (ROOT / "CHANGELOG.md").read_text()
    return re.findall(r"^## (\d+\.\d+\.\d+) \(([^)]+)\)$", text, re.M)


def test_the_change_log_has_each_release() -> None:
    """The newest may be in the making; the version is its own, or still that of the one before."""
    found = releases()
    numbers = [tuple(map(int, number.split("."))) for number, _ in found]
    assert numbers == sorted(numbers, reverse=True)
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", when) for _, when in found[1:])
    newest = [number for number, when in found if when != "unreleased"]
    assert hpcext.__version__ in {newest[0], found[0][0]}
    assert set(RELEASES) <= {number for number, _ in found}
