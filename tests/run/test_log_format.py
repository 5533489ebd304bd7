"""``--log-format json``: what a manager says, an object a line."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Any

import pytest
from site_of_test import Site

from hpcext.backends import batch_job


def entries(text: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in text.splitlines()]
    for each in found:
        assert list(each) == ["time", "pilot", "job", "event", "text"]
        assert datetime.datetime.fromisoformat(each["time"]).utcoffset() == datetime.timedelta(0)
    return found


def test_each_line_is_an_entry(site: Site) -> None:
    site.write_jobs(
        site.counter("good", gpus={"min": 1, "max": 2}),
        {"name": "bad", "command": ["false"], "retries": 0},
    )
    ended = site.run("run", str(site.jobs), "--gpus", "2", "--log-format", "json")
    assert ended.code == 1
    found = entries(ended.out)
    (pilot,) = {each["pilot"] for each in found}
    assert pilot in found[0]["text"]
    assert found[0]["job"] is None
    good = [each["event"] for each in found if each["job"] == "good"]
    assert (good[0], good[-1]) == ("starting", "completed")
    (last,) = [each for each in found if each["job"] == "bad" and each["event"] == "failed"]
    assert "exit code 1" in last["text"]
    times = [each["time"] for each in found]
    assert times == sorted(times)


def test_what_is_wrong_is_an_entry_too(site: Site) -> None:
    ended = site.run("run", "nowhere.toml", "--log-format", "json")
    assert ended.code == 2
    (error,) = entries(ended.out)
    assert (error["event"], error["pilot"]) == ("error", "")
    assert "nowhere.toml" in error["text"]


def test_jobs_that_are_left_are_a_note(site: Site) -> None:
    site.write_jobs(site.counter("one", gated=True))
    manager = site.start("run", str(site.jobs), "--gpus", "1", "--log-format", "json")
    assert manager.stdout
    said = ""
    while '"event": "running"' not in said:
        said = manager.stdout.readline()
        assert said, "the manager has ended"
    manager.terminate()
    rest, _ = manager.communicate(timeout=500)
    assert any(
        each["event"] == "note" and "hpcext run --resume" in each["text"] for each in entries(rest)
    )


def test_one_of_the_two_forms(site: Site) -> None:
    ended = site.run("run", "x.toml", "--json", "--log-format", "json")
    assert ended.code == 2
    assert "not allowed with argument --json" in ended.out


@pytest.mark.parametrize("as_log", [False, True])
def test_a_batch_job_prints_them_if_it_is_to(tmp_path: Path, as_log: bool) -> None:
    script = batch_job.write_script(tmp_path, as_log=as_log).read_text()
    assert ("--log-format=json" in script) == as_log
    assert ("--quiet" in script) != as_log


def test_its_script_names_any_directory(tmp_path: Path) -> None:
    directory = tmp_path / os.fsdecode(b"p\xff")
    directory.mkdir()
    assert b"/p\xff" in batch_job.write_script(directory).read_bytes()
