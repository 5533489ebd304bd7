"""Leases of hosts of LSF: jobs of one host each, in a queue whose jobs others preempt.

A lease has all slots and all GPUs of its host to itself, but is not an exclusive job (``bsub -x``),
because these are exempt from preemption by default (lsb.params, PREEMPT_JOBTYPE). With several
slots it is a parallel job, which LSF suspends by SIGTSTP, a signal that can be handled (lsf.conf,
LSB_SIGSTOP).
"""

from __future__ import annotations

import contextlib
import logging
import re
import shlex
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

from hpcext.allocation import JobId
from hpcext.batch import lsf, runner
from hpcext.batch.leasing import LEASE, Association, Held, Idle, LeaseSubmission, Other
from hpcext.batch.lsf import idle as lsf_idle
from hpcext.batch.lsf import inside as lsf_inside
from hpcext.batch.lsf import jobs as lsf_jobs
from hpcext.batch.lsf import probe as lsf_probe
from hpcext.batch.lsf import reserved as lsf_reserved
from hpcext.batch.lsf.engine import LsfEngine
from hpcext.batch.lsf.fair_share import (
    parse_shares,
    partition_shares_command,
    queue_shares_command,
)
from hpcext.batch.lsf.queues import parse_queue, queues_command
from hpcext.core.errors import BatchError
from hpcext.launch import agent
from hpcext.numerals import whole

log = logging.getLogger(__name__)

_FIELDS = (*lsf.FIELDS, "exec_host", "job_description", "pend_reason")
_OTHERS = ("jobid", "stat", "user", "job_name", "exec_host", "job_description", "run_time")
_SAME_S = 30.0
"""Seconds by which the begin of a job may seem to move although it has not begun again.

Run times are in whole seconds, and mbatchd learns them late.
"""
_WAITING, _ENDED = frozenset({"PEND", "PSUSP", "PROV", "WAIT", "FWD_PEND"}), {"DONE", "EXIT"}
GPU_OPTION = "num={gpus}/host:mode=shared:j_exclusive=yes"
"""The default value of ``bsub -gpu``: GPUs that no other job has at the same time."""

_STOPPED = frozenset({"SSUSP", "USUSP"})

# LSF may begin a job again, also on another host: by brequeue, or if jobs of the queue are
# rerunnable, as they must be so that GPUs are preempted. The work on the first host is lost then,
# so the script ends at once.
_SCRIPT = """#!/bin/sh
# A lease of an hpcext harvester: one host, for as long as nobody else needs it.
[ -e {lease} ] && [ ! -e {agent_file} ] || exit 0
cd /
exec {agent}
"""


def held_of(jobs: Mapping[JobId, Mapping[str, str]], now_s: float) -> tuple[Held, ...]:
    """Return our jobs of a name, except elements of arrays, which are not leases.

    Parameters
    ----------
    jobs : Mapping
        Job → its fields.
    now_s : float
        Epoch seconds.
    """
    found = []
    for job_id, fields in jobs.items():
        if not isinstance(job_id, int):
            continue
        said = fields.get("STAT", "")
        # PSUSP is a job that was stopped while it waited.
        state = "pending" if said == "PSUSP" else lsf.state(said)
        found.append(
            Held(
                job_id,
                # Without bsub -Jd: the output file is in a directory whose name is the number.
                fields.get("JOB_DESCRIPTION", "").partition(" ")[0]
                or Path(fields.get("OUTPUT_FILE", "")).parent.name,
                state,
                _host(fields),
                lsf.parse_end(fields, now_s).end_s if state in {"running", "suspended"} else None,
                fields.get("PEND_REASON", ""),
                stopped=said in _STOPPED,
            )
        )
    return tuple(found)


def others_of(jobs: Mapping[JobId, Mapping[str, str]], now_s: float) -> dict[JobId, Other]:
    """Return those jobs that are leases of harvesters, except ended ones.

    A harvester remembers leases that it has seen; what others had before it began does not matter.

    Parameters
    ----------
    jobs : Mapping
        Job → its fields.
    now_s : float
        Epoch seconds.
    """
    found = {}
    for job_id, fields in jobs.items():
        name, said = fields.get("JOB_NAME", ""), fields.get("STAT", "")
        text, _, asked = fields.get("JOB_DESCRIPTION", "").partition(" ")
        number = whole(text)
        if LEASE.match(name) and number is not None and said not in _ENDED:
            begun = said not in _WAITING
            node = _host(fields) if begun else asked
            since_s = lsf.began_s(fields, now_s) if begun else None
            # The number of a lease is the instant of its submission. A harvester that states an
            # earlier one gains no more than what others had in the last minutes.
            found[job_id] = Other(
                name, fields.get("USER", ""), node, begun, since_s, None, min(float(number), now_s)
            )
    return found


