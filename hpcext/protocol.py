"""The contract between a manager and a training process: variables, files, exit codes.

Small enough for any language, and the same on every batch system. Standard library only,
because training scripts and the supervisor import it, and of that only what is quick to import
(dataclasses and tempfile are not): every start of a job waits for it. Every environment variable
of hpcext is read here and nowhere else.

One *attempt* is one run of a job's command. Its directory holds, in the order they appear:

==================  =============  ==============================================================
``launch.json``     manager        what to run (:data:`LAUNCH`)
``supervisor.json`` supervisor     its pid and start time; created once, so an attempt runs once
``report.json``     session        progress, replaced as training goes (:data:`REPORT`)
``order.json``      manager        suspend, or end, where no signal goes (:data:`ORDER`)
``rescale.json``    manager        the GPUs to have, without stopping (:data:`RESCALE`)
``rescaled.json``   launcher       the GPUs that it has since (:data:`RESCALED`)
``suspended.json``  session        the acknowledgement of a suspension (:data:`SUSPENDED`)
``exit.json``       supervisor     the tree is empty: exit code, rusage (:data:`EXIT`)
==================  =============  ==============================================================

An attempt on several nodes has a supervisor on each. Those of the others keep their two files in
``node-0001``, ``node-0002`` and so on; reports and acknowledgements are those of rank 0.

Instants inside these files are seconds since the epoch (keys end in ``_at``).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

VERSION = 1

# Schemas of the files of an attempt, and their names.
LAUNCH = "hpcext.launch/1"
SUPERVISOR = "hpcext.supervisor/1"
REPORT = "hpcext.report/1"
"""What a manager reads of it: ``attempt`` and ``op`` as in the environment, ``step``,
``resumed_step``, ``saved_step``, ``done`` (work since the job began), ``rate`` (work per second, or
null), ``metrics`` (numbers by name, null for one that is not finite any more), ``in_place``, the
instants ``registered_at``, ``restored_at`` and ``first_step_at`` (null before the first step), and
``goodput``: null, or an object.

``goodput`` has the gradient ``noise_scale`` and the ``initial_batch``, both in samples. It may have
``most_batch``, ``least_per_gpu`` (1), ``most_per_gpu`` and ``accumulates`` (true): samples of a
step of all GPUs, and of a GPU in a pass; whether a step may have several passes. It may have
``throughput``, and must where ``done`` does not count samples: seven numbers, of which the seconds
of a step are

    passes before the last one * G + (G^gamma + S^gamma)^(1 / gamma)
    G = alpha_grad + beta_grad * (samples of a GPU in a pass)
    S = alpha + beta * (GPUs - 2), 0 on one GPU; one alpha and beta in a node, others on several

