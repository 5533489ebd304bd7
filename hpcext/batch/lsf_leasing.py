"""Leases of hosts of an LSF: jobs of one host each in a queue whose jobs others preempt.

A lease has all slots of its host, and all its GPUs for itself, and is no exclusive job
(``bsub -x``): lsb.params, PREEMPT_JOBTYPE, has those not preempted unless a site says so. More
than one slot makes it parallel, so LSF suspends it by SIGTSTP, which can be heard; lsf.conf,
LSB_SIGSTOP.
"""

from __future__ import annotations

import logging
import re
import shlex
import time
from collections.abc import Mapping
from pathlib import Path

from hpcext.batch import lsf, lsf_idle, lsf_inside, lsf_jobs, lsf_probe, lsf_reserved, runner
from hpcext.batch.leasing import Held, Idle, Order, Other
from hpcext.batch.lsf_engine import Engine
from hpcext.core.errors import BatchError
from hpcext.launch import agent

log = logging.getLogger(__name__)

_FIELDS = (*lsf.FIELDS, "exec_host", "job_description", "pend_reason")
GPU_OPTION = "num={gpus}/host:mode=shared:j_exclusive=yes"
"""What bsub's ``-gpu`` asks for by default: GPUs that nobody else has meanwhile."""

_STOPPED = frozenset({"SSUSP", "USUSP"})

# LSF may begin a job again, on another host too: where jobs of the queue are rerunnable, as they
# must be for GPUs that are preempted, or by brequeue. What ran on the first host is lost then.
_SCRIPT = """#!/bin/sh
# A lease of an hpcext harvester: one host, for as long as nobody else needs it.
[ -e {lease} ] && [ ! -e {agent_file} ] || exit 0
cd /
exec {agent}
"""


def held_of(jobs: Mapping[int, Mapping[str, str]], now_s: float) -> tuple[Held, ...]:
    """Our jobs of a name, by what LSF says of each."""
    found = []
    for job_id, fields in jobs.items():
        said = fields.get("STAT", "")
        # Of one that waits it says so, and so it does of one that was stopped while it waited.
        state = "pending" if said == "PSUSP" else lsf.state(said)
        found.append(
            Held(
                job_id,
                # Where bsub has no -Jd, the file of its output lies in the directory of its number.
                fields.get("JOB_DESCRIPTION") or Path(fields.get("OUTPUT_FILE", "")).parent.name,
                state,
                fields.get("EXEC_HOST", "").partition(":")[0].rpartition("*")[2],
                lsf.parse_end(fields, now_s).end_s if state in {"running", "suspended"} else None,
                fields.get("PEND_REASON", ""),
                stopped=said in _STOPPED,
            )
        )
    return tuple(found)


def options(order: Order, engine: Engine, gpu_option: str = GPU_OPTION) -> list[str]:
    """Those of bsub for a lease, as far as this one has them; bsub(1).

    Parameters
    ----------
    order : Order
    engine : Engine
    gpu_option : str
        For ``-gpu``; empty: LSF is not asked for GPUs by it.
    """
    host = order.node.name
    gpu = gpu_words(order.gpus, engine, gpu_option)
    # LSF preempts the GPUs of rerunnable jobs alone; GPU enhancements of 10.1 Fix Pack 7.
    again = [] if gpu or engine.lacks("bsub", "-rn") else ["-rn"]
    return [
        *("-J", order.name),
        *([] if engine.lacks("bsub", "-Jd") else ["-Jd", str(order.number)]),
        *("-q", order.partition),
        *order.options,
        *("-m", host),
        # A host without a limit has as many slots as there are jobs.
        *("-n", str(max(1, order.node.cpus))),
        *("-R", "span[hosts=1]"),
        *gpu,
        *again,
        # Else it would be scaled by the speed of another host; -W, "normalized run time".
        *("-W", f"{order.minutes}/{host}"),
        *("-o", str(order.directory / "lsf.out")),
        *([] if engine.lacks("bsub", "-cwd") else ["-cwd", "/"]),
    ]


def gpu_words(gpus: int, engine: Engine, gpu_option: str) -> list[str]:
    """How bsub is asked for GPUs on each host; no words where it is not asked, or has no -gpu."""
    if not gpus or not gpu_option or engine.lacks("bsub", "-gpu"):
        return []
    return ["-gpu", gpu_option.replace("{gpus}", str(gpus))]


