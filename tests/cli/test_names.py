"""Names of jobs in any script: in the file, on the disk, in tables, commands, JSON and requests."""

from __future__ import annotations

import json
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from site_of_test import Site

from hpcext import jobfields
from hpcext.cli import output
from hpcext.core.errors import InputError
from hpcext.core.values import Job
from hpcext.core.world import World
from hpcext.manager.handles import find_job
from hpcext.policies.bftrainer.limits import Limit
from hpcext.text import columns, padded

NAMES = ["modèle à 3", "模型-一", "שלום", "🚀 v2", 'it\'s "$HOME" `x` & <b>', "x; rm -rf *", "四"]


@pytest.mark.parametrize("name", [*NAMES, "n" * 64, "模" * 64, "a b", "a, b"])
def test_what_prints_is_a_name(name: str) -> None:
    assert jobfields.name(name) == name


@given(st.text(max_size=80))
def test_a_name_prints_on_one_line_and_is_no_option_path_or_number(text: str) -> None:
    try:
        name = jobfields.name(text)
    except InputError as error:
        said = str(error)
    else:
        said = ""
    if said:
        assert said.isprintable()
        return
    assert name.isprintable()
    assert 1 <= len(name) <= 64
    assert name == name.strip() == unicodedata.normalize("NFC", text)
    assert name[0] not in "-.=+@"
    assert "/" not in name
    assert not name.isdecimal()
    assert jobfields.name(name) == name


def test_names_of_files_stay_plain() -> None:
    for refused in ("modèle", "a b", "模型"):
        with pytest.raises(InputError):
            jobfields.plain_name(refused)


def test_a_name_typed_another_way_is_the_same_job() -> None:
    composed, apart = "mod\u00e8le", "mode\u0300le"
    world = World()
    world.put(Job("1", jobfields.name(apart), 1, (1,), 1))
    for typed in (composed, apart):
        assert find_job(world, typed).id == "1"
    assert jobfields.after([apart, composed]) == (composed,)


def test_a_name_that_looks_like_a_pattern_is_matched_literally() -> None:
    limit = Limit("one", jobs=("run [1]",), of="jobs", most=1)
    assert limit.meets(Job("1", "run [1]", 1, (1,), 1))
    assert limit.meets(Job("2", "run 1", 2, (1,), 1))
    assert not limit.meets(Job("3", "run 2", 3, (1,), 1))


@pytest.mark.parametrize(
    ("text", "wide"),
    [
        ("abc", 3),
        ("模型", 4),
        ("é", 1),
        ("e\u0301", 1),
        ("🚀", 2),
        ("שלום", 4),
        ("\uff57", 2),
        ("", 0),
    ],
)
def test_columns_of_a_terminal(text: str, wide: int) -> None:
    assert columns(text) == wide
    assert columns(padded(text, 7)) == 7


def test_columns_of_a_table_stand_below_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    output.Output().table(("job", "state"), [(name, "running") for name in NAMES])
    lines = capsys.readouterr().out.splitlines()
    assert len({columns(line[: line.rindex("running")]) for line in lines[1:]}) == 1
    assert columns(lines[0][: lines[0].index("state")]) == columns(
        lines[1][: lines[1].rindex("running")]
    )


def test_they_go_through_a_whole_run(site: Site) -> None:
    tell = f"import sys; open({str(site.path / 'told')!r}, 'a').write(sys.argv[1] + '\\n')"
    write = [sys.executable, "-c", tell]
    jobs = [{"name": name, "command": [*write, "{name}"]} for name in NAMES]
    shell = f"{sys.executable} -c {json.dumps(tell)} {{name}}"
    jobs.append({"name": "last 'ü'", "command": shell, "shell": True, "after": NAMES})
    site.write_jobs(*jobs)
    ended = site.run("run", str(site.jobs), "--gpus=2", "--dir", str(site.pilot))
    assert ended.code == 0, ended
    for name in [*NAMES, "last 'ü'"]:
        assert f"{name}: completed" in ended.out
    told = (site.path / "told").read_text().splitlines()
    assert sorted(told[:-1]) == sorted(NAMES)
    assert told[-1] == "last 'ü'"
    # Directories have ids: what lies on a disk is ASCII, and no two names are one.
    files = [path.relative_to(site.pilot) for path in site.pilot.rglob("*")]
    assert all(str(path).isascii() for path in files)
    assert len(list(site.pilot.glob("jobs/*"))) == len(jobs)
    found = site.document("status", str(site.pilot))
    assert [job["name"] for job in found["jobs"]] == [*NAMES, "last 'ü'"]
    assert [site.run("why", str(site.pilot), name).out for name in NAMES] == [
        f"{name} is completed\n" for name in NAMES
    ]
    assert site.document("status", str(site.pilot), "四")["jobs"][0]["id"] == "7"
    asked = site.run("suspend", str(site.pilot), "四")
    assert (asked.code, "this pilot is over" in asked.err) == (3, True)
    assert "starts one" not in asked.err


def test_a_log_of_entries_has_them_as_they_are(site: Site, tmp_path: Path) -> None:
    site.write_jobs({"name": "模型 é", "command": ["true"]})
    ended = site.run("run", str(site.jobs), "--gpus=1", "--log-format=json")
    entries = [json.loads(line) for line in ended.out.splitlines()]
    assert {each["job"] for each in entries} == {None, "模型 é"}
    site.environ["LC_ALL"] = "C"
    assert site.run("run", str(site.jobs), "--gpus=1").code == 0
