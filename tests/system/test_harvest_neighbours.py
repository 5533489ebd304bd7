"""Users' harvesters on a real Slurm: they divide what is idle, and leave none of it."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from site_of_test import Site
from slurm_cluster import REPOSITORY, Cluster, make_user
from test_harvest import ended, harvest, jobs_of, nothing_left
from test_pilot import begun

NAMES = ("one", "two", "three", "four")


@pytest.fixture
def other(slurm: Cluster, place: Site) -> Iterator[Site]:
    """The place of another user, who is root."""
    path = slurm.root / f"{place.path.name}-other"
    path.mkdir()
    environ = slurm.user_environ(HOME=str(slurm.root), USER="root", LOGNAME="root")
    one = Site(path, python=str(slurm.python), environ=environ)
    yield one
    for process in one.started:
        process.kill()
        process.wait()


@pytest.fixture
def third(slurm: Cluster, place: Site) -> Iterator[Site]:
    """The place of one more user."""
    path = slurm.root / f"{place.path.name}-third"
    path.mkdir()
    name = f"{slurm.user}-3"
    make_user(name, path)
    environ = slurm.user_environ(HOME=str(path), USER=name, LOGNAME=name)
    one = Site(path, python=str(slurm.python), environ=environ, user=name)
    yield one
    for process in one.started:
        process.kill()
        process.wait()
    slurm.run("scancel", "--user", name)
    slurm.wait_for(lambda: not slurm.run("squeue", "-h", "-u", name).stdout, "an empty queue")
    subprocess.run(["userdel", name], capture_output=True, check=True)


def trainers(place: Site) -> Path:
    """As many as there are nodes, each of which wants a whole one until its gate is open."""
    one = {"min": 1, "max": 1}
    return place.write_jobs(*(place.counter(name, gated=True, nodes=one, gpus=6) for name in NAMES))


def leases_of(slurm: Cluster) -> Counter[str]:
    """User → how many leases run."""
    said = slurm.run("squeue", "-h", "-o", "%u", "-t", "RUNNING", "-p", "harvest")
    return Counter(said.stdout.split())


def all_end(slurm: Cluster, places: dict[Site, subprocess.Popen[str]]) -> None:
    for place in places:
        for name in NAMES:
            place.open(name)
    for place, process in places.items():
        ended(process)
        jobs = jobs_of(place)
        assert {job["state"] for job in jobs.values()} == {"completed"}
        assert {job["lost_steps"] for job in jobs.values()} == {0}
    for place in places:
        for name in NAMES:
            # One by one: GPUs of two nodes have the same indices.
            place.check_account({name: 40})
    slurm.wait_for(lambda: not slurm.run("squeue", "-h", "-p", "harvest").stdout, "the last lease")
    for place in places:
        assert not place.left_behind()


@pytest.mark.slow
def test_the_first_one_gives_half_to_the_second(slurm: Cluster, place: Site, other: Site) -> None:
    """It has all; the other comes; nothing is idle, and no node changes hands any more."""
    trainers(place)
    trainers(other)
    first = harvest(place)
    begun(place, *NAMES)
    assert leases_of(slurm) == {slurm.user: 4}
    second = harvest(other)
    half = {slurm.user: 2, "root": 2}
    slurm.wait_for(lambda: leases_of(slurm) == half, "half of the nodes for each")

    def numbers() -> set[int]:
        return {lease["number"] for lease in _leases(other)}

    def stay() -> bool:
        """Five looks of each later it is the same leases."""
        before = numbers()
        for one in (place, other):
            _looks(slurm, one, 5)
        return leases_of(slurm) == half and len(before) == 2 and numbers() == before

    # One that has begun as a claim is a lease once its harvester has seen that, which till then
    # may have asked for another one, and withdraws it.
    slurm.wait_for(stay, "leases that stay")
    all_end(slurm, {place: first, other: second})


@pytest.mark.slow
def test_two_with_half_a_share_leave_nothing_idle(slurm: Cluster, place: Site, other: Site) -> None:
    places = {}
    for one in (place, other):
        trainers(one)
        one.environ["HPCEXT_HARVEST_SHARE"] = "0.5"
        places[one] = harvest(one)
    half = {slurm.user: 2, "root": 2}
    slurm.wait_for(lambda: leases_of(slurm) == half, "half of the nodes for each")
    all_end(slurm, places)
    # Each is billed for its own, by the command of docs/site.md.
    page = (REPOSITORY / "docs" / "site.md").read_text()
    command = re.search(r"^\$ (sacct .*)$", page, re.M)
    assert command
    words = command[1].replace("preemptible", "harvest").split()

    def billed() -> list[str]:
        return [line for line in slurm.run(*words).stdout.splitlines() if "hpcext-jobs-" in line]

    slurm.wait_for(lambda: {line.split()[0] for line in billed()} >= {"root"}, "accounting")
    # A lease that had not begun when its harvester ended is billed with nothing.
    held = {line.split()[0] for line in billed() if "gres/gpu=6" in line}
    assert held == {"root", slurm.user}, billed()


@pytest.mark.slow
def test_three_have_their_parts_and_two_take_those_of_one_that_ends(
    slurm: Cluster, place: Site, other: Site, third: Site
) -> None:
    """Four nodes: one for each, and one that is nobody's for good; nothing is idle."""
    places = {}
    for one in (place, other, third):
        trainers(one)
        places[one] = harvest(one)
    assert third.user is not None

    def divided() -> bool:
        found = leases_of(slurm)
        return sorted(found.values()) == [1, 1, 2] and third.user in found

    slurm.wait_for(divided, "a part for each")
    for name in NAMES:
        third.open(name)
    # Those of its trainers that had no node yet need one, or all of those that are left.
    out, err = places.pop(third).communicate(timeout=500)
    assert third.started[0].returncode == 0, (out, err)
    half = {slurm.user: 2, "root": 2}
    slurm.wait_for(lambda: leases_of(slurm) == half, "the others' halves")
    for name in NAMES:
        third.check_account({name: 40})
    all_end(slurm, places)


