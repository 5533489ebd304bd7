"""Job arrays on LSF: each element is a job of its own, to all of ours."""

# ruff: noqa: F811 - fixtures are imported, and then arguments.

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import lsf_controls
import pytest
from lsf_site import LEAN, Host, Job
from lsf_tools import MakeSite, command
from site_of_test import wait_for
from test_lsf_suspendable import (  # noqa: F401 - a fixture
    COUNTER,
    Cluster,
    MakeCluster,
    controlled,
    make_cluster,
)
from test_lsf_ticket import TRAINER, Tickets, make_tickets, tickets  # noqa: F401 - fixtures
from written import whole_lines

from hpcext.batch import lsf
from hpcext.batch.lsf import jobs as lsf_jobs


def states(site: object, job: int) -> dict[int, str]:
    return {each.index: each.state for each in site.jobs() if each.id == job}  # type: ignore[attr-defined]


# The engine itself.


def test_elements_are_told_and_print_apart(make_site: MakeSite) -> None:
    """As a job's environment was recorded; %I and %J are of bsub(1), -o."""
    site = make_site()
    words = ("-K", "-J", "arr[1-5:2]", "-o", "out.%J.%I", "env | grep ^LSB_")
    assert command(site, "bsub", *words).returncode == 0
    for index in (1, 3, 5):
        text = (site.directory / f"out.1.{index}").read_text()
        said = dict(line.split("=", 1) for line in text.splitlines())
        assert (said["LSB_JOBID"], said["LSB_JOBINDEX"]) == ("1", str(index))
        assert (said["LSB_JOBINDEX_END"], said["LSB_JOBINDEX_STEP"]) == ("5", "2")
        assert said["LSB_JOBNAME"] == "arr[1-5:2]"
        assert said["LSB_OUTPUTFILE"] == f"out.1.{index}"
        assert said["LSB_JOBFILENAME"].endswith(f"/1.{index}")


@pytest.mark.parametrize("name", ["a[0-2]", "a[1,1]", "a[2-1]"])
def test_no_such_array(make_site: MakeSite, name: str) -> None:
    site = make_site()
    refused = command(site, "bsub", "-J", name, "true")
    assert refused.returncode == 255
    assert b"Bad job array index list" in refused.stderr


def test_commands_mean_all_elements_or_one(make_site: MakeSite) -> None:
    site = make_site(terminate_interval_s=0.2)
    command(
        site, "bsub", "-J", "arr[1-4]%2", "while ! test -e go.$LSB_JOBINDEX; do sleep 0.05; done"
    )

    def are(*wanted: str) -> bool:
        return list(states(site, 1).values()) == list(wanted)

    wait_for(lambda: are("RUN", "RUN", "PEND", "PEND"), "two elements at once")
    table = command(site, "bjobs", "-A").stdout.decode().splitlines()[1].split()
    assert table == ["1", "arr[1-4]", "user", "4", "2", "0", "2", "0", "0", "0", "0"]
    assert command(site, "bstop", "1[2]").returncode == 0
    assert are("RUN", "USUSP", "PEND", "PEND")
    command(site, "bresume", "1[2]")
    command(site, "bkill", "1[1]")
    wait_for(lambda: are("EXIT", "RUN", "RUN", "PEND"), "the third in place of the first")
    command(site, "brequeue", "1[2]")
    wait_for(lambda: site.job("1[2]").runs == 2 or site.job("1[4]").runs == 1, "another run")
    (site.directory / "go.3").touch()
    wait_for(lambda: site.job("1[3]").state == "DONE", "the end of the third")
    assert command(site, "bkill", "1").returncode == 0
    wait_for(lambda: all(job.over() for job in site.jobs()), "the end of all")
    assert states(site, 1) == {1: "EXIT", 2: "EXIT", 3: "DONE", 4: "EXIT"}
    assert command(site, "bkill", "1[9]").returncode == 255