class LsfLeasing:
    """As :class:`~hpcext.batch.leasing.Leasing` has it.

    Parameters
    ----------
    gpu_option : str
        The setting ``lsf_gpu_option``.
    """

    def __init__(self, gpu_option: str = GPU_OPTION) -> None:
        self._gpu_option = gpu_option
        self._loads: Mapping[str, lsf_idle.Load] = {}
        self._backfill = False

    @property
    def _engine(self) -> Engine:
        return lsf_probe.known()

    def idle(self, partition: str) -> Mapping[str, Idle]:
        """Node → what it is."""
        engine = self._engine
        queue = lsf_idle.parse_queue(runner.run(lsf_idle.queue_command(partition)))
        # bhosts(1) takes names and groups, without what says of them which comes first.
        named = [re.sub(r"(/|\+[0-9]*|!)+$", "", word) for word in queue.hosts]
        wanted = [word for word in named if word != "all" and word[0] != "~"]
        loads = lsf_idle.parse_hosts(runner.run(lsf_idle.hosts_command(engine, wanted)))
        if but := [word[1:] for word in named if word[0] == "~"]:
            without = lsf_idle.parse_hosts(runner.run(lsf_idle.hosts_command(engine, but)))
            loads = {name: load for name, load in loads.items() if name not in without}
        gpus: dict[str, tuple[lsf_idle.Gpu, ...]] = {}
        if engine.takes("bhosts", "-gpu"):
            # Where no host has any it fails.
            gpus = lsf_idle.parse_gpus(runner.everything_said(lsf_idle.gpus_command(wanted)))
        self._loads, self._backfill = loads, queue.backfill
        return lsf_idle.idle_nodes(loads, gpus, queue)

    def ends(self, but: str = "") -> dict[str, float]:
        """Node → when it is needed. Nothing is kept for jobs of ours."""
        # How these two end where there is nothing to show is not documented.
        windows: tuple[lsf_idle.Window, ...] = ()
        if "bslots" in self._engine.commands:
            windows = lsf_idle.parse_windows(runner.everything_said(lsf_idle.windows_command()))
        now_s = time.time()
        reserved: tuple[lsf_reserved.Reserved, ...] = ()
        if "brsvs" in self._engine.commands:
            text = runner.everything_said(lsf_reserved.reserved_command())
            reserved = lsf_reserved.parse_reserved(text, now_s)
        return lsf_idle.ends(self._loads, windows, reserved, now_s, backfill=self._backfill)

    def held(self, name: str) -> tuple[Held, ...]:
        """Our jobs of a name."""
        more = ("output_file",) if self._engine.lacks("bsub", "-Jd") else ()
        return held_of(lsf_jobs.ask((*_FIELDS, *more), ["-J", name]), time.time())

    def others(self, partition: str, but: str) -> tuple[Other, ...]:
        """None: which hosts a pending job of others asks for is not known here."""
        return ()

    def script(self, agent: str, directory: Path) -> str:
        """What the job runs."""
        return _script(agent, directory)

    def submit(self, order: Order, script: Path) -> int:
        """Ask for a lease."""
        command = lsf.submit_command(options(order, self._engine, self._gpu_option))
        # The manager may be in a job of LSF itself: a ticket.
        environ = lsf_inside.environ_of_others()
        return lsf.parse_job_id(runner.run(command, script=script, environ=environ))

    def cancel(self, job_id: int) -> None:
        """End one; bkill(1)."""
        self._kill(job_id, timeout_s=runner.TIMEOUT_S)

    def withdraw(self, name: str, timeout_s: float) -> None:
        """Take back those that have not begun."""
        if waiting := [job.job_id for job in self.held(name) if job.state == "pending"]:
            self._kill(*waiting, timeout_s=timeout_s)

    def address(self, node: str) -> str:
        """LSF knows hosts by names that lead to them; lsf.cluster, HOSTNAME."""
        return node

    def lacks(self) -> tuple[str, ...]:
        """What this engine has not."""
        found = []
        if "bslots" not in self._engine.commands:
            found.append("bslots is not here, so nobody says when holes end")
        if self._gpu_option and self._engine.lacks("bsub", "-gpu"):
            found.append("bsub has no -gpu here, so leases ask for slots alone")
        return tuple(found)

    @staticmethod
    def _kill(*job_ids: int, timeout_s: float) -> None:
        try:
            runner.run(["bkill", *map(str, job_ids)], timeout_s=timeout_s)
        except BatchError as error:
            if error.exit_code is None:
                raise
            # It has ended meanwhile, as bjobs will say, or else it is asked again.
            log.info("%s", error)


def _script(command: str, directory: Path) -> str:
    lease, there = (
        shlex.quote(str(directory / name)) for name in (agent.LEASE_FILE, agent.AGENT_FILE)
    )
    return _SCRIPT.format(lease=lease, agent_file=there, agent=command)
