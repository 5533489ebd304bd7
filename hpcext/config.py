"""Settings: their table, and the origin of each value.

A flag takes precedence over the environment, the environment over the user's file, the user's file
over the site's, and the site's file over the default.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hpcext import containers, protocol, seams
from hpcext.addresses import read_address
from hpcext.checks import at, integer, known_keys, number, string, unknown
from hpcext.core import notification_methods
from hpcext.core.band import NONE, read_band
from hpcext.core.errors import InputError
from hpcext.jobfields import MAX_GPUS, timeout_s
from hpcext.text import clean, did_you_mean, shown
from hpcext.textfiles import parse_toml, read_text

MAX_NODES = 10_000

DECISION_TIMEOUT_S = 60.0
"""Longer than the slowest policy measured: an exact programme for a full machine took 49 s."""

SITE_FILE = Path("/etc/hpcext/hpcext.toml")
"""The site's file. No variable changes its path, so root cannot be made to read another file."""

POLICIES = (
    "marble", "exclusive", "equal_share", "bftrainer", "bftrainer-lifetime",
    "optimus", "doubling", "total_time", "pollux", "fixed", "easy", "conservative",
    "tiresias",
)  # fmt: skip
"""Names of hpcext's own policies, which are in a higher layer; a test keeps both lists equal."""

AUTO = "auto"

BACKENDS = ("slurm", "lsf")
"""Names of hpcext's own batch systems; a test keeps both lists equal as well."""

SLURM_READERS = ("auto", "commands", "pyslurm", "slurmrestd")
"""What Slurm can be queried with; ``auto`` is pyslurm if one fits, or else commands."""


def user_file() -> Path:
    """Return the path of this user's settings, which need not exist; FileNotFoundError: no home."""
    return protocol.user_directory("config") / "hpcext.toml"


def _known(what: str, own: Sequence[str], group: str) -> Callable[[Any], str]:
    """Make a check for the name of a built-in or installed policy or backend."""

    def read(value: Any) -> str:
        # Options may follow the name of a policy; the policy checks them.
        name = string(value).partition(":")[0]
        if name not in own and name not in (installed := seams.names(group)):
            raise unknown(what, name, (*own, *installed))
        return str(value)

    return read


def _gpus(value: Any) -> int | str:
    if value == "auto":
        return "auto"
    try:
        return integer(value, 1, MAX_GPUS)
    except InputError as error:
        raise InputError(error.what, valid=f"auto, or {error.valid}") from None


def _directory(value: Any) -> Path:
    # Not Path.expanduser, which raises RuntimeError if there is no such home directory.
    path = Path(os.path.expanduser(string(value)))
    if not path.is_absolute():
        raise InputError(shown(value), valid="an absolute path, or one in your home, as ~/hpcext")
    return path


def _broker(value: Any) -> str:
    text = string(value)
    if text not in {AUTO, NONE}:
        try:
            read_address(text)
        except InputError as error:
            raise InputError(error.what, valid=f"{AUTO}, {NONE}, {error.valid}") from None
    return text


def _words(value: Any) -> str:
    try:
        shlex.split(string(value))
    except ValueError as error:
        raise InputError(
            f"{shown(value)}: {error}", valid="words with their quotes, as in a shell"
        ) from None
    return str(value)


