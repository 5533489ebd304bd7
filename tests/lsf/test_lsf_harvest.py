"""A harvester on LSF: idle hosts of the contract engine, given back when others want them."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import lsf_run
import lsf_site
import pytest
from lsf_site import LEAN, RECORDED, Host, Queue
from lsf_tools import SCRIPTS, MakeSite, command
from site_of_test import Site, wait_for

KILLABLE = Queue(priority=10, policies="BACKFILL", preemption="PREEMPTABLE[normal]", run_limit=240)
NORMAL = Queue(priority=40, preemptive=True)
HOSTS = tuple(Host(name, 4, 2) for name in ("h1", "h2", "h3"))
CONTROLS = {"SUSPEND": f"{SCRIPTS}/hpcext-job-control suspend"}
ONE = {"gpus": 2, "nodes": {"min": 1, "max": 1}}


class Harvest(Site):
    """A place whose harvester takes hosts of an engine."""

    def __init__(self, path: Path, lsf: lsf_site.Site) -> None:
        paths = f"{lsf.directory}:{os.environ['PATH']}"
        environ = {key: value for key, value in os.environ.items() if "SLURM" not in key}
        environ |= {"LSF_ENVDIR": str(lsf.directory), "PATH": paths, "HPCEXT_BATCH": "lsf"}
        super().__init__(path, environ=environ)
        self.lsf = lsf

    def harvest(self, *words: str) -> subprocess.Popen[str]:
        """Start a harvester of the place's jobs."""
        return self.start(
            "harvest", "start", str(self.jobs), "--partition", "killable", "--interval", "1",
            "--idle", "10", "--dir", str(self.pilot), *words,
        )  # fmt: skip

    def leases(self, *states: str) -> list[lsf_site.Job]:
        """Those in some state; that run, by default."""
        return [
            job
            for job in self.lsf.jobs()
            if job.queue == "killable" and job.state in (states or ("RUN",))
        ]

    def main_job(self, hosts: int, *words: str) -> int:
        """Submit a job of the site's own that has whole hosts until its file is there; its id."""
        gpus = () if self.lsf.quirks.lean else ("-gpu", "num=2/host")
        shape = ("-n", str(4 * hosts), "-R", "span[ptile=4]", *gpus)
        text = f"while ! test -e {self.path / 'main'}; do sleep 0.05; done"
        said = command(self.lsf, "bsub", "-q", "normal", *shape, *words, text)
        assert said.returncode == 0, said
        return int(said.stdout.split(b"<")[1].split(b">")[0])

    def manager(self) -> int:
        return int(json.loads((self.pilot / "manager.json").read_text())["pid"])

    def state(self, job: int) -> str:
        return self.lsf.job(job).state

    def train(self, *names: str) -> None:
        """Wait until trainings have begun, and have only their last step to do."""

        def there() -> bool:
            return all((steps := self.steps(name)) and steps[-1].step == 39 for name in names)

        wait_for(there, f"{names} to come to their gates: {self.said()}")

    def said(self) -> str:
        return "".join(path.read_text() for path in self.pilot.glob("*.log"))

    def jobs_of(self) -> dict[str, dict[str, Any]]:
        return {job["name"]: job for job in self.document("status", str(self.pilot))["jobs"]}

    def ends(self, process: subprocess.Popen[str], *names: str) -> dict[str, dict[str, Any]]:
        """All trainings end well, and nothing is left of the harvester."""
        for name in names:
            self.open(name)
        out, err = process.communicate(timeout=500)
        assert process.returncode == 0, (out, err)
        jobs = self.jobs_of()
        assert {job["state"] for job in jobs.values()} == {"completed"}, out
        wait_for(lambda: not self.leases("RUN", "PEND", "SSUSP", "USUSP"), "the end of all leases")
        wait_for(lambda: not self.left_behind(), "that no process is left")
        for name in names:
            self.once(name)
        return jobs

    def once(self, name: str) -> None:
        """Attempts of a counter did not overlap, and its steps are all there."""
        last: dict[int, float] = {}
        for step in self.steps(name):
            assert all(each <= step.attempt for each in last), f"two attempts of {name} at once"
            last[step.attempt] = step.time_s
        assert self.steps(name)[-1].step == 40

    def clear(self) -> None:
        for process in self.started:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        for job in self.lsf.jobs():
            with contextlib.suppress(lsf_site.RefusedError):
                lsf_run.kill(self.lsf, job.id)
        wait_for(
            lambda: all(job.over() for job in self.lsf.jobs()),
            "the end of all jobs",
        )


