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
``rehearsal.json``  session        what it was like before and after (:data:`REHEARSAL`)
``exit.json``       supervisor     the tree is empty: exit code, rusage (:data:`EXIT`)
==================  =============  ==============================================================

An attempt on several nodes has a supervisor on each. Those of the others keep their two files in
``node-0001``, ``node-0002`` and so on; reports and acknowledgements are those of rank 0.

Instants inside these files are seconds since the epoch (keys end in ``_at``).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from hpcext.numerals import whole

VERSION = 1

# Schemas of the files of an attempt, and their names.
LAUNCH = "hpcext.launch/1"
SUPERVISOR = "hpcext.supervisor/1"
REPORT = "hpcext.report/1"
"""What a manager reads of it: ``attempt`` and ``op`` as in the environment, ``step``,
``resumed_step``, ``saved_step``, ``done`` (work since the job began), ``rate`` (work per second, or
null), ``metrics`` (numbers by name, null for one that is not finite any more), ``in_place``, the
instants ``registered_at``, ``restored_at`` and ``first_step_at`` (null before the first step),
``goodput``: null, or an object; and of a training that cannot write a checkpoint ``cannot_save``
(why, in a few words; null once it can), ``declined`` (how many suspensions of this attempt it has
answered by going on) and ``waits_to_save`` (true: it is over, and tries to write its last one).

Where ``suspendable`` is false (it is true if not said) the training has come to no place yet at
which it could be suspended: of the rest only ``metrics`` and ``notes`` count. ``notes`` is a list
of sentences, eight at most, that the user should know.

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
REHEARSAL = "hpcext.rehearsal/1"
"""Written where ``HPCEXT_REHEARSAL`` is 1: ``step``, at which it was suspended or went on;
``state``, fingerprints of what the process has then, by kind; ``steps``, of the next ones in this
process the ``step``, its ``metrics`` and the ``state`` after it; ``went_on_s``, what they took.
"""
EXIT = "hpcext.exit/1"
LAUNCH_FILE = "launch.json"
SUPERVISOR_FILE = "supervisor.json"
REPORT_FILE = "report.json"
ORDER_FILE = "order.json"
RESCALE_FILE = "rescale.json"
RESCALED_FILE = "rescaled.json"
SUSPENDED_FILE = "suspended.json"
REHEARSAL_FILE = "rehearsal.json"
EXIT_FILE = "exit.json"
REHEARSAL_VARIABLE = "HPCEXT_REHEARSAL"

LAST_STEP = "last-step"
"""Beside these files: the number of the last step done, in decimal digits. The session writes it
in place at each step, so that what a killed attempt did is known; read when it has ended."""

EXIT_SUSPENDED = 85
"""Exit code of a supervisor whose job suspended itself. A hint: the file is the proof."""

SUSPEND_SIGNAL = signal.SIGTSTP
"""Manager to training: save and leave. Blocked, never handled: a session looks for it."""

NEWS_SIGNAL = signal.SIGUSR1
"""To a supervisor or a manager: there is news, look now."""

NOTICE_SIGNAL = signal.SIGUSR2
"""To a supervisor or a manager: the batch system will take away what this runs on."""


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
        pid, start = map(whole, rest.partition(":")[::2])
        return None if kind != "pid" or pid is None or start is None else cls(pid, start)

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
        The batch system sends SIGTERM (LSF SIGINT before) to every process some time before it
        takes the node away.
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
                attempt=_number("HPCEXT_ATTEMPT", env["HPCEXT_ATTEMPT"]),
                op=_number("HPCEXT_OP", env["HPCEXT_OP"]),
                checkpoint_dir=Path(env["HPCEXT_CHECKPOINT_DIR"]),
                report_dir=Path(env["HPCEXT_REPORT_DIR"]),
                num_gpus=_number("HPCEXT_NUM_GPUS", env["HPCEXT_NUM_GPUS"]),
                num_nodes=_number("HPCEXT_NUM_NODES", env.get("HPCEXT_NUM_NODES", "1")),
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


def _number(variable: str, said: str) -> int:
    number = whole(said)
    if number is None:
        raise ValueError(f"{variable}={said[:60]!r}: not a whole number")
    return number


def _rungs(said: str) -> tuple[int, int] | None:
    if not said:
        return None
    first, factor = map(whole, said.partition(":")[::2])
    if first is None or factor is None:
        raise ValueError(f"HPCEXT_RUNGS={said[:60]!r}: not FIRST:FACTOR")
    return first, factor


JobId = int | str
"""A job of a batch system: its number, or of a task of Slurm's job array ``ARRAY_TASK``, since
Slurm's commands take the number of an array's last task for the whole array."""


class Allocation(NamedTuple):
    """The Slurm job that this process runs in, and the step; sbatch(1), srun(1).

    Attributes
    ----------
    job_id : int
        Its number; that of an array's last task is the array's, too.
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
    task : str
        ``ARRAY_TASK``, if it is a task of a job array; else empty.
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
    task: str = ""

    @property
    def name(self) -> JobId:
        """What Slurm's commands call the job, and nothing else."""
        return self.task or self.job_id

    @classmethod
    def from_environ(cls) -> Allocation | None:
        """The one that this process runs in; None outside Slurm."""
        env = os.environ
        job_id, step = (whole(env.get(f"SLURM_{name}_ID")) for name in ("JOB", "STEP"))
        if job_id is None:
            return None
        array, task = (whole(env.get(f"SLURM_ARRAY_{name}_ID")) for name in ("JOB", "TASK"))
        gpus = env.get("SLURM_STEP_GPUS") or env.get("SLURM_JOB_GPUS", "")
        memory = whole(env.get("SLURM_MEM_PER_NODE"))
        if memory is None:
            each, cpus = env.get("SLURM_MEM_PER_CPU"), env.get("SLURM_CPUS_ON_NODE")
            memory = (whole(each) or 0) * (whole(cpus) or 0)
        return cls(
            job_id=job_id,
            step="" if step is None else f"{job_id}.{step}",
            node=env.get("SLURMD_NODENAME", ""),
            nodelist=env.get("SLURM_JOB_NODELIST", ""),
            cpus_per_node=env.get("SLURM_JOB_CPUS_PER_NODE", ""),
            memory_mb=memory,
            gpus=tuple(index for index in map(whole, gpus.split(",")) if index is not None),
            node_index=whole(env.get("SLURM_NODEID")) or 0,
            restarts=whole(env.get("SLURM_RESTART_COUNT")) or 0,
            task="" if array is None or task is None else f"{array}_{task}",
        )


