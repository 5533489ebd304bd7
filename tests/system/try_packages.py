"""Packages on a machine, and a real Slurm that has them: run in ``in-overlay`` by test_packages.py.

Usage: try_packages.py FILE... It ends with 0 if all was as it should be.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from slurm_cluster import Cluster, cluster

CONF = Path("/etc/slurm")
RPM = ("rpm", "--dbpath", "/var/lib/rpm-of-test", "--nodeps")
USR = ("--usr", "/usr")

JOBS = """
[[job]]
name = "a"
command = "sh -c 'exit 0'"

[[job]]
name = "b"
command = "sh -c 'exit 0'"
after = ["a"]
"""

SCRIPT = """#!/bin/sh
echo "gpus=$HPCEXT_GPUS suspendable=$HPCEXT_SUSPENDABLE"
cat /run/hpcext/$SLURM_JOB_ID/owner
readlink /proc/$PPID/exe; tr '\\0' ' ' </proc/$PPID/cmdline
"""


def run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout


def admin(one: Cluster, *words: str) -> tuple[int, dict[str, Any]]:
    # In a login shell as root has it, so that no Python of the tests is meant.
    done = one.run("hpcext-admin", *words, *USR, "--json", PATH="/usr/sbin:/usr/bin", PYTHONPATH="")
    return done.returncode, json.loads(done.stdout)


def follow(edits: list[dict[str, Any]]) -> None:
    """Do what the administrator is told."""
    for edit in edits:
        assert not edit["first"]
        text = "".join(f"{line}\n" for line in edit["diff"])
        words = ("patch", "-p1", "-d", "/")
        subprocess.run(words, input=text, text=True, check=True, capture_output=True)


def as_user(one: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    return one.as_user(*words, PATH="/usr/bin:/bin", PYTHONPATH="", LD_LIBRARY_PATH="")


def a_file_of_jobs_runs(one: Cluster) -> None:
    (one.home / "jobs.toml").write_text(JOBS)
    said = as_user(one, "hpcext", "run", "jobs.toml", "--gpus", "2", "--json")
    assert said.returncode == 0, said
    assert '"completed"' in said.stdout


def a_suspendable_job_runs(one: Cluster) -> None:
    script = one.home / "job.sh"
    script.write_text(SCRIPT)
    words = ("--hpcext-suspendable=60", "--hpcext-gpus=2", "--output=out", str(script))
    said = as_user(one, "sbatch", "--parsable", *words)
    assert said.returncode == 0, said
    job = said.stdout.strip()
    over = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"}
    one.wait_for(lambda: one.job(job)["JobState"] in over, "the end of the job")
    out = (one.home / "out").read_text()
    assert one.job(job)["JobState"] == "COMPLETED", out
    assert one.job(job)["Requeue"] == "1"  # a rule in Lua
    assert one.job(job)["TresPerNode"].endswith("gpu:2")
    assert "gpus=2 suspendable=1" in out, out
    # The packages' supervisor is above the script, by the distribution's Python.
    assert "/usr/lib/hpcext/lib/python3" in out, out
    assert run("id", "-u", one.user).strip() in out.splitlines(), out
    one.wait_for(lambda: not Path(f"/run/hpcext/{job}").exists(), "the epilog")


def main(files: list[str]) -> None:
    kind = Path(files[0]).suffix[1:]
    assert not Path("/usr/lib/hpcext").exists()
    run("dpkg", "--install", *files) if kind == "deb" else run(*RPM, "--install", *files)
    with cluster() as one:
        # The site's files are at the packages' place, /etc/slurm: in this mount namespace alone.
        etc = one.root / "etc"
        for folder in ("plugstack.conf.d", "prolog.d", "epilog.d"):
            shutil.copytree(CONF / folder, etc / folder)
        run("mount", "--bind", str(etc), str(CONF))
        try_on(one, kind)
        run("umount", str(CONF))


def try_on(one: Cluster, kind: str) -> None:
    code, found = admin(one, "status", "slurm")
    assert (code, found["whole"], found["runs"]) == (1, True, found["built_for"]), found
    assert {each["state"] for each in found["files"]} == {"whole"}
    a_file_of_jobs_runs(one)
    follow(found["left"])
    one.stop_ctld()
    one.start_ctld()
    one.run("scontrol", "reconfigure")
    code, found = admin(one, "status", "slurm")
    assert (code, found["left"], found["daemons"]) == (0, [], []), found
    a_suspendable_job_runs(one)

    code, said = admin(one, "uninstall", "slurm", "--dry-run")
    assert code == 2, said
    if kind == "deb":
        # Removed by somebody who has not read a word: what is in /etc stays, and jobs run.
        run("dpkg", "--remove", "hpcext-slurm")
        assert as_user(one, "srun", "true").returncode == 0
    follow(said["left"])
    one.run("scontrol", "reconfigure")
    run("dpkg", "--purge", "hpcext-slurm") if kind == "deb" else run(
        *RPM, "--erase", "hpcext-slurm"
    )
    assert as_user(one, "srun", "true").returncode == 0
    assert not Path("/usr/lib/hpcext/slurm").exists()
    assert not list(CONF.glob("prolog.d/*"))


if __name__ == "__main__":
    main(sys.argv[1:])
