"""How a command saves by its own means: the job key ``checkpoint``, its check, and its presets.

Such a command has no session, and a supervisor requests a checkpoint in the command's own way. It
accepts that the command has saved only by the signs that are stated here
(:mod:`hpcext.launch.native`).
"""

from __future__ import annotations

import glob
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from hpcext.checks import at, boolean, integer, known_keys, number, string, wrong
from hpcext.core.errors import InputError
from hpcext.text import did_you_mean, listed, shown
from hpcext.textfiles import parse_toml

SIGNALS = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGTERM")
"""The signals by which a command can be requested to save."""

ANY = "any"
"""The ``exit`` of a command whose exit value does not matter."""

MAX_EXIT = 255
MAX_WAIT_S = 604_800.0
ENDING_S = 30.0
"""Seconds in which a command must end once it may be ended, after the wait for a checkpoint."""


class Checkpointer(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a command is requested to save, how its success is recognised, and how it resumes.

    Attributes
    ----------
    signal : str
        The name of the signal that requests it; empty if the command saves periodically.
    exits : tuple of int or None
        Exit values that show that it has saved; empty: any value does. None: its end is not
        awaited.
    file : str
        Pattern of its checkpoints, relative to its working directory, with unreplaced placeholders;
        empty if it is unknown.
    option : str
        The argument of the command that names the directory of such files, if `file` is a preset's.
    newer : bool
        Whether only a checkpoint newer than the request shows that it has saved.
    requeue : bool
        Whether only its call of ``scontrol requeue`` shows that it has saved.
    after_s : float or None
        Longest wait for these signs, in seconds.
    arguments, resume : tuple of str
        Arguments that are added to the command always, and if there is a checkpoint.
    environ : Mapping[str, str]
        Variables that it gets unless they are set; ``{pid}`` is the supervisor's.
    transparent : bool
        Whether it saves nothing, and is suspended as it is
        (:mod:`hpcext.launch.transparent`).
    """

    signal: str = ""
    exits: tuple[int, ...] | None = None
    file: str = ""
    option: str = ""
    newer: bool = False
    requeue: bool = False
    after_s: float | None = None
    arguments: tuple[str, ...] = ()
    resume: tuple[str, ...] = ()
    environ: Mapping[str, str] = msgspec.field(default_factory=dict)
    transparent: bool = False

    @property
    def plain(self) -> bool:
        """Whether it may be ended although no sign shows that it has saved."""
        return not self.signal and not self.newer and not self.transparent

    @property
    def suspend_timeout_s(self) -> float | None:
        """The longest duration of a suspension by this; None if none is stated."""
        if self.after_s is None:
            return None
        return self.after_s + ENDING_S if self.plain else self.after_s

    def pattern(self, command: Sequence[str]) -> str:
        """Return `file` within the directory that a command's arguments name, if they do.

        Parameters
        ----------
        command : sequence of str
            With unreplaced placeholders, as the pattern.
        """
        directory = _value_of(self.option, command) if self.option else ""
        return f"{glob.escape(directory)}/{self.file}" if directory else self.file


PLAIN = Checkpointer()

PRESETS: Mapping[str, Checkpointer] = {
    # lightning/pytorch/trainer/connectors/signal_connector.py: at SIGUSR1 it saves hpc_ckpt_N.ckpt,
    # calls `scontrol requeue`, and trains on until it is ended. It does so, and resumes from that
    # file, only where plugins/environments/slurm.py finds itself in a step of Slurm.
    "lightning": Checkpointer(
        signal="SIGUSR1",
        file="**/hpc_ckpt_*.ckpt",
        newer=True,
        requeue=True,
        environ={
            "SLURM_JOB_ID": "{pid}",
            "SLURM_JOB_NAME": "hpcext",
            "SLURM_NNODES": "1",
            "SLURM_NTASKS": "1",
            "SLURM_NTASKS_PER_NODE": "1",
            "SLURM_PROCID": "0",
            "SLURM_LOCALID": "0",
            "SLURM_NODEID": "0",
        },
    ),
    # transformers/trainer_jit_checkpoint.py: three seconds after SIGTERM it saves checkpoint-STEP,
    # of which trainer_state.json is written last, and leaves its loop.
    "transformers": Checkpointer(
        signal="SIGTERM",
        file="**/checkpoint-*/trainer_state.json",
        option="--output_dir",
        newer=True,
        arguments=("--enable_jit_checkpoint",),
        resume=("--resume_from_checkpoint", "{directory}"),
    ),
    # accelerate/checkpointing.py: save_state writes random_states_RANK.pkl last. Its examples take
    # the directory of one by this option, and that of all by the other.
    "accelerate": Checkpointer(
        file="**/random_states_0.pkl",
        option="--output_dir",
        resume=("--resume_from_checkpoint", "{directory}"),
    ),
    # submitit/core/job_environment.py: at SIGUSR2 it pickles what the callable's checkpoint()
    # returns, calls `scontrol requeue`, and exits with -1.
    "submitit": Checkpointer(signal="SIGUSR2", exits=(), requeue=True),
    # keras/src/callbacks/backup_and_restore.py: it writes the weights, then this file, in place.
    "keras": Checkpointer(file="**/training_metadata.json", after_s=30.0),
    # Orbax's CheckpointManager saves at the step at which jax.distributed tells that SIGTERM has
    # come; it names a finished checkpoint by a number, and writes this file into it.
    "jax": Checkpointer(signal="SIGTERM", file="**/[0-9]*/_CHECKPOINT_METADATA", newer=True),
    # torch/distributed/elastic: the agent passes SIGTERM on to its ranks, waits for them, and exits
    # with 1 whatever they have done.
    "torchrun": Checkpointer(signal="SIGTERM", exits=()),
    "plain": PLAIN,
    "transparent": Checkpointer(transparent=True),
}

_KEYS = ("preset", "signal", "after_s", "done", "file", "resume")
_DONE = ("exit", "file", "requeue")
_BESIDE = ("preset", "after_s")


def checkpoint(value: Any) -> Checkpointer:
    """Check the key ``checkpoint`` of a job: the name of a preset, or a table.

    Parameters
    ----------
    value : Any

    Raises
    ------
    InputError
        It is neither.
    """
    if isinstance(value, str):
        return preset(value)
    if not isinstance(value, dict) or not value:
        raise wrong(
            value, 'the name of a preset, or a table, as {signal = "SIGUSR1", done = {...}}'
        )
    known_keys(value, _KEYS)
    found: dict[str, Any] = {}
    base = PLAIN
    if "preset" in value:
        with at("preset"):
            base = preset(string(value["preset"]))
    if "signal" in value:
        with at("signal"):
            found["signal"] = _signal(value["signal"])
    if "after_s" in value:
        with at("after_s"):
            found["after_s"] = number(value["after_s"], 0, MAX_WAIT_S, above=True)
    if "file" in value:
        with at("file"):
            found["file"] = _file(value["file"])
    if "resume" in value:
        with at("resume"):
            found["resume"] = _words(value["resume"])
    if "done" in value:
        with at("done"):
            done = _done(value["done"])
            if "file" in found and "file" in done:
                raise InputError("file is stated twice", do="leave out the one beside done")
            found |= {"exits": None, "newer": False, "requeue": False, **done}
    elif "signal" in found and base is PLAIN:
        raise InputError(
            "done is missing: nothing says that it has saved",
            do='add done = {exit = [0]}, {file = "PATTERN"} or {requeue = true}',
        )
    if "file" in found:
        found["option"] = ""
    spec = msgspec.structs.replace(base, **found)
    if base.transparent and (more := [key for key in value if key not in _BESIDE]):
        raise InputError(
            f"{more[0]} beside transparent, which needs nothing of the command",
            valid="only after_s",
        )
    _check(spec)
    return spec


def stated(text: str) -> Any:
    """Parse a flag or a variable: the name of a preset, or a table as in a job file.

    Parameters
    ----------
    text : str

    Returns
    -------
    str or dict
        The valid value of the key ``checkpoint`` of a job.
    """
    value: Any = text
    if text.lstrip().startswith("{"):
        value = parse_toml(f"checkpoint = {text}", "").get("checkpoint")
    checkpoint(value)
    return value


def preset(name: str) -> Checkpointer:
    """Return a preset by its name; raise InputError if there is none."""
    if name not in PRESETS:
        raise InputError(
            f"unknown preset {shown(name)}",
            valid=f"{', '.join(PRESETS)}, or a table",
            do=did_you_mean(name, tuple(PRESETS)),
        )
    return PRESETS[name]


def check_size(spec: Checkpointer, *, gpus: tuple[int, int], nodes: int, mps: bool) -> None:
    """Refuse a job of which no image can be made that fits wherever it goes on.

    Parameters
    ----------
    spec : Checkpointer
    gpus : tuple of int
        The fewest and the most that it can run on.
    nodes : int
        The most that it can run on.
    mps : bool
        Whether it may share a GPU.
    """
    if not spec.transparent:
        return
    if nodes > 1:
        raise InputError("transparent, for a job on several nodes", valid="only on one node")
    if gpus[0] != gpus[1]:
        raise InputError(
            f"transparent, for a job on {gpus[0]} to {gpus[1]} GPUs",
            valid="one number of GPUs: what is suspended as it is cannot change its size",
            do=f"say gpus = {gpus[0]}",
        )
    if mps:
        raise InputError("transparent, for a job that may share a GPU", do="leave mps out")


def check_command(spec: Checkpointer, *, shell: bool) -> None:
    """Refuse arguments for a command that a shell runs, which would be lost.

    Parameters
    ----------
    spec : Checkpointer
    shell : bool
        Whether a shell runs the command.
    """
    if shell and (spec.arguments or spec.resume):
        words = shlex.join([*spec.arguments, *spec.resume])
        raise InputError(
            f"adds {shown(words)} to the command, and a shell runs this one",
            do="leave shell = true out, or say resume = [] and put what it needs in the command",
        )


def _value_of(option: str, command: Sequence[str]) -> str:
    """Return the value of an argument, ``--output_dir OUT`` or ``--output-dir=OUT``; or empty."""
    value = ""
    # The last one counts, as for argparse.
    for word, following in zip(command, (*command[1:], ""), strict=True):
        name, equals, given = word.partition("=")
        if name.replace("-", "_") == option.replace("-", "_"):
            value = given if equals else following
    return value


def _check(spec: Checkpointer) -> None:
    """Refuse combinations that make no sense."""
    if spec.newer and not spec.file:
        raise InputError("no file is stated", where="done", do='add file = "PATTERN"')
    if not spec.signal and (spec.exits is not None or spec.requeue):
        key = "requeue" if spec.requeue else "exit"
        raise InputError(
            f"{key} without signal: nothing asks the command for it",
            where="done",
            do='add signal = "SIGUSR1", or what the command saves at',
        )
    if spec.plain and spec.after_s is not None and not spec.file:
        raise InputError(
            "nothing to wait for, since no file is stated",
            where="after_s",
            do="add file, a pattern",
        )
    if spec.resume and not spec.file:
        raise InputError(
            "no file is stated to resume from", where="resume", do="add file, a pattern"
        )


def _done(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        raise wrong(value, 'a table, as {exit = [0, 143]}, {file = "PATTERN"} or {requeue = true}')
    known_keys(value, _DONE)
    found: dict[str, Any] = {}
    if "exit" in value:
        with at("exit"):
            found["exits"] = _exits(value["exit"])
    if "file" in value:
        with at("file"):
            found |= {"file": _file(value["file"]), "newer": True}
    if "requeue" in value:
        with at("requeue"):
            if not boolean(value["requeue"]):
                raise InputError("false", valid="true", do="or leave it out")
            found["requeue"] = True
    return found


def _exits(value: Any) -> tuple[int, ...]:
    if value == ANY:
        return ()
    if not isinstance(value, list) or not value:
        raise wrong(value, 'an array of exit values, as [0, 143], or "any"')
    return tuple(dict.fromkeys(integer(each, 0, MAX_EXIT) for each in value))


def _signal(value: Any) -> str:
    if value not in SIGNALS:
        said = value if isinstance(value, str) else ""
        raise InputError(
            shown(value), valid=listed(SIGNALS), do=did_you_mean(f"SIG{said}", SIGNALS)
        )
    return str(value)


def _file(value: Any) -> str:
    pattern = string(value)
    if not pattern:
        raise InputError("empty", valid='a pattern of files, as "out/**/*.ckpt"')
    return pattern


def _words(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        try:
            return tuple(shlex.split(string(value)))
        except ValueError as error:
            raise InputError(f"{shown(value)}: {str(error).lower()}") from None
    if not isinstance(value, list):
        raise wrong(value, 'a string or an array of strings, as "--resume {file}"')
    return tuple(string(each) for each in value)