@pytest.fixture
def make_place(make_site: MakeSite, tmp_path: Path) -> Iterator[Any]:
    """A site with three hosts of two GPUs each; settings of it, and of its killable queue."""
    made: list[Harvest] = []

    def place(*quirks: str, queue: dict[str, Any] | None = None, **settings: Any) -> Harvest:
        queues = {"normal": NORMAL, "killable": replace(KILLABLE, **(queue or {}))}
        lsf = make_site(
            *quirks, **{"hosts": HOSTS, "queues": queues, "terminate_interval_s": 1.0, **settings}
        )
        made.append(Harvest(tmp_path, lsf))
        return made[-1]

    yield place
    for one in made:
        one.clear()
        one.kill_left_behind()


@pytest.fixture
def place(make_place: Any) -> Harvest:
    one: Harvest = make_place()
    return one


@pytest.mark.parametrize(
    ("quirks", "controls"),
    [
        pytest.param((), {}, id="contract", marks=pytest.mark.slow),
        pytest.param((), CONTROLS, id="contract, our job control", marks=pytest.mark.slow),
        pytest.param(RECORDED, {}, id="recorded"),
        pytest.param(RECORDED, CONTROLS, id="recorded, our job control", marks=pytest.mark.slow),
        pytest.param(LEAN, {}, id="lean", marks=pytest.mark.slow),
        pytest.param(LEAN, CONTROLS, id="lean, our job control", marks=pytest.mark.slow),
    ],
)
def test_a_main_job_has_the_hosts_and_trainings_go_on_when_it_is_over(
    make_place: Any, quirks: tuple[str, ...], controls: dict[str, str]
) -> None:
    """Suspended by SIGTSTP, leases give their GPUs back when all is saved; no step is lost. The
    shell that LSF runs a lease by stops at that signal, and the lease ends all the same."""
    place = make_place(*quirks, queue={"job_controls": controls}, pim_s=0.2)
    # A lean engine knows of no GPUs.
    gpus, slots = (0, ["--slots", "2"]) if quirks == LEAN else (2, [])
    names = ("one", "two", "three")
    place.write_jobs(*(place.counter(name, gated=True, **ONE) for name in names))
    process = place.harvest(*slots)
    place.train(*names)
    leases = place.leases()
    assert sorted(host for job in leases for host in job.hosts) == ["h1", "h2", "h3"]
    # All slots: nobody else comes, and LSF takes the lease for a parallel job.
    assert {(job.slots, job.gpus_wanted) for job in leases} == {(4, gpus)}
    job = place.main_job(2)
    wait_for(lambda: place.state(job) == "RUN", "the start of the main job")
    assert len(place.leases()) == 1
    wait_for(
        lambda: (
            sorted(each["state"] for each in place.jobs_of().values())
            == ["pending", "pending", "running"]
        ),
        "that two trainings wait",
    )
    (place.path / "main").touch()
    wait_for(lambda: len(place.leases()) == 3, "all hosts again")
    jobs = place.ends(process, *names)
    assert sum(each["suspends"] for each in jobs.values()) == 2
    assert {each["lost_steps"] for each in jobs.values()} == {0}
    # No lease was killed for it. On a busy machine one may have ended unused, and come again.
    ended = [each for each in place.lsf.jobs() if each.queue == "killable"]
    assert not any(each.killed for each in ended)
    assert len(ended) >= 5
    said = place.document("harvest", "report", str(place.pilot))
    assert said["leases"] == len(ended)
    assert 0 < said["training_node_h"] < said["held_node_h"] < said["offered_node_h"]


