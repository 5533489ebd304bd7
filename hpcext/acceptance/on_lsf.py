"""The acceptance run on LSF, or on another engine of its line."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from hpcext.acceptance.systems import FINAL, Order
from hpcext.allocation import JobId
from hpcext.batch import lsf, runner
from hpcext.batch.leasing import Held, Idle
from hpcext.batch.lsf import jobs as lsf_jobs
from hpcext.batch.lsf import probe as lsf_probe
from hpcext.batch.lsf.engine import LsfEngine
from hpcext.batch.lsf.leasing import LsfLeasing, gpu_words
from hpcext.batch.lsf.queues import parse_queue, queues_command
from hpcext.config import load_settings

_QUEUE = "lsb.queues: JOB_CONTROLS and JOB_STARTER as docs/lsf.md has them"


class LsfSystem:
    """LSF as a :class:`~hpcext.acceptance.systems.System`."""

    key = "lsf"
    verbs: Mapping[str, tuple[str, ...]] = {
        "requeue": ("brequeue", "JOB"),
        "migrate": ("bmig", "JOB"),
        "stop": ("bstop", "JOB"),
        "go": ("bresume", "JOB"),
        "kill": ("bkill", "JOB"),
        "notice": ("bkill", "-s", "USR2", "JOB"),
    }
    # Signals reach all processes of a job once LSF's PIM has seen these, after half a minute.
    ages = True
    bad_setting = "lead=5"
    stop_frees = True
    queries: tuple[str, ...] = ("bjobs", "bhosts", "bqueues")
    silent = "LSF is down. Please wait ..."
    task = "LSB_JOBINDEX"
    changes: Mapping[str, str] = {
        "flags": "LSF_SERVERDIR: hpcext-admin install lsf; an engine without arguments of -a has "
        "variables, HPCEXT_SCALING and the others of docs/lsf.md",
        "suspend": "lsb.queues: JOB_STARTER as docs/lsf.md has it",
        "stop": _QUEUE,
        "notice": "lsb.queues: REQUEUE_EXIT_VALUES with 85, or a brequeue for everybody",
        "requeue": "lsb.params: JOB_TERMINATE_INTERVAL in which a checkpoint can be written",
        "migrate": "lsb.queues: RERUNNABLE=yes; lsb.params: JOB_TERMINATE_INTERVAL",
        "kill": "lsb.queues: JOB_CONTROLS must have no TERMINATE",
        "time limit": "lsb.queues: REQUEUE_EXIT_VALUES with 85; lsb.params: MAX_JOB_REQUEUE",
        "preemption": f"{_QUEUE}; PREEMPTION; lsb.params: PREEMPTABLE_RESOURCES",
        "array": "lsb.queues: JOB_STARTER as docs/lsf.md has it",
        "pilot": "hpcext.toml: lsf_launcher; Python and hpcext on a file system of all hosts",
        "lease": "lsb.queues: JOB_CONTROLS = SUSPEND[SIGTSTP] of the queue below, PREEMPTION",
        "silence": "lsf.conf: LSB_NTRIES; otherwise report it",
        "removal": "bjobs -u $USER: bkill what is left",
    }

    @functools.cached_property
    def _engine(self) -> LsfEngine:
        return lsf_probe.known()

    def release(self) -> str:
        """Return the product and its version, such as ``IBM Spectrum LSF Standard 10.1.0.15``."""
        return f"{self._engine.release.product} {self._engine.release.number}"

    def flags(self, partition: str) -> str:
        """Return that the queue lacks our starter, if it does; an esub is seen only in a job."""
        queue = parse_queue(runner.run(queues_command(partition)))
        there = "hpcext-starter" in queue.starter
        return "" if there else f"queue {partition} has no hpcext-starter: docs/lsf.md"

    def idle(self, partition: str) -> Mapping[str, Idle]:
        """Return the hosts of a queue by name."""
        return LsfLeasing().idle(partition)

    def words(self, order: Order, *, flags: bool) -> list[str]:
        """Return the bsub(1) command of an order."""
        slots = max(1, order.slots)
        settings = f"hpcext({order.setting})" if order.setting else "hpcext"
        esub = bool(order.setting) or (flags and order.lead_s > 0)
        words = [
            *("-J", f"{order.name}[1-{order.tasks}]" if order.tasks else order.name),
            *("-q", order.partition),
            *("-m", " ".join(order.hosts)),
            *("-n", str(slots * len(order.hosts))),
            *(["-R", f"span[ptile={slots}]"] if order.slots else []),
            *gpu_words(order.gpus, self._engine, load_settings().lsf_gpu_option),
            *("-W", str(order.minutes)),
            *("-o", str(order.output)),
            *([] if self._engine.lacks("bsub", "-cwd") else ["-cwd", str(order.output.parent)]),
            *(["-a", settings] if esub else []),
            *(["-r"] if order.lead_s else []),
        ]
        return lsf.submit_command(words)

    def variables(self, order: Order, *, flags: bool) -> dict[str, str]:
        """Return the variables that our esub sets, because some engines pass it no arguments."""
        if not order.lead_s or not flags:
            return {}
        return {"HPCEXT_SUSPENDABLE": "1", "HPCEXT_LEAD_S": str(order.lead_s)}

    def job_id(self, said: str) -> JobId:
        """Parse the id of the job from the output of bsub."""
        return lsf.parse_job_id(said)

    def states(self, jobs: Sequence[JobId]) -> dict[JobId, str]:
        """Return the states that mbatchd reports."""
        return lsf.Commands().states(jobs)

    def cancel(self, jobs: Sequence[JobId]) -> None:
        """End these jobs with bkill(1)."""
        if jobs:
            # bkill complains about jobs that have ended.
            runner.everything_said(["bkill", *map(str, jobs)])

    def cancel_named(self, name: str) -> None:
        """End all jobs of this name."""
        self.cancel([job for job, state in self.named(name).items() if state not in FINAL])

    def held(self, name: str) -> tuple[Held, ...]:
        """Return the jobs of this name that mbatchd knows."""
        return LsfLeasing().held(name)

    def named(self, name: str) -> dict[JobId, str]:
        """Return the states of the jobs of this name that mbatchd knows."""
        found = lsf_jobs.ask(("jobid", "stat"), ["-J", name])
        return {job: lsf.state(fields.get("STAT", "")) for job, fields in found.items()}

    def pilot_of(self, job: JobId) -> str:
        """Return the name of a suspendable job's pilot, with the index in a job array, or 0."""
        number, _, index = str(job).rstrip("]").partition("[")
        return f"job-{number}.{index or 0}"

    def tasks_of(self, job: JobId, count: int) -> tuple[JobId, ...]:
        """Return the ids of an array's elements, ``ARRAY[INDEX]``."""
        return tuple(f"{job}[{index}]" for index in self.numbers_of(count))

    def numbers_of(self, count: int) -> range:
        """Return indices from 1 on, since LSF has no index 0."""
        return range(1, count + 1)

    def pilot_options(self, order: Order) -> list[str]:
        """Return the options for bsub."""
        return ["-q", order.partition, "-m", " ".join(order.hosts)]
