"""Contract engine of LSF, after recordings of a real engine: its jobs as tables."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import lsf_arrays
from lsf_site import ENDED, Job, RefusedError, Site

FEW_FIELDS = (
    "jobid", "user", "stat", "queue", "from_host", "exec_host", "job_name", "submit_time",
    "proj_name", "cpu_used", "mem", "swap", "pids", "start_time", "finish_time", "exit_code",
    "jobindex", "max_mem", "avg_mem",
)  # fmt: skip
"""Those of bjobs -o in volclava 2.2 (lsbatch/cmd/bjobs.c); it ends with 99 at another one."""

NO_FIELD = 99

LACKS = {
    "bsub": {"-Q", "-cwd", "-gpu", "-rn", "-wa", "-wt", "-env", "-nnodes"},
    "bhosts": {"-X", "-o", "-json", "-gpu"},
    "bparams": {"-a"},
}
"""What that engine's commands have not."""


def refused_field(fields: Sequence[str]) -> str:
    """What it says of the first field that it has not; empty if it has all."""
    unknown = [name for name in fields if name not in FEW_FIELDS]
    said = "in the format string is not a valid field name."
    return f"<{unknown[0].upper()}> {said}" if unknown else ""


def wide(site: Site, jobs: Sequence[Job]) -> Iterator[str]:
    """``bjobs -w``, of some jobs."""
    yield "JOBID   USER    STAT  QUEUE      FROM_HOST   EXEC_HOST   JOB_NAME   SUBMIT_TIME"
    for job in jobs:
        hosts = ":".join(job.slot_hosts()) if job.hosts else "   -    "
        yield (
            f"{site.shown(job):<7} {job.user:<7} {job.state:<5} {job.queue:<10} {'p0':<11} "
            f"{hosts:<11} {job.name:<10} Nov 24 00:24"
        )


def long(site: Site, jobs: Sequence[Job]) -> Iterator[str]:
    """``bjobs -l``, of some jobs."""
    for number, job in enumerate(jobs):
        if number:
            yield "-" * 78
        yield from _block(site, job)
    yield ""


def _block(site: Site, job: Job) -> Iterator[str]:
    named = f", Job Description <{job.description}>" if job.description else ""
    yield (
        f"\nJob <{job.key}>, Job Name <{job.name}>, User <{job.user}>, Project <default>, "
        f"Status <{job.state}>, Queue <{job.queue}>, Command <{job.text}>{named}"
    )
    # Nothing is asked of when a job was submitted.
    submitted = _clock(job.started_at or time.time())
    many = f", {job.slots} Processors Requested" if job.slots > 1 else ""
    yield f"{submitted}: Submitted from host <p0>, CWD <$HOME>, Output File <{job.output}>{many};"
    if job.run_limit:
        yield f"\n RUNLIMIT                \n {job.run_limit * site.minute_s / 60:.3f} min "
    if job.state == "PEND":
        yield " PENDING REASONS:\n Job slot limit reached: 2 hosts;"
    elif job.hosts and job.started_at:
        hosts = job.slot_hosts()
        count = f" {len(hosts)} Hosts/Processors" if len(hosts) > 1 else ""
        on = " ".join(f"<{host}>" for host in hosts)
        # As it was recorded: "[2] started on <p1>".
        began = f"[{job.index}] started" if job.index else "Started"
        yield f"{_clock(job.started_at)}: {began} on{count} {on}, Execution Home </home/user>;"
    if job.state in ENDED:
        yield f"{_clock(time.time())}: Done successfully. The CPU time used is 0.0 seconds."
    yield "\n SCHEDULING PARAMETERS:\n           r15s   r1m  r15m   ut      pg    io   ls    it"


def _clock(at: float) -> str:
    return time.strftime("%a %b %e %H:%M:%S", time.localtime(at))


def chosen(site: Site, words: Sequence[str]) -> tuple[list[Job], list[str]]:
    """Jobs by their ids, and what is said of those that are not there."""
    jobs, said = [], []
    for word in words:
        try:
            jobs += lsf_arrays.chosen(site, word)
        except RefusedError as error:
            said.append(str(error))
    return jobs, said
