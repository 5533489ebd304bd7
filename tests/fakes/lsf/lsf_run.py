"""Contract engine of LSF, written from the vendor's documentation: running jobs, and signals."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import lsf_arrays
import lsf_checkpoint
import lsf_controls
import lsf_signals
from lsf_site import ENDED, Job, Key, RefusedError, Site

POLL_S = 0.05
RES = Path(__file__).with_name("lsf_res.py")
TRAPS = "trap # 15 10 12 2 1"
"""LSB_TRAPSIGS: what the shell of a job does by LSB_JOB_SCRIPT_TRAP_SIGNALS, with no TSTP."""


def run(site: Site, job_id: Key) -> Job:
    """Run a job to its end, again whenever its exit value says so."""
    while True:
        while not site.placed(job_id, lambda job: lsf_arrays.may_begin(site, job)):
            lsf_controls.preempt(site, job_id)
            if site.job(job_id).killed:
                with site.changed(job_id) as job:
                    job.state = "EXIT"
                return job
            time.sleep(POLL_S)
        job = site.job(job_id)
        value = _run_once(site, job)
        with site.changed(job_id) as job:
            queue = site.queues[job.queue]
            by_value = value in job.requeue_exit_values and job.runs <= queue.max_job_requeue
            again = by_value or bool(job.requeue) or (job.lost and job.rerunnable)
            if not again or job.killed:
                job.exit_code = value
                job.state = "EXIT" if value or job.killed else "DONE"
                _deliver_output(site, job)
                return job
            # The exit value wins over a brequeue that was asked before.
            waits = "PSUSP" if job.requeue == "hold" and not by_value else "PEND"
            job.state, job.requeuing = "EXIT", True
        time.sleep(site.exit_shown_s)
        with site.changed(job_id) as job:
            job.state, job.hosts, job.gpus = waits, {}, {}
            job.requeue, job.lost, job.requeuing = "", False, False


def environ_of(site: Site, job: Job) -> dict[str, str]:
    """What a job is told, and what LSF runs beside it."""
    return {
        **job.environ,
        "LSB_JOBID": str(job.id),
        "LSB_JOBINDEX": str(job.index),
        "LSB_JOBNAME": (job.array or job.name)[:4094],
        "LSB_QUEUE": job.queue,
        "LSB_JOBFILENAME": str(site.spooled(job).with_suffix("")),
        "LSB_OUTPUTFILE": _expanded(job, job.output),
        "LSB_TRAPSIGS": TRAPS,
        **_requeue_values(job),
        **_hosts(site, job),
        **lsf_arrays.environ_of(job),
        **lsf_checkpoint.environ_of(job),
    }


def _requeue_values(job: Job) -> dict[str, str]:
    values = " ".join(map(str, job.requeue_exit_values))
    return {"LSB_EXIT_REQUEUE": values} if values else {}


def _run_once(site: Site, job: Job) -> int:
    words = shell_words(site, job)
    environ = environ_of(site, job)
    steps = [lambda: _pre_exec(job, environ), lambda: _eexec(site, job, environ, "START")]
    for step in reversed(steps) if site.quirks.eexec_before_pre_exec else steps:
        step()
    out, err = _outputs(site, job)
    # Whoever stops the job waits until it is known to run.
    with open(out, "ab") as stdout, open(err, "ab") as stderr, site.changed(job.key) as found:
        # It hears nothing before it can, and is in the session of its daemon, so that SIGTSTP stops
        # what does not catch it (credentials(7): not in an orphaned process group).
        before = signal.pthread_sigmask(signal.SIG_BLOCK, lsf_signals.HEARD)
        leader = subprocess.Popen(
            [sys.executable, "-I", "-S", RES, "-d", site.directory, *words],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            cwd=job.cwd,
            env=environ,
            preexec_fn=os.setpgrp,  # noqa: PLW1509 - there is one thread
        )
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        found.state, found.group, found.runs = "RUN", leader.pid, found.runs + 1
        found.started_at, found.engine = time.time(), os.getpid()
    value = _wait(site, job.key, leader)
    if site.job(job.key).lost:
        _give_up(site, job.key)
        return value
    # What the job left behind ends with it.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader.pid, signal.SIGKILL)
    while _kill_left(site, job):
        time.sleep(POLL_S)
    _eexec(site, job, environ, "END")
    return value


def _outputs(site: Site, job: Job) -> tuple[Path, Path]:
    """Where a run prints to."""
    if site.stdout_direct:
        return _file(job, job.output), _file(job, job.errors)
    spool = site.directory / "spool" / f"{job.stem}.{job.runs + 1}"
    # Not with_suffix: that would take the number of the run away.
    out, err = Path(f"{spool}.out"), Path(f"{spool}.err")
    return out, out if job.errors == job.output else err


def _deliver_output(site: Site, job: Job) -> None:
    """Append what the last run has printed to the files of -o and -e."""
    if site.stdout_direct:
        return
    spool = site.directory / "spool" / f"{job.stem}.{job.runs}"
    for ending, wanted in (("out", job.output), ("err", job.errors)):
        printed = Path(f"{spool}.{ending}")
        if printed.exists():
            with open(_file(job, wanted), "ab") as file:
                file.write(printed.read_bytes())


def _file(job: Job, name: str) -> Path:
    return Path(job.cwd, _expanded(job, name))


def _expanded(job: Job, name: str) -> str:
    """A file of -o: %J is the number of a job, %I the index of an element; bsub(1)."""
    return name.replace("%J", str(job.id)).replace("%I", str(job.index))


def _give_up(site: Site, job_id: Key) -> None:
    """What mbatchd shows of a job whose host has gone, until it knows that it has."""
    time.sleep(site.host_lost_s)
    for state in ("UNKWN", "ZOMBI"):
        with site.changed(job_id) as job:
            job.state = state
        time.sleep(0.1 * site.host_lost_s)


def _kill_left(site: Site, job: Job) -> bool:
    """Kill what the job has started anywhere, as LSF does that tracks it (LSF_PROCESS_TRACKING)."""
    marks = job.marks(site.directory)
    found = False
    # Not by glob, which looks at each path itself: of a process that ends just then that is ESRCH.
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if marks <= set(Path(f"/proc/{name}/environ").read_bytes().split(b"\0")):
                os.kill(int(name), signal.SIGKILL)
                found = True
    return found


def _hosts(site: Site, job: Job) -> dict[str, str]:
    """What a job is told of its hosts; the environment variables of LSF."""
    names = job.slot_hosts(site.launch_node)
    counts = ([f"{site.launch_node} 1"] if site.launch_node else []) + [
        f"{name} {slots}" for name, slots in job.hosts.items()
    ]
    said = {"LSB_HOSTS": " ".join(names), "LSB_MCPU_HOSTS": "".join(f"{each} " for each in counts)}
    if not site.quirks.no_djob:
        file = site.spooled(job).with_suffix(".hosts")
        file.write_text("".join(f"{name}\n" for name in names))
        said |= {"LSB_DJOB_HOSTFILE": str(file), "LSB_DJOB_NUMPROC": str(job.slots)}
    first = next(iter(job.hosts))
    if job.gpus_wanted and not site.launch_node:
        said["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, job.gpus[first]))
    return said


def _wait(site: Site, job_id: Key, leader: subprocess.Popen[bytes]) -> int:
    """The exit value of the leader, which a bkill may have to be repeated for."""
    job = site.job(job_id)
    steps, due = list(lsf_signals.termination(site, job)), 0.0
    limit = job.run_limit * site.minute_s
    over = time.monotonic() + limit if limit else float("inf")
    warn = over - job.warning_time * site.minute_s if job.warning else float("inf")
    ended = os.pidfd_open(leader.pid)
    try:
        while not select.select([ended], [], [], POLL_S)[0]:
            now = time.monotonic()
            if now >= warn:
                lsf_signals.deliver(site, job, signal.Signals[f"SIG{job.warning}"])
                warn = float("inf")
            if now >= over:
                steps.insert(0, (signal.SIGUSR2,))
                over = float("inf")
                with site.changed(job_id) as job:
                    job.killed = True
            if steps and now >= due and lsf_controls.ends(site.job(job_id)):
                lsf_signals.deliver(site, job, *steps.pop(0))
                due = now + site.terminate_interval_s
    finally:
        os.close(ended)
    value = leader.wait()
    return value if value >= 0 else 128 - value


def shell_words(site: Site, job: Job) -> list[str]:
    """The shell of a job and its file, which are put into the spool."""
    spooled = site.spooled(job)
    starter = site.queues[job.queue].job_starter
    # The text of a script is never put into another where it has an interpreter of its own.
    command = str(spooled)
    if starter:
        _spool(spooled, job.text if job.is_script else f"#!{site.shell}\n{job.text}\n")
        if site.quirks.starter_gets_text and not job.is_script:
            command = job.text
        if "%USRCMD" not in starter:
            starter += " %USRCMD"
        command = starter.replace("%USRCMD", command)
    elif job.is_script and job.text.startswith("#!"):
        _spool(spooled, job.text)
    else:
        command = job.text
    file = spooled.with_suffix("")
    _spool(file, f"#!/bin/sh\n$LSB_TRAPSIGS\n# LSBATCH: User input\n{command}\n")
    return [site.shell, str(file)]


def _spool(path: os.PathLike[str], text: str) -> None:
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o700)) as file:
        file.write(os.fsencode(text))


def _pre_exec(job: Job, environ: dict[str, str]) -> None:
    """What -E says; that it may put a job back into the queue is not played."""
    if job.pre_exec:
        subprocess.run(["/bin/sh", "-c", job.pre_exec], env=environ, cwd=job.cwd, check=True)


def _eexec(site: Site, job: Job, environ: dict[str, str], when: str) -> None:
    eexec = site.serverdir / "eexec"
    if eexec.exists():
        subprocess.run(
            [eexec],
            input=os.fsencode(job.to_eexec),
            env={**environ, "LS_EXEC_T": when},
            cwd=job.cwd,
            check=False,
        )


# What users do to jobs.


def kill(site: Site, job_id: Key) -> None:
    """bkill: what has begun is told by the process that waits for it."""
    with site.changed(job_id) as job:
        if job.state in ENDED:
            raise RefusedError(f"Job <{job_id}>: Job has already finished")
        job.killed = True
        if job.state == "PSUSP":
            job.state = "PEND"


def send(site: Site, job_id: Key, name: str) -> None:
    """``bkill -s``."""
    signum = signal.Signals[f"SIG{name.removeprefix('SIG')}"]
    with site.changed(job_id) as job:
        if job.state not in {"RUN", "USUSP"}:
            raise RefusedError(f"Job <{job_id}>: in state {job.state}")
        if signum in {signal.SIGSTOP, signal.SIGTSTP, signal.SIGCONT}:
            if not site.quirks.signals_do_not_count:
                raise RefusedError(f"-s {name}: not played: what state it leads to is open")
            if signum == signal.SIGCONT:
                return
    lsf_signals.deliver(site, job, signum)
