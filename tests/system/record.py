"""Record what Slurm's commands print, for the tests of the parsers in ``tests/batch``.

``python tests/system/record.py`` starts a cluster and writes ``recorded/slurm-RELEASE``; after
``tests/system/in-release RELEASE`` it is that of another release.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from pathlib import Path

from slurm_cluster import REPOSITORY, Cluster, cluster

from hpcext.batch import slurm
from hpcext.batch.slurm import idle as slurm_idle
from hpcext.batch.slurm import site as slurm_site

PILOT = """#!/bin/sh
srun -N1 -n1 --mem=100 --exact --job-name=hpcext-1-1 sleep 600 &
sleep 2
srun -N1 -n1 --mem=100 --exact --job-name=hpcext-2-1 sleep 600 &
wait
"""

ASK_REST = """
import json, sys
from hpcext.batch.slurm import restd
daemon = restd.Restd(restd.find(), 60)
for version in restd.VERSIONS:
    for path in ("ping", *sys.argv[1:]):
        answer = daemon.get(f"/slurm/{version}/{path}")
        if answer.body.startswith(b"Unable"):
            break
        said = json.loads(answer.body)
        for job in said.get("jobs", ()):
            # Each core of each node.
            job.pop("job_resources", None)
        body = json.dumps(said, separators=(",", ":"))
        print(json.dumps([f"/slurm/{version}/{path}", answer.status, body]))
