"""``hpcext trainer``: a batch job that stands for a trainer on idle nodes."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from plugin import Plugin
from site_of_test import COUNTER, Site, wait_for
from slurm_cluster import Cluster
from test_pilot_ends import requeued

WAIT_S = 180


class Tickets:
    """Tickets of the ordinary user, in the default partition; leases are in another."""

    def __init__(self, slurm: Cluster, place: Site) -> None:
        self.slurm = slurm
        self.place = place
        self.harvester = place.path / "state" / "hpcext" / "trainers"
        self.environ = {
            "XDG_STATE_HOME": str(place.path / "state"),
            "HPCEXT_REPORT_INTERVAL_S": "0.2",
            "HPCEXT_HARVEST_PARTITION": "harvest",
        }

    def quick(self) -> None:
        """Make their harvester look for nodes more often than it would."""
        words = (
            "--partition", "harvest", "--stay", "--name", "trainers", "--dir", str(self.harvester),
            "--interval", "1.5", "--idle", "8", "--gpus-per-node", "1",
        )  # fmt: skip
        process = self.place.start("harvest", "start", *words)
        self.place.run_until_done("drain", str(self.harvester))
        out, err = process.communicate(timeout=500)
        assert process.returncode == 0, (out, err)

    def script(self, name: str, *lines: str) -> Path:
        path = self.place.path / f"{name}.sh"
        path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
        return path

    def counter(self, name: str) -> Path:
        """Counts to 39, and to 40 when its gate is open."""
        command = self.place.counter(name, gated=True)["command"]
        assert command[1] == str(COUNTER)
        log = self.place.path / f"{name}.steps"
        return self.script(name, f"COUNTER_LOG={log} exec {shlex.join(command)}")

    def sbatch(self, *words: str, **environ: str) -> int:
        said = self.slurm.as_user(
            "sbatch", "--parsable", "--requeue", "--open-mode=append", "--cpus-per-task=1", *words,
            cwd=self.place.path, **{**self.environ, **environ},
        )  # fmt: skip
        assert said.returncode == 0, said
        return int(said.stdout)

    def submit(self, script: Path, *options: str, words: str = "1:1") -> int:
        return self.sbatch(
            f"--job-name={script.stem}", *options, f"--wrap=exec hpcext trainer {words} {script}"
        )

    def wait_is(self, job: int | str, state: str) -> None:
        self.wait(lambda: self.slurm.job(job)["JobState"] == state, f"job {job}: {state}")

    def wait_begun(self, name: str) -> None:
        self.wait(lambda: self.counted(name)[-1:] == [39], f"trainer {name}")

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        try:
            self.slurm.wait_for(condition, what, WAIT_S)
        except AssertionError as error:
            said = [path.read_text() for path in self.place.path.glob("slurm-*.out")]
            log = self.harvester / "manager.log"
            said += [log.read_text()] if log.exists() else []
            raise AssertionError("\n".join([str(error), *said])) from None

    def output(self, job: int | str) -> str:
        path = self.place.path / f"slurm-{job}.out"
        return path.read_text() if path.exists() else ""

    def counted(self, name: str) -> list[int]:
        return [step.step for step in self.place.steps(name)]

    def trainers(self) -> dict[str, dict[str, Any]]:
        found = self.place.document("status", str(self.harvester))["jobs"]
        return {job["name"]: job for job in found}

    def manager(self) -> int:
        """The job that is the manager."""
        return int(json.loads((self.harvester / "manager.json").read_text())["batch_job"])


@pytest.fixture
def tickets(slurm: Cluster, place: Site) -> Tickets:
    return Tickets(slurm, place)


def test_a_ticket_ends_as_its_trainer_does(slurm: Cluster, place: Site, tickets: Tickets) -> None:
    """By the defaults of everything; what waits for it begins then, and not before."""
    script = tickets.script(
        "mine", 'echo "$MINE $(pwd) $1 on $HPCEXT_NUM_NODES, ${SLURM_JOB_NAME:-nothing}"', "sleep 1"
    )
    wrap = f"--wrap=exec hpcext trainer 1:2 {script} word"
    job = tickets.sbatch("--job-name=mine", wrap, MINE="yes", HPCEXT_GPUS="2")
    after = tickets.sbatch(
        f"--dependency=afterok:{job}", f"--wrap=hpcext status {tickets.harvester} --json"
    )
    tickets.wait_is(job, "COMPLETED")
    tickets.wait_is(after, "COMPLETED")
    # On one node or two: whichever lease is there first.
    assert re.search(rf"^yes {place.path} word on [12], nothing$", tickets.output(job), re.M)
    (trainer,) = json.loads(tickets.output(after))["jobs"]
    assert (trainer["name"], trainer["state"]) == (f"mine-{job}", "completed")
    slurm.wait_for(lambda: f"{job}|COMPLETED" in slurm.accounting(job, "jobid,state"), "sacct")


def test_its_exit_code_is_that_of_the_script(tickets: Tickets) -> None:
    tickets.quick()
    failed = tickets.submit(tickets.script("failing", "echo tried", "exit 7"))
    after = tickets.sbatch(
        f"--dependency=afterok:{failed}", "--kill-on-invalid-dep=yes", "--wrap=true"
    )
    tickets.wait_is(failed, "FAILED")
    assert tickets.slurm.job(failed)["ExitCode"] == "7:0"
    assert tickets.output(failed).splitlines().count("tried") == 1
    tickets.wait_is(after, "CANCELLED")


@pytest.mark.slow
def test_when_the_ticket_that_manages_is_cancelled_another_one_does(
    slurm: Cluster, place: Site, tickets: Tickets
) -> None:
    """Its trainer is cancelled, and that of the other one trains on."""
    tickets.quick()
    first = tickets.submit(tickets.counter("one"))
    tickets.wait_begun("one")
    second = tickets.submit(tickets.counter("two"))
    tickets.wait_begun("two")
    assert tickets.manager() == first
    assert slurm.as_user("scancel", str(first)).returncode == 0
    tickets.wait_is(first, "CANCELLED")
    slurm.wait_for(lambda: tickets.manager() == second, "the other one as manager")
    slurm.wait_for(lambda: tickets.trainers()[f"one-{first}"]["state"] == "cancelled", "its end")
    place.open("two")
    tickets.wait_is(second, "COMPLETED")
    trainer = tickets.trainers()[f"two-{second}"]
    assert (trainer["attempts"], trainer["suspends"]) == (1, 0)
    assert tickets.counted("two") == list(range(1, 41))


@pytest.mark.slow
def test_a_ticket_that_is_cancelled_in_the_queue_cancels_its_trainer(
    slurm: Cluster, place: Site, tickets: Tickets
) -> None:
    """Where it cannot do so itself: the ticket that manages does."""
    tickets.quick()
    first = tickets.submit(tickets.counter("one"))
    tickets.wait_begun("one")
    second = tickets.submit(tickets.counter("two"))
    tickets.wait_begun("two")
    assert slurm.as_user("scontrol", "requeue", str(second)).returncode == 0
    tickets.wait_is(second, "PENDING")
    assert tickets.trainers()[f"two-{second}"]["state"] == "running"
    assert slurm.as_user("scancel", str(second)).returncode == 0
    slurm.wait_for(lambda: tickets.trainers()[f"two-{second}"]["state"] == "cancelled", "its end")
    place.open("one")
    tickets.wait_is(first, "COMPLETED")


@pytest.mark.slow
def test_a_ticket_whose_harvester_is_removed_ends(
    slurm: Cluster, place: Site, tickets: Tickets
) -> None:
    tickets.quick()
    job = tickets.submit(tickets.counter("one"))
    tickets.wait_begun("one")
    slurm.as_user("rm", "-r", str(tickets.harvester))
    tickets.wait_is(job, "FAILED")
    assert "the harvester is gone" in tickets.output(job)


@pytest.mark.parametrize(
    "how",
    [
        pytest.param("exec hpcext", id="exec"),
        pytest.param("hpcext", id="shell", marks=pytest.mark.slow),
    ],
)
def test_the_only_ticket_that_is_cancelled_cancels_its_trainer(
    slurm: Cluster, place: Site, tickets: Tickets, how: str
) -> None:
    tickets.quick()
    job = tickets.sbatch(f"--wrap={how} trainer 1:1 {tickets.counter('one')}")
    tickets.wait_begun("one")
    assert slurm.as_user("scancel", str(job)).returncode == 0
    tickets.wait_is(job, "CANCELLED")
    wait_for(lambda: not place.left_behind(), "the end of the training")
    slurm.wait_for(lambda: not slurm.run("squeue", "-h", "-p", "harvest").stdout, "its lease's end")


@pytest.mark.slow
def test_a_ticket_that_ends_first_hands_over(slurm: Cluster, place: Site, tickets: Tickets) -> None:
    """What waits for it need not wait for the trainers of others."""
    tickets.quick()
    first = tickets.submit(tickets.counter("one"))
    tickets.wait_begun("one")
    second = tickets.submit(tickets.counter("two"))
    tickets.wait_begun("two")
    place.open("one")
    tickets.wait_is(first, "COMPLETED")
    slurm.wait_for(lambda: tickets.manager() == second, "the other one as manager")
    place.open("two")
    tickets.wait_is(second, "COMPLETED")
    assert tickets.trainers()[f"two-{second}"]["attempts"] == 1


@pytest.mark.slow
def test_a_ticket_that_is_requeued_finds_its_trainer(
    slurm: Cluster, place: Site, tickets: Tickets
) -> None:
    """At its time limit, and by a kill -9 of its manager; nothing is submitted twice."""
    tickets.quick()
    job = tickets.submit(tickets.counter("one"), "--time=1")
    tickets.wait_begun("one")
    os.kill(
        int(json.loads((tickets.harvester / "manager.json").read_text())["pid"]), signal.SIGKILL
    )
    requeued(slurm, job)
    place.open("one")
    tickets.wait_is(job, "COMPLETED")
    assert list(tickets.trainers()) == [f"one-{job}"]
    assert tickets.counted("one") == list(range(1, 41))
    # What was shown before is not shown again.
    assert tickets.output(job).count("--- attempt 1") == 1


@pytest.mark.slow
def test_it_waits_until_the_partition_is_free(place: Site, tickets: Tickets) -> None:
    """Another harvester of the user has it: the ticket says so, and goes on when that has ended."""
    tickets.quick()
    other = place.path / "other"
    process = place.start(
        "harvest", "start", "--partition", "harvest", "--stay", "--name", "other", "--dir",
        str(other),
    )  # fmt: skip
    wait_for((other / "journal.jsonl").exists, "the other harvester")
    job = tickets.submit(tickets.script("mine", "exit 0"))
    wait_for(lambda: "waits for a manager; see" in tickets.output(job), "the ticket")
    assert str(other) in (tickets.harvester / "manager.log").read_text()
    place.run_until_done("drain", str(other))
    process.communicate(timeout=500)
    tickets.wait_is(job, "COMPLETED")
    # Nothing is kept for it any more.
    assert list((tickets.harvester / "tickets").iterdir()) == []


def test_the_flag_of_sbatch(slurm: Cluster, place: Site, tickets: Tickets, plugin: Plugin) -> None:
    """For an ordinary script, with its arguments; slurmd's copy of it is on one node only."""
    tickets.quick()
    plugin.use(f"command={slurm.root}/bin/hpcext")
    script = tickets.script("plain", 'printf "%s|" "$@"', "echo", "exit 3")
    job = tickets.sbatch("--hpcext-trainer=1:1", str(script), "a b", "--", "$HOME", "{gpu}")
    tickets.wait_is(job, "FAILED")
    assert slurm.job(job)["ExitCode"] == "3:0"
    assert "\na b|--|$HOME|{gpu}|\n" in tickets.output(job)
    assert f"plain.sh-{job}" in tickets.trainers()