def _host(fields: Mapping[str, str]) -> str:
    """Return the first host of a job, from a field such as ``16*h1:16*h2``."""
    return fields.get("EXEC_HOST", "").partition(":")[0].rpartition("*")[2]


def options(order: LeaseSubmission, engine: LsfEngine, gpu_option: str = GPU_OPTION) -> list[str]:
    """Return the options of bsub(1) for a lease, those that this engine has.

    Parameters
    ----------
    order : LeaseSubmission
    engine : LsfEngine
    gpu_option : str
        The value of ``-gpu``; empty to request no GPUs.
    """
    host = order.node.name
    gpu = gpu_words(order.gpus, engine, gpu_option)
    # LSF preempts only the GPUs of rerunnable jobs (GPU enhancements of 10.1 Fix Pack 7).
    again = [] if gpu or engine.lacks("bsub", "-rn") else ["-rn"]
    return [
        *("-J", order.name),
        # Shows other harvesters for which host a lease waits; bjobs(1) has no field for that.
        *([] if engine.lacks("bsub", "-Jd") else ["-Jd", f"{order.number} {host}"]),
        *("-q", order.partition),
        *order.options,
        *("-m", host),
        # A host without a limit of slots has any number.
        *("-n", str(max(1, order.node.cpus))),
        *("-R", "span[hosts=1]"),
        *gpu,
        *again,
        # Without the host, LSF would scale it by the speed of another one ("normalized run time").
        *("-W", f"{order.minutes}/{host}"),
        *("-o", str(order.directory / "lsf.out")),
        *([] if engine.lacks("bsub", "-cwd") else ["-cwd", "/"]),
    ]


def gpu_words(gpus: int, engine: LsfEngine, gpu_option: str) -> list[str]:
    """Return the options of bsub that request GPUs on each host; none if it cannot or need not.

    Parameters
    ----------
    gpus : int
    engine : LsfEngine
    gpu_option : str
        The value of ``-gpu``, with ``{gpus}`` for the number.
    """
    if not gpus or not gpu_option or engine.lacks("bsub", "-gpu"):
        return []
    return ["-gpu", gpu_option.replace("{gpus}", str(gpus))]