"""


def plain(one: Cluster, text: str) -> str:
    """Leave out what is of this machine itself: its release, paths and name."""
    text = re.sub(r"(OS=Linux) .*? (RealMemory)", r"\1 \2", text)
    text = re.sub(r'(operating_system\W+Linux) [^"\\]*', r"\1", text)
    text = text.replace(str(one.root), "/site")
    return re.sub(rf"\b{re.escape(socket.gethostname())}\b", "host", text)


def record(one: Cluster, where: Path) -> None:
    """Jobs 1 to 4: running in steps, pending, failed, cancelled; node n2 is drained."""
    where.mkdir(exist_ok=True)

    def say(name: str, argv: list[str], *, error: bool = False, **environ: str) -> None:
        ended = one.run(*argv, **environ)
        text = ended.stderr if error else ended.stdout
        (where / f"{name}.txt").write_text(plain(one, text))

    script = one.root / "pilot.sh"
    script.write_text(PILOT)
    one.run("scontrol", "update", "nodename=n2", "state=drain", "reason=test")
    wide = ["--nodelist=n1,n3", "--nodes=2", "--cpus-per-task=2", "--output=/dev/null"]
    say("sbatch-parsable", [*slurm.submit_command(wide), str(script)])
    for more in (["--begin=now+1days", "--wrap=true"], ["--wrap=false"], ["--wrap=sleep 600"]):
        one.run("sbatch", "--output=/dev/null", *more)
    one.wait_for(lambda: one.job(4)["JobState"] == "RUNNING", "job 4")
    one.run("scancel", "4")
    one.wait_for(lambda: one.job(3)["JobState"] == "FAILED", "job 3")
    one.wait_for(lambda: one.job(4)["JobState"] == "CANCELLED", "job 4's end")
    one.wait_for(lambda: "hpcext-2-1" in one.run(*slurm.steps_command(1)).stdout, "steps")
    jobs = [1, 2, 3, 4]
    accounting = slurm.accounting_command(jobs)
    one.wait_for(lambda: "CANCELLED" in one.run(*accounting).stdout, "accounting")
    say("sbatch-refused", ["sbatch", "--partition=nowhere", "--wrap=true"], error=True)
    say("scontrol-hostnames", slurm.hostnames_command("n[1-2,4]"))
    say("scontrol-nodes", slurm.hosts_command("n[1-2]"))
    say("scontrol-version", slurm.version_command())
    say("squeue-jobs", slurm.jobs_command(jobs))
    say("squeue-steps", slurm.steps_command(1))
    say("squeue-end", slurm.end_command(1), SLURM_TIME_FORMAT="%s")
    say("squeue-end-pending", slurm.end_command(2), SLURM_TIME_FORMAT="%s")
    say("squeue-unknown", slurm.jobs_command([99]), error=True)
    say("sacct-jobs", accounting)
    record_rest(one, where)
    record_idle(one, say)
    record_site(one, say)
    record_array(one, say)


def record_rest(one: Cluster, where: Path) -> None:
    """What slurmrestd answers of the same jobs, in each version of its interface that we read."""
    paths = [f"job/{job}" for job in (1, 2, 3, 4, 99)] + [
        f"node/{name}" for name in ("n1", "n2", "n9")
    ]
    asked = one.as_user(str(one.python), "-c", ASK_REST, *paths)
    (where / "slurmrestd.json").write_text(plain(one, asked.stdout))


def record_idle(one: Cluster, say: Callable[..., None]) -> None:
    """Job 1 runs on n1 and n3, n2 is drained; a job for n1 and n4 is planned, n4 is idle."""
    one.run("scontrol", "update", "job=1", "timelimit=10")
    more = ["--nodelist=n1,n4", "--exclusive", "--time=5", "--output=/dev/null", "--wrap=true"]
    one.run("sbatch", "--job-name=wide", *more)
    lease = ["--partition=harvest", "--job-name=hpcext-h", "--exclusive", "--output=/dev/null"]
    one.run("sbatch", *lease, "--nodelist=n4", "--time=3", "--comment=7", "--wrap=sleep 600")
    one.run("sbatch", *lease, "--nodelist=n4", "--time=600", "--comment=8", "--wrap=true")
    one.run("scancel", "7")
    for job in ("2", "5", "6"):
        one.wait_for(lambda job=job: one.job(job).get("StartTime", "Unknown") != "Unknown", job)
    one.wait_for(lambda: one.job(6)["JobState"] == "RUNNING", "job 6")
    held = slurm_idle.held_command("hpcext-h")
    say("squeue-held", held, SLURM_TIME_FORMAT="%s")
    named = "--job-name=hpcext-trainers-20261124-120000-ab12"
    one.run("scontrol", "update", "job=6", named.removeprefix("--job-"))
    one.run("sbatch", *lease, named, "--nodelist=n4", "--time=3", "--comment=9", "--wrap=sleep 600")
    one.run("scancel", "6")
    one.wait_for(lambda: one.job(8)["JobState"] == "RUNNING", "job 8")
    for comment, words in (("10", ["--nodelist=n4"]), ("11", [])):
        one.run("sbatch", *lease, named, *words, f"--comment={comment}", "--wrap=true")
    one.run("scancel", "9")
    one.run("sbatch", *lease, named, "--nodelist=n4", "--comment=12", "--wrap=true")
    say("squeue-others", slurm_idle.others_command("harvest"), SLURM_TIME_FORMAT="%s")
    one.run("scancel", "8", "10", "11")
    one.wait_for(lambda: "planned" in one.run(*slurm_idle.idle_command("harvest")).stdout, "a plan")
    say("sinfo-idle", slurm_idle.idle_command("harvest"))
    say("squeue-planned", slurm_idle.planned_command(), SLURM_TIME_FORMAT="%s")


def record_array(one: Cluster, say: Callable[..., None]) -> None:
    """Two tasks that have ended, two that run, two that wait."""
    wrap = '--wrap=test "$SLURM_ARRAY_TASK_ID" -lt 2 || sleep 600'
    said = one.run("sbatch", "--parsable", "--array=0-5%2", "--output=/dev/null", wrap).stdout
    array = int(said)
    for task, state in ((1, "COMPLETED"), (3, "RUNNING")):
        one.wait_for(lambda t=task, s=state: one.job(f"{array}_{t}")["JobState"] == s, state)
    say("squeue-array", slurm.jobs_command([array]))
    one.run("scancel", str(array))


def record_site(one: Cluster, say: Callable[..., None]) -> None:
    """How it is set up, and the controller's clock."""
    say("scontrol-config", slurm_site.config_command())
    say("scontrol-partitions", slurm_site.partitions_command())
    say("sinfo-members", slurm_site.members_command())
    say("sdiag", slurm_site.clock_command())


def main() -> None:
    """Record the release that is installed."""
    with cluster() as one:
        name = "slurm-{}.{:02}".format(*one.release)
        record(one, REPOSITORY / "tests" / "batch" / "recorded" / name)


if __name__ == "__main__":
    main()
