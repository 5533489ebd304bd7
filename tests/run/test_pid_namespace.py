"""A training whose pid is another one than outside, as in a container of ``apptainer --pid``."""

from __future__ import annotations

import psutil
from site_of_test import Site, wait_for

CONTAINER = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc")


def test_in_a_pid_namespace_of_its_own_it_is_suspended_resumed_and_cancelled(site: Site) -> None:
    job = site.counter("only", gated=True)
    job["command"] = [*CONTAINER, *job["command"]]
    endless = {"name": "endless", "command": [*CONTAINER, "sleep", "1000"]}
    site.write_jobs(job, endless)
    manager = site.start("run", str(site.jobs), "--gpus", "2", "--name", "p")
    wait_for(lambda: [step.step for step in site.steps("only")][-1:] == [39], "all but the last")
    assert site.steps("only")[-1].pid == 1
    site.run_until_done("suspend", "p", "only")
    wait_for(lambda: "is suspended" in site.run("why", "p", "only").out, "the suspension")
    assert site.run("resume", "p", "only").code == 0
    (sleep,) = [each for each in site.left_behind() if each.name() == "sleep"]
    assert site.run("cancel", "p", "endless").code == 0
    wait_for(
        lambda: not sleep.is_running() or sleep.status() == psutil.STATUS_ZOMBIE, "the end of it"
    )
    site.open("only")
    out, err = manager.communicate(timeout=500)
    assert manager.returncode == 1, (out, err)
    jobs = {each["name"]: each for each in site.document("status", "p")["jobs"]}
    only = jobs["only"]
    assert (only["state"], only["suspends"], only["lost_steps"]) == ("completed", 1, 0)
    assert jobs["endless"]["state"] == "cancelled"
    site.check_account({"only": 40})
