"""hpcext-admin accept: the suite for any site, on the Slurm of the tests."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from plugin import Plugin
from site_of_test import Site, wait_for
from slurm_cluster import Cluster

ADMIN = ("-c", "import sys; from hpcext.__main__ import admin; sys.exit(admin())")
ACCEPT = ("accept", "slurm", "--json", "--silence", "20")


def accept(place: Site, *words: str) -> tuple[int, dict[str, Any]]:
    """Its exit status, and what it says, after it has removed all that it made."""
    finished = place.run(*ACCEPT, *words, python=ADMIN, timeout_s=900)
    document = json.loads(finished.out)
    assert document.get("schema") == "hpcext.accept/1", finished
    return finished.code, document


def made(place: Site) -> list[Path]:
    """Directories of runs that are left."""
    return list((place.path / "state" / "hpcext").glob("hpcext-accept-*"))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_that_may_befall_a_job(slurm: Cluster, place: Site, plugin: Plugin) -> None:
    plugin.use(f"command={slurm.root}/bin/hpcext")
    code, said = accept(place, "--partition", "harvest", "--above", "urgent")
    verdicts = {each["name"]: each["verdict"] for each in said["scenarios"]}
    whole = (
        "silence", "time limit", "requeue", "stop", "kill", "suspend", "array", "flags",
        "preemption", "lease", "pilot", "removal",
    )  # fmt: skip
    without = {"migrate": "not tried", "notice": "not tried"}
    assert verdicts == {**dict.fromkeys(whole, "passed"), **without}, json.dumps(said, indent=1)
    assert (code, said["accepted"], said["whole"]) == (0, True, True)
    assert said["took_s"] < 900
    waited = {each["name"] for each in said["scenarios"] if each["waited_s"] is not None}
    assert waited == {"preemption", "lease"}
    assert not slurm.run("squeue", "-h", "-u", slurm.user).stdout
    assert made(place) == []


@pytest.mark.timeout(600)
def test_a_site_that_requeues_nothing_is_found_out(slurm: Cluster, place: Site) -> None:
    """What follows two dashes stands for its rules; the file in which they would be is named."""
    only = ("--only", "requeue", "--hosts", "1", "--partition", "harvest", "--", "--no-requeue")
    code, said = accept(place, *only)
    assert (code, said["accepted"], said["above"]) == (1, False, None)
    requeue, removal = said["scenarios"]
    assert (requeue["verdict"], removal["verdict"]) == ("failed", "passed")
    assert "scontrol failed" in requeue["seen"]
    assert "slurm.conf: JobRequeue=1" in requeue["change"]
    assert not slurm.run("squeue", "-h", "-u", slurm.user).stdout


@pytest.mark.timeout(600)
def test_the_job_above_its_lease_preempts_nobody_else(slurm: Cluster, place: Site) -> None:
    """Leases may have the rest of a node of which others use a part; that of a run may not."""
    beside = ("sbatch", "--parsable", "--partition=harvest", "--ntasks=1", "--mem=10M")
    *others, last = (
        slurm.as_user(*beside, f"--nodelist=n{node}", "--wrap=sleep 600").stdout.strip()
        for node in range(1, 5)
    )
    states = ("squeue", "-h", "-o", "%T", "-j", ",".join((*others, last)))
    wait_for(lambda: slurm.run(*states).stdout.split() == ["RUNNING"] * 4, "other jobs")
    only = ("--only", "lease", "--hosts", "1", "--partition", "harvest", "--above", "urgent")
    process = place.start(*ACCEPT, *only, python=ADMIN)
    # Its harvester looks for idle nodes every two seconds; by then it would have one of these.
    time.sleep(30)
    slurm.as_user("scancel", last)
    out, err = process.communicate(timeout=500)
    assert process.returncode == 0, (out, err)
    for job in others:
        shown = slurm.run("scontrol", "show", "job", job).stdout
        assert "JobState=RUNNING" in shown
        assert "Restarts=0" in shown
    slurm.as_user("scancel", *others)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "signum", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)]
)
def test_ended_early_it_leaves_nothing_and_touches_no_other_job(
    slurm: Cluster, place: Site, signum: signal.Signals
) -> None:
    other = slurm.as_user("sbatch", "--parsable", "--partition=harvest", "--wrap=sleep 600")
    job = int(other.stdout)
    only = ("--only", "time limit,lease", "--partition", "harvest", "--above", "urgent")
    process = place.start(*ACCEPT, *only, python=ADMIN)
    names = ("squeue", "-h", "-t", "RUNNING", "-u", slurm.user, "-o", "%j")

    def running() -> list[str]:
        return [each for each in slurm.run(*names).stdout.split() if each.startswith("hpcext-")]

    wait_for(lambda: len(running()) == 2, "its training and its lease")
    process.send_signal(signum)
    out, err = _end(process)
    # Whoever has killed it hears of the rest by what is gone.
    wait_for(lambda: not made(place), "the end of its directory")
    assert [line for line in slurm.run(*names).stdout.split() if line != "wrap"] == []
    assert slurm.job(job)["JobState"] == "RUNNING"
    assert not place.left_behind()
    if signum is signal.SIGINT:
        said = json.loads(out)
        assert process.returncode == 128 + signum, err
        assert (said["whole"], said["accepted"]) == (False, False)
        assert said["scenarios"][-1]["verdict"] == "passed"


def _end(process: subprocess.Popen[str]) -> tuple[str, str]:
    out, err = process.communicate(timeout=500)
    return out, err
