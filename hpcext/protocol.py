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
``order.json``      manager        suspend, or end, where no signal can be sent (:data:`ORDER`)
``rescale.json``    manager        the number of GPUs to rescale to in place (:data:`RESCALE`)
``rescaled.json``   launcher       the number of GPUs after that (:data:`RESCALED`)
``suspended.json``  session        the acknowledgement of a suspension (:data:`SUSPENDED`)
``rehearsal.json``  session        the training's state before and after (:data:`REHEARSAL`)
``exit.json``       supervisor     no process is left: exit code, rusage (:data:`EXIT`)
==================  =============  ==============================================================

An attempt on several nodes has a supervisor on each. Supervisors of other nodes than the first keep
their two files in ``node-0001``, ``node-0002`` and so on; rank 0 writes reports and
acknowledgements.

Times inside these files are seconds since the epoch (keys end in ``_at``).
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
"""The keys that a manager reads: ``attempt`` and ``op`` as in the environment, ``step``,
``resumed_step``, ``saved_step``, ``done`` (work since the job began), ``rate`` (work per second, or
null), ``metrics`` (numbers by name, null for one that is not finite any more), ``in_place``, the
times ``registered_at``, ``restored_at`` and ``first_step_at`` (null before the first step),
``goodput``: null, or an object; and of a training that cannot write a checkpoint ``cannot_save``
(why, in a few words; null once it can), ``declined`` (how many suspensions of this attempt it has
declined and gone on) and ``waits_to_save`` (true: it has ended, and retries its last checkpoint).

A training that has done enough steps to tell how long they take says so in ``step_s``: the 99th
percentile and the longest of its steps in this attempt, in seconds; else it is null.

Where ``suspendable`` is false (the default is true) the training has not reached a point yet at
which it can be suspended: of the other keys only ``metrics`` and ``notes`` count. ``notes`` is a
list of at most eight sentences for the user.

``goodput`` has the gradient ``noise_scale`` and the ``initial_batch``, both in samples. It may have
``most_batch`` (samples of a step on all GPUs), ``least_per_gpu`` (1) and ``most_per_gpu`` (samples
of one GPU in a pass), and ``accumulates`` (true: a step may have several passes). It may have
``throughput``, and must where ``done`` does not count samples: seven numbers that give the seconds
of a step as

    passes before the last one * G + (G^gamma + S^gamma)^(1 / gamma)
    G = alpha_grad + beta_grad * (samples of a GPU in a pass)
    S = alpha + beta * (GPUs - 2), 0 on one GPU; one alpha and beta in a node, others on several

in the order ``alpha_grad, beta_grad, alpha_local, beta_local, alpha_node, beta_node, gamma``; the
last one is in [1, 10]. It may have ``batch``: the present samples of a step. An invalid goodput is
ignored, and the other keys count.
"""
ORDER = "hpcext.order/1"
RESCALE = "hpcext.rescale/1"
RESCALED = "hpcext.rescaled/1"
SUSPENDED = "hpcext.suspended/1"
REHEARSAL = "hpcext.rehearsal/1"
"""The keys, written if ``HPCEXT_REHEARSAL`` is 1: ``step``, at which the training was suspended or
went on; ``state``, fingerprints of the process's state then, by kind; ``steps``, for each of the
next steps in this process its ``step``, its ``metrics`` and the ``state`` after it; ``went_on_s``,
the seconds that these steps took.
"""
EXIT = "hpcext.exit/1"
"""Of the keys, two have the names of release 0.1.0, whose managers and supervisors still run:
``suspend_asked_at``, when the suspension was requested that was not declined, and
``kill_asked_at``, when the end of the attempt was.
"""
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
"""File beside these: the number of the last step done, in decimal digits. The session writes it in
place at each step, so that the progress of a killed attempt is known; read when it has ended. A tab
after the number says that the next step may take long: a checkpoint or a validation comes first."""

EXIT_SUSPENDED = 85
"""Exit code of a supervisor whose job suspended itself; a hint, since the file is the proof."""

