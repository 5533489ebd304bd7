"""The contract between a manager and a training process: variables, files, exit codes.

It is small enough for any language, and the same on every batch system. It needs only parts of the
standard library that are quick to import (not dataclasses and tempfile), because training scripts
and the supervisor import it, and every start of a job waits for that. Every environment variable of
hpcext is read here only.

One *attempt* is one run of a job's command. Its directory contains, in the order of appearance:

==================  =============  ==============================================================
``launch.json``     manager        what to run (:data:`LAUNCH`)
``supervisor.json`` supervisor     its pid and start time; created once, so an attempt runs once
``report.json``     session        progress, replaced during the training (:data:`REPORT`)
``order.json``      manager        suspend, or end, where no signal can be sent (:data:`ORDER`)
``rescale.json``    manager        the number of GPUs to rescale to in place (:data:`RESCALE`)
``rescaled.json``   launcher       the number of GPUs after that (:data:`RESCALED`)
``suspended.json``  session        the acknowledgement of a suspension (:data:`SUSPENDED`)
``rehearsal.json``  session        the training's state before and after (:data:`REHEARSAL`)
``native.json``     supervisor     what became of a transparent suspension (:data:`NATIVE`)
``preload.json``    agent          ``why`` modules of the job are not imported once
``exit.json``       supervisor     no process is left: exit code, rusage (:data:`EXIT`)
==================  =============  ==============================================================

An attempt on several nodes has a supervisor on each. Supervisors of other nodes than the first keep
their two files in ``node-0001``, ``node-0002`` and so on; rank 0 writes reports and
acknowledgements.

Times inside these files are seconds since the epoch (keys end in ``_at``).
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from hpcext.numerals import whole
from hpcext.process import Process

VERSION = 1

# Schemas of the files of an attempt, and their names.
LAUNCH = "hpcext.launch/1"
SUPERVISOR = "hpcext.supervisor/1"
REPORT = "hpcext.report/1"
"""The keys that a manager reads: ``attempt`` and ``op`` as in the environment, ``step``,
``resumed_step``, ``saved_step``, ``done`` (work since the job began), ``rate`` (work per second, or
null), ``metrics`` (numbers by name, null for one that is no longer finite), ``in_place``, the times
``registered_at``, ``restored_at`` and ``first_step_at`` (null before the first step), ``goodput``
(null, or an object). For a training that cannot write a checkpoint also ``cannot_save`` (why, in a
few words; null once it can), ``declined`` (the number of suspensions that this attempt has
declined) and ``waits_to_save`` (true: it has ended, and retries its final checkpoint).

Once a training has made enough steps for a usual duration, it is in ``step_s``: the 99th percentile
and the longest of its steps in this attempt, in seconds; before that it is null.

``beforehand`` is empty, or has ``modules`` that can be imported before the script of the next
attempt begins, and what a manager has to see explained by their import: ``environ``, digests of
variables that have changed since the process began (null for one that is gone), and ``compiled``,
packages that were imported till then.

If ``suspendable`` is false (the default is true), the training has not reached a point at which it
can be suspended; then of the other keys only ``metrics`` and ``notes`` count. ``notes`` is a list
of at most eight sentences for the user.

``goodput`` has the gradient ``noise_scale`` and the ``initial_batch``, both in samples. It may have
``most_batch`` (samples of a step on all GPUs), ``least_per_gpu`` (1), ``most_per_gpu`` (samples on
one GPU in a pass) and ``accumulates`` (true: a step may have several passes). It may have
``throughput``, and must have it if ``done`` does not count samples: seven numbers that determine
the seconds of a step as

    passes before the last one * G + (G^gamma + S^gamma)^(1 / gamma)
    G = alpha_grad + beta_grad * (samples of a GPU in a pass)
    S = alpha + beta * (GPUs - 2), 0 on one GPU; one alpha and beta in a node, others on several