class LsfLeasing:
    """LSF as a :class:`~hpcext.batch.leasing.Leasing`.

    Parameters
    ----------
    gpu_option : str
        The setting ``lsf_gpu_option``.
    """

    whole_nodes = True
    # Leases that LSF preempts are suspended at once, and their slots are that job's.
    keeps_nodes = True
    has_accounts = False

    def __init__(self, gpu_option: str = GPU_OPTION) -> None:
        self._gpu_option = gpu_option
        self._loads: Mapping[str, lsf_idle.Load] = {}
        self._backfill = False
        # Lease of a harvester → when it began, as first seen.
        self._began: dict[JobId, float] = {}

    @property
    def _engine(self) -> LsfEngine:
        return lsf_probe.known()

    def idle(self, partition: str) -> Mapping[str, Idle]:
        """Return the hosts of a queue by name."""
        engine = self._engine
        queue = parse_queue(runner.run(queues_command(partition)))
        # bhosts(1) takes names and groups without their marks of preference.
        named = [re.sub(r"(/|\+[0-9]*|!)+$", "", word) for word in queue.hosts]
        wanted = [word for word in named if word != "all" and word[0] != "~"]
        loads = lsf_idle.parse_hosts(runner.run(lsf_idle.hosts_command(engine, wanted)))
        if but := [word[1:] for word in named if word[0] == "~"]:
            without = lsf_idle.parse_hosts(runner.run(lsf_idle.hosts_command(engine, but)))
            loads = {name: load for name, load in loads.items() if name not in without}
        gpus: dict[str, tuple[lsf_idle.LsfGpu, ...]] = {}
        if engine.takes("bhosts", "-gpu"):
            # It fails if no host has GPUs.
            gpus = lsf_idle.parse_gpus(runner.everything_said(lsf_idle.gpus_command(wanted)))
        self._loads, self._backfill = loads, queue.backfill
        return lsf_idle.idle_nodes(loads, gpus, queue)

    def ends(self, but: str = "") -> dict[str, float]:
        """Return when hosts are needed; LSF keeps none for our own jobs."""
        # The exit codes of bslots and brsvs are not documented if there is nothing to show.
        windows: tuple[lsf_idle.BackfillWindow, ...] = ()
        if "bslots" in self._engine.commands:
            windows = lsf_idle.parse_windows(runner.everything_said(lsf_idle.windows_command()))
        now_s = time.time()
        reserved: tuple[lsf_reserved.Reserved, ...] = ()
        if "brsvs" in self._engine.commands:
            text = runner.everything_said(lsf_reserved.reserved_command())
            reserved = lsf_reserved.parse_reserved(text, now_s)
        return lsf_idle.ends(self._loads, windows, reserved, now_s, backfill=self._backfill)

    def due(self) -> bool:
        """Return whether any job other than a lease waits, whatever for."""
        jobs = lsf_jobs.ask(("jobid", "stat", "job_name"), ["-u", "all"], ended=False).values()
        waiting = (each.get("JOB_NAME", "") for each in jobs if each.get("STAT") == "PEND")
        return any(not LEASE.match(name) for name in waiting)

    def held(self, name: str) -> tuple[Held, ...]:
        """Return our jobs of a name."""
        more = ("output_file",) if self._engine.lacks("bsub", "-Jd") else ()
        return held_of(lsf_jobs.ask((*_FIELDS, *more), ["-J", name]), time.time())

    def others(self, partition: str, but: str) -> tuple[Other, ...]:
        """Return leases of other harvesters in a queue."""
        jobs = lsf_jobs.ask(_OTHERS, ["-u", "all", "-q", partition], ended=False)
        known = others_of(jobs, time.time())
        before, self._began = self._began, {}
        for job_id, each in known.items():
            if each.since_s is not None:
                at_s = before.get(job_id, each.since_s)
                self._began[job_id] = at_s if abs(at_s - each.since_s) < _SAME_S else each.since_s
        return tuple(
            each._replace(since_s=self._began.get(job_id))
            for job_id, each in known.items()
            if each.harvester != but
        )

    def associations(self, partition: str) -> tuple[Association, ...]:
        """Return the fair share of all users in a queue, or that of all host partitions.

        A cluster has it in queues or in host partitions, never in both (lsb.hosts, HostPartition).
        """
        found = parse_shares(runner.run(queue_shares_command(partition)))
        if not found and shutil.which("bhpart"):
            # Its exit code is not documented if there are no host partitions.
            found = parse_shares(runner.everything_said(partition_shares_command()))
        if not found:
            raise BatchError(
                f"queue {partition} has no fairshare (lsb.queues), and no host partition has "
                "(lsb.hosts), so that LSF has no shares of users"
            )
        return found

    def script(self, agent: str, directory: Path) -> str:
        """Return the script of a lease's job."""
        return _script(agent, directory)

    def submit(self, order: LeaseSubmission, script: Path) -> int:
        """Submit a lease."""
        command = lsf.submit_command(options(order, self._engine, self._gpu_option))
        # The manager itself may be in a job of LSF, a ticket.
        environ = lsf_inside.environ_of_others()
        return lsf.parse_job_id(runner.run(command, script=script, environ=environ))

    def cancel(self, job_id: int) -> None:
        """End a job with bkill(1)."""
        self._kill(job_id, timeout_s=runner.TIMEOUT_S)

    def withdraw(self, name: str, timeout_s: float) -> None:
        """Cancel jobs that have not begun."""
        if waiting := [job.job_id for job in self.held(name) if job.state == "pending"]:
            self._kill(*waiting, timeout_s=timeout_s)

    def address(self, node: str) -> str:
        """Return the name of the host, by which others reach it (lsf.cluster, HOSTNAME)."""
        return node

    def lacks(self) -> tuple[str, ...]:
        """Return what this engine lacks."""
        found = []
        if "bslots" not in self._engine.commands:
            found.append("there is no bslots command here, so it is unknown when holes end")
        if self._gpu_option and self._engine.lacks("bsub", "-gpu"):
            found.append("bsub has no option -gpu here, so leases request slots only")
        with contextlib.suppress(BatchError):
            # lsb.params(5): hides the jobs of other users.
            hidden = lsf_probe.parameters().get("SECURE_INFODIR_USER_ACCESS", "N")
            if hidden[:1].upper() in {"Y", "G"}:
                found.append(
                    "other users' jobs are hidden here (SECURE_INFODIR_USER_ACCESS), so "
                    "harvesters of different users cannot see each other: the first one takes "
                    "all idle hosts that it can use"
                )
        return tuple(found)

    @staticmethod
    def _kill(*job_ids: int, timeout_s: float) -> None:
        try:
            runner.run(["bkill", *map(str, job_ids)], timeout_s=timeout_s)
        except BatchError as error:
            if error.exit_code is None:
                raise
            # It may have ended meanwhile; otherwise it is cancelled again later.
            log.info("%s", error)


def _script(command: str, directory: Path) -> str:
    lease, there = (
        shlex.quote(str(directory / name)) for name in (agent.LEASE_FILE, agent.AGENT_FILE)
    )
    return _SCRIPT.format(lease=lease, agent_file=there, agent=command)
