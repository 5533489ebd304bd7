"""The scenario of a pilot on several hosts."""

from __future__ import annotations

import dataclasses

from hpcext import backends
from hpcext.acceptance import keeper
from hpcext.acceptance.scenario import FailedError, Passed, Scenario
from hpcext.acceptance.stage import Stage, command
from hpcext.acceptance.systems import Order
from hpcext.acceptance.trial import Training
from hpcext.jobtext import job_text

MINUTES = 10


def pilot(stage: Stage, scenario: Scenario) -> Passed:
    """Run a training on each host; suspend one of them and resume it."""
    place = stage.place(scenario.name)
    # The job is named after the directory, so no other pilot of the user may have that name.
    directory = place / stage.name(place)
    hosts = stage.hosts[-scenario.hosts :]
    names = [f"training-{number}" for number in range(1, len(hosts) + 1)]
    its = [Training(stage, place / name, place / "finish") for name in names]
    jobs = [
        {
            "name": name,
            "command": list(command(place / name, place / "finish")),
            "gpus": 1,
            "retries": 0,
        }
        for name in names
    ]
    (place / "jobs.toml").write_text(job_text(*jobs), encoding="utf-8")
    keeper.note(stage.directory, keeper.PILOT, directory)
    order = Order("", stage.terms.partition, tuple(host.name for host in hosts), place)
    stage.hpcext(
        "pilot", "submit", str(place / "jobs.toml"), "--nodes", str(len(hosts)),
        "--gpus-per-node", "1", "--time", str(MINUTES), "--lead", "20", "--dir", str(directory),
        "--", *stage.system.pilot_options(order), *stage.terms.options,
    )  # fmt: skip
    job = backends.submitted(stage.system.key).job_of(directory)
    if job is None:
        raise FailedError("the id of its job was not recorded")
    stage.follow(job)
    stage.begins(job, "its begin")
    for it in its:
        it.began()
    stage.granted("suspend", str(directory), names[-1])
    its[-1].stands_still()
    its[0].goes_on()
    stage.granted("resume", str(directory), names[-1])
    its[-1].began(2)
    its[0].finish()
    state = stage.ends(job)
    if state != "completed":
        raise FailedError(f"its job ended as {state}")
    found = [it.judged("") for it in its]
    steps, lost = (sum(getattr(each, key) for each in found) for key in ("steps", "lost"))
    says = f"{len(hosts)} hosts, {len(its)} trainings at once, {steps} steps, {lost} repeated"
    return Passed(says, steps, lost)


def scenarios(hosts: int, gpus: int) -> list[Scenario]:
    """Return the scenario.

    Parameters
    ----------
    hosts : int
        The number of hosts of the run.
    gpus : int
        The smallest number of GPUs on one of them.
    """
    lacks = "" if gpus else "its hosts have no GPUs"
    if hosts < 2:
        lacks = "one host only"
    number = min(2, hosts)
    tried = f"hpcext pilot submit --nodes {number}, one training on each, one of them suspended"
    expected = "all train at the same time and to their end; no step is lost"
    only = Scenario("pilot", tried, expected, pilot, lacks)
    return [dataclasses.replace(only, hosts=number)]