@pytest.mark.slow
def test_a_harvester_without_leases_says_that_others_have_them(
    slurm: Cluster, place: Site, other: Site
) -> None:
    """Not that its training is too large for any node. Its leases cannot begin: so no node stays
    idle for them."""
    trainers(place)
    process = harvest(place)
    begun(place, *NAMES)
    other.write_jobs(other.counter("one", nodes={"min": 1, "max": 1}, gpus=6))
    # Its leases wait, whoever gives up a node.
    late = harvest(other, "--", "--hold")
    # At times the fourth is on its way from one to the other.
    reason = re.compile(r"no idle node; [34] are leased by others")
    slurm.wait_for(
        lambda: reason.search(other.run("why", str(other.pilot), "one").out), "the reason"
    )
    assert reason.match(other.document("status", str(other.pilot))["jobs"][0]["why"])
    slurm.wait_for(lambda: leases_of(slurm) == {slurm.user: 4}, "what cannot begin is not minded")
    late.terminate()
    late.communicate(timeout=500)
    for name in NAMES:
        place.open(name)
    ended(process)
    nothing_left(slurm, place)


def _leases(place: Site) -> list[dict[str, Any]]:
    """What a harvester knows of its own."""
    found = (json.loads(path.read_text()) for path in place.pilot.glob("leases/*/lease.json"))
    return [lease for lease in found if not lease["claim"]]


def _looks(slurm: Cluster, place: Site, times: int) -> None:
    """Wait until a harvester has looked so often: it writes its account each time."""
    account = place.pilot / "harvest.json"
    slurm.wait_for(account.exists, "its first look")
    for _ in range(times):
        before = account.stat().st_ino
        slurm.wait_for(lambda before=before: account.stat().st_ino != before, "a look")  # type: ignore[misc]
