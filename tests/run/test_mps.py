"""Jobs that share a GPU through MPS, with NVIDIA's programs faked: what they do is in ``fakes``.

The daemon keeps the account: a client that ends while its GPU has work is a line FAULT in it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import psutil
import pytest
from site_of_test import Site, wait_for
from written import whole_lines

from hpcext.cli.top import view as top_view
from hpcext.executors.gpu_facts import GpuFacts
from hpcext.manager.views import reading

NVIDIA = Path(__file__).parents[1] / "fakes" / "nvidia"


@pytest.fixture
def shared(site: Site) -> Site:
    """A machine of two GPUs."""
    paths = [str(NVIDIA), *filter(None, [os.environ.get("PYTHONPATH")])]
    site.environ |= {
        "FAKE_GPUS": "2",
        "PATH": f"{NVIDIA}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(paths),
    }
    return site


def client(site: Site, name: str, **more: Any) -> dict[str, Any]:
    """A counting job that uses its GPU all the time."""
    job = site.counter(name, **{"gpus": 1, "mps": True, "steps": 40, "gated": True, **more})
    job["command"].insert(1, str(NVIDIA / "client.py"))
    job["env"]["CLIENT_LOG"] = str(site.path / f"{name}.environ")
    return job


def told(site: Site, name: str) -> list[list[str]]:
    """What the processes of a job were told of GPUs, attempt by attempt."""
    path = site.path / f"{name}.environ"
    return [line.split() for line in whole_lines(path)]


def account(site: Site) -> list[str]:
    """What the daemon of GPU 1 says happened."""
    path = site.pilot / "mps-1" / "log" / "mps.log"
    return whole_lines(path)


def daemons(site: Site) -> list[psutil.Process]:
    """Those of this site that run; not who asks one something just now."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if words[-1:] == ["-d"] and words[-2].endswith("nvidia-cuda-mps-control"):
            environ = process.environ() if process.is_running() else {}
            if environ.get("CUDA_MPS_LOG_DIRECTORY", "").startswith(str(site.path)):
                found.append(process)
    return found


def on(site: Site, name: str) -> list[str]:
    """The GPUs that a job has."""
    document = site.document("status", str(site.pilot), name)
    jobs = document.get("jobs", [])
    running = jobs and jobs[0]["state"] == "running"
    return jobs[0]["segments"][-1]["gpus"] if running else []


def begin(site: Site, *more: str) -> None:
    site.start("run", str(site.jobs), "--gpus", "2", "--dir", str(site.pilot), *more)


def check_shown(site: Site) -> None:
    """One machine of two GPUs, of which one is shared: so it is counted and drawn."""
    (pilot,) = site.document("dashboard", str(site.pilot))["pilots"]
    nodes = {node["name"].partition("/")[2]: node for node in pilot["nodes"]}
    drawn = {name: [gpu["name"] for gpu in node["gpus"]] for name, node in nodes.items()}
    short = {name: [gpu.rpartition(":")[2] for gpu in gpus] for name, gpus in drawn.items()}
    assert short == {"": ["0"], "mps": ["1a", "1b"]}
    use = {"1": GpuFacts(1, "NVIDIA Fake", 0.5)}
    rows = {row[0]: row for row in top_view.node_rows(reading.read(site.pilot), use).values()}
    assert [rows[node["name"]][1:4] for node in nodes.values()] == [
        ("1/1", "1", ""), ("2/2", "2 3", "50%"),
    ]  # fmt: skip
    told = site.path / "hpcext.prom"
    assert site.run("metrics", "--textfile", str(told)).code == 0
    text = told.read_text()
    for name, value in {"nodes": 1, "gpus": 2, "gpus_held": 2}.items():
        assert re.search(rf"^hpcext_{name}{{.*}} {value}.0$", text, re.MULTILINE), (name, text)


