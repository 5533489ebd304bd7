"""hpcext-admin accept: the suite for any site, on the LSF of the tests, as one was recorded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import lsf_run
import pytest
from lsf_site import RECORDED, Host, Queue
from lsf_tools import MakeSite, put_in_place
from site_of_test import Site, wait_for

from hpcext.acceptance import keeper

ADMIN = ("-c", "import sys; from hpcext.__main__ import admin; sys.exit(admin())")
KNOWN_S = 5.0
"""So old is a job whose processes the engine knows; a real one takes half a minute."""

OFTEN = "requeue,preemption,lease,pilot"
ALL = f"{OFTEN},time limit,migrate,notice,stop,kill,suspend,flags,silence,array"

WITH_OLD = frozenset({"requeue", "migrate", "notice", "stop", "kill"})
"""Scenarios that a job goes through a second time, when LSF knows its processes."""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "only", [OFTEN, pytest.param(ALL, marks=pytest.mark.slow)], ids=["often", "all"]
)
def test_what_may_befall_a_job(make_site: MakeSite, tmp_path: Path, only: str) -> None:
    starter = put_in_place(tmp_path / "lsf")
    control = starter.with_name("hpcext-job-control")
    training = Queue(
        priority=20,
        job_starter=f"command . {starter}; %USRCMD",
        job_controls={"SUSPEND": f"{control} suspend", "RESUME": f"{control} resume"},
        requeue_exit_values=(85,),
        max_job_requeue=10,
        rerunnable=True,
        preemption="PREEMPTABLE[normal]",
    )
    lsf = make_site(
        *RECORDED,
        hosts=tuple(Host(name, 8, 2) for name in ("h1", "h2", "h3")),
        queues={"training": training, "normal": Queue(priority=40, preemptive=True)},
        pim_s=KNOWN_S,
    )
    environ = {key: value for key, value in os.environ.items() if "SLURM" not in key}
    environ["PYTHONPATH"] = str(Path(__file__).parents[2])
    environ |= {"LSF_ENVDIR": str(lsf.directory), "PATH": f"{lsf.directory}:{os.environ['PATH']}"}
    place = Site(tmp_path, python=sys.executable, environ=environ)
    words = ("--partition", "training", "--above", "normal", "--age", "8", "--silence", "20")
    finished = place.run(
        "accept", "lsf", "--json", "--only", only, *words, python=ADMIN, timeout_s=900
    )
    said = json.loads(finished.out)
    verdicts = {each["name"]: each["verdict"] for each in said["scenarios"]}
    assert set(verdicts.values()) == {"passed"}, json.dumps(said, indent=1)
    names = {name.partition(",")[0] for name in verdicts}
    assert names == {*only.split(","), "removal"}
    assert {f"{name}, old job" for name in WITH_OLD.intersection(only.split(","))} < {*verdicts}
    assert (finished.code, said["accepted"]) == (0, True)
    assert all(job.state in lsf_run.ENDED for job in lsf.jobs())
    assert not list((tmp_path / "state" / "hpcext").glob("hpcext-accept-*"))


def test_files_that_cannot_be_removed_are_named(
    make_site: MakeSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job of the run that does not end, one of others, and one whose id was not written down."""
    lsf = make_site(*RECORDED)
    monkeypatch.setenv("LSF_ENVDIR", str(lsf.directory))
    monkeypatch.setenv("PATH", f"{lsf.directory}:{os.environ['PATH']}")
    bkill, kept = lsf.directory / "bkill", lsf.directory / "kept"
    jobs = []
    for name in ("known", "named", "other"):
        said = subprocess.run(
            ["bsub", "-J", name, "sleep 600"], capture_output=True, text=True, check=True
        )
        jobs.append(int(said.stdout.split("<")[1].split(">")[0]))
    wait_for(lambda: {job.state for job in lsf.jobs()} == {"RUN"}, "all jobs")

    def made() -> Path:
        directory = tmp_path / "made"
        directory.mkdir()
        keeper.note(directory, keeper.JOB, jobs[0])
        keeper.note(directory, keeper.NAME, "named")
        return directory

    bkill.rename(kept)
    bkill.symlink_to("/bin/true")
    monkeypatch.setattr(keeper, "END_S", 0.0)
    left = keeper.remove(keeper.system_of("lsf"), made())
    assert left == [f"job {job} is running" for job in jobs[:2]]
    bkill.unlink()
    kept.rename(bkill)
    monkeypatch.setattr(keeper, "END_S", 120.0)
    assert keeper.remove(keeper.system_of("lsf"), made()) == []
    states = [lsf.job(job).state for job in jobs]
    assert states == ["EXIT", "EXIT", "RUN"]
    assert not (tmp_path / "made").exists()
