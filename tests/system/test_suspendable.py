"""``hpcext suspendable``: an ordinary batch job that outlives its allocation."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
from plugin import Plugin
from ports import free_port
from site_of_test import Site, wait_for
from slurm_cluster import REPOSITORY, Cluster
from test_pilot_ends import requeued
from written import whole_lines

TRAIN = Path(__file__).parent / "train.py"
SAVES_AT_SIGTERM = Path(__file__).parents[1] / "native" / "programs" / "term.sh"
LEAD = ("--lead", "50")


class Batch:
    """Batch jobs of the ordinary user, whose script ends in ``hpcext suspendable``."""

    def __init__(self, slurm: Cluster, place: Site) -> None:
        self.slurm = slurm
        self.place = place
        self.id = 0

    def sbatch(self, *options: str, script: str) -> subprocess.CompletedProcess[str]:
        path = self.place.path / "job.sh"
        path.write_text(script)
        return self.slurm.as_user(
            "sbatch", "--parsable", "--requeue", "--open-mode=append", "--cpus-per-task=2",
            *options, str(path), cwd=self.place.path, XDG_STATE_HOME=str(self.place.path / "state"),
            COUNTER_LOG=str(self.place.path / "only.steps"), OMP_NUM_THREADS="1",
        )  # fmt: skip

    def submit(self, command: Sequence[str], *options: str, words: Sequence[str] = ()) -> None:
        suspendable = ["exec", "hpcext", "suspendable", *words, "--", *command]
        said = self.sbatch(*options, script=f"#!/bin/sh\n{' '.join(suspendable)}\n")
        assert said.returncode == 0, said
        self.id = int(said.stdout)

    def preempt(self, node: str) -> None:
        said = self.slurm.as_user(
            "sbatch", "--partition=urgent", f"--nodelist={node}", "--exclusive", "--wrap=sleep 1"
        )
        assert said.returncode == 0, said

    def is_(self, state: str) -> bool:
        return self.slurm.job(self.id)["JobState"] == state

    def wait_is(self, state: str) -> None:
        self.slurm.wait_for(lambda: self.is_(state), state)

    def output(self) -> str:
        path = self.place.path / f"slurm-{self.id}.out"
        return path.read_text() if path.exists() else ""

    def counted(self) -> list[int]:
        return [step.step for step in self.place.steps("only")]


@pytest.fixture
def batch(slurm: Cluster, place: Site) -> Batch:
    return Batch(slurm, place)


def counter(place: Site) -> list[str]:
    """Counts to 39, and to 40 when its gate is open."""
    command: list[str] = place.counter("only", gated=True)["command"]
    return command


@pytest.mark.slow
def test_preempted_a_training_goes_on_and_ends_as_if_nothing_had_been(
    slurm: Cluster, place: Site, batch: Batch
) -> None:
    """Two ranks with data-loader workers: Slurm sends its SIGTERM to every one of them."""
    undisturbed = place.path / "undisturbed"
    slurm.as_user("mkdir", str(undisturbed), str(place.path / "run"))
    (undisturbed / "gate").touch()
    train = ["hpcext", "launch", "--ranks", "2", str(slurm.python), str(TRAIN)]
    alone = slurm.as_user(*train, str(undisturbed), OMP_NUM_THREADS="1")
    assert alone.returncode == 0, alone
    command = [*train, str(place.path / "run")]
    batch.submit(command, "--partition=harvest", "--nodelist=n1", "--gres=gpu:2")
    wait_for((place.path / "run" / "where").exists, "the gate")
    batch.preempt("n1")
    requeued(slurm, batch.id)
    batch.wait_is("COMPLETED")
    weights = [(path / "weights").read_text() for path in (undisturbed, place.path / "run")]
    assert weights[0] == weights[1]
    # One output: that of both attempts, and what the manager says, none over another.
    output = batch.output()
    assert "attempt 1, 2 GPUs" in output
    assert "attempt 2, 2 GPUs" in output
    assert "is being requeued" in output
    assert output.count("trained to step 12 on 2") == 1
    slurm.wait_for(
        lambda: f"{batch.id}|COMPLETED" in slurm.accounting(batch.id, "jobid,state"), "sacct"
    )


@pytest.mark.slow
def test_a_script_may_start_its_own_steps(slurm: Cluster, place: Site, batch: Batch) -> None:
    """As most scripts are; what is after the step does not run because that has left."""
    script = place.path / "steps.sh"
    script.write_text(f"srun --ntasks=1 {' '.join(counter(place))}\necho over\n")
    batch.submit(["sh", str(script)], "--partition=harvest", "--nodelist=n3", "--gres=gpu:1")
    wait_for(lambda: batch.counted()[-1:] == [39], "all steps but the last")
    batch.preempt("n3")
    requeued(slurm, batch.id)
    wait_for(lambda: place.document("status", f"job-{batch.id}")["jobs"][0]["suspends"] == 1, "it")
    place.open("only")
    batch.wait_is("COMPLETED")
    assert batch.output().count("over\n") == 1
    assert batch.counted() == list(range(1, 41))


def hosts(slurm: Cluster, listed: str) -> list[str]:
    return slurm.run("scontrol", "show", "hostnames", listed).stdout.split()


@pytest.mark.slow
def test_its_step_may_have_several_nodes(slurm: Cluster, place: Site, batch: Batch) -> None:
    """torchrun on each, which Slurm sends SIGTERM as well, and which passes it on to its rank.

    One of them is drained meanwhile, which takes it from nobody; the job goes on on others.
    """
    run = place.path / "run"
    slurm.as_user("mkdir", str(run))
    meet = f"--rdzv-endpoint=127.0.0.1:{free_port()}"
    torchrun = [
        str(slurm.python), "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1",
        "--rdzv-backend=c10d", meet, str(TRAIN), str(run),
    ]  # fmt: skip
    script = place.path / "steps.sh"
    script.write_text(f"srun {' '.join(torchrun)} && echo over\n")
    options = ("--partition=harvest", "--exclude=n4", "--ntasks-per-node=1", "--gres=gpu:1")
    batch.submit(["sh", str(script)], "--nodes=2", *options)
    wait_for((run / "where").exists, "the gate")
    drained, wanted = hosts(slurm, slurm.job(batch.id)["NodeList"])
    slurm.run("scontrol", "update", f"nodename={drained}", "state=drain", "reason=test")
    try:
        assert batch.is_("RUNNING")
        batch.preempt(wanted)
        requeued(slurm, batch.id)
        batch.wait_is("COMPLETED")
    finally:
        slurm.run("scontrol", "update", f"nodename={drained}", "state=resume")
    assert drained not in hosts(slurm, slurm.job(batch.id)["NodeList"])
    assert "trained to step 12 on 2" in batch.output()
    assert batch.output().count("over\n") == 1
    # It did not begin anew, for then it would have waited at the gate.
    assert not (run / "gate").exists()


def test_the_owner_of_a_job_that_waits_for_its_begin_has_it_begin_now(
    slurm: Cluster, place: Site, batch: Batch
) -> None:
    """The command of docs/troubleshooting.md, on a job that would wait for longer than the test."""
    page = (REPOSITORY / "docs" / "troubleshooting.md").read_text()
    found = re.search(r"^\$ (scontrol update .*)$", page, re.M)
    assert found
    batch.sbatch("--begin=now+1hour", script="#!/bin/sh\n")
    (job,) = slurm.run("squeue", "-h", "-u", slurm.user, "-o", "%i|%r").stdout.split()
    assert job.endswith("|BeginTime")
    batch.id = int(job.partition("|")[0])
    said = slurm.as_user(*found[1].replace("4711", str(batch.id)).split())
    assert said.returncode == 0, said
    batch.wait_is("COMPLETED")


def test_no_step_is_cancelled_of_a_job_that_went_well(
    slurm: Cluster, place: Site, batch: Batch
) -> None:
    """The one that listens for a preemption ends with the job."""
    batch.submit(counter(place), "--gres=gpu:1")
    listens = ("squeue", "--steps", "-h", "-j", str(batch.id), "-o", "%j")
    slurm.wait_for(lambda: "hpcext-listen" in slurm.run(*listens).stdout, "the step that listens")
    place.open("only")
    batch.wait_is("COMPLETED")

    def steps() -> dict[str, str]:
        lines = slurm.accounting(batch.id, "jobname,state,exitcode")
        return dict(line.split("|", 1) for line in lines)

    slurm.wait_for(
        lambda: (
            "hpcext-listen" in steps() and not any("RUNNING" in each for each in steps().values())
        ),
        "accounting",
    )
    assert set(steps().values()) == {"COMPLETED|0:0"}


@pytest.mark.slow
def test_a_killed_manager_and_a_cancelled_listener_make_no_difference(
    slurm: Cluster, place: Site, batch: Batch
) -> None:
    def manager() -> int:
        (path,) = (place.path / "state" / "hpcext" / "suspendable").glob("*/manager.json")
        return int(json.loads(path.read_text())["pid"])

    def listeners() -> list[str]:
        said = slurm.run("squeue", "--steps", "-h", "-j", str(batch.id), "-o", "%i|%j").stdout
        steps = (line.split("|") for line in said.splitlines())
        return [step for step, name in steps if name == "hpcext-listen"]

    batch.submit(counter(place), "--partition=harvest", "--nodelist=n1", "--gres=gpu:1")
    wait_for(lambda: batch.counted()[-1:] == [39], "all steps but the last")
    slurm.wait_for(listeners, "the step that listens")
    killed, first = manager(), set(listeners())
    os.kill(killed, signal.SIGKILL)
    slurm.wait_for(lambda: manager() != killed, "the next manager")
    # Each manager has its own, which ends with it.
    slurm.wait_for(lambda: set(listeners()) - first and not first & set(listeners()), "its step")
    lost = listeners()
    for step in lost:
        slurm.run("scancel", step)
    slurm.wait_for(lambda: set(listeners()) - set(lost), "another one")
    assert batch.is_("RUNNING")
    batch.preempt("n1")
    requeued(slurm, batch.id)
    place.open("only")
    batch.wait_is("COMPLETED")
    assert batch.counted() == list(range(1, 41))


@pytest.mark.slow
def test_what_a_killed_shell_and_manager_leave_ends_with_the_job(
    slurm: Cluster, place: Site, batch: Batch
) -> None:
    """Slurm does not see it where it knows processes by their parents."""
    batch.submit(counter(place), "--nodelist=n1", "--gres=gpu:1")
    wait_for(lambda: batch.counted()[-1:] == [39], "all steps but the last")
    training = psutil.Process(place.steps("only")[-1].pid)
    above = training.parents()
    shell = next(each for each in above if each.parent().name().startswith("slurmstepd"))
    directories = place.path / "state" / "hpcext" / "suspendable"
    (path,) = wait_for(lambda: list(directories.glob("*/manager.json")), "its manager")
    manager = json.loads(path.read_text())["pid"]
    assert manager not in {each.pid for each in above}
    # The shell first, which would begin another manager.
    for pid in (shell.pid, manager):
        os.kill(pid, signal.SIGKILL)
    slurm.wait_for(lambda: not batch.is_("RUNNING"), "the end of the job")
    wait_for(lambda: not training.is_running(), "the end of the training")


@pytest.mark.slow
def test_at_its_time_limit_it_goes_on(slurm: Cluster, place: Site, batch: Batch) -> None:
    batch.submit(counter(place), "--time=1", "--gres=gpu:1", words=LEAD)
    requeued(slurm, batch.id)
    place.open("only")
    batch.wait_is("COMPLETED")
    assert batch.counted() == list(range(1, 41))
    jobs = place.document("status", f"job-{batch.id}")["jobs"]
    assert [(job["state"], job["attempts"], job["suspends"]) for job in jobs] == [
        ("completed", 2, 1)
    ]


@pytest.mark.slow
def test_a_preemption_before_the_first_checkpoint_starts_over(
    slurm: Cluster, place: Site, batch: Batch
) -> None:
    batch.submit(["sleep", "600"], "--partition=harvest", "--nodelist=n4", "--gres=gpu:1")
    wait_for(lambda: "attempt 1" in batch.output(), "the command")
    batch.preempt("n4")
    requeued(slurm, batch.id)
    wait_for(lambda: "attempt 2" in batch.output(), "the command")
    slurm.as_user("scancel", str(batch.id))
    batch.wait_is("CANCELLED")


@pytest.mark.slow
def test_with_nothing_saved_before_its_limit_it_is_not_begun_again_for_ever(
    slurm: Cluster, place: Site, batch: Batch
) -> None:
    batch.submit(["sleep", "600"], "--time=1", "--gres=gpu:1", words=LEAD)
    batch.wait_is("FAILED")
    assert slurm.job(batch.id)["ExitCode"] == "85:0"
    assert slurm.job(batch.id)["Restarts"] == "0"
    assert "nothing was saved before the time limit" in batch.output()


@pytest.mark.slow
def test_cancelled_in_the_grace_it_stays_cancelled(
    slurm: Cluster, place: Site, batch: Batch
) -> None:
    """Deaf to the notice, so that it is there still when its user cancels it."""
    deaf = [*counter(place), "--deaf"]
    batch.submit(deaf, "--partition=harvest", "--nodelist=n2", "--gres=gpu:1")
    wait_for(lambda: batch.counted()[-1:] == [39], "all steps but the last")
    batch.preempt("n2")
    slurm.wait_for(lambda: slurm.job(batch.id)["PreemptTime"] != "None", "the preemption")
    assert slurm.as_user("scancel", str(batch.id)).returncode == 0
    batch.wait_is("CANCELLED")
    assert slurm.job(batch.id)["Restarts"] == "0"


@pytest.mark.slow
def test_done_in_the_grace_it_stays_done(slurm: Cluster, place: Site, batch: Batch) -> None:
    deaf = [*counter(place), "--deaf"]
    batch.submit(deaf, "--partition=harvest", "--nodelist=n2", "--gres=gpu:1")
    wait_for(lambda: batch.counted()[-1:] == [39], "all steps but the last")
    batch.preempt("n2")
    slurm.wait_for(lambda: slurm.job(batch.id)["PreemptTime"] != "None", "the preemption")
    place.open("only")
    if slurm.release >= (24, 5):
        # Slurm itself requeues what ends in its grace, even after success: the second run finds
        # nothing left to do.
        slurm.wait_for(lambda: slurm.job(batch.id)["Restarts"] == "1", "Slurm's own requeue")
    batch.wait_is("COMPLETED")
    assert slurm.job(batch.id)["Restarts"] == ("1" if slurm.release >= (24, 5) else "0")
    assert batch.counted() == list(range(1, 41))


def test_it_ends_as_its_command_does_and_tells_it_what_a_batch_script_knows(
    slurm: Cluster, place: Site, batch: Batch
) -> None:
    """Without GPUs, too; its exit code is that of the job, and nothing is tried again."""
    script = place.path / "inner.sh"
    script.write_text('echo "$SLURM_JOB_NAME $SLURM_SUBMIT_DIR $(pwd) $MINE"\nexit 7\n')
    batch.submit(["sh", str(script)], "--job-name=mine", "--export=ALL,MINE=yes")
    batch.wait_is("FAILED")
    assert slurm.job(batch.id)["ExitCode"] == "7:0"
    assert f"mine {place.path} {place.path} yes\n" in batch.output()


def as_site(place: Site, batch: Batch, plugin: Plugin) -> list[str]:
    """Have the plugin run hpcext as a site does; return lines that a script needs before it."""
    command = place.path / "hpcext"
    environ = batch.slurm.user_environ(XDG_STATE_HOME=str(place.path / "state"))
    exported = [f"export {name}={shlex.quote(value)}" for name, value in environ.items()]
    command.write_text("\n".join(["#!/bin/sh", *exported, 'exec hpcext "$@"', ""]))
    command.chmod(0o755)
    plugin.use(f"command={command}")
    return exported


def test_the_flag_of_sbatch_does_it_for_an_ordinary_script(
    slurm: Cluster, place: Site, batch: Batch, plugin: Plugin
) -> None:
    """Whose spool is another one on the node of the next allocation. Nothing is exported, as many
    sites have it; the signal is the one that the rules set."""
    exported = as_site(place, batch, plugin)
    exported.append(f"export COUNTER_LOG={place.path}/only.steps")
    script = "\n".join(["#!/bin/sh", *exported, " ".join(counter(place)), "echo over", ""])
    options = ("--hpcext-suspendable=50", "--export=NONE", "--signal=B:USR2@50")
    said = batch.sbatch(*options, "--time=1", "--gres=gpu:1", script=script)
    assert said.returncode == 0, said
    batch.id = int(said.stdout)
    first = wait_for(lambda: slurm.job(batch.id).get("BatchHost"), "a node")
    wait_for(lambda: batch.counted()[-1:] == [39], "all steps but the last")
    slurm.run("scontrol", "update", f"nodename={first}", "state=drain", "reason=test")
    try:
        requeued(slurm, batch.id)
        place.open("only")
        batch.wait_is("COMPLETED")
    finally:
        slurm.run("scontrol", "update", f"nodename={first}", "state=resume")
    assert slurm.job(batch.id)["BatchHost"] != first
    assert batch.output().count("over\n") == 1
    assert batch.counted() == list(range(1, 41))


@pytest.mark.slow
def test_a_flag_says_how_a_script_saves_that_knows_nothing_of_hpcext(
    slurm: Cluster, place: Site, batch: Batch, plugin: Plugin
) -> None:
    as_site(place, batch, plugin)
    flags = (
        "--hpcext-suspendable=50", "--hpcext-checkpoint=torchrun", "--signal=B:USR2@50",
        "--export=NONE",
    )  # fmt: skip
    on = ("--partition=harvest", "--nodelist=n1", "--gres=gpu:1")
    said = batch.sbatch(*flags, *on, script=SAVES_AT_SIGTERM.read_text())
    assert said.returncode == 0, said
    batch.id = int(said.stdout)
    steps = place.path / "own.steps"

    def made() -> list[int]:
        return [int(line) for line in whole_lines(steps)]

    wait_for(lambda: len(made()) > 3, "its steps")
    batch.preempt("n1")
    requeued(slurm, batch.id)
    saved = int((place.path / "saved").read_text())
    wait_for(lambda: made()[-1] > saved + 3, "that it goes on")
    (place.path / "gate").touch()
    batch.wait_is("COMPLETED")
    assert made() == list(range(1, made()[-1] + 1))
    assert batch.output().count("over\n") == 1


def test_what_it_is_not_for(slurm: Cluster, place: Site, batch: Batch) -> None:
    def refused(*words: str) -> tuple[int, str]:
        ended = place.run("suspendable", *words)
        return ended.code, ended.err

    code, said = refused("--", "true")
    assert code == 2
    assert re.search("works in the batch script of a (Slurm )?job only, and this is not one", said)
    for words in (["--lead", "5", "--", "true"], ["--lead", "20"]):
        said_by = batch.sbatch(script=f"#!/bin/sh\nhpcext suspendable {' '.join(words)}\n")
        batch.id = int(said_by.stdout)
        batch.wait_is("FAILED")
        assert slurm.job(batch.id)["ExitCode"] == "2:0"