def test_secondaries_share_a_gpu_and_leave_it_in_order(shared: Site) -> None:
    """One has a GPU, two share the other, the fourth waits; one is cancelled, one is promoted."""
    shared.write_jobs(
        shared.counter("main", gated=True),
        *(client(shared, name) for name in ("first", "second", "third")),
    )
    begin(shared, "--mps", "2")
    clients = ("first", "second")
    wait_for(lambda: all(len(told(shared, name)) == 1 for name in clients), "two clients")
    (first,), (second,) = told(shared, "first"), told(shared, "second")
    # NVIDIA's page: by UUID, and twice the even share of the processors; half of 80 GiB.
    assert first == second
    assert first[0] == "GPU-0001"
    assert first[2:] == ["100", "0=40960M"]
    seats = {
        wait_for(lambda name=name: on(shared, name), "a seat")[0].rpartition("/")[2]
        for name in clients
    }
    assert seats == {"mps:1a", "mps:1b"}
    assert not told(shared, "third")
    (daemon,) = daemons(shared)
    # Its time is not that of the job that it began with, nor are its signals.
    assert account(shared)[0] == "start GPU-0001 blocks 0 told []"

    check_shown(shared)

    victim = wait_for(lambda: shared.steps("first"), "a step")[0].pid
    shared.run_until_done("cancel", str(shared.pilot), "first")
    wait_for(lambda: len(told(shared, "third")) == 1, "the next one in the free seat")
    before = account(shared)
    assert before.index(f"terminate_client {victim}") < before.index(f"left {victim}")

    shared.open("main")
    wait_for(lambda: len(told(shared, "second")) == 2, "a promotion")
    assert told(shared, "second")[1] == ["0", "-", "-", "-"]
    assert daemons(shared) == [daemon]
    document = shared.document("status", str(shared.pilot))
    roles = {job["name"]: [part["role"] for part in job["segments"]] for job in document["jobs"]}
    assert roles["second"] == ["secondary", "primary"]
    for name in ("second", "third"):
        shared.open(name)
    manager = shared.started[0]
    assert manager.wait(120) == 1, "one was cancelled"
    assert {name: shared.steps(name)[-1].step for name in ("main", "second", "third")} == {
        "main": 40,
        "second": 40,
        "third": 40,
    }
    document = shared.document("status", str(shared.pilot))
    assert sum(job["lost_steps"] for job in document["jobs"]) == 0
    assert account(shared)[-1] == "quit with 0 clients"
    assert not [line for line in account(shared) if line.startswith("FAULT")]
    assert not daemons(shared)
    assert not shared.left_behind()
    spent = shared.document("report", str(shared.pilot))["pilots"][0]
    hours = {job["name"]: job["held_gpu_h"] for job in spent["jobs"]}
    ran = {job["name"]: job["segments"] for job in document["jobs"]}
    seconds = [part["end_s"] - part["start_s"] for part in ran["third"]]
    assert hours["third"] * 3600 <= 0.5 * sum(seconds) + 1, "a seat is half a GPU"


def test_a_manager_that_dies_leaves_its_clients_alone(shared: Site) -> None:
    names = ("first", "second")
    shared.write_jobs(shared.counter("main", gated=True), *(client(shared, name) for name in names))
    begin(shared, "--mps", "2")
    wait_for(lambda: all(shared.steps(name) for name in names), "a step of each")
    shared.started[0].kill()
    shared.started[0].wait()
    (daemon,) = daemons(shared)
    for name in ("main", *names):
        shared.open(name)
    finished = shared.run("run", "--resume", str(shared.pilot))
    assert finished.code == 0, finished
    assert "FAULT" not in " ".join(account(shared))
    assert account(shared)[-1] == "quit with 0 clients"
    wait_for(lambda: not daemon.is_running(), "the end of the daemon")