SUSPEND_SIGNAL = signal.SIGTSTP
"""The request to suspend: save and exit. It is blocked, never handled: a session polls for it."""

NEWS_SIGNAL = signal.SIGUSR1
"""To a supervisor or a manager: there is news, so look now."""

STACKS_SIGNAL = signal.SIGURG
"""The request to write the stacks of all threads to standard error. A process that does nothing
about it is not disturbed by it, unlike by most signals; programs in Go expect it at any time."""

NOTICE_SIGNAL = signal.SIGUSR2
"""To a supervisor or a manager: the batch system is about to take the allocation away."""


class Process(NamedTuple):
    """A process that cannot be mistaken for a later one with the same pid.

    Attributes
    ----------
    pid : int
    start : int
        Start time in clock ticks since boot: field 22 of ``/proc/PID/stat`` (proc(5)).
    """

    pid: int
    start: int

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """Return the process that has this pid now, or None; a zombie counts as ended."""
        start = _start_of(str(pid))
        return None if start is None else cls(pid, start)

    @classmethod
    def me(cls) -> Process:
        """Return the present process."""
        # Not by its pid: in a pid namespace of its own, /proc may be that of the outside.
        start = _start_of("self")
        if start is None:
            raise RuntimeError("/proc is not mounted")
        return cls(os.getpid(), start)

    @classmethod
    def parse(cls, text: str) -> Process | None:
        """Read ``pid:PID:START``; None for ``none`` and for anything malformed."""
        kind, _, rest = text.partition(":")
        pid, start = map(whole, rest.partition(":")[::2])
        return None if kind != "pid" or pid is None or start is None else cls(pid, start)

    def __str__(self) -> str:
        return f"pid:{self.pid}:{self.start}"

    def alive(self) -> bool:
        """Return whether this very process still runs."""
        return Process.of(self.pid) == self

    def stopped(self) -> bool:
        """Return whether a signal has stopped this process; it may be continued later."""
        try:
            text = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False
        return text[text.rindex(")") + 2] == "T" and self.alive()

    def open(self) -> int | None:
        """Open a pidfd of this very process, which the caller closes; None if it is gone."""
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