@pytest.mark.cases(4)
@pytest.mark.parametrize(
    ("words", "environ", "said"),
    [
        ("4:2 true", {}, "hpcext trainer: '4:2' (valid: MIN:MAX, 1 to 10000)"),
        ("4 true", {}, "hpcext trainer: '4' (valid: MIN:MAX"),
        ("true", {}, "the number of nodes is missing"),
        ("true", {"HPCEXT_TRAINER": "0:1"}, "HPCEXT_TRAINER: '0:1'"),
        ("1:2", {}, "no command"),
        ("1:2 nowhere.sh", {}, "script or command 'nowhere.sh'"),
        ("1:2 true", {"HPCEXT_GPUS": "2:1"}, "HPCEXT_GPUS: '2:1'"),
        ("1:2 true", {"HPCEXT_HARVEST_PARTITION": ""}, "harvest_partition: no partition"),
        ("1:2 true", {"HPCEXT_HARVEST_PARTITION": "nowhere"}, "nowhere has no nodes"),
        ("1:2 true", {"HPCEXT_GPUS": "7"}, "needs at least 7 GPUs"),
    ],
)
def test_impossible_requests_are_refused(
    tickets: Tickets, words: str, environ: dict[str, str], said: str
) -> None:
    job = tickets.sbatch(f"--wrap=exec hpcext trainer {words}", **environ)
    tickets.wait_is(job, "FAILED")
    assert tickets.slurm.job(job)["ExitCode"] == "2:0"
    (line,) = tickets.output(job).splitlines()
    assert said in line


def test_outside_a_batch_script(place: Site) -> None:
    ended: subprocess.CompletedProcess[str] | Any = place.run("trainer", "1:2", "true")
    assert ended.code == 2
    assert (
        "works in the batch script of a job of Slurm or LSF only, and this is not one" in ended.err
    )