@pytest.mark.slow
def test_attempts_of_a_stopped_lease_go_on_elsewhere(make_place: Any) -> None:
    """LSF stops a job of one slot by SIGSTOP: the lease is killed, and its training begins again
    from its last checkpoint on another host when nothing of it is left."""
    place = make_place(hosts=(Host("h1", 1, 2), Host("h2", 1, 2)))
    place.write_jobs(place.counter("one", gated=True, **ONE))
    process = place.harvest("--max-nodes", "1")
    place.train("one")
    (lease,) = place.leases()
    (host,) = lease.hosts
    shape = ("-n", "1", "-R", "span[hosts=1]", "-gpu", "num=2/host", "-m", host)
    job = place.main_job(1, *shape)
    wait_for(lambda: place.state(lease.id) == "SSUSP", "the preemption")
    wait_for(lambda: place.state(lease.id) == "EXIT", "the end of the lease")
    assert place.lsf.job(lease.id).killed
    wait_for(lambda: place.state(job) == "RUN", "the start of the main job")
    # bkill has it go on first (SIGCONT), so it may have saved itself, and has its last step to do.
    report = place.pilot / "jobs" / place.jobs_of()["one"]["id"] / "attempt-0002" / "report.json"
    wait_for(report.exists, "another attempt")
    (again,) = place.leases()
    assert host not in again.hosts
    (place.path / "main").touch()
    place.ends(process, "one")


@pytest.mark.slow
@pytest.mark.parametrize(
    "queue",
    [
        pytest.param({"job_controls": {"SUSPEND": "bkill $LSB_JOBID"}}, marks=pytest.mark.slow),
        {"job_controls": {"SUSPEND": "brequeue $LSB_JOBID"}, "rerunnable": True},
    ],
    ids=["killed", "requeued"],
)
def test_a_queue_that_kills_what_it_preempts(make_place: Any, queue: dict[str, Any]) -> None:
    """SIGINT is heard, too, and a lease that LSF would begin again is none."""
    place = make_place(queue=queue, terminate_interval_s=20.0)
    place.write_jobs(place.counter("one", gated=True, **ONE))
    process = place.harvest("--max-nodes", "1")
    place.train("one")
    (lease,) = place.leases()
    (host,) = lease.hosts
    job = place.main_job(1, "-m", host)
    wait_for(lambda: place.state(job) == "RUN", "the start of the main job")
    wait_for(lambda: place.state(lease.id) in lsf_run.ENDED, "the end of the lease")
    # It has only its last step to do, which waits.
    report = place.pilot / "jobs" / place.jobs_of()["one"]["id"] / "attempt-0002" / "report.json"
    wait_for(report.exists, "another attempt")
    (place.path / "main").touch()
    jobs = place.ends(process, "one")
    assert (jobs["one"]["suspends"], jobs["one"]["lost_steps"]) == (1, 0)


@pytest.mark.slow
def test_killed_and_started_again_it_knows_its_leases(place: Harvest) -> None:
    names = ("one", "two")
    place.write_jobs(*(place.counter(name, gated=True, **ONE) for name in names))
    first = place.harvest("--max-nodes", "2")
    place.train(*names)
    before = {job.id for job in place.leases()}
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    process = place.start("run", "--resume", str(place.pilot))
    wait_for(lambda: place.manager() == process.pid, "the second manager")
    assert {job.id for job in place.leases()} == before
    jobs = place.ends(process, *names)
    assert {job.id for job in place.lsf.jobs() if job.queue == "killable"} == before
    assert {each["suspends"] for each in jobs.values()} == {0}


