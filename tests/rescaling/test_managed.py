"""A real manager changes the size of a real training: its policy does, and its user."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from resized import is_pending
from site_of_test import Site, wait_for
from train import LENGTH
from written import whole_lines

from hpcext import protocol

TRAIN = Path(__file__).parent / "train.py"


def training(
    site: Site, name: str, *argv: str, options: Sequence[str] = (), **more: Any
) -> dict[str, Any]:
    directory = site.path / name
    directory.mkdir()
    launch = [sys.executable, "-m", "hpcext", "launch", *options, "--"]
    command = [*launch, sys.executable, str(TRAIN), str(directory), "--global-batch=12", *argv]
    (directory / "tmp").mkdir()
    return {"name": name, "command": command, "env": {"TMPDIR": f"{directory}/tmp"}, **more}


def account(site: Site, name: str) -> list[dict[str, Any]]:
    files = (site.path / name).glob("account-*")
    lines = [json.loads(line) for file in files for line in whole_lines(file)]
    return sorted(lines, key=lambda line: (line["step"], line["rank"]))


@pytest.mark.slow
def test_promoted_and_resized_without_stopping(site: Site) -> None:
    site.write_jobs(
        site.counter("first", gated=True, gpus=2),
        training(site, "grows", "--gates", "10", "50", "90", gpus={"min": 1, "max": 3}),
    )
    manager = site.start("run", str(site.jobs), "--gpus", "3", "--dir", str(site.pilot), "--json")

    def job() -> dict[str, Any]:
        jobs = site.document("status", str(site.pilot))["jobs"]
        return next(job for job in jobs if job["name"] == "grows")

    def has(gpus: int) -> bool:
        told = job()
        return told["state"] == "running" and len(told["segments"][-1]["gpus"]) == gpus

    def open_gate(step: int) -> None:
        (site.path / "grows" / f"gate-{step}").touch()

    wait_for(site.pilot.is_dir, "the pilot")
    # The secondary has one GPU until the primary ends; then it gets them all. It waits in step
    # 10 until its new ranks are there.
    wait_for(lambda: account(site, "grows"), "its first step")
    site.open("first")
    wait_for(lambda: job()["state"] == "rescaling", "the promotion")
    wait_for(lambda: list(site.path.glob("grows/tmp/*/group.json")), "new ranks")
    wait_for(
        lambda: is_pending(account(site, "grows")[0]["pid"], protocol.NEWS_SIGNAL),
        "the news of them",
    )
    open_gate(10)
    wait_for(lambda: has(3), "three GPUs")
    wait_for(lambda: account(site, "grows")[-1]["step"] >= 48, "steps on three GPUs")
    site.run_until_done("resize", str(site.pilot), "grows", "2")
    open_gate(50)
    wait_for(lambda: has(2), "two GPUs")
    open_gate(90)
    out, err = manager.communicate(timeout=500)
    assert manager.returncode == 0, (out, err)

    lines = account(site, "grows")
    seen = [index for line in lines if line["epoch"] == 1 for index in line["indices"]]
    assert sorted(seen) == list(range(LENGTH))
    sizes = [line["size"] for line in lines if line["rank"] == 0]
    assert [sizes[0], sizes[45], sizes[-1]] == [1, 3, 2]
    # One process did rank 0's every step, so nothing was stopped.
    assert len({line["pid"] for line in lines if line["rank"] == 0}) == 1
    told = next(job for job in json.loads(out)["jobs"] if job["name"] == "grows")
    assert (told["attempts"], told["suspends"], told["rescales"]) == (1, 0, 2)
    assert [len(segment["gpus"]) for segment in told["segments"]] == [1, 3, 2]
    # What it cost is known by measurement.
    assert told["up_s"] > 0
    assert told["down_s"] >= 0
    assert not site.left_behind()


@pytest.mark.slow
def test_a_job_whose_rank_dies_is_one_attempt_and_resized_as_before(site: Site) -> None:
    sizes = {"gpus": {"min": 1, "max": 3, "optimal": 2}}
    over = site.path / "over"
    # However long the other rank takes to begin, this is not over before.
    words = ("--pause", "0.1", "--epochs", "100000", "--until", str(over))
    site.write_jobs(training(site, "kept", *words, options=("--replace", "1"), **sizes))
    manager = site.start("run", str(site.jobs), "--gpus", "3", "--dir", str(site.pilot), "--json")
    wait_for(lambda: len(account(site, "kept")) > 8, "steps")
    lost = next(line["pid"] for line in account(site, "kept") if line["rank"] == 1)
    os.kill(lost, signal.SIGKILL)

    def size() -> int:
        found: int = max(account(site, "kept"), key=lambda line: line["at"])["size"]
        return found

    wait_for(lambda: size() == 1, "steps without it")
    wait_for(lambda: size() == 2, "another rank")
    (job,) = site.document("status", str(site.pilot))["jobs"]
    assert "rank 1 of 2 was lost; the other 1 went on from step" in str(job["notes"])
    # The manager may ask while the new rank's coming is not quite over.
    wait_for(lambda: site.run("resize", str(site.pilot), "kept", "3").code == 0, "the request")
    wait_for(lambda: size() == 3, "three ranks")
    (site.path / "kept" / "hurry").touch()
    over.write_text(str(max(line["epoch"] for line in account(site, "kept")) + 3))
    out, err = manager.communicate(timeout=500)
    assert manager.returncode == 0, (out, err)
    told = json.loads(out)["jobs"][0]
    assert (told["attempts"], told["suspends"], told["rescales"]) == (1, 0, 1)
    assert not site.left_behind()


@pytest.mark.slow
def test_a_job_that_cannot_change_in_place_is_suspended(site: Site) -> None:
    sizes = {"gpus": {"min": 1, "max": 2, "optimal": 1}}
    site.write_jobs(training(site, "fixed", "--plain", "--gates", "10", **sizes))
    manager = site.start("run", str(site.jobs), "--gpus", "2", "--dir", str(site.pilot), "--json")
    wait_for(lambda: account(site, "fixed"), "a step")
    site.run_until_done("resize", str(site.pilot), "fixed", "2")
    (site.path / "fixed" / "gate-10").touch()
    out, err = manager.communicate(timeout=500)
    assert manager.returncode == 0, (out, err)
    told = json.loads(out)["jobs"][0]
    assert (told["attempts"], told["suspends"], told["rescales"]) == (2, 1, 0)
    assert {line["size"] for line in account(site, "fixed")} == {1, 2}