in the order ``alpha_grad, beta_grad, alpha_local, beta_local, alpha_node, beta_node, gamma``; the
last one is in [1, 10]. It may have ``batch``: the samples of a step at present. A goodput that
makes no sense is left out, and the rest counts.
"""
ORDER = "hpcext.order/1"
RESCALE = "hpcext.rescale/1"
RESCALED = "hpcext.rescaled/1"
SUSPENDED = "hpcext.suspended/1"
EXIT = "hpcext.exit/1"
LAUNCH_FILE = "launch.json"
SUPERVISOR_FILE = "supervisor.json"
REPORT_FILE = "report.json"
ORDER_FILE = "order.json"
RESCALE_FILE = "rescale.json"
RESCALED_FILE = "rescaled.json"
SUSPENDED_FILE = "suspended.json"
EXIT_FILE = "exit.json"

EXIT_SUSPENDED = 85
"""Exit code of a supervisor whose job suspended itself. A hint: the file is the proof."""

SUSPEND_SIGNAL = signal.SIGTSTP
"""Manager to training: save and leave. Blocked, never handled: a session looks for it."""

NEWS_SIGNAL = signal.SIGUSR1
"""To a supervisor or a manager: there is news, look now."""

NOTICE_SIGNAL = signal.SIGUSR2
"""To a supervisor or a manager: the batch system will take away what this runs on."""

MAX_FILE_BYTES = 1 << 20
"""Files written by others (reports, requests) that are larger are refused unread."""


class Process(NamedTuple):
    """A process that cannot be mistaken for a later one with the same pid.

    Attributes
    ----------
    pid : int
    start : int
        Start time in clock ticks since boot: field 22 of ``/proc/PID/stat``, proc(5).
    """

    pid: int
    start: int

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """The process that has this pid now, or None; a zombie has ended, so it is None too."""
        try:
            text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        # The name (field 2) may hold blanks and parentheses; the last one closes it.
        fields = text[text.rindex(")") + 2 :].split()
        return None if fields[0] in "ZX" else cls(pid, int(fields[19]))

    @classmethod
    def me(cls) -> Process:
        """This process."""
        this = cls.of(os.getpid())
        if this is None:
            raise RuntimeError("/proc is not mounted")
        return this

    @classmethod
    def parse(cls, text: str) -> Process | None:
        """Read ``pid:PID:START``; None for ``none`` and for anything malformed."""
        kind, _, rest = text.partition(":")
        pid, _, start = rest.partition(":")
        if kind != "pid" or not pid.isdecimal() or not start.isdecimal():
            return None
        return cls(int(pid), int(start))

    def __str__(self) -> str:
        return f"pid:{self.pid}:{self.start}"

    def alive(self) -> bool:
        """Whether this very process still runs."""
        return Process.of(self.pid) == self

    def stopped(self) -> bool:
        """Whether a signal has stopped it; it may go on some day."""
        try:
            text = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False
        return text[text.rindex(")") + 2] == "T" and self.alive()

    def open(self) -> int | None:
        """A pidfd of this very process (the caller closes it), or None if it is gone."""
        try:
            fd = os.pidfd_open(self.pid)
        except (OSError, OverflowError):
            return None
        if self.alive():
            return fd
        os.close(fd)
        return None

    def send(self, signum: int) -> bool:
        """Send a signal to this very process; False if it is gone or not ours."""
        fd = self.open()
        if fd is None:
            return False
        try:
            signal.pidfd_send_signal(fd, signum)
        except (ProcessLookupError, PermissionError):
            return False
        finally:
            os.close(fd)
        return True


class Attempt(NamedTuple):
    """What a training process is told by its environment.

    Attributes
    ----------
    job_id : str
    attempt : int
        1 for the first run of the job, then one more each time; fences checkpoint writes.
    op : int
        The manager's operation that started this attempt.
    checkpoint_dir, report_dir : pathlib.Path
        Kept from attempt to attempt; and the directory of this attempt.
    num_gpus : int
        GPUs on this node.
    num_nodes : int
    rendezvous : str
        ``HOST:PORT``, or empty where there is one node.
    notify : Process or None
        The supervisor, on the same node.
    notices : bool
        The batch system sends SIGTERM to every process some time before it takes the node away.
    rungs : (int, int) or None
        Of a trial of a sweep: the first step at which it is compared with others, and the factor
        from each such step to the next. The session reports at once when it comes to one.
    """

    job_id: str
    attempt: int
    op: int
    checkpoint_dir: Path
    report_dir: Path
    num_gpus: int
    num_nodes: int = 1
    rendezvous: str = ""
    notify: Process | None = None
    notices: bool = False
    rungs: tuple[int, int] | None = None

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> Attempt | None:
        """Read the attempt this process belongs to; None outside hpcext.

        Raises
        ------
        ValueError
            A variable is missing or malformed, or the protocol is a newer one.
        """
        env = os.environ if environ is None else environ
        version = env.get("HPCEXT_PROTOCOL")
        if version is None:
            return None
        if version != str(VERSION):
            raise ValueError(f"HPCEXT_PROTOCOL={version}: this hpcext speaks protocol {VERSION}")
        try:
            return cls(
                job_id=env["HPCEXT_JOB_ID"],
                attempt=int(env["HPCEXT_ATTEMPT"]),
                op=int(env["HPCEXT_OP"]),
                checkpoint_dir=Path(env["HPCEXT_CHECKPOINT_DIR"]),
                report_dir=Path(env["HPCEXT_REPORT_DIR"]),
                num_gpus=int(env["HPCEXT_NUM_GPUS"]),
                num_nodes=int(env.get("HPCEXT_NUM_NODES", "1")),
                rendezvous=env.get("HPCEXT_RENDEZVOUS", ""),
                notify=Process.parse(env.get("HPCEXT_NOTIFY", "none")),
                notices=env.get("HPCEXT_NOTICES") == "1",
                rungs=_rungs(env.get("HPCEXT_RUNGS", "")),
            )
        except KeyError as missing:
            raise ValueError(f"HPCEXT_PROTOCOL is set but {missing.args[0]} is not") from None

    def environ(self) -> dict[str, str]:
        """The variables that carry this attempt."""
        return {
            "HPCEXT_PROTOCOL": str(VERSION),
            "HPCEXT_JOB_ID": self.job_id,
            "HPCEXT_ATTEMPT": str(self.attempt),
            "HPCEXT_OP": str(self.op),
            "HPCEXT_CHECKPOINT_DIR": str(self.checkpoint_dir),
            "HPCEXT_REPORT_DIR": str(self.report_dir),
            "HPCEXT_NUM_GPUS": str(self.num_gpus),
            "HPCEXT_NUM_NODES": str(self.num_nodes),
            "HPCEXT_RENDEZVOUS": self.rendezvous,
            "HPCEXT_NOTIFY": str(self.notify) if self.notify else "none",
            "HPCEXT_NOTICES": str(int(self.notices)),
            "HPCEXT_RUNGS": ":".join(map(str, self.rungs or ())),
        }


def _rungs(text: str) -> tuple[int, int] | None:
    first, _, factor = text.partition(":")
    return (int(first), int(factor)) if text else None


class Allocation(NamedTuple):
    """The Slurm job that this process runs in, and the step; sbatch(1), srun(1).

    Attributes
    ----------
    job_id : int
    step : str
        ``JOB.STEP``; empty in a batch script.
    node : str
        The one that this process is on.
    nodelist : str
        As Slurm writes it: ``n[1-4]``.
    cpus_per_node : str
        As ``24(x2),12``.
    memory_mb : int
        Of each node; 0 where memory is not shared out.
    gpus : tuple of int
        Indices of the step's GPUs, or of the job's on this node.
    node_index : int
        Of this node in the step, from 0.
    restarts : int
        How often the job was put back into the queue.
    """

    job_id: int
    step: str
    node: str
    nodelist: str
    cpus_per_node: str
    memory_mb: int
    gpus: tuple[int, ...]
    node_index: int = 0
    restarts: int = 0

    @classmethod
    def from_environ(cls) -> Allocation | None:
        """The one that this process runs in; None outside Slurm."""
        env = os.environ
        job_id = env.get("SLURM_JOB_ID", "")
        if not job_id.isdecimal():
            return None
        step = env.get("SLURM_STEP_ID", "")
        gpus = env.get("SLURM_STEP_GPUS") or env.get("SLURM_JOB_GPUS", "")
        index = env.get("SLURM_NODEID", "")
        restarts = env.get("SLURM_RESTART_COUNT", "")
        memory = env.get("SLURM_MEM_PER_NODE", "")
        if not memory.isdecimal():
            each, cpus = env.get("SLURM_MEM_PER_CPU", ""), env.get("SLURM_CPUS_ON_NODE", "")
            both = each.isdecimal() and cpus.isdecimal()
            memory = str(int(each) * int(cpus)) if both else "0"
        return cls(
            job_id=int(job_id),
            step=f"{job_id}.{step}" if step.isdecimal() else "",
            node=env.get("SLURMD_NODENAME", ""),
            nodelist=env.get("SLURM_JOB_NODELIST", ""),
            cpus_per_node=env.get("SLURM_JOB_CPUS_PER_NODE", ""),
            memory_mb=int(memory),
            gpus=tuple(int(index) for index in gpus.split(",") if index.isdecimal()),
            node_index=int(index) if index.isdecimal() else 0,
            restarts=int(restarts) if restarts.isdecimal() else 0,
        )


def node_index() -> int:
    """Which of the nodes of its attempt this process is on, from 0, as its supervisor says."""
    said = os.environ.get("HPCEXT_NODE_INDEX", "")
    return int(said) if said.isdecimal() else 0


def step_index() -> int:
    """Which of the nodes of its step this process is on, from 0, as Slurm says."""
    place = Allocation.from_environ()
    return place.node_index if place else 0


def node_directory(attempt: Path, index: int) -> Path:
    """Where the supervisor of a node keeps what is its own: the first one in the attempt's.

    Parameters
    ----------
    attempt : pathlib.Path
        Directory of the attempt.
    index : int
        Of the node, from 0.
    """
    return attempt if index == 0 else attempt / f"node-{index:04d}"


def without_slurm() -> dict[str, str]:
    """Our environment without what Slurm told us of our own job: a step that inherits that has
    options that nobody gave it."""
    kept = {"SLURM_CONF"}
    return {
        name: value
        for name, value in os.environ.items()
        if name in kept
        # The last ones are options of plugins: what is submitted from here would have them too.
        or not name.startswith(("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "_SLURM_"))
    }


def without_task() -> dict[str, str]:
    """Our environment without what Slurm says of the task that we are: a launcher's ranks are
    others, and frameworks (Lightning, JAX) believe Slurm."""
    gone = (
        "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_GTIDS",
        "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_STEP_NUM_TASKS",
        "SLURM_STEP_TASKS_PER_NODE",
    )  # fmt: skip
    return {name: value for name, value in os.environ.items() if name not in gone}


def forget_flags() -> None:
    """Take from our environment what flags of sbatch say of our job, and not of others."""
    for name in ("HPCEXT_GPUS", "HPCEXT_SCALING", "HPCEXT_TRAINER"):
        os.environ.pop(name, None)


def forget_suspendable() -> None:
    """Take from our environment that our job is suspendable: jobs that it submits need not be."""
    for name in ("HPCEXT_SUSPENDABLE", "HPCEXT_LEAD_S"):
        os.environ.pop(name, None)


def environ() -> Mapping[str, str]:
    """The environment of this process, for those who look settings up in it."""
    return os.environ


def keep_compiled(directory: Path) -> None:
    """Have what ``torch.compile`` makes kept in a directory, unless the user says where.

    Call it before anything is compiled.

    Parameters
    ----------
    directory : pathlib.Path
    """
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(directory / "inductor"))
    os.environ.setdefault("TRITON_CACHE_DIR", str(directory / "triton"))
    # The default since PyTorch 2.5.
    os.environ.setdefault("TORCHINDUCTOR_FX_GRAPH_CACHE", "1")


def user_directory(kind: str) -> Path:
    """``~/.config/hpcext`` or ``~/.local/state/hpcext`` by the XDG rules.

    Parameters
    ----------
    kind : {"config", "state"}
    """
    variable, default = {
        "config": ("XDG_CONFIG_HOME", ".config"),
        "state": ("XDG_STATE_HOME", ".local/state"),
    }[kind]
    base = os.environ.get(variable, "")
    # The XDG specification: a relative path there is invalid and is ignored.
    root = Path(base) if base.startswith("/") else Path.home() / default
    return root / "hpcext"


def sync_directory(path: Path) -> None:
    """Make renames inside a directory survive a crash of the machine."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_file(path: Path, data: bytes, *, durable: bool = True, mode: int | None = None) -> None:
    """Replace a file as a whole: temporary name, flush, rename.

    Parameters
    ----------
    path : pathlib.Path
    data : bytes
    durable : bool
        Wait for the disk, so that the file survives a crash of the machine.
    mode : int, optional
        Permissions; for the owner alone if not said.

    Raises
    ------
    OSError
        Names the file. Nothing was replaced, and no temporary file is left.
    """
    name = path.with_name(f".{path.name}.{os.urandom(6).hex()}")
    try:
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(data)
            file.flush()
            if mode is not None:
                os.fchmod(fd, mode)
            if durable:
                os.fsync(fd)
        os.replace(name, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(name)
        if isinstance(error, OSError):
            # A write into a full disk does not know where, and all else names the draft.
            error.filename = str(path)
        raise
    if durable:
        sync_directory(path.parent)


def write_json(path: Path, document: Mapping[str, Any], *, durable: bool = True) -> None:
    """Replace a file by a JSON document, as :func:`write_file` does."""
    write_file(path, json.dumps(document).encode() + b"\n", durable=durable)


def read_untrusted(path: Path, *, owner: int | None = None) -> bytes:
    """Read a small regular file that somebody else wrote.

    Parameters
    ----------
    path : pathlib.Path
    owner : int, optional
        The uid that must own it.

    Raises
    ------
    FileNotFoundError
        It is not there.
    ValueError
        It is a link, a FIFO, a device, somebody else's, or larger than :data:`MAX_FILE_BYTES`.
    """
    try:
        # O_NONBLOCK: opening a FIFO that nobody writes to would wait for ever.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(f"{path.name}: cannot be opened ({error.strerror})") from None
    try:
        facts = os.fstat(fd)
        # Before open(), which raises for a directory and leaves the descriptor open.
        if not stat.S_ISREG(facts.st_mode):
            raise ValueError(f"{path.name}: not a regular file")
        if owner is not None and facts.st_uid != owner:
            raise ValueError(f"{path.name}: owned by uid {facts.st_uid}, not {owner}")
        with open(fd, "rb", closefd=False) as file:
            data = file.read(MAX_FILE_BYTES + 1)
    finally:
        os.close(fd)
    if len(data) > MAX_FILE_BYTES:
        raise ValueError(f"{path.name}: larger than {MAX_FILE_BYTES} bytes")
    return data


UNFIT = (OSError, ValueError, LookupError, TypeError, OverflowError)
"""What comes of a document that is not there, or does not hold what it should: ``int(1e999)``."""


def read_json(path: Path, schema: str, *, owner: int | None = None) -> dict[str, Any]:
    """Read a JSON object of a given schema that somebody else wrote.

    Raises
    ------
    FileNotFoundError
        It is not there.
    ValueError
        It is not such a document; the message says why.
    """
    data = read_untrusted(path, owner=owner)
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name}: not JSON ({error})") from None
    if not isinstance(document, dict) or document.get("schema") != schema:
        raise ValueError(f"{path.name}: {not_of(document, schema)}")
    return document


def is_later(document: object, schema: str) -> bool:
    """Whether a document says that it is of a later version of a schema."""
    found = document.get("schema") if isinstance(document, dict) else None
    if not isinstance(found, str) or not found.isascii():
        return False
    (name, _, number), (wanted, _, known) = found.rpartition("/"), schema.rpartition("/")
    return name == wanted and number.isdecimal() and len(number) < 9 and int(number) > int(known)


def not_of(document: object, schema: str) -> str:
    """Why a document is not of a schema."""
    if is_later(document, schema):
        return f"written by a later release of hpcext, and this one reads {schema}"
    return f"not a document of schema {schema}"
