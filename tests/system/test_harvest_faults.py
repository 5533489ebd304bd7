"""A harvester on a real Slurm in which things go wrong: partitions, nodes, daemons, leases.

Whatever happens, in the end every trainer has done each step, has lost none but those since its
last checkpoint, and of leases there is nothing left: no job, no process.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator

import psutil
import pytest
from site_of_test import Site, wait_for
from slurm_cluster import NODES, Cluster
from test_harvest import ended, harvest, jobs_of, leases, main_job, nothing_left
from test_pilot import begun

STEPS, SAVE_EVERY = 40, 5
ALL = ("one", "two", "three", "four")


def trainers(place: Site, *names: str) -> None:
    """Write jobs of one node each, whose last step waits."""
    more = {"gated": True, "nodes": {"min": 1, "max": 1}, "gpus": 6}
    place.write_jobs(
        *(place.counter(name, steps=STEPS, save_every=SAVE_EVERY, **more) for name in names)
    )


def finish(
    slurm: Cluster, place: Site, process: subprocess.Popen[str], *names: str
) -> dict[str, dict[str, object]]:
    """Let trainers end, and see that all was done and nothing is left."""
    for name in names:
        place.open(name)
    ended(process)
    jobs = jobs_of(place)
    assert {jobs[name]["state"] for name in names} == {"completed"}
    nothing_left(slurm, place)
    for name in names:
        place.check_account({name: STEPS}, save_every=SAVE_EVERY)
        assert jobs[name]["lost_steps"] < SAVE_EVERY
    slurm.wait_for(lambda: not processes_of(place), "the end of all agents")
    return jobs


def processes_of(place: Site) -> list[psutil.Process]:
    """Those whose command line names the place: agents, and what starts them."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(str(place.pilot) in word for word in process.cmdline()):
                found.append(process)
    return found


def attempts(place: Site, name: str) -> set[int]:
    """Those that have made a step, or wait for their last one."""
    number = jobs_of(place)[name]["id"]
    found = place.pilot.glob(f"jobs/{number}/attempt-*/report.json")
    return {int(path.parent.name.partition("-")[2]) for path in found}


def queued(slurm: Cluster) -> list[str]:
    """Why each lease that has not begun has not."""
    words = ("-h", "-p", "harvest", "-t", "PENDING", "-o", "%r")
    return slurm.run("squeue", *words).stdout.splitlines()


def agent_of(place: Site, node: str) -> int:
    """The process that holds the lease of a node."""
    for path in place.pilot.glob("leases/*/agent.json"):
        said = json.loads(path.read_text())
        if said["node"] == node:
            return int(said["pid"])
    raise AssertionError(f"no agent on {node}")


def partition(slurm: Cluster, state: str) -> None:
    said = slurm.run("scontrol", "update", "partitionname=harvest", f"state={state}")
    assert said.returncode == 0, said


@contextlib.contextmanager
def reserved_soon(slurm: Cluster, nodes: str) -> Iterator[None]:
    """Nodes are idle, and a lease of hours would not end before the reservation begins."""
    what = ("starttime=now+10minutes", "duration=60", "users=root")
    said = slurm.run("scontrol", "create", "reservationname=soon", f"nodes={nodes}", *what)
    assert said.returncode == 0, said
    try:
        yield
    finally:
        slurm.run("scontrol", "delete", "reservationname=soon")


@contextlib.contextmanager
def reservations_hidden(slurm: Cluster) -> Iterator[None]:
    """A harvester cannot know of them, and asks for leases that do not begin."""
    conf = slurm.root / "etc" / "slurm.conf"
    before = conf.read_text()
    # Started anew: what becomes of the daemon at `scontrol reconfigure` differs by release.
    slurm.stop_ctld()
    conf.write_text(f"{before}PrivateData=reservations\n")
    slurm.start_ctld()
    try:
        yield
    finally:
        slurm.stop_ctld()
        conf.write_text(before)
        slurm.start_ctld()


@contextlib.contextmanager
def nodes_down(slurm: Cluster, *nodes: str) -> Iterator[None]:
    """Nodes go down at once with all that runs there, and come back."""
    names = ",".join(nodes)
    try:
        for node in nodes:
            slurm.kill_node(node)
        slurm.run("scontrol", "update", f"nodename={names}", "state=down", "reason=test")
        yield
    finally:
        for node in nodes:
            slurm.start_node(node)
        slurm.run("scontrol", "update", f"nodename={names}", "state=resume")
        states = ("sinfo", "-N", "-h", "-n", names, "-o", "%T")
        slurm.wait_for(lambda: set(slurm.run(*states).stdout.split()) == {"idle"}, "the nodes")