def node_index() -> int:
    """Which of the nodes of its attempt this process is on, from 0, as its supervisor says."""
    return whole(os.environ.get("HPCEXT_NODE_INDEX")) or 0


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


def array_of_slurm() -> dict[str, str]:
    """What tells this task of a job array from the others; sbatch(1)."""
    return {name: said for name, said in os.environ.items() if name.startswith("SLURM_ARRAY_")}


def without_task() -> dict[str, str]:
    """Our environment without what Slurm says of the task that we are: a launcher's ranks are
    others, and frameworks (Lightning, JAX) believe Slurm."""
    gone = (
        "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_GTIDS",
        "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_STEP_NUM_TASKS",
        "SLURM_STEP_TASKS_PER_NODE",
    )  # fmt: skip
    return {name: value for name, value in os.environ.items() if name not in gone}


def rehearsing() -> bool:
    """Whether a training is to write down what a suspension leaves of it."""
    return os.environ.get(REHEARSAL_VARIABLE) == "1"


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


def compiled(directory: Path) -> dict[str, str]:
    """What has ``torch.compile`` keep in a directory what it makes, of which some is run again.

    To be set before Python starts: PyTorch says where, in ``/tmp``, when an optimizer is made.
    """
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(directory / "inductor"),
        "TRITON_CACHE_DIR": str(directory / "triton"),
        # The default since PyTorch 2.5.
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
    }


def keep_compiled(directory: Path) -> None:
    """Have this process keep it there, whatever was said before."""
    os.environ.update(compiled(directory))


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
