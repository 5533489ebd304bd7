"""Our job control, on jobs that are not suspendable; and what elim.hpcext reports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from lsf_site import Queue, Site
from lsf_tools import SCRIPTS, MakeSite, command

from hpcext.admin import lsf
from hpcext.process import Process

CONTROL = SCRIPTS / "hpcext-job-control"
CONTROLS = {"SUSPEND": f"{CONTROL} suspend", "RESUME": f"{CONTROL} resume"}
PATIENCE_S = 60.0

# In a session of its own, as what torchrun starts.
ESCAPES = """
import os, pathlib, signal, subprocess, sys, time
if sys.argv[1:]:
    while not pathlib.Path("end").exists():
        pathlib.Path("alive").touch()
        time.sleep(0.02)
if os.environ.get("CATCH"):
    signal.signal(signal.SIGTSTP, lambda *_: pathlib.Path("told").touch())
subprocess.run([sys.executable, __file__, "below"], start_new_session=True)
"""


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def begun(site: Site, *options: str, **variables: str) -> int:
    program = site.directory / "escapes.py"
    program.write_text(ESCAPES)
    said = command(site, "bsub", *options, f"exec {sys.executable} {program}", **variables)
    assert said.returncode == 0, said
    wait_for((site.directory / "alive").exists, "that it runs")
    return int(said.stdout.split(b"<")[1].split(b">")[0])


def goes_on(site: Site) -> bool:
    alive = site.directory / "alive"
    alive.unlink(missing_ok=True)
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline and not alive.exists():
        time.sleep(0.02)
    return alive.exists()


@pytest.mark.cases(1)
@pytest.mark.parametrize("quirks", [(), ("leader_alone",)], ids=["", "leader alone"])
def test_all_that_a_job_has_started_stops_and_goes_on(
    make_site: MakeSite, quirks: list[str]
) -> None:
    site = make_site(*quirks, queues={"q": Queue(job_controls=CONTROLS)}, terminate_interval_s=1.0)
    job = begun(site)
    assert command(site, "bstop", str(job)).returncode == 0
    assert site.job(job).state == "USUSP"
    wait_for(lambda: not goes_on(site), "that all of it stops")
    command(site, "bresume", str(job))
    wait_for(lambda: goes_on(site), "that it goes on")
    command(site, "bkill", str(job))
    wait_for(lambda: site.job(job).state == "EXIT", "its end")
    (site.directory / "end").touch()


def test_a_parallel_job_gets_a_signal_that_it_can_catch(make_site: MakeSite) -> None:
    site = make_site(queues={"q": Queue(job_controls=CONTROLS)}, terminate_interval_s=1.0)
    job = begun(site, "-n", "2", CATCH="1")
    command(site, "bstop", str(job))
    wait_for((site.directory / "told").exists, "the signal")
    command(site, "bresume", str(job))
    command(site, "bkill", str(job))
    wait_for(lambda: site.job(job).state == "EXIT", "its end")
    (site.directory / "end").touch()


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    "manager",
    ["", "{}", '{"pid": 1}', '{"pid": 1, "start": 1, "boot_id": "another"}'],
    ids=["none", "empty", "half", "of another boot"],
)
def test_a_manager_that_is_gone_is_not_signalled(
    make_site: MakeSite, tmp_path: Path, manager: str
) -> None:
    """Its pid is that of another process by then."""
    site = make_site(queues={"q": Queue(job_controls=CONTROLS)}, terminate_interval_s=1.0)
    place = tmp_path / "state" / "hpcext" / "lsf" / "1.0"
    place.mkdir(parents=True)
    if manager:
        (place / "manager.json").write_text(manager + "\n")
    job = begun(site, XDG_STATE_HOME=str(tmp_path / "state"))
    command(site, "bstop", str(job))
    wait_for(lambda: not goes_on(site), "that all of it stops")
    assert not (place / "hold").exists()
    command(site, "bresume", str(job))
    command(site, "bkill", str(job))
    wait_for(lambda: site.job(job).state == "EXIT", "its end")
    (site.directory / "end").touch()


def impatient(directory: Path) -> Path:
    """Our job control as a site has it, which allows no lead worth its name."""
    text = lsf.script(CONTROL.name, Path("/bin/true"), 1)
    script = directory / CONTROL.name
    script.write_bytes(text.replace(b"\nGRACE_S=60", b"\nGRACE_S=1"))
    script.chmod(0o755)
    return script


def deaf_manager(path: Path) -> None:
    """This process says that it is the manager, and hears no signal."""
    me = Process.me()
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    path.write_text(json.dumps({"pid": me.pid, "start": me.start, "boot_id": boot_id}) + "\n")


def of_a_fifo(path: Path) -> None:
    os.mkfifo(path)


def without_end(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("manager", [deaf_manager, of_a_fifo, without_end])
def test_a_queue_waits_no_longer_than_its_site_allows(
    tmp_path: Path, manager: Callable[[Path], None]
) -> None:
    """Whatever a job says in its environment and in its user's files; then the job is stopped."""
    place = tmp_path / "state" / "hpcext" / "lsf" / "7.0"
    place.mkdir(parents=True)
    manager(place / "manager.json")
    before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    job = psutil.Popen(["sleep", "600"])
    environ = {
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "HPCEXT_LEAD_S": "99999",
        "LSB_JOBID": "7",
        "LSB_JOBPIDS": str(job.pid),
        "SECONDS": "-99999",
    }
    try:
        words = [impatient(tmp_path), "suspend"]
        ended = subprocess.run(words, env=environ, timeout=PATIENCE_S, check=False)
        assert ended.returncode == 0
        wait_for(lambda: job.status() == psutil.STATUS_STOPPED, "that it stops")
    finally:
        signal.signal(signal.SIGUSR2, before)
        job.kill()
        job.wait()


