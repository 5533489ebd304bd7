"""Slurm queried by a slurmrestd of the user's own: what its commands say, and a pilot by it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess

import psutil
import pytest
from site_of_test import Site, wait_for
from slurm_cluster import Cluster
from test_pilot import again, begun, manager, submit
from test_pilot_ends import done_after_grace, requeued, saved_when_told, steps_done

COMPARE = """
import json, sys
from hpcext.batch.slurm.commands import Commands
from hpcext.batch.slurm.reads import by_slurmrestd
jobs = [json.loads(word) for word in sys.argv[1:]]
def said(reads):
    found = reads.seen(jobs)
    return {
        "seen": [found[job] for job in jobs],
        "end": [tuple(reads.end(job)) for job in jobs],
        "preempted": [reads.preempted(job) for job in jobs],
        "nodes": [reads.nodes_of(job) for job in jobs],
        "steps": [reads.steps(job) for job in jobs],
        "hosts": reads.hosts(["n1", "n4"]),
    }
print(json.dumps([said(Commands()), said(by_slurmrestd())]))
"""

STAY = """
import signal
from hpcext.batch.slurm.reads import by_slurmrestd
print(by_slurmrestd()._daemon._running._process.pid, flush=True)
signal.pause()
"""


def sbatch(slurm: Cluster, *words: str) -> int:
    said = slurm.as_user("sbatch", "--parsable", "--output=/dev/null", *words)
    assert said.returncode == 0, said
    return int(said.stdout)


def test_it_says_what_commands_say(slurm: Cluster, place: Site) -> None:
    """Of jobs in every state that lasts, tasks of an array, one without a time limit."""
    runs = sbatch(slurm, "--nodes=2", "--time=30", "--wrap=sleep 600")
    waits = sbatch(slurm, "--begin=now+1days", "--time=30", "--wrap=true")
    fails = sbatch(slurm, "--wrap=false")
    gone = sbatch(slurm, "--begin=now+1days", "--wrap=true")
    tasks = sbatch(slurm, "--array=0-3%1", "--wrap=sleep 600")
    # It waits for ever, since the partition has a limit.
    endless = sbatch(slurm, "--time=UNLIMITED", "--wrap=sleep 600")
    leaves = sbatch(slurm, "--wrap=trap '' TERM; sleep 600")
    slurm.as_user("scancel", str(gone))
    for job in (runs, f"{tasks}_0", leaves):
        slurm.wait_for(lambda job=job: slurm.job(job)["JobState"] == "RUNNING", f"job {job}")
    slurm.as_user("scancel", str(leaves))
    for job, state in ((fails, "FAILED"), (gone, "CANCELLED")):
        slurm.wait_for(
            lambda job=job, state=state: slurm.job(job)["JobState"] == state, f"job {job}"
        )
    slurm.wait_for(lambda: slurm.job(leaves)["JobState"] != "COMPLETING", "an end")
    jobs = [runs, waits, fails, gone, f"{tasks}_0", endless, leaves]

    def both() -> list[dict[str, object]]:
        words = (str(slurm.python), "-c", COMPARE, *map(json.dumps, jobs))
        said = slurm.as_user(*words)
        assert said.returncode == 0, said
        return json.loads(said.stdout)

    # A job may begin or end between the one and the other.
    with contextlib.suppress(AssertionError):
        wait_for(lambda: len({json.dumps(each) for each in both()}) == 1, "the same")
    commands, rest = both()
    assert commands == rest
    states = [seen[0] for seen in rest["seen"]]
    assert states == [
        "running", "pending", "failed", "cancelled", "running", "pending", "cancelled",
    ]  # fmt: skip


def test_it_ends_with_the_process_that_asks(slurm: Cluster, place: Site) -> None:
    process = subprocess.Popen(
        [str(slurm.python), "-c", STAY],
        env=slurm.user_environ(),
        user=slurm.user,
        group=slurm.user,
        extra_groups=[],
        cwd=slurm.home,
        stdout=subprocess.PIPE,
        text=True,
    )
    place.started.append(process)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    there = psutil.Process(pid)
    assert there.name().startswith("slurmrestd")
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_for(lambda: not there.is_running() or there.status() == "zombie", "its end")


@pytest.mark.slow
def test_the_doctor_says_whether_it_answers(slurm: Cluster, place: Site) -> None:
    place.environ["HPCEXT_SLURM_READER"] = "slurmrestd"
    said = {each["name"]: each for each in place.document("doctor")["findings"]}
    assert said["slurm_reader"]["verdict"] == "ok", said["slurm_reader"]


def test_root_is_answered_by_commands_and_told_why(slurm: Cluster) -> None:
    """slurmrestd refuses to run as root."""
    ask = "from hpcext.batch.slurm.reads import reads; print(type(reads()).__name__)"
    environ = slurm.user_environ(HPCEXT_SLURM_READER="slurmrestd")
    said = slurm.run(str(slurm.python), "-c", ask, **environ)
    assert said.stdout == "Commands\n", said
    assert "Slurm is queried with its commands: slurmrestd ended without an answer" in said.stderr
    assert "should not be run as" in said.stderr


@pytest.mark.slow
def test_a_pilot_is_preempted_and_goes_on(slurm: Cluster, place: Site) -> None:
    """With slurmrestd killed meanwhile, which is as if Slurm had signalled all of a job."""
    place.environ["HPCEXT_SLURM_READER"] = "slurmrestd"
    place.write_jobs(place.counter("only", gated=True, gpus={"min": 1, "max": 6, "optimal": 6}))
    job = submit(place, "--partition=harvest", "--nodelist=n1", nodes=1, words=("--requeue",))
    begun(place, "only")
    wait_for(lambda: steps_done(place, "only")[-1:] == [39], "all steps but the last")
    children = psutil.Process(manager(place)).children()
    [daemon] = [child for child in children if child.name().startswith("slurmrestd")]
    os.kill(daemon.pid, signal.SIGKILL)
    sbatch(slurm, "--partition=urgent", "--nodelist=n1", "--exclusive", "--wrap=sleep 1")
    requeued(slurm, job)
    again(place, "1", 2)
    place.open("only")
    done_after_grace(slurm, job)
    saved_when_told(slurm, place, job)
