"""The launchers of the contract engine, and what it says of jobs and hosts."""

from __future__ import annotations

import json
import os
from typing import Any

import lsf_site
import pytest
from lsf_tools import MakeSite, command, output
from site_of_test import wait_for

from hpcext.process import Process

HOSTS = (lsf_site.Host("a", 4, 4), lsf_site.Host("b", 4, 4))
BOTH = ("-n", "8", "-gpu", "num=4/host")


def lines(site: lsf_site.Site, *words: str) -> list[str]:
    return sorted(output(site, *words).decode().splitlines())


@pytest.fixture
def hosts(make_site: MakeSite) -> lsf_site.Site:
    return make_site(hosts=HOSTS, terminate_interval_s=0.1)


def script(site: lsf_site.Site, *text: str) -> str:
    """A script that finds the engine's commands, as jobs on a site do."""
    path = site.directory / "script"
    path.write_text("\n".join((f"#!/bin/sh\nPATH={site.directory}:$PATH", *text, "")))
    path.chmod(0o755)
    return str(path)


SHOW = "sh -c 'echo $LSF_TASK_HOST $CUDA_VISIBLE_DEVICES'"


def test_blaunch_runs_on_each_host_with_its_gpus(hosts: lsf_site.Site) -> None:
    one = ("-n", "1", "-gpu", "num=2", "sleep 600")
    assert command(hosts, "bsub", *one).returncode == 0
    wait_for(lambda: hosts.jobs()[0].state == "RUN", "the first job")
    shape = ("-n", "4", "-R", "span[ptile=2]", "-gpu", "num=2/host")
    said = lines(hosts, *shape, script(hosts, f'blaunch -z "a b" {SHOW}', f"blaunch b {SHOW}"))
    assert said == ["a 2,3", "b 0,1", "b 0,1"]
    command(hosts, "bkill", "1")


def test_blaunch_goes_to_hosts_of_its_job_alone(hosts: lsf_site.Site) -> None:
    path = script(hosts, "blaunch b true 2>&1; echo $?", "blaunch c true 2>&1; echo $?")
    said = output(hosts, "-n", "4", path).decode().splitlines()
    assert said == ["b: not a host of job 1", "255", "c: not a host of job 1", "255"]
    assert command(hosts, "blaunch", "a", "true").stderr == b"not inside a job\n"


def test_what_blaunch_started_outlives_it_and_ends_with_the_job(hosts: lsf_site.Site) -> None:
    pid_file = hosts.directory / "pid"
    task = f"sh -c 'echo $$ >{pid_file}.new; mv {pid_file}.new {pid_file}; exec sleep 600'"
    path = script(
        hosts,
        f"blaunch a {task} &",
        "launcher=$!",
        f"until [ -e {pid_file} ]; do sleep 0.1; done",
        "kill -9 $launcher; sleep 0.5",
        f"kill -0 $(cat {pid_file}) && echo goes on",
    )
    assert output(hosts, path) == b"goes on\n"
    assert Process.of(int(pid_file.read_text())) is None


def test_jsrun_shares_resource_sets_out(hosts: lsf_site.Site) -> None:
    said = lines(hosts, *BOTH, script(hosts, f"jsrun -n 3 -a 1 -c 2 -g 2 -r 2 {SHOW}"))
    assert said == ["a 0,1", "a 2,3", "b 0,1"]


def test_jsrun_follows_a_resource_file(hosts: lsf_site.Site) -> None:
    erf = hosts.directory / "erf"
    erf.write_text(
        "overlapping_rs: allow\ncpu_index_using: logical\n"
        "rank: 0: { hostname: b; cpu: {0-3} ; gpu: {1,3} ; mem: * }\n"
    )
    path = script(hosts, f"jsrun --erf_input {erf} {SHOW}; jsrun --erf_input={erf} sh -c 'exit 3'")
    assert command(hosts, "bsub", "-K", "-o", "out", *BOTH, path).returncode == 3
    assert (hosts.directory / "out").read_text() == "b 1,3\n"


def said_of(site: lsf_site.Site, *words: str) -> list[dict[str, Any]]:
    ended = command(site, *words)
    assert ended.returncode == 0, ended
    return list(json.loads(ended.stdout)["RECORDS"])


ASK = ("bjobs", "-a", "-o", "jobid stat run_time runtimelimit time_left", "-json")


@pytest.mark.parametrize("quirk", [None, "times_in_hms", "empty_is_dash"])
def test_times_of_a_job(make_site: MakeSite, quirk: str | None) -> None:
    site = make_site(*filter(None, [quirk]), hosts=HOSTS, terminate_interval_s=0.1)
    command(site, "bsub", "-W", "1:00", "sleep 600")
    command(site, "bsub", "sleep 600")
    wait_for(lambda: all(job.state == "RUN" for job in site.jobs()), "both jobs")
    limited, free = said_of(site, *ASK)
    hms = quirk == "times_in_hms"
    assert limited["RUNTIMELIMIT"] == ("01:00:00" if hms else "60.000")
    assert limited["RUN_TIME"].endswith(" second(s)") != hms
    assert limited["TIME_LEFT"].endswith(" L")
    assert free["TIME_LEFT"] == free["RUNTIMELIMIT"] == ("-" if quirk == "empty_is_dash" else "")
    for job in site.jobs():
        command(site, "bkill", str(job.id))


def test_an_unknown_job(make_site: MakeSite) -> None:
    (record,) = said_of(make_site(), *ASK, "7")
    assert record == {"JOBID": "7", "ERROR": "Job <7> is not found"}
    other = make_site("forgotten_fails", name="other")
    assert command(other, *ASK, "7").returncode == 255


def test_a_host_that_is_down(hosts: lsf_site.Site) -> None:
    down = hosts.directory / "down"
    down.write_text("b")
    # For so long that its cluster knows it.
    os.utime(down, (0, 0))
    found = said_of(hosts, "bhosts", "-o", "host_name status", "-json", "a", "b")
    assert [row["STATUS"] for row in found] == ["ok", "unavail"]
    path = script(hosts, "blaunch b true; echo $?")
    assert output(hosts, *BOTH, path).decode().splitlines()[-1] == "255"


def test_gpus_may_not_be_told_on_other_hosts(make_site: MakeSite) -> None:
    site = make_site("blaunch_hides_gpus", hosts=HOSTS)
    path = script(site, f"CUDA_VISIBLE_DEVICES= blaunch b {SHOW}")
    assert lines(site, *BOTH, path) == ["b"]
