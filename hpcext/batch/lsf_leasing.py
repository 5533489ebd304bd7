"""Leases of hosts of an LSF: jobs of one host each in a queue whose jobs others preempt.

A lease has all slots of its host, and all its GPUs for itself, and is no exclusive job
(``bsub -x``): lsb.params, PREEMPT_JOBTYPE, has those not preempted unless a site says so. More
than one slot makes it parallel, so LSF suspends it by SIGTSTP, which can be heard; lsf.conf,
LSB_SIGSTOP.
"""

from __future__ import annotations

import functools
import logging
import re
import shlex
import time
from collections.abc import Mapping
from pathlib import Path

from hpcext.batch import lsf, lsf_idle, lsf_inside, lsf_probe, lsf_reserved, runner
from hpcext.batch.leasing import Held, Idle, Order, Other
from hpcext.core.errors import BatchError
from hpcext.launch import agent

log = logging.getLogger(__name__)

_FIELDS = f"{lsf.FIELDS} exec_host job_description pend_reason"
_NONE = re.compile(r"\bis not found\b|\bNo (\w+ )?job found\b")
_STOPPED = frozenset({"SSUSP", "USUSP"})

# LSF may begin a job again, on another host too: where jobs of the queue are rerunnable, as they
# must be for GPUs that are preempted, or by brequeue. What ran on the first host is lost then.
_SCRIPT = """#!/bin/sh
# A lease of an hpcext harvester: one host, for as long as nobody else needs it.
[ -e {lease} ] && [ ! -e {agent_file} ] || exit 0
exec {agent}
"""


def held_command(name: str) -> list[str]:
    """Our jobs of a name, those that have ended lately too; bjobs(1), -a, -J, -o and -json."""
    return ["bjobs", "-a", "-J", name, "-o", _FIELDS, "-json"]


def parse_held(text: str, now_s: float) -> tuple[Held, ...]:
    """Records of :func:`held_command`."""
    found = []
    for job_id, fields in lsf.parse_jobs(text).items():
        said = fields.get("STAT", "")
        # Of one that waits it says so, and so it does of one that was stopped while it waited.
        state = "pending" if said == "PSUSP" else lsf.state(said)
        found.append(
            Held(
                job_id,
                fields.get("JOB_DESCRIPTION", ""),
                state,
                fields.get("EXEC_HOST", "").partition(":")[0].rpartition("*")[2],
                lsf.parse_end(fields, now_s).end_s if state in {"running", "suspended"} else None,
                fields.get("PEND_REASON", ""),
                stopped=said in _STOPPED,
            )
        )
    return tuple(found)


def options(order: Order) -> list[str]:
    """Those of bsub for a lease; bsub(1).

    Parameters
    ----------
    order : Order
    """
    host = order.node.name
    gpus = ["-gpu", f"num={order.gpus}/host:mode=shared:j_exclusive=yes"]
    return [
        *("-J", order.name),
        *("-Jd", str(order.number)),
        *("-q", order.partition),
        *order.options,
        *("-m", host),
        # A host without a limit has as many slots as there are jobs.
        *("-n", str(max(1, order.node.cpus))),
        *("-R", "span[hosts=1]"),
        # LSF preempts the GPUs of rerunnable jobs alone; GPU enhancements of 10.1 Fix Pack 7.
        *(gpus if order.gpus else []),
        # Else it would be scaled by the speed of another host; -W, "normalized run time".
        *("-W", f"{order.minutes}/{host}"),
        *("-o", str(order.directory / "lsf.out")),
        *("-cwd", "/"),
    ]


class LsfLeasing:
    """As :class:`~hpcext.batch.leasing.Leasing` has it."""

    def __init__(self) -> None:
        self._loads: Mapping[str, lsf_idle.Load] = {}
        self._backfill = False

    @functools.cached_property
    def _engine(self) -> lsf_probe.Engine:
        return lsf_probe.probe()

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
        try:
            text = runner.run(held_command(name))
        except BatchError as error:
            # Another engine says with the same status as a document that there are none.
            if not _none(error):
                raise
            return ()
        return parse_held(text, time.time()) if text.strip() else ()

    def others(self, partition: str, but: str) -> tuple[Other, ...]:
        """None: which hosts a pending job of others asks for is not known here."""
        return ()

    def script(self, agent: str, directory: Path) -> str:
        """What the job runs."""
        return _script(agent, directory)

    def submit(self, order: Order, script: Path) -> int:
        """Ask for a lease."""
        never_again = ["-rn"] if not order.gpus and self._engine.takes("bsub", "-rn") else []
        command = lsf.submit_command([*options(order), *never_again])
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


def _none(error: BatchError) -> bool:
    """Whether bjobs has failed only to say that there is no such job."""
    if error.exit_code is None:
        return False
    if not error.stdout.strip():
        return bool(_NONE.search(error.stderr))
    try:
        return not lsf.parse_jobs(error.stdout)
    except BatchError:
        return False


def _script(command: str, directory: Path) -> str:
    lease, there = (
        shlex.quote(str(directory / name)) for name in (agent.LEASE_FILE, agent.AGENT_FILE)
    )
    return _SCRIPT.format(lease=lease, agent_file=there, agent=command)