@pytest.mark.slow
def test_a_partition_goes_down_and_comes_back(slurm: Cluster, place: Site) -> None:
    """What trains there trains on; nothing is asked for until there is hope for it."""
    trainers(place, "one", "two")
    process = harvest(place, "--max-nodes", "2")
    begun(place, "one", "two")
    two = jobs_of(place)["two"]["segments"][-1]["gpus"][0].partition(":")[0]
    kept = {node: job for node, job in leases(slurm).items() if node != two}
    partition(slurm, "down")
    try:
        slurm.run("scancel", str(leases(slurm)[two]))
        slurm.wait_for(lambda: leases(slurm) == kept, "the end of one lease")
        seen = place.document("harvest", "report", str(place.pilot))["seen_s"]

        def looked() -> bool:
            report = place.document("harvest", "report", str(place.pilot))
            return float(report["seen_s"]) > seen + 8

        slurm.wait_for(looked, "some looks at the nodes")
        assert leases(slurm) == kept
        assert not queued(slurm)
        place.open("one")
        wait_for(lambda: jobs_of(place)["one"]["state"] == "completed", "the end of one")
    finally:
        partition(slurm, "up")
    jobs = finish(slurm, place, process, "one", "two")
    assert (jobs["one"]["attempts"], jobs["two"]["attempts"]) == (1, 2)


@pytest.mark.slow
def test_a_partition_goes_down_while_leases_are_asked_for(slurm: Cluster, place: Site) -> None:
    trainers(place, "one", "two")
    with reservations_hidden(slurm), reserved_soon(slurm, "ALL"):
        process = harvest(place)
        slurm.wait_for(lambda: len(queued(slurm)) == 2, "leases that wait")
        partition(slurm, "down")
        try:
            slurm.wait_for(lambda: set(queued(slurm)) == {"PartitionDown"}, "what they wait for")
        finally:
            partition(slurm, "up")
    # Those that were withdrawn meanwhile are asked for on other nodes.
    slurm.wait_for(lambda: place.steps("one") and place.steps("two"), "both trainers")
    finish(slurm, place, process, "one", "two")


def test_leases_end_before_a_reservation_begins(slurm: Cluster, place: Site) -> None:
    trainers(place, "one")
    with reserved_soon(slurm, "ALL"):
        process = harvest(place)
        begun(place, "one")
        (lease,) = leases(slurm).values()
        assert "00:03:00" <= slurm.job(lease)["TimeLimit"] <= "00:09:00"
        finish(slurm, place, process, "one")


def test_leases_are_as_long_as_their_partition_allows(slurm: Cluster, place: Site) -> None:
    trainers(place, "one")
    slurm.run("scontrol", "update", "partitionname=harvest", "maxtime=30")
    try:
        process = harvest(place)
        begun(place, "one")
        (lease,) = leases(slurm).values()
        assert slurm.job(lease)["TimeLimit"] == "00:30:00"
    finally:
        slurm.run("scontrol", "update", "partitionname=harvest", "maxtime=1-0")
    finish(slurm, place, process, "one")


@pytest.mark.slow
def test_leases_that_never_begin_are_withdrawn_and_other_nodes_are_used(
    slurm: Cluster, place: Site
) -> None:
    """One node is kept for a reservation, and one is drained after its lease was asked for."""
    trainers(place, "one", "two")
    with reservations_hidden(slurm), reserved_soon(slurm, "ALL"):
        process = harvest(place)
        slurm.wait_for(lambda: len(queued(slurm)) == 2, "leases that wait")
        # Of nodes that are alike a harvester draws those that it asks for.
        asked = sorted(slurm.run("squeue", "-h", "-p", "harvest", "-o", "%n").stdout.split())
        reservation = ("reservationname=soon", f"nodes={','.join(asked)}")
        slurm.run("scontrol", "update", *reservation)
        slurm.run("scontrol", "update", f"nodename={asked[0]}", "state=drain", "reason=test")
        try:
            slurm.wait_for(lambda: place.steps("one") and place.steps("two"), "both trainers")
            assert set(leases(slurm)) == {*NODES} - {*asked}
            assert not queued(slurm)
        finally:
            slurm.run("scontrol", "update", f"nodename={asked[0]}", "state=resume")
        finish(slurm, place, process, "one", "two")
    said = place.document("harvest", "report", str(place.pilot))
    assert (said["leases"], said["withdrawn"]) == (4, 2)


