"""Contract engine of LSF, written from the vendor's documentation: a site, its queues, its jobs.

It stands for a cluster of hosts, all of which are this machine; what has no room waits. Each field
of `Quirks` is off as the documentation has it, and on as it was seen on an LSF-compatible engine;
`RECORDED` are those that recordings of one have (tests/lsf/recorded). Where the documentation says
nothing, as of which processes hear a signal and when, the engine does what was recorded.
What it does not play it refuses: TERMINATE of JOB_CONTROLS, checkpoints at intervals, arrays,
resizing, and the commands that no test of ours needs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ABORT_VALUE = 97
ENDED = ("DONE", "EXIT")


class RefusedError(Exception):
    """What a command of LSF says on stderr before it exits with 255."""


@dataclass(frozen=True)
class Quirks:
    bare_quotes: bool = False
    """The parameter file does not escape quotes in values."""

    unknown_keys_ignored: bool = False
    """Otherwise a key that the engine does not know in LSB_SUB_MODIFY_FILE refuses the job."""

    no_esub_arguments: bool = False
    """`-a "x(a,b)"` calls `esub.x` without arguments."""

    stray_argument: bool = False
    """`-a "x(a,b)"` calls `esub.x x a b`."""

    script_flattened: bool = False
    """LSB_SUB_COMMAND_LINE of a script is one line. Otherwise it is not there, as nothing says
    what it would be."""

    starter_gets_text: bool = False
    """%USRCMD is the text of the command, put in as it is. Otherwise it is the path of the script
    that has it: both are documented."""

    eexec_before_pre_exec: bool = False
    """eexec hears of START before the pre-exec command of -E has run."""

    empty_is_dash: bool = False
    """bjobs prints `-` for what is empty."""

    leader_alone: bool = False
    """LSB_JOBPIDS of a job control is the leader of the job, and no other process of it."""

    warning_misparsed: bool = False
    """`bsub -wa` and `-wt` are taken and mean nothing."""
    forgotten_fails: bool = False
    """bjobs exits with 255 for a job that it does not know. Otherwise it says so as a record with
    ERROR, and exits with 0."""

    times_in_hms: bool = False
    """bjobs writes run times and limits as `hh:mm:ss`: LSB_HMS_TIME_FORMAT, or another engine."""

    blaunch_hides_gpus: bool = False
    """CUDA_VISIBLE_DEVICES of what blaunch starts is what blaunch itself had, if anything."""

    signals_do_not_count: bool = False
    """`bkill -s TSTP` leaves the state RUN, and a `bkill -s CONT` after it does not arrive.
    Otherwise both are refused, as the documentation leaves open what they do."""

    no_gpus: bool = False
    """bsub and bhosts have no -gpu."""

    no_bslots: bool = False
    """There is neither bslots nor brsvs."""

    no_json: bool = False
    """bjobs and bhosts have neither -json nor, bhosts, -o."""

    no_djob: bool = False
    """A job is told neither LSB_DJOB_HOSTFILE nor LSB_DJOB_NUMPROC."""

    no_command_line: bool = False
    """An esub is told LSB_SUB_COMMAND_LINE of nothing."""

    none_fails: bool = False
    """bjobs that finds no job exits with 255; its JSON says that there are no records."""

    no_rn: bool = False
    """bsub has no -rn."""

    lean: bool = False
    """The engine has what volclava 2.2 has: few fields of `bjobs -o`, bhosts as tables, lsrun in
    place of blaunch, `bparams -l`, and fewer options of bsub; see lsf_tables."""

    parallel_killed_at_once: bool = False
    """bkill, brequeue and bmig send SIGKILL alone to a job of several slots: as IBM documents it
    where lsf.conf has not LSB_USE_SEQUENTIAL_SIGNAL=Y."""


RECORDED = ("no_djob", "no_command_line", "none_fails", "no_rn")
"""Quirks of the engine that the recordings are of."""

LEAN = (*RECORDED, "lean", "no_bslots", "no_esub_arguments")
"""Those, and what else it has not that hpcext could use."""


@dataclass(frozen=True)
class Host:
    """A host of lsb.hosts; its GPUs are numbers, which nothing stands for."""

    name: str
    slots: int = 1000
    gpus: int = 0
    model: str = "TeslaV100_SXM2_16GB"
    closed: str = ""
    """A status, as `closed_Adm`."""

    kept: int = 0
    """Slots that are kept for a pending job; of whose, the engine does not know."""


@dataclass(frozen=True)
class Queue:
    """A stanza of lsb.queues."""

    job_starter: str = ""
    requeue_exit_values: tuple[int, ...] = ()
    max_job_requeue: int = 3
    status: str = "Open:Active"
    run_limit: int = 0
    """Minutes; 0 is none."""

    hosts: str = "all"
    policies: str = ""
    preemption: str = ""
    job_controls: dict[str, str] = field(default_factory=dict)
    """SUSPEND or RESUME → what /bin/sh runs, or the name of a signal."""

    priority: int = 30
    preemptive: bool = False
    rerunnable: bool = False


@dataclass
class Job:
    """What mbatchd knows; text that is not UTF-8 has surrogates."""

    id: int
    text: str
    is_script: bool
    queue: str
    name: str
    slots: int
    cwd: str
    environ: dict[str, str]
    output: str
    errors: str
    requeue_exit_values: list[int]
    to_eexec: str
    pre_exec: str
    run_limit: int
    """Minutes; 0 is none."""

    ptile: int = 0
    """Slots on each host; 0: as many as it has room for."""

    description: str = ""
    asked_hosts: list[str] = field(default_factory=list)
    """Those of -m; all if none."""

    gpus_wanted: int = 0
    gpus_per_task: bool = False

    hosts: dict[str, int] = field(default_factory=dict)
    """Slots on each of its hosts, in their order; none before it was placed."""

    gpus: dict[str, list[int]] = field(default_factory=dict)
    started_at: float = 0.0
    """When it last began, in seconds since the epoch."""

    rerunnable: bool = False
    warning: str = ""
    """The signal of -wa; -wt is so many minutes before the end."""

    warning_time: int = 0
    checkpoint_dir: str = ""
    checkpoint_method: str = ""
    restart: bool = False

    state: str = "PEND"
    exit_code: int | None = None
    group: int = 0
    runs: int = 0
    killed: bool = False
    requeue: str = ""
    """``run`` or ``hold``: brequeue kills it, and it is PEND or PSUSP then."""

    requeuing: bool = False
    """It is shown as EXIT, and will be PEND or PSUSP."""

    lost: bool = False
    """Its host is."""

    engine: int = 0
    """The process that stands for the daemons of its host: no process of the job."""

    def holds(self) -> bool:
        """Whether its slots are its own now."""
        return bool(self.hosts) and self.state not in {*ENDED, "SSUSP"}

    def holds_gpus(self) -> bool:
        """Whether its GPUs are; "Requirements for resource preemption": what is suspended releases
        its slots, and what else it has when it leaves."""
        return bool(self.hosts) and self.state not in ENDED

    def over(self) -> bool:
        """Whether it has ended for good."""
        return self.state in ENDED and not self.requeuing

    def slot_hosts(self, launch_node: str = "") -> list[str]:
        """A host for each slot, after the launch node if there is one."""
        first = [launch_node] if launch_node else []
        return first + [name for name, slots in self.hosts.items() for _ in range(slots)]


@dataclass(frozen=True)
class Site:
    """What lsf.conf and lsb.queues say; its directory is LSF_ENVDIR."""

    directory: Path
    quirks: Quirks = Quirks()
    queues: dict[str, Queue] = field(default_factory=lambda: {"normal": Queue()})
    hosts: tuple[Host, ...] = (Host("host1"),)
    windows: tuple[tuple[int, dict[str, int]], ...] = ()
    """What bslots knows: seconds (0: without limit), and slots by host."""

    reservations: str = ""
    """What brsvs prints below its header."""

    launch_node: str = ""
    """Where a job's script runs, if that is on no host of the job: Summit's way."""

    esub_method: str = ""
    command_name: bool = True
    """LSB_SUB_COMMANDNAME."""

    pim_s: float = 0.5
    """So old a job is when its processes are looked at, some 30 s on a real host: from then on
    signals go to each process group among them, before to the leader's alone."""

    exit_shown_s: float = 0.3
    """So long a job that is requeued is shown as EXIT: 2 to 4 s on a real host."""

    host_lost_s: float = 1.0
    """So long a host that is lost is shown as if it were not: some 125 s."""

    stdout_direct: bool = False
    """LSB_STDOUT_DIRECT: else the file of -o is there when the job has ended, and has what its
    last run printed."""

    terminate_interval_s: float = 10.0
    minute_s: float = 60.0
    """A minute of -W: no test can wait for one."""

    shell: str = "/bin/sh"

    @property
    def serverdir(self) -> Path:
        return self.directory / "serverdir"

    def save(self) -> Site:
        for name in ("jobs", "spool", "serverdir"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        said = dataclasses.asdict(dataclasses.replace(self, directory=Path()))
        del said["directory"]
        (self.directory / "site.json").write_text(json.dumps(said))
        return self

    @classmethod
    def load(cls, directory: Path) -> Site:
        said = json.loads((directory / "site.json").read_text())
        quirks = Quirks(**said.pop("quirks"))
        queues = {name: Queue(**stanza) for name, stanza in said.pop("queues").items()}
        hosts = tuple(Host(**host) for host in said.pop("hosts"))
        return cls(directory=directory, quirks=quirks, queues=queues, hosts=hosts, **said)

    def spooled(self, job_id: int) -> Path:
        return self.directory / "spool" / f"{job_id}.shell"

    def printed(self) -> str:
        """What all runs of all jobs have printed so far; LSF itself does not keep it."""
        files = (self.directory / "spool").glob("*.out")
        return "".join(file.read_text(errors="replace") for file in sorted(files))

    def down(self) -> set[str]:
        """Hosts that cannot be reached, by a file that tests write."""
        try:
            return set((self.directory / "down").read_text().split())
        except FileNotFoundError:
            return set()

    def shown_down(self) -> set[str]:
        """Those that are known to be."""
        down = self.down()
        since = (self.directory / "down").stat().st_mtime if down else 0.0
        return down if time.time() - since >= self.host_lost_s else set()

    def add(self, job: Job) -> None:
        with self._locked():
            ids = [int(path.stem) for path in (self.directory / "jobs").iterdir()]
            job.id = max(ids, default=0) + 1
            self._write(job)

    def job(self, job_id: int) -> Job:
        try:
            return Job(**json.loads((self.directory / "jobs" / f"{job_id}.json").read_text()))
        except FileNotFoundError:
            raise RefusedError(f"Job <{job_id}> is not found") from None

    def jobs(self) -> list[Job]:
        ids = [int(path.stem) for path in (self.directory / "jobs").iterdir()]
        return [self.job(job_id) for job_id in sorted(ids)]

    def placed(self, job_id: int) -> bool:
        """Give a job its hosts, if there is room; whether it has them."""
        with self._locked():
            job = self.job(job_id)
            waits = job.state == "PEND" and not job.killed and not self._others_first(job)
            found = self._room_of(job) if waits else None
            if found:
                job.hosts, job.gpus = found
                self._write(job)
                return True
            return False

    def _others_first(self, job: Job) -> bool:
        """Whether a job that waits in a queue of higher priority has room, too."""
        mine = self.queues[job.queue].priority
        return any(
            self.queues[each.queue].priority > mine and self.has_room(each)
            for each in self.jobs()
            if each.state == "PEND" and not each.killed
        )

    def has_room(self, job: Job, without: Sequence[Job] = ()) -> bool:
        """Whether there is room for a job beside those that have theirs, but for some of them."""
        return self._room_of(job, [each.id for each in without]) is not None

    def _room_of(
        self, job: Job, without: Sequence[int] = ()
    ) -> tuple[dict[str, int], dict[str, list[int]]] | None:
        others = [each for each in self.jobs() if each.id not in (job.id, *without)]
        return _room(self.hosts, others, job)

    @contextlib.contextmanager
    def changed(self, job_id: int) -> Iterator[Job]:
        """The job, to be changed while nobody else does."""
        with self._locked():
            job = self.job(job_id)
            yield job
            self._write(job)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with open(self.directory / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _write(self, job: Job) -> None:
        path = self.directory / "jobs" / f"{job.id}.json"
        new = self.directory / f"new-{os.getpid()}"
        new.write_text(json.dumps(dataclasses.asdict(job)))
        new.rename(path)


def _room(
    hosts: Sequence[Host], others: Sequence[Job], job: Job
) -> tuple[dict[str, int], dict[str, list[int]]] | None:
    """Slots and GPUs for a job beside others: on the first hosts that have them; None if none."""
    slots: dict[str, int] = {}
    gpus: dict[str, list[int]] = {}
    for host in hosts:
        if job.asked_hosts and host.name not in job.asked_hosts:
            continue
        free = host.slots - sum(each.hosts.get(host.name, 0) for each in others if each.holds())
        left = job.slots - sum(slots.values())
        taken = min(left, job.ptile or free)
        wanted = job.gpus_wanted * (taken if job.gpus_per_task else 1)
        keeping = [each.gpus.get(host.name, []) for each in others if each.holds_gpus()]
        held = {index for gpus_of in keeping for index in gpus_of}
        free_gpus = [index for index in range(host.gpus) if index not in held]
        if 0 < taken <= free and wanted <= len(free_gpus):
            slots[host.name], gpus[host.name] = taken, free_gpus[:wanted]
        if sum(slots.values()) == job.slots:
            return slots, gpus
    return None