def elim_says(directory: Path, apps: str, head: str) -> bytes:
    """What elim.hpcext reports of GPUs a and b, where this is done to look at a process."""
    for name, body in {
        "nvidia-smi": f"case $1 in *gpu=*) printf '%s\\n' a b ;; *) printf '%s' '{apps}' ;; esac",
        "head": head,
    }.items():
        (directory / name).write_text(f"#!/bin/sh\n{body}\n")
        (directory / name).chmod(0o755)
    words = [SCRIPTS / "elim.hpcext", "600"]
    environ = {"PATH": f"{directory}:/usr/bin:/bin"}
    with subprocess.Popen(words, env=environ, stdout=subprocess.PIPE) as elim:
        assert elim.stdout is not None
        said = elim.stdout.readline()
        elim.kill()
    return said


def test_each_process_is_looked_at_once_and_not_without_end(tmp_path: Path) -> None:
    """Where one decides of a GPU, no other is looked at; a large environment is no hindrance."""
    many = {f"FILLING_{number}": "x" * 100_000 for number in range(8)}
    training = psutil.Popen(["sleep", "600"], env={**many, "HPCEXT_REPORT_DIR": "/somewhere"})
    other = psutil.Popen(["sleep", "600"])
    wait_for(lambda: all("sleep" in each.name() for each in (training, other)), "processes")
    ours, theirs = training.pid, other.pid
    apps = f"a, {ours}\na, {ours}\nb, {theirs}\nb, {ours}\nb, 1\nb, x/../1\n"
    try:
        log = f'echo "$*" >>{tmp_path}/looks; exec /usr/bin/head "$@"'
        assert elim_says(tmp_path, apps, log) == b"2 hpcext_free 0 hpcext_reclaim 1\n"
        looks = [f"-c 6291456 /proc/{pid}/environ" for pid in (ours, theirs)]
        assert (tmp_path / "looks").read_text().splitlines() == looks
        # As reading memory is that nobody serves.
        never = f"echo >>{tmp_path}/never; exec sleep 600"
        assert elim_says(tmp_path, apps, never) == b"2 hpcext_free 0 hpcext_reclaim 0\n"
    finally:
        for each in (training, other):
            each.kill()
            each.wait()


def test_gpus_of_a_host_as_load_indices(tmp_path: Path) -> None:
    """Four GPUs: nothing on a, a training on b, two trainings on c, one and another on d."""
    sleep = ["sleep", "600"]
    training = {**os.environ, "HPCEXT_REPORT_DIR": "/somewhere"}
    ours = [subprocess.Popen(sleep, env=training) for _ in range(2)]
    other = subprocess.Popen(sleep)
    wait_for(lambda: all("sleep" in _program(each) for each in [*ours, other]), "processes")
    first, second, third = ours[0].pid, ours[1].pid, other.pid
    apps = f"b, {first}\nc, {first}\nc, {second}\nd, {third}\nd, {first}\n"
    (tmp_path / "nvidia-smi").write_text(
        f"#!/bin/sh\ncase $1 in *gpu=*) printf '%s\\n' a b c d ;; *) printf '%s' '{apps}' ;; esac\n"
    )
    (tmp_path / "nvidia-smi").chmod(0o755)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    elim = subprocess.Popen([SCRIPTS / "elim.hpcext", "0"], env=environ, stdout=subprocess.PIPE)
    try:
        assert elim.stdout is not None
        for _ in range(2):
            assert elim.stdout.readline() == b"2 hpcext_free 1 hpcext_reclaim 2\n"
    finally:
        for each in (elim, *ours, other):
            each.kill()
            each.wait()


def _program(process: subprocess.Popen[bytes]) -> str:
    return os.readlink(f"/proc/{process.pid}/exe")


def test_a_host_without_gpus(tmp_path: Path) -> None:
    elim = subprocess.Popen(
        [SCRIPTS / "elim.hpcext", "600"], env={"PATH": "/usr/bin:/bin"}, stdout=subprocess.PIPE
    )
    try:
        assert elim.stdout is not None
        assert elim.stdout.readline() == b"2 hpcext_free 0 hpcext_reclaim 0\n"
    finally:
        elim.kill()
        elim.wait()