@pytest.mark.slow
def test_a_node_that_is_drained_under_a_lease_trains_on_and_is_not_taken_again(
    slurm: Cluster, place: Site
) -> None:
    """As a job of anybody would; and it is free for its repair when that training is done."""
    trainers(place, "one", "two")
    process = harvest(place)
    begun(place, "one", "two")
    drained = jobs_of(place)["one"]["segments"][-1]["gpus"][0].partition(":")[0]
    slurm.run("scontrol", "update", f"nodename={drained}", "state=drain", "reason=test")
    try:
        place.open("one")
        wait_for(lambda: jobs_of(place)["one"]["state"] == "completed", "the end of one")
        assert jobs_of(place)["one"]["attempts"] == 1
        slurm.wait_for(lambda: drained not in leases(slurm), "the end of its lease")
        state = ("sinfo", "-h", "-n", drained, "-p", "harvest", "-o", "%T")
        slurm.wait_for(lambda: slurm.run(*state).stdout.strip() == "drained", "its repair")
        assert jobs_of(place)["two"]["state"] == "running"
    finally:
        slurm.run("scontrol", "update", f"nodename={drained}", "state=resume")
    jobs = finish(slurm, place, process, "one", "two")
    assert jobs["two"]["lost_steps"] == 0


@pytest.mark.slow
def test_a_node_whose_daemon_does_not_answer_trains_on(slurm: Cluster, place: Site) -> None:
    """A main job has to wait for it; trainings do not."""
    trainers(place, "one", "two")
    process = harvest(place)
    begun(place, "one", "two")
    slow = jobs_of(place)["one"]["segments"][-1]["gpus"][0].partition(":")[0]
    slurm.stop_node(slow)
    try:
        place.open("one")
        wait_for(lambda: jobs_of(place)["one"]["state"] == "completed", "the end of one")
        assert jobs_of(place)["one"]["attempts"] == 1
        job = main_job(slurm, len(NODES), "sleep", "2")
        wait_for(lambda: jobs_of(place)["two"]["state"] == "pending", "two to give way")
        assert slurm.job(job)["JobState"] == "PENDING"
    finally:
        slurm.continue_node(slow)
    slurm.wait_for(lambda: slurm.job(job)["JobState"] == "COMPLETED", "the main job")
    jobs = finish(slurm, place, process, "one", "two")
    # As long as the main job waits, nodes that answer may be lent once more.
    assert jobs["two"]["suspends"] >= 1
    assert jobs["two"]["lost_steps"] == 0


@pytest.mark.slow
def test_an_agent_that_is_stopped_gives_its_node_back(slurm: Cluster, place: Site) -> None:
    trainers(place, "one")
    process = harvest(place)
    begun(place, "one")
    (node,) = leases(slurm)
    os.kill(agent_of(place, node), signal.SIGSTOP)
    job = main_job(slurm, len(NODES), "sleep", "2")
    slurm.wait_for(lambda: slurm.job(job)["JobState"] == "COMPLETED", "the main job")
    finish(slurm, place, process, "one")


def test_an_agent_that_is_killed_costs_what_was_not_saved(slurm: Cluster, place: Site) -> None:
    trainers(place, "one")
    process = harvest(place)
    begun(place, "one")
    (node,) = leases(slurm)
    os.kill(agent_of(place, node), signal.SIGKILL)
    # The next one may be one too early to know, and never begin.
    slurm.wait_for(lambda: attempts(place, "one") - {1}, "another attempt")
    finish(slurm, place, process, "one")


@pytest.mark.slow
def test_all_nodes_are_wanted_at_once_and_again(slurm: Cluster, place: Site) -> None:
    trainers(place, *ALL)
    process = harvest(place)
    begun(place, *ALL)
    for times in (1, 2):
        job = main_job(slurm, len(NODES), "sleep", "2")
        slurm.wait_for(lambda job=job: slurm.job(job)["JobState"] == "COMPLETED", "the main job")
        for name in ALL:
            slurm.wait_for(
                lambda name=name, times=times: times + 1 in attempts(place, name), f"{name} again"
            )
    jobs = finish(slurm, place, process, *ALL)
    assert {job["suspends"] for job in jobs.values()} == {2}
    assert {job["lost_steps"] for job in jobs.values()} == {0}


def test_three_nodes_die_at_once(slurm: Cluster, place: Site) -> None:
    """What trains on the fourth does not notice, and the others go on there when it is done."""
    trainers(place, *ALL)
    process = harvest(place)
    begun(place, *ALL)
    # A lease may have been given back because it began late: an attempt of each on its first ones.
    first = {
        name: (job["attempts"], job["segments"][-1]["gpus"][0].partition(":")[0])
        for name, job in jobs_of(place).items()
    }
    with nodes_down(slurm, *NODES[:3]):
        slurm.wait_for(lambda: set(leases(slurm)) == {NODES[3]}, "the leases of three nodes gone")
        wait_for(
            lambda: [each["state"] for each in jobs_of(place).values()].count("pending") == 3,
            "three trainers that wait",
        )
        jobs = finish(slurm, place, process, *ALL)
    assert {name: job["attempts"] for name, job in jobs.items()} == {
        name: attempts + (node != NODES[3]) for name, (attempts, node) in first.items()
    }
