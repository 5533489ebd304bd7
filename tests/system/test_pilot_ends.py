"""A pilot whose allocation ends before its jobs do: time limit, preemption, scancel, lost nodes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from site_of_test import Site, wait_for
from slurm_cluster import Cluster
from test_pilot import again, begun, over, submit

ONE = {"min": 1, "max": 6, "optimal": 6}


def endings(place: Site, job: str) -> list[dict[str, Any]]:
    """What the supervisors of a job's attempts wrote down, in order."""
    paths = sorted(place.pilot.glob(f"jobs/{job}/attempt-*/exit.json"))
    return [json.loads(path.read_text()) for path in paths]


def saved_when_told(slurm: Cluster, place: Site, job: int) -> None:
    """It heard of its end, saved itself, and did in two allocations each step once."""
    assert over(slurm, place, job)["only"]["state"] == "completed"
    assert endings(place, "1")[0]["suspended"] is True
    assert endings(place, "1")[0]["notice_at"] is not None
    assert steps_done(place, "only") == list(range(1, 41))


def steps_done(place: Site, name: str) -> list[int]:
    return [step.step for step in place.steps(name)]


def done_after_grace(slurm: Cluster, job: int) -> None:
    """Wait for the end of a job that went back into the queue in the grace of a preemption.

    24.11 puts it back once more when it is done, for it still takes it for preempted; 22.05 and
    26.05 do not. The run that comes of it finds nothing left to do.
    """
    restarts = "2" if (24, 5) <= slurm.release < (26, 5) else "1"
    slurm.wait_for(lambda: slurm.job(job)["Restarts"] == restarts, "Slurm's own requeue")
    slurm.wait_for(lambda: slurm.job(job)["JobState"] == "COMPLETED", "its end")


def requeued(slurm: Cluster, job: int | str) -> None:
    """Wait for the second allocation: Slurm gives it when the credentials of the first are over."""
    slurm.wait_for(lambda: slurm.job(job)["Restarts"] == "1", "the queue")
    slurm.wait_for(lambda: slurm.job(job)["JobState"] == "RUNNING", "the next allocation")


def test_a_time_limit_is_met_and_the_next_allocation_goes_on(slurm: Cluster, place: Site) -> None:
    """Suspended before the limit, requeued as the same job, nothing lost and nothing run twice.

    What has no session, and may take longer to answer than there is time, is killed for that.
    """
    mute = {
        "name": "mute",
        "command": f"until [ -e {place.path}/only.gate ]; do sleep 1; done",
        "shell": True,
        "gpus": 1,
    }
    only = place.counter("only", gated=True, gpus={"min": 1, "max": 5, "optimal": 5})
    place.write_jobs(only, mute)
    job = submit(place, nodes=1, time="1", words=("--lead", "40", "--requeue"))
    begun(place, "only")
    requeued(slurm, job)
    again(place, "1", 2)
    place.open("only")
    jobs = over(slurm, place, job)
    assert (jobs["mute"]["state"], jobs["mute"]["lost_steps"]) == ("completed", 0)
    assert jobs["only"]["state"] == "completed"
    assert jobs["only"]["attempts"] == 2
    assert endings(place, "1")[0]["suspended"] is True
    assert steps_done(place, "only") == list(range(1, 41))
    assert slurm.job(job)["Restarts"] == "1"


@pytest.mark.slow
def test_without_requeue_a_pilot_is_resubmitted_by_hand(slurm: Cluster, place: Site) -> None:
    place.write_jobs(place.counter("only", gated=True, gpus=ONE))
    job = submit(place, nodes=1, time="1", words=("--lead", "50"))
    begun(place, "only")
    slurm.wait_for(lambda: slurm.job(job)["JobState"] != "RUNNING", "the end")
    place.open("only")
    ended = place.run("pilot", "resubmit", str(place.pilot))
    assert ended.code == 0, ended
    second = int(ended.out.split("job ")[1].split()[0])
    slurm.wait_for(lambda: slurm.job(second)["JobState"] == "RUNNING", "another allocation")
    assert over(slurm, place, second)["only"]["state"] == "completed"
    assert steps_done(place, "only") == list(range(1, 41))


@pytest.mark.parametrize("how", ["grace", pytest.param("at once", marks=pytest.mark.slow)])
def test_preempted_it_saves_itself_and_goes_on(slurm: Cluster, place: Site, how: str) -> None:
    """By a partition of a higher tier, with and without a GraceTime before the end."""
    place.write_jobs(place.counter("only", gated=True, gpus=ONE))
    low = {"grace": "harvest", "at once": "batch"}[how]
    job = submit(place, f"--partition={low}", "--nodelist=n1", nodes=1, words=("--requeue",))
    begun(place, "only")
    wait_for(lambda: steps_done(place, "only")[-1:] == [39], "all steps but the last")
    said = slurm.as_user(
        "sbatch", "--parsable", "--partition=urgent", "--nodelist=n1", "--exclusive",
        "--wrap=sleep 1",
    )  # fmt: skip
    assert said.returncode == 0, said
    requeued(slurm, job)
    again(place, "1", 2)
    place.open("only")
    if how == "grace":
        done_after_grace(slurm, job)
    saved_when_told(slurm, place, job)
    assert slurm.job(said.stdout.strip())["JobState"] == "COMPLETED"