def test_the_only_gpu_may_be_shared(shared: Site) -> None:
    shared.environ["FAKE_GPUS"] = "1"
    shared.write_jobs(*(client(shared, name, gated=False) for name in "abc"))
    plan = shared.document("run", str(shared.jobs), "--mps", "2", "--dry-run")
    assert [sum(job["gpus"].values()) for job in plan["jobs"]] == [1, 1, 0]
    assert plan["gpus"] == 1
    document = shared.document("run", str(shared.jobs), "--mps", "2", "--dir", str(shared.pilot))
    assert {job["state"] for job in document["jobs"]} == {"completed"}
    assert document["gpu_busy_fraction"] <= 1
    log = (shared.pilot / "mps-0" / "log" / "mps.log").read_text()
    assert log.splitlines()[-1] == "quit with 0 clients"
    assert "FAULT" not in log
    finished = shared.run("trace", "pilot", str(shared.pilot), "-o", "x.json")
    assert finished.code == 2
    assert "jobs shared a GPU" in finished.err
    report = shared.run("report", str(shared.pilot), "--saved")
    assert (report.code, report.err) == (0, "")
    assert "jobs shared a GPU" in report.out


REFUSED = {
    "one seat": (["--mps", "1"], {}, "--mps: '1' (valid: 2 to 16 seats)"),
    "no number": (["--mps", "two"], {}, "--mps: 'two' (valid: 2 to 16 seats)"),
    "no GPU": (["--mps", "2"], {"FAKE_GPUS": ""}, "logical slots cannot be shared"),
    "MIG": (["--mps", "2"], {"FAKE_MIG": "1"}, "GPU 1 is in MIG mode"),
    "an old GPU": (["--mps", "2"], {"FAKE_CAPABILITY": "6"}, "GPU 1 is older than Volta"),
    "no daemon": (["--mps", "2"], {"PATH": "/nonexistent"}, "nvidia-cuda-mps-control is not in"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_jobs_that_cannot_share_a_gpu_are_refused(shared: Site, name: str) -> None:
    words, environ, said = REFUSED[name]
    shared.environ |= environ
    shared.write_jobs(shared.counter("main"))
    finished = shared.run("run", str(shared.jobs), "--gpus", "2", *words)
    assert finished.code == 2, finished
    assert said in finished.err
    assert finished.err.count("\n") == 1


def test_a_job_that_needs_a_gpu_of_its_own_is_refused_where_there_is_none(shared: Site) -> None:
    shared.environ["FAKE_GPUS"] = "1"
    shared.write_jobs(shared.counter("main"))
    finished = shared.run("run", str(shared.jobs), "--mps", "2")
    assert finished.code == 2
    assert "[[job]] 1 (main): mps" in finished.err


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_a_job_that_needs_more_memory_than_a_seat_has_is_refused(
    shared: Site, more: tuple[str, ...]
) -> None:
    shared.write_jobs(client(shared, "small"), client(shared, "large", mem_per_gpu="41G"))
    finished = shared.run("run", str(shared.jobs), "--mps", "2", *more)
    assert finished.code == 2
    assert "[[job]] 2 (large): mem_per_gpu: needs 44023414784 bytes of a GPU" in finished.err


def put_in_path(site: Site, script: str) -> None:
    """Have another program be the daemon's."""
    program = site.path / "bin" / "nvidia-cuda-mps-control"
    program.parent.mkdir()
    program.write_text(script)
    program.chmod(0o755)
    site.environ["PATH"] = f"{program.parent}{os.pathsep}{os.environ['PATH']}"


def test_a_daemon_that_does_not_start_is_not_the_jobs_fault(shared: Site) -> None:
    """It may not be tried again, and goes on as soon as there is a daemon."""
    put_in_path(shared, "#!/bin/sh\necho it has no permission to create its pipes\nexit 1\n")
    shared.environ["FAKE_GPUS"] = "1"
    shared.write_jobs(client(shared, "first", retries=0, gated=False))
    manager = shared.start("run", str(shared.jobs), "--mps", "2", "--dir", str(shared.pilot))

    def said() -> str:
        return shared.run("why", str(shared.pilot), "first").out

    wait_for(lambda: "could not be started" in said(), "the reason")
    assert "no permission to create its pipes" in said()
    program = shared.path / "bin" / "nvidia-cuda-mps-control"
    program.unlink()
    program.symlink_to(NVIDIA / program.name)
    assert manager.wait(120) == 0
    assert shared.steps("first")[-1].step == 40