def _start_of(name: str) -> int | None:
    """Return when a process of ``/proc`` started, in clock ticks; None if it has ended."""
    try:
        text = Path(f"/proc/{name}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name of the program (field 2) may hold blanks and parentheses; the last one closes it.
    fields = text[text.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else int(fields[19])


class Attempt(NamedTuple):
    """One attempt of a job, as the environment tells a training process of it.

    Attributes
    ----------
    job_id : str
    attempt : int
        1 for the first run of the job, and one more each time; it fences checkpoint writes.
    op : int
        The manager's operation that started this attempt.
    checkpoint_dir, report_dir : pathlib.Path
        The directory of checkpoints, kept from attempt to attempt, and that of this attempt.
    num_gpus : int
        GPUs on this node.
    num_nodes : int
    rendezvous : str
        ``HOST:PORT``, or empty on one node.
    notify : Process or None
        The supervisor on the same node.
    notices : bool
        Whether the batch system sends SIGTERM (LSF: SIGINT first) to every process before it takes
        the node away.
    rungs : (int, int) or None
        For a trial of a sweep, the first step at which it is compared with others (a rung), and the
        factor from each rung to the next. The session reports at once when it reaches one.
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
        """Read the attempt that this process belongs to; None outside hpcext.

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
        """Return the environment variables that carry this attempt."""
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
"""A job of a batch system: its number, or as its commands call a part of a job array, whose own
number is that of the whole array: ``ARRAY_TASK`` of Slurm, ``ARRAY[INDEX]`` of LSF."""


class Allocation(NamedTuple):
    """The Slurm job that this process runs in, and the step; sbatch(1), srun(1).

    Attributes
    ----------
    job_id : int
        Number of the job; an array's last task has the number of the array.
    step : str
        ``JOB.STEP``; empty in a batch script.
    node : str
        Name of the node that this process is on.
    nodelist : str
        As Slurm writes it: ``n[1-4]``.
    cpus_per_node : str
        As Slurm writes it: ``24(x2),12``.
    memory_mb : int
        Memory of each node in MiB; 0 where Slurm does not allocate memory.
    gpus : tuple of int
        Indices of the step's GPUs, or of the job's on this node.
    node_index : int
        Index of this node in the step, from 0.
    restarts : int
        How often the job was requeued.
    task : str
        ``ARRAY_TASK`` for a task of a job array; else empty.
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
        """Return the number by which Slurm's commands know this job and no other."""
        return self.task or self.job_id

    @classmethod
    def from_environ(cls) -> Allocation | None:
        """Return the allocation that this process runs in; None outside Slurm."""
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
    """Return the index, from 0, of this process's node in its attempt, as its supervisor says."""
    return whole(os.environ.get("HPCEXT_NODE_INDEX")) or 0


def step_index() -> int:
    """Return the index, from 0, of this process's node in its step, as Slurm says."""
    place = Allocation.from_environ()
    return place.node_index if place else 0


def node_directory(attempt: Path, index: int) -> Path:
    """Return the directory of a node's supervisor; the first node's is that of the attempt.

    Parameters
    ----------
    attempt : pathlib.Path
        Directory of the attempt.
    index : int
        Index of the node, from 0.
    """
    return attempt if index == 0 else attempt / f"node-{index:04d}"


def without_slurm() -> dict[str, str]:
    """Return the environment without Slurm's variables of the present job.

    A step that inherited them would have options that nobody gave it.
    """
    kept = {"SLURM_CONF"}
    return {
        name: value
        for name, value in os.environ.items()
        if name in kept
        # The last prefix is of plugins' options, which jobs submitted from here would inherit.
        or not name.startswith(("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "_SLURM_"))
    }


def array_of_slurm() -> dict[str, str]:
    """Return the variables that tell this task of a job array from the others; sbatch(1)."""
    return {name: said for name, said in os.environ.items() if name.startswith("SLURM_ARRAY_")}


def without_task() -> dict[str, str]:
    """Return the environment without Slurm's variables of the present task.

    The ranks of a launcher are other tasks, and frameworks (Lightning, JAX) believe these
    variables.
    """
    gone = (
        "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_GTIDS",
        "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_STEP_NUM_TASKS",
        "SLURM_STEP_TASKS_PER_NODE",
    )  # fmt: skip
    return {name: value for name, value in os.environ.items() if name not in gone}


def rehearsing() -> bool:
    """Return whether training is to record what a suspension would preserve of its state."""
    return os.environ.get(REHEARSAL_VARIABLE) == "1"


def forget_flags() -> None:
    """Remove from the environment the flags of sbatch that are about this job only."""
    for name in ("HPCEXT_GPUS", "HPCEXT_SCALING", "HPCEXT_TRAINER"):
        os.environ.pop(name, None)


def forget_suspendable() -> None:
    """Remove from the environment that this job is suspendable: jobs it submits need not be."""
    for name in ("HPCEXT_SUSPENDABLE", "HPCEXT_LEAD_S"):
        os.environ.pop(name, None)


def environ() -> Mapping[str, str]:
    """Return the environment of this process, for callers that look settings up in it."""
    return os.environ


def compiled(directory: Path) -> dict[str, str]:
    """Return variables that have ``torch.compile`` keep its products in a directory.

    Some of these are executed again. The variables must be set before Python starts: PyTorch
    chooses the place, in ``/tmp``, when an optimizer is made.
    """
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(directory / "inductor"),
        "TRITON_CACHE_DIR": str(directory / "triton"),
        # The default since PyTorch 2.5.
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
    }


def keep_compiled(directory: Path) -> None:
    """Have ``torch.compile`` in this process keep its products in a directory."""
    os.environ.update(compiled(directory))


def user_directory(kind: str) -> Path:
    """Return ``~/.config/hpcext`` or ``~/.local/state/hpcext`` by the XDG rules.

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
