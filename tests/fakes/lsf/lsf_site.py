"""Contract engine of LSF, written from the vendor's documentation: a site, its queues, its jobs.

It stands for a cluster of hosts, all of which are this machine; what has no room waits. Each field
of `Quirks` is off as the documentation has it, and on as it was seen on an LSF-compatible engine;
`RECORDED` are those that recordings of one have (tests/lsf/recorded). Where the documentation says
nothing, as of which processes hear a signal and when, the engine does what was recorded.
What it does not play it refuses: TERMINATE of JOB_CONTROLS, checkpoints at intervals and of arrays,
resizing, and the commands that no test of ours needs. Arrays: lsf_arrays.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import pwd
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lsf_quirks import LEAN, RECORDED, Quirks

__all__ = ["LEAN", "RECORDED", "Quirks"]

ABORT_VALUE = 97
Key = int | str
"""A job: its number, or ``NUMBER[INDEX]`` of an element of an array."""
ENDED = ("DONE", "EXIT")


def me() -> str:
    """Who runs this command."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


class RefusedError(Exception):
    """What a command of LSF says on stderr before it exits with 255."""


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

    shares: dict[str, dict[str, float]] = field(default_factory=dict)
    """Of FAIRSHARE: the path of each table of the share tree → user or group → priority."""


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

    user: str = ""
    """Whose it is; as the system has his name, or his number where it has none."""

    index: int = 0
    """Of an array; 0: it is no element of one."""

    array: str = ""
    """Name of the array as it was submitted, with its indices."""

    at_once: int = 0
    """So many elements may have begun; 0: all."""

    depends: str = ""
    """What -w says."""

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

    @property
    def key(self) -> Key:
        """What commands call it."""
        return f"{self.id}[{self.index}]" if self.index else self.id

    @property
    def stem(self) -> str:
        """What its files in the spool are called."""
        return f"{self.id}.{self.index}" if self.index else str(self.id)

    def marks(self, directory: Path) -> set[bytes]:
        """Variables that all of its processes have, and none of another job."""
        said = [f"LSB_JOBID={self.id}", f"LSF_ENVDIR={directory}"]
        # What another job starts may have an index all the same, as a trainer that of its ticket.
        said += [f"LSB_JOBINDEX={self.index}"] if self.index else []
        return set(map(os.fsencode, said))

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
    quirks: Quirks = field(default_factory=Quirks)
    queues: dict[str, Queue] = field(default_factory=lambda: {"normal": Queue()})
    hosts: tuple[Host, ...] = (Host("host1"),)
    windows: tuple[tuple[int, dict[str, int]], ...] = ()
    """What bslots knows: seconds (0: without limit), and slots by host."""

    reservations: str = ""
    """What brsvs prints below its header."""

    host_partitions: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    """Host partition → its share tree, as in :class:`Queue`."""

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

    def for_all(self) -> None:
        """Have other accounts of this machine submit jobs, too: one mbatchd is all of theirs."""
        (self.directory / "lock").touch()
        (self.directory / "lock").chmod(0o666)
        for name in (".", "jobs", "spool"):
            (self.directory / name).chmod(0o777)

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

    def spooled(self, job: Job) -> Path:
        return self.directory / "spool" / f"{job.stem}.shell"

    def shown(self, job: Job) -> str:
        """JOBID of bjobs."""
        return str(job.key if self.quirks.index_in_id else job.id)

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

    def add(self, *jobs: Job) -> None:
        """Take in a job, or all elements of an array."""
        with self._locked():
            number = max((job.id for job in self.jobs()), default=0) + 1
            for job in jobs:
                job.id = number
                self._write(job)

    def job(self, job_id: Key) -> Job:
        try:
            return Job(**json.loads((self.directory / "jobs" / f"{job_id}.json").read_text()))
        except FileNotFoundError:
            raise RefusedError(f"Job <{job_id}> is not found") from None

    def jobs(self) -> list[Job]:
        found = [self.job(path.stem) for path in (self.directory / "jobs").iterdir()]
        return sorted(found, key=lambda job: (job.id, job.index))

    def placed(self, job_id: Key, may_begin: Callable[[Job], bool] = lambda _: True) -> bool:
        """Give a job its hosts, if there is room; whether it has them."""
        with self._locked():
            job = self.job(job_id)
            waits = job.state == "PEND" and not job.killed and not self._others_first(job)
            waits = waits and may_begin(job)
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
        return self._room_of(job, [each.key for each in without]) is not None

    def _room_of(
        self, job: Job, without: Sequence[Key] = ()
    ) -> tuple[dict[str, int], dict[str, list[int]]] | None:
        others = [each for each in self.jobs() if each.key not in (job.key, *without)]
        return _room(self.hosts, others, job)

    @contextlib.contextmanager
    def changed(self, job_id: Key) -> Iterator[Job]:
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
        path = self.directory / "jobs" / f"{job.key}.json"
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