in the order ``alpha_grad, beta_grad, alpha_local, beta_local, alpha_node, beta_node, gamma``; the
last one is in [1, 10]. It may have ``batch``: the present samples of a step. An invalid goodput is
ignored, and the other keys still count.
"""
ORDER = "hpcext.order/1"
RESCALE = "hpcext.rescale/1"
RESCALED = "hpcext.rescaled/1"
SUSPENDED = "hpcext.suspended/1"
REHEARSAL = "hpcext.rehearsal/1"
"""The keys, written if ``HPCEXT_REHEARSAL`` is 1: ``step``, at which the training was suspended or
went on; ``state``, fingerprints of the process's state then, by kind; ``steps``, for each of the
next steps in this process its ``step``, its ``metrics`` and the ``state`` after it; ``went_on_s``,
the seconds of these steps.
"""
NATIVE = "hpcext.native/1"
"""Of a job with ``checkpoint = "transparent"``: ``declined`` and ``cannot_save`` as in a report,
``notes`` (sentences for the user), and ``began_as``: the directory of the attempt in which its
processes began, which their environment names, since they go on in later attempts.
"""
UNPRELOADED = "hpcext.preload/1"
EXIT = "hpcext.exit/1"
"""Two of the keys have the names of release 0.1.0, whose managers and supervisors still run:
``suspend_asked_at``, the time of the suspension that was requested and not declined, and
``kill_asked_at``, the time when the end of the attempt was requested: by the manager, or by a
notice of the batch system at which a command without a session ended with 0. ``went_on`` states
that a command ended with 0 after its training had been asked to save and had left. Of an attempt
that failed, ``gpus_broken`` and ``gpus_noted`` state what NVIDIA's driver says of its GPUs. For a
command that saves by its own means, ``checkpoint`` states whether it has ``saved``, the seconds
of its work that are in no checkpoint, ``lost_s``, whether that is ``exact`` or an upper limit,
and whether the command begins ``anew``, without a checkpoint.
"""
LAUNCH_FILE = "launch.json"
SUPERVISOR_FILE = "supervisor.json"
REPORT_FILE = "report.json"
ORDER_FILE = "order.json"
RESCALE_FILE = "rescale.json"
RESCALED_FILE = "rescaled.json"
SUSPENDED_FILE = "suspended.json"
REHEARSAL_FILE = "rehearsal.json"
NATIVE_FILE = "native.json"
UNPRELOADED_FILE = "preload.json"
EXIT_FILE = "exit.json"
REHEARSAL_VARIABLE = "HPCEXT_REHEARSAL"
TRACKERS_VARIABLE = "HPCEXT_TRACKERS"
RESTART_STEP_VARIABLE = "HPCEXT_RESTART_STEP"
_NO = {"0", "no", "off", "false", "none"}

LAST_STEP = "last-step"
"""File beside these: the number of the last step done, in decimal digits. The session writes it in
place at each step, so that the progress of a killed attempt is known; it is read when the attempt
has ended. A tab after the number means that the next step may take long, because a checkpoint or a
validation precedes it."""

MLFLOW_NOTE = "mlflow-run-id"
"""File in the directory of checkpoints: the id of the run of MLflow in which the training logs. A
session writes it, or the training itself; the next attempt finds the id in ``MLFLOW_RUN_ID``."""

EXIT_SUSPENDED = 85
"""Exit code of a supervisor whose job suspended itself; a hint, since the file is the proof."""

SUSPEND_SIGNAL = signal.SIGTSTP
"""The request to suspend: save and exit. It is blocked, never handled: a session polls for it."""

NEWS_SIGNAL = signal.SIGUSR1
"""The signal for news to a supervisor or a manager, which then looks at once."""

STACKS_SIGNAL = signal.SIGURG
"""The request to write the stacks of all threads to standard error. Unlike most signals it does not
disturb a process without a handler; programs in Go expect it at any time."""

NOTICE_SIGNAL = signal.SIGUSR2
"""The signal to a supervisor or a manager that the batch system will take the allocation away."""


class Attempt(NamedTuple):
    """An attempt of a job, as described by the environment of a training process.

    Attributes
    ----------
    job_id : str
    attempt : int
        1 for the first run of the job, one more for each further run; it fences checkpoint writes.
    op : int
        The manager's operation that started this attempt.
    checkpoint_dir, report_dir : pathlib.Path
        The directory of checkpoints, kept between attempts, and that of this attempt.
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
        factor from each rung to the next. The session reports at once when it reaches a rung.
    run_id : str
        The id of the job's run for an experiment tracker, the same in all attempts: 32 hexadecimal
        digits, or empty if it is unknown.
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
    run_id: str = ""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> Attempt | None:
        """Read the attempt to which this process belongs; None outside hpcext.

        Parameters
        ----------
        environ : Mapping[str, str], optional
            By default that of this process.

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
                run_id=env.get("HPCEXT_RUN_ID", ""),
            )
        except KeyError as missing:
            raise ValueError(f"HPCEXT_PROTOCOL is set but {missing.args[0]} is not") from None

    def environ(self) -> dict[str, str]:
        """Return the environment variables that describe this attempt."""
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
            "HPCEXT_RUN_ID": self.run_id,
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


def node_index() -> int:
    """Return the index, from 0, of this process's node in its attempt, as set by its supervisor."""
    return whole(os.environ.get("HPCEXT_NODE_INDEX")) or 0


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


