"""Jobs in containers under a real manager, by Apptainer or what stands for it."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from site_of_test import COUNTER, Site, wait_for
from written import whole_lines

from hpcext import protocol

TESTS = Path(__file__).parents[1]
TRAIN = TESTS / "rescaling" / "train.py"
WHO = ["stand-in", *(["apptainer"] if shutil.which("apptainer") else [])]


@pytest.fixture(params=WHO)
def image(request: pytest.FixtureRequest, site: Site) -> dict[str, Any]:
    """The key ``container`` of a job; hpcext is not in the image, and the repository neither."""
    if request.param == "stand-in":
        path = f"{TESTS / 'fakes' / 'containers'}{os.pathsep}{site.environ['PATH']}"
        site.environ = {**site.environ, "PATH": path}
    directory = site.path / "image"
    for name in ("etc", "proc", "sys", "dev", "tmp", "var/tmp", "root", "usr"):
        (directory / name).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (directory / name).symlink_to(f"usr/{name}")
    python = dict.fromkeys(["/usr", sys.prefix, sys.base_prefix])
    return {"image": "image", "binds": [*python, str(COUNTER.parent), str(TRAIN.parent)]}


def test_one_is_suspended_resumed_and_cancelled(site: Site, image: dict[str, Any]) -> None:
    job = site.counter("only", gated=True, container=image)
    endless = {"name": "endless", "command": ["sleep", "1000"], "container": image}
    site.write_jobs(job, endless)
    manager = site.start("run", str(site.jobs), "--gpus", "2", "--name", "p")
    wait_for(lambda: [step.step for step in site.steps("only")][-1:] == [39], "all but the last")
    site.run_until_done("suspend", "p", "only")
    wait_for(lambda: "is suspended" in site.run("why", "p", "only").out, "the suspension")
    assert site.run("resume", "p", "only").code == 0
    assert site.run("cancel", "p", "endless").code == 0
    site.open("only")
    out, err = manager.communicate(timeout=500)
    assert manager.returncode == 1, (out, err)
    jobs = {each["name"]: each for each in site.document("status", "p")["jobs"]}
    only = jobs["only"]
    assert (only["state"], only["suspends"], only["lost_steps"]) == ("completed", 1, 0)
    assert jobs["endless"]["state"] == "cancelled"
    site.check_account({"only": 40})
    assert "not the one" not in site.run("logs", "p", "only").out
    assert not site.left_behind()


def test_what_fails_in_it_is_known_as_ever(site: Site, image: dict[str, Any]) -> None:
    site.write_jobs(
        {"name": "fails", "command": ["sh", "-c", "echo no data >&2; exit 3"], "container": image},
        {"name": "gone", "command": ["true"], "after": "first", "container": image},
        {"name": "first", "command": ["mv", "image", "elsewhere"]},
    )
    text = site.jobs.read_text().replace('name = "fails"', 'name = "fails"\nretries = 0')
    site.jobs.write_text(text.replace('name = "gone"', 'name = "gone"\nretries = 0'))
    done = site.run("run", str(site.jobs), "--gpus", "1", "--name", "p")
    assert done.code == 1
    why = site.run("why", "p", "fails").out
    assert "exit code 3" in why
    assert "no data" in why
    why = site.run("why", "p", "gone").out
    assert "no container image" in why


def test_the_flag_is_the_key(site: Site, image: dict[str, Any]) -> None:
    words = ("run", "--gpus", "1", "--name", "p", "--retries", "0", "--container")
    done = site.run(*words, "nowhere.sif", "--", "true")
    assert done.code == 2
    assert "there is no image" in done.err
    assert len(done.err.strip().splitlines()) == 1
    # Only the image has it.
    (site.path / "image" / "etc" / "of-the-image").touch()
    done = site.run(*words, "image", "--", "/bin/test", "-e", "/etc/of-the-image")
    # And nothing of this machine is in it but what it was told.
    assert done.code == 1
    assert "/bin/sh" in site.run("why", "p", "p").out


def has_news(pid: int) -> bool:
    """Whether SIGUSR1 is pending in a process; proc(5)."""
    status = Path(f"/proc/{pid}/status").read_text()
    pending = re.findall(r"^(?:SigPnd|ShdPnd):\s*(\w+)", status, re.M)
    return any(int(mask, 16) >> (protocol.NEWS_SIGNAL - 1) & 1 for mask in pending)


@pytest.mark.slow
def test_ranks_in_it_change_in_number_without_stopping(site: Site, image: dict[str, Any]) -> None:
    directory = site.path / "grows"
    (directory / "tmp").mkdir(parents=True)
    command = ["hpcext", "launch", "--", sys.executable, str(TRAIN), str(directory)]
    job = {
        "name": "grows",
        "command": [*command, "--global-batch=12", "--gates", "10", "50"],
        "gpus": {"min": 1, "max": 2, "optimal": 1},
        "env": {"TMPDIR": f"{directory}/tmp"},
        "container": image,
    }
    site.write_jobs(job)
    manager = site.start("run", str(site.jobs), "--gpus", "2", "--dir", str(site.pilot), "--json")

    def account() -> list[dict[str, Any]]:
        files = directory.glob("account-*")
        lines = [json.loads(line) for file in files for line in whole_lines(file)]
        return sorted(lines, key=lambda line: (line["step"], line["rank"]))

    wait_for(account, "its first step")
    site.run_until_done("resize", str(site.pilot), "grows", "2")
    wait_for(lambda: list(directory.glob("tmp/*/group.json")), "new ranks")
    wait_for(lambda: has_news(account()[0]["pid"]), "the news of them")
    (directory / "gate-10").touch()
    wait_for(lambda: account()[-1]["size"] == 2, "steps on two GPUs")
    (directory / "gate-50").touch()
    out, err = manager.communicate(timeout=500)
    assert manager.returncode == 0, (out, err)
    (told,) = json.loads(out)["jobs"]
    assert (told["attempts"], told["suspends"], told["rescales"]) == (1, 0, 1)
    assert len({line["pid"] for line in account() if line["rank"] == 0}) == 1
