"""A harvester that lives for weeks: it stays, is told to leave, and there is one of it."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from site_of_test import Site, wait_for
from slurm_cluster import REPOSITORY, Cluster
from test_harvest import jobs_of, leases, nothing_left
from test_pilot import begun, manager
from test_pilot_ends import requeued

from hpcext.cli import main as cli

EXAMPLES = REPOSITORY / "examples" / "harvest"
ONE = {"nodes": {"min": 1, "max": 1}, "gpus": 6}


def start(place: Site, *words: str) -> subprocess.Popen[str]:
    return place.start(
        "harvest", "start", *words, "--partition", "harvest", "--interval", "1.5", "--idle", "8"
    )


def stays(place: Site) -> subprocess.Popen[str]:
    """A harvester without jobs, which waits for some."""
    process = start(place, "--stay", "--name", "weeks", "--dir", str(place.pilot))
    wait_for((place.pilot / "journal.jsonl").exists, "the harvester")
    return process


def terminated(place: Site, process: subprocess.Popen[str]) -> None:
    """End a manager by SIGTERM, when it listens: it answers, if only that there is no such job."""
    wait_for(lambda: place.run("cancel", str(place.pilot), "nobody").code == 2, "an answer")
    assert manager(place) == process.pid
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=500)
    assert process.returncode == 128 + signal.SIGTERM, (out, err)


def submit(place: Site, name: str) -> None:
    place.write_jobs(place.counter(name, gated=True, **ONE))
    place.run_until_done("submit", str(place.pilot), str(place.jobs))


@pytest.mark.slow
def test_one_that_stays_waits_for_more_and_holds_nothing_meanwhile(
    slurm: Cluster, place: Site
) -> None:
    process = stays(place)
    for name in ("one", "two"):
        submit(place, name)
        begun(place, name)
        place.open(name)
        wait_for(lambda name=name: jobs_of(place)[name]["state"] == "completed", "its end")
        nothing_left(slurm, place)
        assert process.poll() is None
    assert place.run("drain", str(place.pilot)).code == 0
    out, err = process.communicate(timeout=500)
    assert process.returncode == 0, (out, err)
    place.check_account({"one": 40, "two": 40})


@pytest.mark.slow
def test_it_ends_by_a_signal_too_and_stays_when_it_is_resumed(slurm: Cluster, place: Site) -> None:
    terminated(place, stays(place))
    terminated(place, place.start("run", "--resume", str(place.pilot)))
    nothing_left(slurm, place)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--stay",), "no job file"),
        (("--name", "weeks"), "no job file"),
        (("empty.toml",), "it has no [[job]]"),
        (("none.toml", "--stay"), "none.toml"),
    ],
)
def test_impossible_starts_are_refused(
    slurm: Cluster, place: Site, words: tuple[str, ...], said: str
) -> None:
    (place.path / "empty.toml").write_text("# nothing yet\n")
    finished = place.run("harvest", "start", *words, "--partition", "harvest")
    assert (finished.code, finished.out) == (2, "")
    assert said in finished.err
    assert len(finished.err.splitlines()) == 1


def test_a_file_without_jobs_is_enough_for_one_that_stays(slurm: Cluster, place: Site) -> None:
    (place.path / "empty.toml").write_text("# nothing yet\n")
    process = start(place, "empty.toml", "--stay", "--dir", str(place.pilot))
    place.run_until_done("drain", str(place.pilot))
    out, err = process.communicate(timeout=500)
    assert process.returncode == 0, (out, err)


def test_two_harvesters_of_a_user_do_not_want_the_same_nodes(slurm: Cluster, place: Site) -> None:
    """The second one leaves; a lock that its holder did not give back is none."""
    first = stays(place)
    other = place.path / "other"
    second = start(place, "--stay", "--name", "other", "--dir", str(other))
    out, err = second.communicate(timeout=500)
    assert (second.returncode, out.count("\n")) == (3, 1)
    (line,) = err.splitlines()
    assert f"the harvester in {place.pilot} already harvests partition 'harvest'" in line
    assert not other.exists()
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    third = start(place, "--stay", "--name", "other", "--dir", str(other))
    place.run_until_done("drain", str(other))
    out, err = third.communicate(timeout=500)
    assert third.returncode == 0, (out, err)


@pytest.mark.slow
def test_told_to_leave_it_leaves_what_runs_to_the_next_one(slurm: Cluster, place: Site) -> None:
    place.write_jobs(place.counter("one", gated=True, **ONE))
    first = start(place, str(place.jobs), "--dir", str(place.pilot))
    begun(place, "one")
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    held = leases(slurm)
    for _ in range(2):
        terminated(place, place.start("run", "--resume", str(place.pilot), "--leave"))
    assert leases(slurm) == held
    place.open("one")
    assert place.run("run", "--resume", str(place.pilot)).code == 0
    assert (jobs_of(place)["one"]["attempts"], jobs_of(place)["one"]["suspends"]) == (1, 0)
    nothing_left(slurm, place)


@pytest.mark.slow
def test_a_batch_job_keeps_it(slurm: Cluster, place: Site) -> None:
    """It goes back into the queue before its time limit, and its trainer trains on."""
    place.write_jobs(place.counter("one", gated=True, **ONE))
    first = start(place, str(place.jobs), "--dir", str(place.pilot))
    begun(place, "one")
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    said = slurm.as_user(
        "sbatch", "--parsable", "--time=1", "--signal=B:USR2@30", str(EXAMPLES / "keeper.sh"),
        str(place.pilot), cwd=place.path, XDG_STATE_HOME=place.environ["XDG_STATE_HOME"],
    )  # fmt: skip
    assert said.returncode == 0, said
    job = int(said.stdout)
    requeued(slurm, job)
    place.open("one")
    slurm.wait_for(lambda: slurm.job(job)["JobState"] == "COMPLETED", "its end")
    assert (jobs_of(place)["one"]["attempts"], jobs_of(place)["one"]["suspends"]) == (1, 0)
    place.check_account({"one": 40})
    nothing_left(slurm, place)


def test_the_line_of_scrontab(slurm: Cluster, place: Site) -> None:
    text = (EXAMPLES / "scrontab").read_text()
    (line,) = [line for line in text.splitlines() if line and not line.startswith("#")]
    *_, minutes, command = [*line.split(" ", 5)[:1], line.split(" ", 5)[5]]
    assert minutes == "*/10"
    words = shlex.split(command)
    assert words.pop(0) == "hpcext"
    assert cli.parse(words).resume == "trainers"
    options = [word for said in re.findall(r"^#SCRON (.*)", text, re.M) for word in said.split()]
    checked = slurm.as_user("sbatch", "--test-only", *options, "--wrap", command, cwd=place.path)
    assert checked.returncode == 0, checked


def test_the_unit_of_systemd(tmp_path: Path) -> None:
    parsed = configparser.ConfigParser(interpolation=None)
    unit = EXAMPLES / "hpcext-harvest@.service"
    copy = tmp_path / "hpcext-harvest@trainers.service"
    copy.write_text(unit.read_text())
    parsed.read(copy)
    assert parsed.sections() == ["Unit", "Service", "Install"]
    if shutil.which("systemd-analyze"):
        said = subprocess.run(
            ["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False
        )
        assert (said.returncode, said.stderr) == (0, ""), said
    (command,) = re.findall(r"^ExecStart=/usr/bin/env hpcext (.*)", copy.read_text(), re.M)
    assert cli.parse(shlex.split(command)).leave
