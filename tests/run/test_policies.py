"""Every policy with real processes; jobs keep the account of their steps and their GPUs."""

from __future__ import annotations

import json
from itertools import groupby

import pytest
from site_of_test import Site, wait_for

from hpcext.policies import POLICIES

STEPS = {"first": 100, "second": 300, "third": 60}
SCALING = {"first": {1: 1.0, 2: 1.5}, "second": {1: 1.0, 2: 1.9, 4: 3.6}, "third": {1: 1.0, 3: 2.0}}
SOON = {
    "optimus": "interval_s=1",
    "total_time": "interval_s=1",
    "pollux": "interval_s=1,delay_s=0.1",
}


def run(
    site: Site, policy: str, *, stated: bool = True, endless: tuple[str, ...] = (), until: str = ""
) -> dict[str, list[int]]:
    """Run the jobs under a policy; how many GPUs each had, one after the other.

    Those that are endless train until such a file of the pilot is there.
    """
    many = dict.fromkeys(endless, 10**6)
    site.write_jobs(
        *(
            site.counter(
                name, steps=steps, gpus={"max": 4}, work=steps, endless=name in endless,
                **({"scaling": SCALING[name]} if stated else {}),
            )
            for name, steps in (STEPS | many).items()
        )
    )  # fmt: skip
    words = ("--gpus", "6", "--policy", policy, "--dir", str(site.pilot), "--json")
    manager = site.start("run", str(site.jobs), *words)
    if until:
        wait_for(lambda: list(site.pilot.glob(until)), until)
    for name in endless:
        site.open(name)
    out, err = manager.communicate(timeout=500)
    assert manager.returncode == 0, err
    document = json.loads(out)
    assert [job["state"] for job in document["jobs"]] == ["completed"] * 3, document
    assert document["policy"] == policy
    site.check_account({**STEPS, **dict.fromkeys(endless)})
    held = {
        job["name"]: [len(part["gpus"]) for part in job["segments"]] for job in document["jobs"]
    }
    return {name: [gpus for gpus, _ in groupby(each)] for name, each in held.items()}


OTHERS = [name for name in POLICIES if name not in ("marble", "exclusive")]
ALIKE = ("bftrainer-lifetime", "conservative", "equal_share", "fixed", "optimus", "total_time")
"""Each is tried live by a slow test; what it decides is the same simulated, in tests/policies."""


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in ALIKE else ()) for name in OTHERS],
)
def test_no_step_is_lost_under_any_policy(site: Site, name: str) -> None:
    held = run(site, f"{name}:{SOON[name]}" if name in SOON else name)
    assert all(1 <= gpus <= 4 for each in held.values() for gpus in each)
    # Together they want more than there is, and who scales best gets most in the end.
    assert max(held["second"]) >= 3


@pytest.mark.cases(1)
@pytest.mark.parametrize("policy", ["easy", "conservative"])
def test_a_job_that_ends_in_time_overtakes_one_that_is_reserved_for(
    site: Site, policy: str
) -> None:
    stated = {"first": 600.0, "wide": 600.0, "long": 900.0, "short": 60.0}
    site.write_jobs(
        *(
            site.counter(
                name, steps=20, gpus=2 if name == "wide" else 1, walltime_s=walltime_s,
                gated=name == "first",
            )
            for name, walltime_s in stated.items()
        )
    )  # fmt: skip
    words = ("--gpus", "2", "--policy", policy, "--dir", str(site.pilot), "--json")
    manager = site.start("run", str(site.jobs), *words)

    def states() -> dict[str, str]:
        jobs = site.document("status", str(site.pilot)).get("jobs", [])
        return {job["name"]: job["state"] for job in jobs}

    wait_for(lambda: states().get("short") == "completed", "the short job to overtake")
    assert states() == {
        "first": "running", "wide": "pending", "long": "pending", "short": "completed",
    }  # fmt: skip
    said = site.run("why", str(site.pilot), "wide").out
    assert "next in the queue; waits for 2 GPUs on one node" in said
    site.open("first")
    out, err = manager.communicate(timeout=200)
    assert manager.returncode == 0, err
    began = {job["name"]: job["segments"][0]["start_s"] for job in json.loads(out)["jobs"]}
    assert sorted(began, key=lambda name: began[name]) == ["first", "short", "wide", "long"]


def test_unknown_speeds_are_explored(site: Site) -> None:
    """The first one and the third are over soon; by then the second has what it needs for it."""
    third = "jobs/2/attempt-0003/report.json"
    policy = "doubling:explore_s=0.5,interval_s=1"
    held = run(site, policy, stated=False, endless=("second",), until=third)
    assert held["second"][:3] == [1, 2, 4]


def test_pollux_learns_from_running_jobs(site: Site) -> None:
    """None is faster on more GPUs, so that they are tried once and then no more."""
    another = "jobs/*/attempt-0002/report.json"
    policy = "pollux:interval_s=1,delay_s=0.1"
    held = run(site, policy, stated=False, endless=tuple(STEPS), until=another)
    assert all(each[0] == 1 for each in held.values())
    assert any(len(each) > 1 for each in held.values())