def test_what_waits_for_elements(make_site: MakeSite) -> None:
    site = make_site()
    text = "while ! test -e go.$LSB_JOBINDEX; do sleep 0.05; done"
    command(site, "bsub", "-J", "first[1-2]", text)
    command(site, "bsub", "-J", "then[1-2]", "-w", "done(1[*])", "true")
    command(site, "bsub", "-w", "done(first)", "true")
    command(site, "bsub", "-w", "done(1[2]) && ended(2[2])", "true")
    assert command(site, "bsub", "-w", "done(99)", "true").returncode == 255
    assert command(site, "bsub", "-w", "numdone(1, >1)", "true").returncode == 255
    (site.directory / "go.2").touch()
    wait_for(lambda: states(site, 2) == {1: "PEND", 2: "DONE"}, "the second of the second array")
    wait_for(lambda: site.job(4).state == "DONE", "what waits for one element")
    assert site.job(3).state == "PEND"
    (site.directory / "go.1").touch()
    wait_for(lambda: site.job(3).state == "DONE", "what waits for all")


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    "quirks",
    [(), ("index_in_id",), ("none_fails", "empty_is_dash"), LEAN, (*LEAN, "no_json")],
    ids=["json", "index in id", "recorded", "lean", "tables"],
)
def test_states_of_elements(
    make_site: MakeSite, quirks: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each by its own name, whichever way the engine has; an array's number means all of them."""
    site = make_site(*quirks)
    monkeypatch.setenv("LSF_ENVDIR", str(site.directory))
    monkeypatch.setenv("PATH", f"{site.directory}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    command(site, "bsub", "-J", "a[2-3]", 'test "$LSB_JOBINDEX" = 3 || sleep 600')
    # A name may look as if it were that of an element.
    command(site, "bsub", "true [7]")
    wait_for(lambda: states(site, 1) == {2: "RUN", 3: "DONE"}, "the end of one element")
    wait_for(lambda: site.job(2).over(), "the end of the other job")
    asked = lsf.Commands().states(["1[2]", "1[3]", 2, "1[9]"])
    assert asked == {"1[2]": "running", "1[3]": "completed", 2: "completed"}
    assert lsf.Commands().end("1[2]").state == "running"
    assert lsf_jobs.ask(("jobid", "stat"), ["1[2]"]).keys() == {"1[2]"}


# Suspendable elements.


def elements(cluster: Cluster, *options: str) -> int:
    """An array of two suspendable counters, whose accounts and gates are their own."""
    counter = f"{sys.executable} {COUNTER} 40 0.02 5 --gate {cluster.gate}.$LSB_JOBINDEX"
    text = f"COUNTER_LOG={cluster.log}.$LSB_JOBINDEX exec {counter}"
    return cluster.submit("-J", "arr[1-2]", *options, text=text)


def done(cluster: Cluster, index: int) -> list[list[str]]:
    path = Path(f"{cluster.log}.{index}")
    return [line.split() for line in whole_lines(path)]


def at_gates(cluster: Cluster, attempts: dict[int, str]) -> None:
    def there() -> bool:
        last = {index: done(cluster, index)[-1:] for index in attempts}
        return all(line and line[0][1] == "39" for line in last.values()) and all(
            reported(cluster, index, attempt) for index, attempt in attempts.items()
        )

    wait_for(there, f"{attempts}: {cluster.output()}")


def reported(cluster: Cluster, index: int, attempt: str) -> bool:
    of = (cluster.top / "state" / "hpcext" / "suspendable").glob(f"*.{index}-*")
    return any(list(path.glob(f"jobs/1/attempt-*{attempt}/report.json")) for path in of)


def all_done(cluster: Cluster, job: int) -> None:
    for index in (1, 2):
        Path(f"{cluster.gate}.{index}").touch()
    wait_for(lambda: set(states(cluster.site, job).values()) == {"DONE"}, cluster.output())
    for index in (1, 2):
        assert [int(line[1]) for line in done(cluster, index)] == list(range(1, 41))


@pytest.mark.parametrize(
    ("quirks", "values"),
    [
        pytest.param((), (), id="brequeue"),
        pytest.param((), (85,), id="exit value", marks=pytest.mark.slow),
        pytest.param(LEAN, (), id="lean", marks=pytest.mark.slow),
    ],
)
def test_a_notice_to_one_element_is_its_own(
    make_cluster: MakeCluster, quirks: tuple[str, ...], values: tuple[int, ...]
) -> None:
    cluster = make_cluster(*quirks, queue={"requeue_exit_values": values}, pim_s=0.0)
    job = elements(cluster)
    at_gates(cluster, {1: "1", 2: "1"})
    assert cluster.run("bkill", "-s", "USR2", f"{job}[2]").returncode == 0
    wait_for(lambda: cluster.site.job(f"{job}[2]").runs == 2, "the second run of the second")
    at_gates(cluster, {2: "2"})
    all_done(cluster, job)
    assert [cluster.site.job(f"{job}[{index}]").runs for index in (1, 2)] == [1, 2]
    assert {line[0] for line in done(cluster, 1)} == {"1"}
    assert {line[0] for line in done(cluster, 2)} == {"1", "2"}
    # What a run that brequeue ends has printed at last is lost with it.
    assert not values or f"job {job}[2] is being requeued" in cluster.output()


@pytest.mark.slow
def test_a_requeued_element_goes_on_and_its_sibling_never_notices(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster(pim_s=0.0)
    job = elements(cluster)
    at_gates(cluster, {1: "1", 2: "1"})
    assert cluster.run("brequeue", f"{job}[1]").returncode == 0
    wait_for(lambda: cluster.site.job(f"{job}[1]").runs == 2, "the second run of the first")
    at_gates(cluster, {1: "2"})
    all_done(cluster, job)
    assert cluster.site.job(f"{job}[2]").runs == 1


@pytest.mark.slow
def test_a_lost_host_is_that_of_one_element(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(pim_s=0.0, host_lost_s=0.2)
    job = elements(cluster)
    at_gates(cluster, {1: "1", 2: "1"})
    lsf_controls.lose_host(cluster.site, f"{job}[2]")
    wait_for(lambda: cluster.site.job(f"{job}[2]").runs == 2, "the second run of the second")
    for index in (1, 2):
        Path(f"{cluster.gate}.{index}").touch()
    wait_for(lambda: set(states(cluster.site, job).values()) == {"DONE"}, cluster.output())
    assert cluster.site.job(f"{job}[1]").runs == 1
    assert sorted({int(line[1]) for line in done(cluster, 2)}) == list(range(1, 41))


@pytest.mark.slow
def test_a_stopped_element_leaves_its_host_and_commands_say_which(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    """hpcext-job-control finds the element's manager, and no other; all commands name it."""
    cluster = make_cluster(queue=controlled(tmp_path), hosts=(Host("host1", slots=2),), pim_s=0.0)
    job = elements(cluster)
    at_gates(cluster, {1: "1", 2: "1"})
    assert cluster.run("bstop", f"{job}[2]").returncode == 0
    wait_for(lambda: cluster.site.job(f"{job}[2]").state == "PSUSP", cluster.output())
    assert cluster.site.job(f"{job}[1]").state == "RUN"
    # Its host is free for others.
    assert cluster.run("bsub", "-K", "true").returncode == 0
    seen = {name: ours(cluster, *words) for name, words in COMMANDS.items()}
    assert f'bresume "{job}[2]"' in seen["status"]
    assert f"its job {job}[2] of LSF is held in the queue" in seen["why"]
    lines = {line.split()[1]: line for line in seen["list"].splitlines() if f"{job}[" in line}
    assert "running" in lines[f"{job}[1]"]
    assert "held (PSUSP)" in lines[f"{job}[2]"]
    assert cluster.run("bresume", f"{job}[2]").returncode == 0
    all_done(cluster, job)
    assert cluster.site.job(f"{job}[1]").runs == 1


COMMANDS = {"status": ("status", "job-1.2"), "why": ("why", "job-1.2"), "list": ("pilot", "list")}


def ours(cluster: Cluster, *words: str) -> str:
    """What a command of hpcext says on another host."""
    for path in (cluster.top / "state").glob("**/manager.json"):
        facts = json.loads(path.read_text())
        path.write_text(json.dumps({**facts, "boot_id": "another"}))
    environ = {**os.environ, **cluster.environ, "LSF_ENVDIR": str(cluster.site.directory)}
    ended = subprocess.run(
        [sys.executable, "-m", "hpcext", *words],
        env={**environ, "HPCEXT_BATCH": "lsf"},
        capture_output=True,
        text=True,
        check=False,
    )
    return ended.stdout + ended.stderr


@pytest.mark.slow
def test_what_waits_for_a_suspendable_element_waits_for_its_end(make_cluster: MakeCluster) -> None:
    """A job that goes back into the queue is no job that has ended."""
    cluster = make_cluster(pim_s=0.0)
    job = elements(cluster)
    later = cluster.submit("-J", "then[1-2]", "-w", f"ended({job}[*])", text="true", how=())
    at_gates(cluster, {1: "1", 2: "1"})
    cluster.run("bkill", "-s", "USR2", f"{job}[2]")
    wait_for(lambda: cluster.site.job(f"{job}[2]").runs == 2, "the second run of the second")
    assert states(cluster.site, later) == {1: "PEND", 2: "PEND"}
    all_done(cluster, job)
    wait_for(lambda: states(cluster.site, later) == {1: "DONE", 2: "DONE"}, "the second array")


# Tickets that are elements.


def counters(tickets: Tickets) -> Path:
    """Counts under the index of its element; its last step waits for a gate of its own."""
    log = tickets.path / "element"
    words = [sys.executable, str(COUNTER), "40", "0.05", "5"]
    return tickets.script(
        "element",
        f"COUNTER_LOG={log}.$LSB_JOBINDEX exec {shlex.join(words)} --gate {log}.$LSB_JOBINDEX.gate",
    )


def counted(tickets: Tickets, index: int) -> list[int]:
    path = tickets.path / f"element.{index}"
    return [int(line.split()[1]) for line in whole_lines(path)]


def element(tickets: Tickets, job: int, index: int) -> Job:
    return tickets.lsf.job(f"{job}[{index}]")


def submitted(tickets: Tickets) -> int:
    out = str(tickets.path / "out.%I")
    job = tickets.bsub(*TRAINER, "-J", "arr[1-2]", "-o", out, str(counters(tickets)))

    def there() -> bool:
        return all(counted(tickets, index)[-1:] == [39] for index in (1, 2))

    try:
        wait_for(there, "both trainers")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{tickets.said()}") from None
    return job


@pytest.mark.slow
def test_elements_are_tickets_of_trainers_of_their_own(tickets: Tickets) -> None:
    job = submitted(tickets)
    assert set(tickets.trainers()) == {f"arr-{job}_1", f"arr-{job}_2"}
    tickets.told("brequeue", f"{job}[2]")
    wait_for(lambda: element(tickets, job, 2).runs == 2, "the second run of the second")
    assert element(tickets, job, 1).runs == 1
    for index in (1, 2):
        (tickets.path / f"element.{index}.gate").touch()
    wait_for(lambda: all(element(tickets, job, each).over() for each in (1, 2)), tickets.said())
    assert set(states(tickets.lsf, job).values()) == {"DONE"}, tickets.said()
    for index in (1, 2):
        assert sorted(set(counted(tickets, index))) == list(range(1, 41))
        assert (tickets.path / f"out.{index}").exists()


@pytest.mark.slow
def test_a_killed_element_takes_its_own_trainer_with_it(tickets: Tickets) -> None:
    """LSF says EXIT of one element, and RUN of the other, under one number."""
    job = submitted(tickets)
    # The ticket that manages goes on: it is to find out.
    manager = str(json.loads((tickets.harvester / "manager.json").read_text())["batch_job"])
    gone = 2 if manager == f"{job}[1]" else 1
    tickets.told("bkill", f"{job}[{gone}]")
    wait_for(lambda: element(tickets, job, gone).state == "EXIT", "the end of one element")
    wait_for(lambda: tickets.state(f"arr-{job}_{gone}") == "cancelled", tickets.said())
    left = 3 - gone
    assert tickets.state(f"arr-{job}_{left}") == "running"
    (tickets.path / f"element.{left}.gate").touch()
    wait_for(lambda: element(tickets, job, left).state == "DONE", tickets.said())
    assert counted(tickets, left) == list(range(1, 41))
