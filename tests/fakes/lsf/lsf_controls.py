"""Contract engine of LSF, written from the vendor's documentation: what is done to a running job.

JOB_CONTROLS of lsb.queues, preemption of one queue by another, brequeue, and hosts that are lost.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time

import lsf_run
import lsf_signals
from lsf_site import ENDED, Job, Key, RefusedError, Site

SUSP_USER_STOP = 0x2
SUSP_RESCHED_PREEMPT = 0x10
"""Bits of LSB_SUSP_REASONS; lsb_suspreason(3)."""

STARTED = ("RUN", "USUSP", "SSUSP")


def suspend(site: Site, job_id: Key, state: str, reasons: int) -> None:
    """The SUSPEND action, then the state; one that has ended meanwhile keeps its own."""
    job = site.job(job_id)
    if job.state != "RUN":
        raise RefusedError(f"Job <{job_id}>: in state {job.state}")
    runs = job.runs
    # A terminal's signal, which can be caught, for what is parallel.
    default = signal.SIGTSTP if job.slots > 1 else signal.SIGSTOP
    _act(site, job, "SUSPEND", default, LSB_SUSP_REASONS=str(reasons))
    with site.changed(job_id) as job:
        if job.state == "RUN" and job.runs == runs and not job.requeue:
            job.state = state


def resume(site: Site, job_id: Key) -> None:
    """bresume: what waits in the queue may be placed again, what is stopped goes on."""
    with site.changed(job_id) as job:
        if job.state == "PSUSP":
            job.state = "PEND"
            return
        if job.state not in {"USUSP", "SSUSP"}:
            raise RefusedError(f"Job <{job_id}>: in state {job.state}")
        job.state = "RUN"
    _act(site, job, "RESUME", signal.SIGCONT)


def requeue(site: Site, job_id: Key, *, hold: bool) -> None:
    """brequeue; the process that waits for the job kills it."""
    with site.changed(job_id) as job:
        if job.state not in STARTED:
            raise RefusedError(f"Job <{job_id}>: Job has not started yet or has finished")
        job.requeue = "hold" if hold else "run"


def migrate(site: Site, job_id: Key) -> None:
    """bmig: what can be run again is killed, and waits for a host."""
    if not site.job(job_id).rerunnable:
        raise RefusedError(f"Job <{job_id}>: Job is not checkpointable or rerunnable")
    requeue(site, job_id, hold=False)


def preempt(site: Site, job_id: Key) -> None:
    """Suspend what is in queues of lower priority, if a job that waits may do so: no more of it
    than makes room."""
    job = site.job(job_id)
    mine = site.queues[job.queue]
    if not mine.preemptive or job.state != "PEND":
        return
    lower = [each for each in site.jobs() if site.queues[each.queue].priority < mine.priority]
    victims = [each for each in lower if each.state in {"RUN", "SSUSP"}]
    if not site.has_room(job, victims):
        return
    # What is suspended already is on its way.
    for each in sorted(victims, key=lambda one: one.state == "SSUSP"):
        others = [one for one in victims if one is not each]
        if site.has_room(job, others):
            victims = others
    for each in victims:
        if each.killed or each.requeue:
            continue
        with contextlib.suppress(RefusedError):
            suspend(site, each.key, "SSUSP", SUSP_RESCHED_PREEMPT)


def resume_preempted(site: Site) -> None:
    """What was preempted and has room again goes on."""
    for job in site.jobs():
        if job.state == "SSUSP" and site.has_room(job):
            with contextlib.suppress(RefusedError):
                resume(site, job.key)


def lose_host(site: Site, job_id: Key) -> None:
    """All that a job has is gone at once, as with the power of its host."""
    with site.changed(job_id) as job:
        job.lost = True
    marks = job.marks(site.directory)
    while found := [pid for pid in lsf_signals.pids() if marks <= set(_environ(pid))]:
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(lsf_run.POLL_S)


def _act(site: Site, job: Job, action: str, default: int, **more: str) -> None:
    """What JOB_CONTROLS says, by /bin/sh and as the user, with nothing to read or write."""
    said = site.queues[job.queue].job_controls.get(action)
    if said is None or said in signal.Signals.__members__:
        lsf_signals.deliver(site, job, signal.Signals[said] if said else signal.Signals(default))
        return
    pids, groups = [job.group], [job.group]
    if not site.quirks.leader_alone:
        pids, groups = lsf_signals.known(site, job)
    environ = {
        **lsf_run.environ_of(site, job),
        "LSB_JOBPGIDS": " ".join(map(str, groups)),
        "LSB_JOBPIDS": " ".join(map(str, pids)),
        "LS_EXEC_T": "JOB_CONTROLS",
        **more,
    }
    null = subprocess.DEVNULL
    subprocess.run(
        ["/bin/sh", "-c", said], env=environ, stdin=null, stdout=null, stderr=null, check=False
    )


def _environ(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def ends(job: Job) -> bool:
    """Whether a job that runs is to be killed now."""
    return (job.killed or bool(job.requeue)) and job.state not in ENDED