def test_a_cancelled_pilot_stays_cancelled_and_loses_nothing(slurm: Cluster, place: Site) -> None:
    place.write_jobs(place.counter("only", gated=True, gpus=ONE))
    job = submit(place, nodes=1, words=("--requeue",))
    begun(place, "only")
    wait_for(lambda: steps_done(place, "only")[-1:] == [39], "all steps but the last")
    assert slurm.as_user("scancel", str(job)).returncode == 0
    slurm.wait_for(lambda: slurm.job(job)["JobState"] == "CANCELLED", "the end")
    wait_for(lambda: endings(place, "1"), "the record of the attempt")
    assert endings(place, "1")[0]["suspended"] is True
    assert slurm.job(job)["Restarts"] == "0"


@pytest.mark.slow
def test_a_batch_step_that_is_killed_ends_the_pilot_and_no_job(slurm: Cluster, place: Site) -> None:
    """Script and manager go by SIGKILL, and with them the allocation; the next one goes on."""
    place.write_jobs(place.counter("only", gated=True, gpus=ONE))
    job = submit(place, nodes=1)
    begun(place, "only")
    wait_for(lambda: steps_done(place, "only")[-1:] == [39], "all steps but the last")
    assert slurm.as_user("scancel", "--signal=KILL", "--batch", str(job)).returncode == 0
    going = {"RUNNING", "COMPLETING"}
    slurm.wait_for(lambda: slurm.job(job)["JobState"] not in going, "the end")
    place.open("only")
    # Asked at once it may be refused: to hpcext its job still runs for a moment.
    again = lambda: place.run("pilot", "resubmit", str(place.pilot))  # noqa: E731
    ended = wait_for(lambda: (said := again()).code == 0 and said, "another submission")
    second = int(ended.out.split("job ")[1].split()[0])
    slurm.wait_for(lambda: slurm.job(second)["JobState"] != "PENDING", "another allocation")
    assert over(slurm, place, second)["only"]["state"] == "completed"
    # At most what came after the last checkpoint is done again.
    assert steps_done(place, "only")[:39] == list(range(1, 40))
    assert steps_done(place, "only")[39:] in ([40], list(range(36, 41)))


def test_a_node_that_goes_down_takes_only_its_own_jobs(slurm: Cluster, place: Site) -> None:
    place.write_jobs(
        place.counter("one", gated=True, gpus=ONE), place.counter("two", gated=True, gpus=ONE)
    )
    job = submit(place, "--nodelist=n1,n2")
    begun(place, "one", "two")
    nodes = {
        name: json.loads((place.pilot / f"jobs/{ident}/attempt-0001/supervisor.json").read_text())
        for ident, name in (("1", "one"), ("2", "two"))
    }
    (lost,) = [name for name, facts in nodes.items() if facts["node"] == "n2"]
    kept = {"one": "two", "two": "one"}[lost]
    try:
        slurm.kill_node("n2")
        slurm.run("scontrol", "update", "nodename=n2", "state=down", "reason=test")
        place.open(kept)
        again(place, {"one": "1", "two": "2"}[lost], 2)
        place.open(lost)
        jobs = over(slurm, place, job)
    finally:
        slurm.start_node("n2")
        slurm.wait_for(lambda: "n2|idle" in slurm.run("sinfo", "-hNo", "%N|%T").stdout, "n2")
    assert {each["state"] for each in jobs.values()} == {"completed"}
    assert jobs[kept]["attempts"] == 1
    second = place.pilot / f"jobs/{jobs[lost]['id']}/attempt-0002/supervisor.json"
    assert json.loads(second.read_text())["node"] == "n1"


def test_a_restarted_controller_and_a_drained_node_disturb_nothing(
    slurm: Cluster, place: Site
) -> None:
    place.write_jobs(
        place.counter("one", gated=True, gpus=ONE),
        place.counter("two", gated=True, gpus=ONE),
        # They begin when the node is drained, which takes nothing from a job that has it.
        place.counter("three", gpus=6, after=["one"]),
        place.counter("four", gpus=6, after=["two"]),
    )
    job = submit(place, "--nodelist=n1,n2")
    begun(place, "one", "two")
    slurm.run("scontrol", "update", "nodename=n2", "state=drain", "reason=test")
    slurm.stop_ctld()
    place.open("one")
    place.open("two")
    slurm.start_ctld()
    try:
        jobs = over(slurm, place, job)
    finally:
        slurm.run("scontrol", "update", "nodename=n2", "state=resume")
    assert {each["state"] for each in jobs.values()} == {"completed"}
    assert [jobs[name]["attempts"] for name in ("one", "two")] == [1, 1]


def test_jobs_that_cannot_end_in_time_are_refused(slurm: Cluster, place: Site) -> None:
    long = place.counter("long", gpus=ONE, work=10_000.0, scaling={"1": 1.0, "6": 2.0})
    place.write_jobs(place.counter("only", gated=True, gpus=ONE))
    job = submit(place, nodes=1)
    begun(place, "only")
    more = place.path / "more.toml"
    first, place.jobs = place.jobs, more
    place.write_jobs(long)
    refused = place.run("submit", str(place.pilot), str(more))
    assert refused.code == 2
    assert "takes 83.3 minutes at its best speed, and the pilot has " in refused.err
    assert "left; ask for more time, or submit the pilot with --requeue" in refused.err
    words = ("--gpus-per-node", "6", "--time", "30", "--dir", str(place.path / "other"))
    refused = place.run("pilot", "submit", str(more), *words)
    assert refused.code == 2
    assert "and the pilot has 28.0 left" in refused.err
    place.jobs = first
    place.open("only")
    over(slurm, place, job)
