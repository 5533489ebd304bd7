"""A real Slurm, started once for the tests that need one; and a user's place in it."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from site_of_test import Site

sys.path.insert(0, str(Path(__file__).parent))

from plugin import Plugin
from slurm_cluster import Cluster, cluster

LOGS = ("*.out", "jobs/*/log.txt", "jobs/*/attempt-*/*.log", "journal.jsonl")
"""Files of a pilot that tell what happened there."""


@pytest.fixture(scope="session")
def slurm() -> Iterator[Cluster]:
    """Four nodes of six GPUs."""
    with cluster(cgroups="TEST_SLURM_CGROUPS" in os.environ) as one:
        yield one


@pytest.fixture
def place(slurm: Cluster, request: pytest.FixtureRequest) -> Iterator[Site]:
    """A directory of the ordinary user; the jobs of the test are over when it ends."""
    path = slurm.home / request.node.name.replace("[", "-").replace("]", "")
    slurm.as_user("mkdir", str(path))
    one = Site(path, python=str(slurm.python), environ=slurm.user_environ(), user=slurm.user)
    yield one
    for process in one.started:
        # A harvester whose test has failed would take nodes from the next one.
        process.kill()
        process.wait()
    for user in (slurm.user, "root"):
        # root is the cluster's other users.
        slurm.run("scancel", "--user", user)
    slurm.wait_for(lambda: not slurm.run("squeue", "-h").stdout, "an empty queue")


@pytest.fixture(scope="session")
def built(slurm: Cluster) -> Plugin:
    """The plugin's files; until a test asks for it, nobody uses it."""
    one = Plugin(slurm)
    one.install()
    return one


@pytest.fixture
def plugin(built: Plugin) -> Iterator[Plugin]:
    """The plugin, in use."""
    built.use_well()
    yield built
    built.use_none()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to a failure what the cluster and the place of the test say at that moment."""
    report = yield
    given = getattr(item, "funcargs", {})
    slurm, place = given.get("slurm"), given.get("place")
    if report.when == "call" and report.failed and slurm is not None:
        said = [slurm.run(*words).stdout for words in (("squeue", "-a"), ("squeue", "-s"))]
        said += [slurm.log()[-4000:]]
        if place is not None:
            said += [place.run("status", str(place.pilot)).out]
            logs = [log for kind in LOGS for log in sorted(place.pilot.glob(kind))]
            said += [f"{log}:\n{log.read_text(errors='replace')[-2000:]}" for log in logs]
        report.sections.append(("the cluster", "\n".join(said)))
    return report