def _one_of(*valid: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in valid:
            raise InputError(
                shown(value), valid=", ".join(valid), do=did_you_mean(str(value), valid)
            )
        return str(value)

    return read


def _band(value: Any) -> str:
    read_band(string(value), "")
    return str(value)


def _notify(value: Any) -> str:
    notification_methods.read_method(string(value))
    return str(value)


def _setting(
    default: Any,
    read: Callable[[Any], Any],
    help: str,
    *,
    variable: str = "",
    numeric: bool = False,
) -> Any:
    """Describe a setting: its default, its check, its help, and its variable.

    The variable is by default ``HPCEXT_`` followed by the name. A flag or a variable is converted
    to a number only if the setting is `numeric`; otherwise it stays text, even if it consists of
    digits.
    """
    facts = {"read": read, "help": help, "variable": variable, "numeric": numeric}
    if callable(default):
        return field(default_factory=default, metadata=facts)
    return field(default=default, metadata=facts)


@dataclass(frozen=True)
class Settings:
    """All settings, and their table.

    Attributes
    ----------
    policy : str
    gpus : int or "auto"
    suspend_timeout_s, report_interval_s, decision_timeout_s : float
    state_dir : pathlib.Path
    batch : str
        ``auto``, or the name of a batch system, see :mod:`hpcext.backends`.
    slurm_reader : {"auto", "commands", "pyslurm", "slurmrestd"}
    lsf_launcher : {"blaunch", "jsrun", "lsrun"}
    lsf_options : str
        Options of bsub for each pilot.
    lsf_gpu_option : str
        Value of bsub's ``-gpu``; if empty, the option is not used.
    pilot_options : str
        Options of sbatch for each pilot.
    harvest_partition : str
    harvest_options : str
        Options of sbatch or bsub for each lease.
    harvest_max_nodes : int
    harvest_share : float
    harvest_gpus : int or "auto"
    harvest_autoscale : str
        ``none``, or a band of utility; see :mod:`hpcext.core.band`.
    broker : str
        ``auto``, ``none``, or the absolute path of a socket.
    warm_starts : {"auto", "asked"}
    container_runtime : str
        One of :data:`hpcext.containers.RUNTIMES`.
    notify : str
        ``none``, or how the user is notified; see :mod:`hpcext.core.notification_methods`. It may
        contain a secret.
    origins : Mapping[str, str]
        The origin of each setting's value: ``--policy``, a variable, a file, or ``default``.
    """

    policy: str = _setting(
        "marble",
        _known("policy", POLICIES, seams.POLICIES),
        "how GPUs are shared: a policy with its options, such as marble or pollux:p=0",
    )
    # Not HPCEXT_GPUS, because that variable holds a batch job's flag, which may be a range.
    gpus: int | str = _setting(
        "auto",
        _gpus,
        "number of GPUs to use (or of logical slots, where there are none), or auto",
        variable="HPCEXT_PILOT_GPUS",
        numeric=True,
    )
    suspend_timeout_s: float = _setting(
        60.0,
        timeout_s,
        "seconds that a job may take to suspend, unless its job file says otherwise",
        numeric=True,
    )
    report_interval_s: float = _setting(
        5.0,
        lambda value: number(value, 0.1, 3600),
        "seconds between two looks of a manager at the progress of its jobs",
        numeric=True,
    )
    decision_timeout_s: float = _setting(
        DECISION_TIMEOUT_S,
        lambda value: number(value, 1, 3600),
        "seconds that the policy may take to decide; after that jobs keep what they have",
        numeric=True,
    )
    state_dir: Path = _setting(  # noqa: RUF009 (a field)
        lambda: protocol.user_directory("state"), _directory, "where pilots keep their directories"
    )
    batch: str = _setting(
        AUTO,
        _known("batch system", (AUTO, *BACKENDS), seams.BACKENDS),
        "batch system, such as slurm or lsf; auto: the one whose commands are installed",
    )
    slurm_reader: str = _setting(
        "auto",
        _one_of(*SLURM_READERS),
        "what queries Slurm: commands, pyslurm, slurmrestd, or auto: pyslurm of its release, or "
        "commands",
    )
    lsf_launcher: str = _setting(
        "blaunch",
        _one_of("blaunch", "jsrun", "lsrun"),
        "program that starts jobs of a pilot on the hosts of its LSF job",
    )
    lsf_options: str = _setting("", _words, "options of bsub for each pilot, such as -P ABC")
    lsf_gpu_option: str = _setting(
        "num={gpus}/host:mode=shared:j_exclusive=yes",
        _words,
        "value of bsub -gpu, with {gpus} GPUs on each host; empty: submit jobs without -gpu",
    )
    pilot_options: str = _setting("", _words, "options of sbatch for each pilot, such as --qos=gpu")
    harvest_partition: str = _setting(
        "", string, "partition or queue for harvesters, whose jobs all others can preempt"
    )
    harvest_options: str = _setting("", _words, "options of sbatch or bsub for each lease")
    harvest_max_nodes: int = _setting(
        64, lambda value: integer(value, 1, MAX_NODES), "most nodes of a harvester", numeric=True
    )
    harvest_share: float = _setting(
        1.0,
        lambda value: number(value, 0.01, 1),
        "largest part of the idle nodes that a harvester takes, from 0.01 to 1",
        numeric=True,
    )
    harvest_gpus: int | str = _setting(
        "auto",
        _gpus,
        "GPUs of each node that harvesters use (logical slots, where there are none), or auto",
        numeric=True,
    )
    harvest_autoscale: str = _setting(
        NONE,
        _band,
        "utility at which a harvester keeps its number of nodes, such as 0.4:0.7, or none",
    )
    broker: str = _setting(
        AUTO,
        _broker,
        "socket of the site's broker, which says how many nodes a harvester may have, or "
        "munge://HOST:PORT or drop://DIRECTORY of one on another host; auto: the usual socket if "
        "it exists; or none",
    )
    warm_starts: str = _setting(
        "auto",
        _one_of("auto", "asked"),
        "import PyTorch before a resumed training where that makes no difference (auto), or only "
        "for jobs with preload (asked)",
    )
    container_runtime: str = _setting(
        containers.AUTO,
        containers.runtime,
        "what runs jobs with a container: apptainer, singularity, pyxis, or auto, the first there",
    )
    # Not HPCEXT_NOTIFY, because the supervisor sets that variable for its training.
    notify: str = _setting(
        notification_methods.NONE,
        _notify,
        "how you learn that jobs fail or a pilot ends: none, mail, webhook:URL, command:COMMAND",
        variable="HPCEXT_PILOT_NOTIFY",
    )
    origins: Mapping[str, str] = field(default_factory=dict)

    def values(self) -> dict[str, Any]:
        """Return every setting in types of JSON and TOML, for display, without secrets."""
        found = {name: getattr(self, name) for name in SETTINGS}
        found["notify"] = notification_methods.shown_method(self.notify)
        return {name: str(v) if isinstance(v, Path) else v for name, v in found.items()}


SETTINGS: Mapping[str, Mapping[str, Any]] = {
    row.name: {**row.metadata, "variable": row.metadata["variable"] or f"HPCEXT_{row.name.upper()}"}
    for row in fields(Settings)
    if row.metadata
}
"""By name, ``read`` (checks a value), ``help``, ``variable`` (of the environment), ``numeric``."""


def load_settings(
    flags: Mapping[str, Any] | None = None, *, environ: Mapping[str, str] | None = None
) -> Settings:
    """Merge the settings of all sources.

    Parameters
    ----------
    flags : Mapping[str, Any], optional
        Flags of the command line; None stands for one that was not given.
    environ : Mapping[str, str], optional
        Environment to read; by default that of this process.

    Raises
    ------
    InputError
        A file or value is invalid, whatever its origin.
    """
    environ = protocol.environ() if environ is None else environ
    values: dict[str, Any] = {}
    origins = dict.fromkeys(SETTINGS, "default")
    for origin, found in (
        _optional_file(lambda: SITE_FILE, must_be_roots=True),
        _optional_file(user_file, must_be_roots=False),
    ):
        values.update(found)
        origins.update(dict.fromkeys(found, origin))
    for name, facts in SETTINGS.items():
        # An empty variable counts as unset, as in the XDG rules.
        if text := environ.get(facts["variable"], ""):
            values[name] = _read_said(name, text, facts["variable"])
            origins[name] = facts["variable"]
        if (given := (flags or {}).get(name)) is not None:
            flag = f"--{name.replace('_', '-')}"
            values[name] = _read_said(name, given, flag)
            origins[name] = flag
    return Settings(**values, origins=MappingProxyType(origins))


def read_file(path: Path, *, must_be_roots: bool = False) -> dict[str, Any]:
    """Read and check a file of settings.

    Parameters
    ----------
    path : pathlib.Path
    must_be_roots : bool
        Whether to refuse it unless root owns it and only root can write to it.

    Raises
    ------
    InputError
        The file, or a setting in it, is invalid; the message names the first one.
    """
    text = read_text(path, must_be_roots=must_be_roots)
    where = clean(str(path))
    table = parse_toml(text, where)
    with at(where):
        known_keys(table, SETTINGS)
    return {name: _read(name, value, f"{where}: {name}") for name, value in table.items()}


def _optional_file(find: Callable[[], Path], *, must_be_roots: bool) -> tuple[str, dict[str, Any]]:
    try:
        path = find()
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return "", {}
    except OSError:
        pass  # the error comes from reading it
    return clean(str(path)), read_file(path, must_be_roots=must_be_roots)


def _read(name: str, value: Any, where: str) -> Any:
    with at(where):
        return SETTINGS[name]["read"](value)


def _read_said(name: str, value: Any, where: str) -> Any:
    """Check the value of a flag or a variable, which are both text."""
    return _read(name, _number(value) if SETTINGS[name]["numeric"] else value, where)


def _number(value: Any) -> Any:
    """Convert a text to a number if it is one."""
    if not isinstance(value, str):
        return value
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value