def wants_trackers(environ: Mapping[str, str]) -> bool:
    """Return whether an environment lets us set the variables of experiment trackers."""
    return environ.get(TRACKERS_VARIABLE, "").strip().lower() not in _NO


def rehearsing() -> bool:
    """Return whether a training records its state to test what a suspension preserves."""
    return os.environ.get(REHEARSAL_VARIABLE) == "1"


def forget_flags() -> None:
    """Remove from the environment those flags of sbatch that are about this job only."""
    for name in ("HPCEXT_GPUS", "HPCEXT_SCALING", "HPCEXT_TRAINER"):
        os.environ.pop(name, None)


def forget_suspendable() -> None:
    """Remove the mark of a suspendable job from the environment; jobs it submits need not be."""
    for name in ("HPCEXT_SUSPENDABLE", "HPCEXT_LEAD_S", "HPCEXT_CHECKPOINT"):
        os.environ.pop(name, None)


def environ() -> Mapping[str, str]:
    """Return the environment of this process, for callers that look settings up in it."""
    return os.environ


def compiled(directory: Path) -> dict[str, str]:
    """Return variables that make ``torch.compile`` store its products in a directory.

    Some of these products are executed later. The variables must be set before Python starts,
    because PyTorch chooses the place, in ``/tmp``, when an optimizer is made.
    """
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(directory / "inductor"),
        "TRITON_CACHE_DIR": str(directory / "triton"),
        # The default since PyTorch 2.5.
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
    }


def keep_compiled(directory: Path) -> None:
    """Make ``torch.compile`` in this process store its products in a directory."""
    os.environ.update(compiled(directory))


def user_directory(kind: str) -> Path:
    """Return ``~/.config/hpcext`` or ``~/.local/state/hpcext`` by the XDG rules.

    Parameters
    ----------
    kind : {"config", "state"}

    Raises
    ------
    FileNotFoundError
        It is in the home directory, and there is none.
    """
    variable, default = {
        "config": ("XDG_CONFIG_HOME", ".config"),
        "state": ("XDG_STATE_HOME", ".local/state"),
    }[kind]
    base = os.environ.get(variable, "")
    # By the XDG specification, a relative path there is invalid and is ignored.
    if base.startswith("/"):
        return Path(base) / "hpcext"
    try:
        return Path.home() / default / "hpcext"
    except RuntimeError:
        what = f"the account has no home directory: set HOME or {variable}"
        raise FileNotFoundError(errno.ENOENT, what) from None


def digest(value: str) -> str:
    """Return a digest of the value of a variable, which may be a secret, to compare it by."""
    # Imported here, since few who speak the protocol need it.
    import hashlib  # noqa: PLC0415

    return hashlib.sha256(os.fsencode(value)).hexdigest()[:32]