def test_holes(make_place: Any) -> None:
    """What is kept ends when bslots says so; a hole that is too short is none."""
    place = make_place(
        hosts=(*HOSTS[:2], Host("h3", 4, 2, kept=4), Host("h4", 4, 2, kept=4)),
        windows=((7200, {"h3": 4}), (60, {"h4": 4})),
    )
    said = place.run("harvest", "holes", "--partition", "killable")
    rows = [line.split() for line in said.out.splitlines()]
    assert said.code == 0, said
    found = {row[0]: row[1:] for row in rows if row and row[0].startswith("h")}
    assert found["h1"] == ["2", "not", "known", "240", "min"]
    assert found["h3"][-2:] == ["119", "min"]
    assert found["h4"][-2:] == ["too", "short"]
    assert not said.err


def test_without_bslots_it_says_so(make_place: Any) -> None:
    place = make_place("no_bslots")
    for name in ("bslots", "brsvs"):
        (place.lsf.directory / name).unlink()
    said = place.run("harvest", "holes", "--partition", "killable")
    assert said.code == 0, said
    assert said.err == "hpcext: there is no bslots command here, so it is unknown when holes end\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "quirks",
    [
        pytest.param((), id="contract", marks=pytest.mark.slow),
        pytest.param(RECORDED, id="recorded"),
    ],
)
def test_slots_are_leased_and_why_says_what_is_not_answered(
    make_place: Any, quirks: tuple[str, ...]
) -> None:
    """Leases without GPUs are asked for as jobs that never begin again, where that can be said."""
    place = make_place(*quirks, "no_gpus")
    place.write_jobs(place.counter("one", gated=True, gpus=1, nodes={"min": 1, "max": 1}))
    process = place.harvest("--slots", "2", "--max-nodes", "1")
    place.train("one")
    bjobs = place.lsf.directory / "bjobs"
    engine = bjobs.readlink()
    bjobs.unlink()
    bjobs.write_text("#!/bin/sh\necho 'Failed in an LSF library call' >&2\nexit 255\n")
    bjobs.chmod(0o755)
    (lease,) = place.leases()
    lsf_run.kill(place.lsf, lease.id)
    wait_for(lambda: place.state(lease.id) == "EXIT", "the end of the lease")
    why = lambda: place.run("why", str(place.pilot), "one").out  # noqa: E731
    wait_for(lambda: "Failed in an LSF library call" in why(), "that why says it")
    bjobs.unlink()
    bjobs.symlink_to(engine)
    place.ends(process, "one")


def test_no_such_queue(place: Harvest) -> None:
    said = place.run("harvest", "holes", "--partition", "none")
    assert said.code != 0
    assert said.err.count("\n") == 1
    assert "No such queue" in said.err


@pytest.mark.slow
def test_two_harvesters_divide_the_hosts(make_place: Any, tmp_path: Path) -> None:
    """The one that came first has all, and gives back down to its part to whom it sees waiting."""
    hosts = HOSTS[:2]
    first = make_place(hosts=hosts)
    path = tmp_path / "other"
    path.mkdir()
    second = Harvest(path, first.lsf)
    names = ("one", "two")
    for place in (first, second):
        place.write_jobs(*(place.counter(name, gated=True, **ONE) for name in names))
    processes = [first.harvest()]
    first.train(*names)
    processes.append(second.harvest())

    def shares() -> dict[str, int]:
        return collections.Counter(job.name for job in first.leases())

    wait_for(lambda: sorted(shares().values()) == [1, 1], f"equal parts: {shares()}")
    for place in (first, second):
        for name in names:
            place.open(name)
    for place, process in zip((first, second), processes, strict=True):
        out, err = process.communicate(timeout=500)
        assert process.returncode == 0, (out, err)
        jobs = place.jobs_of()
        assert {job["state"] for job in jobs.values()} == {"completed"}
        assert {job["lost_steps"] for job in jobs.values()} == {0}
        for name in names:
            place.once(name)
