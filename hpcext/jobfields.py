"""Checks of the values in a ``[[job]]`` table, with a function for each kind of value.

Each takes a value decoded from TOML and returns it in the type of :class:`hpcext.jobspec.JobSpec`,
or raises an InputError, to which the reader adds the file, the job and the key.
"""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Callable, Collection, Mapping
from typing import Any

from hpcext.checks import at, integer, known_keys, number, string, wrong
from hpcext.core.errors import InputError
from hpcext.core.silence import HANG
from hpcext.core.trials import Trial
from hpcext.text import shown

MAX_GPUS = 1024
"""Largest number of GPUs per node: far more than any node has, and few enough to enumerate."""

MAX_NODES = 65_536
MAX_WORK = 1e15
MAX_STEPS = 10**15
MAX_SECONDS = 604_800.0
MAX_FACTOR = 1e9
MAX_MEM_BYTES = 1 << 50

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
MAX_NAME_CHARS = 64
_NOT_FIRST = set("-.=+@")
"""Characters that would begin an option, a hidden file or a formula of a spreadsheet."""
_BLANK = re.compile("[ \u115f\u1160\u2800\u3164\uffa0]*")
"""Invisible characters that Unicode calls letters or symbols."""
_METRIC = re.compile(r"[A-Za-z_][A-Za-z0-9_./@-]{0,63}")
_KIND = re.compile(r"[A-Za-z0-9][ -~]{0,99}")
_MEM = re.compile(r"([0-9]{1,16})([KMGT]?)", re.IGNORECASE)
_UNIT_BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def name(value: Any) -> str:
    """Check the name of a job, which also appears in messages, tables and commands.

    No file of hpcext is named after it, because the files of a job are in a directory with its id.
    The name is normalized to NFC, in which a character is one code point if possible, so that
    another form of the same name means the same job.
    """
    valid = (
        f"up to {MAX_NAME_CHARS} printable characters, no /, no blank at either end, and none of "
        "- . = + @ as the first"
    )
    if not isinstance(value, str):
        raise wrong(value, f"a string: {valid}")
    # Cut first, because a file may have a name of a megabyte.
    named = unicodedata.normalize("NFC", value[: 8 * MAX_NAME_CHARS])
    good = (
        len(value) <= 8 * MAX_NAME_CHARS
        and len(named) <= MAX_NAME_CHARS
        and named.isprintable()
        and "/" not in named
        and named.strip() == named
        and not _BLANK.fullmatch(named)
        and named[0] not in _NOT_FIRST
        # A combining mark would be drawn over the character before the name.
        and not unicodedata.category(named[0]).startswith("M")
    )
    if not good:
        raise InputError(shown(value), valid=valid)
    if named.isdecimal():
        raise InputError(
            shown(value), valid="a name with a letter, because a number is the id of a job"
        )
    return named


def plain_name(value: Any) -> str:
    """Check the name of a sweep or of a profile, which is also the name of a file."""
    valid = "at most 64 letters, digits, and . _ -, beginning with a letter or digit"
    if not isinstance(value, str):
        raise wrong(value, f"a string of {valid}")
    if not _NAME.fullmatch(value):
        raise InputError(shown(value), valid=valid)
    if value.isdecimal():
        raise InputError(shown(value), valid="a name with a letter")
    return value


def command(value: Any) -> tuple[str, ...]:
    """Check a command and return its argv; a string is split as by a shell, but none runs it."""
    if isinstance(value, str):
        try:
            argv = tuple(shlex.split(string(value)))
        except ValueError as error:
            raise InputError(f"{shown(value)}: {str(error).lower()}") from None
    elif isinstance(value, list):
        argv = tuple(string(word) for word in value)
    else:
        raise wrong(value, "a string or an array of strings")
    if not argv or not argv[0]:
        raise InputError("empty", valid='what to run, as in "python train.py"')
    return argv


def gpus(value: Any) -> dict[str, int]:
    """Check a number of GPUs; return ``min``, ``max``, and what else is stated of it.

    That is ``optimal``, and ``multiple``, of which all others are multiples.
    """
    return _range(value, MAX_GPUS, ("min", "max", "optimal", "multiple"))


def nodes(value: Any) -> dict[str, int]:
    """Check a number of nodes; return ``min`` and ``max``."""
    return _range(value, MAX_NODES, ("min", "max"))


def _range(value: Any, most: int, keys: Collection[str]) -> dict[str, int]:
    if not isinstance(value, dict):
        if isinstance(value, bool) or not isinstance(value, int):
            raise wrong(value, f"an integer or a table {{{', '.join(keys)}}}")
        exactly = integer(value, 1, most)
        return {"min": exactly, "max": exactly}
    known_keys(value, keys)
    found: dict[str, int] = {}
    for key, given in value.items():
        with at(key):
            found[key] = integer(given, 1, most)
    found.setdefault("min", found.get("multiple", 1))
    if "max" not in found:
        raise InputError("max is missing", do="add it, for example {min = 1, max = 4}")
    _check_multiples(found)
    if found["min"] > found["max"]:
        raise InputError(
            f"min {found['min']} is more than max {found['max']}",
            valid=f"a min from 1 to {found['max']}",
        )
    if not found["min"] <= found.get("optimal", found["min"]) <= found["max"]:
        valid = f"from min to max, {found['min']} to {found['max']}"
        raise InputError(str(found["optimal"]), where="optimal", valid=valid)
    return found


def _check_multiples(found: Mapping[str, int]) -> None:
    multiple = found.get("multiple", 1)
    for key in ("max", "min", "optimal"):
        number = found.get(key, multiple)
        if number % multiple:
            below = number - number % multiple
            raise InputError(
                f"{number} is no multiple of {multiple}",
                where=key,
                valid=" or ".join(str(each) for each in (below, below + multiple) if each),
            )


def scaling(value: Any) -> dict[int, float] | dict[str, dict[int, float]] | str:
    """Check a scaling curve, one curve for each kind of GPU, or the name of a profile.

    Returns
    -------
    dict or str
        Speed by GPUs; or speed by kind of GPU and GPUs; or a name. In TOML the numbers of GPUs are
        strings, because they are keys.
    """
    if isinstance(value, str):
        return plain_name(value)
    if not isinstance(value, dict) or not value:
        raise wrong(value, f"{_CURVE}, or a profile's name")
    tables = [key for key, each in value.items() if isinstance(each, dict)]
    if not tables:
        return _curve(value)
    if len(tables) < len(value):
        raise InputError(
            "it mixes speeds with tables for kinds of GPU",
            valid="either {1 = 1.0, 2 = 1.9} or {a100 = {1 = 2.0}, v100 = {1 = 1.0}}",
        )
    found = {}
    for key in tables:
        if not _KIND.fullmatch(key) or key.isdecimal():
            raise InputError(
                f"{shown(key)} is not a kind of GPU",
                valid="a name with a letter, at most 100 characters",
            )
        with at(key):
            found[key] = _curve(value[key])
    return found


_CURVE = "a table of GPUs and speeds, such as {1 = 1.0, 2 = 1.9}"


def _curve(value: Any) -> dict[int, float]:
    if not value:
        raise wrong(value, _CURVE)
    curve = {}
    for key, speed in value.items():
        if not re.fullmatch(r"[1-9][0-9]{0,8}", key) or int(key) > MAX_GPUS * MAX_NODES:
            raise InputError(f"unknown key {shown(key)}", valid="numbers of GPUs: 1, 2, ...")
        with at(key):
            curve[int(key)] = number(speed, 0, MAX_WORK, above=True)
    return dict(sorted(curve.items()))


def work(value: Any) -> tuple[float, str]:
    """Check an amount of work and return it with its unit; a number without one counts steps."""
    if not isinstance(value, dict):
        return _whole(value), "steps"
    units = ("steps", "samples")
    known_keys(value, units)
    if len(value) != 1:
        raise InputError(f"it has {len(value)} units", valid="{steps = N} or {samples = N}")
    ((unit, given),) = value.items()
    with at(unit):
        return _whole(given), unit


def _whole(value: Any) -> float:
    amount = number(value, 1, MAX_WORK)
    if not amount.is_integer():
        raise InputError(shown(value), valid="a whole number")
    return amount


def after(value: Any) -> tuple[str, ...]:
    """Check the names of the jobs on which a job depends; a single name needs no array."""
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list):
        raise wrong(value, "the name of a job or an array of names")
    for entry in names:
        if not isinstance(entry, str):
            raise wrong(entry, "the name of a job")
    return tuple(dict.fromkeys(unicodedata.normalize("NFC", each) for each in names))


def env(value: Any) -> dict[str, str]:
    """Check the variables to be added to the environment of the command."""
    found = _strings(value, '{SEED = "1"}')
    for key in found:
        if not key or "=" in key or "\0" in key:
            raise InputError(
                f"{shown(key)} is not the name of a variable", valid="a name without = and NUL"
            )
        if key.startswith("HPCEXT_"):
            raise InputError(
                f"{shown(key)} is set by hpcext itself",
                valid="names that do not begin with HPCEXT_",
            )
    return found


def _strings(value: Any, example: str) -> dict[str, str]:
    """Check a table whose values are strings."""
    if not isinstance(value, dict):
        raise wrong(value, f"a table of strings, such as {example}")
    found = {}
    for key, given in value.items():
        with at(shown(key).strip("'\"")):
            found[key] = string(given)
    return found


def workdir(value: Any) -> str:
    """Check a working directory, which may be relative to that of the file."""
    if not string(value):
        raise InputError("empty", valid="a directory")
    return str(value)


def retries(value: Any) -> int:
    """Check how many failures in a row are retried, if there is no progress between them."""
    return integer(value, 0, 1000)


def timeout_s(value: Any) -> float:
    """Check a timeout, in seconds, above 0."""
    return number(value, 0, MAX_SECONDS, above=True)


def walltime_s(value: Any) -> float:
    """Check the longest time that an attempt of a job takes, in seconds, above 0."""
    return number(value, 0, MAX_FACTOR, above=True)


def seconds(value: Any) -> float:
    """Check a duration in seconds, which may be 0."""
    return number(value, 0, MAX_SECONDS)


def target_loss(value: Any) -> float:
    """Check a loss, which may be negative."""
    return number(value, -MAX_WORK, MAX_WORK)


def weight(value: Any) -> float:
    """Check the weight of a job: its share relative to other jobs."""
    return number(value, 0, MAX_FACTOR, above=True)


def priority(value: Any) -> float:
    """Check the priority of a job: a higher one goes first."""
    return number(value, -MAX_FACTOR, MAX_FACTOR)


def trial(value: Any) -> Trial:
    """Check a job's place in its sweep."""
    if not isinstance(value, dict):
        raise wrong(
            value, 'a table, such as {sweep = "lr", metric = "loss", first = 100, factor = 3}'
        )
    known_keys(value, tuple(_TRIAL))
    found = {}
    for key, given in value.items():
        with at(key):
            found[key] = _TRIAL[key](given)
    if "sweep" not in found:
        raise InputError(
            "sweep is missing", do='add the name that all of its trials share: sweep = "lr"'
        )
    for key in ("goal", "first", "factor"):
        needed = "metric" if key != "factor" else "first"
        if key in found and needed not in found:
            raise InputError(f"{key} needs {needed}", do=f"add {needed}, or leave {key} out")
    return Trial(**found)


def hang(value: Any) -> str:
    """Check the reaction to a training that seems to hang."""
    if value not in HANG:
        raise InputError(shown(value), valid=", ".join(HANG))
    return str(value)


def metric(value: Any) -> str:
    """Check the name of a metric, as the training reports it."""
    if not isinstance(value, str) or not _METRIC.fullmatch(value):
        raise InputError(
            shown(value),
            valid="at most 64 letters, digits, and _ . / @ -, beginning with a letter or _",
        )
    return value


def _goal(value: Any) -> str:
    if value not in ("min", "max"):
        raise InputError(shown(value), valid="min, max")
    return str(value)


_TRIAL: Mapping[str, Callable[[Any], Any]] = {
    "sweep": plain_name,
    "settings": lambda value: _strings(value, '{lr = "0.1"}'),
    "metric": metric,
    "goal": _goal,
    "first": lambda value: integer(value, 1, MAX_STEPS),
    "factor": lambda value: integer(value, 2, 1000),
}


def mem_per_gpu(value: Any) -> int:
    """Check memory per GPU, given in bytes or as for Slurm's ``--mem``.

    K, M, G and T are powers of 1024.
    """
    valid = (
        'bytes as an integer, or a string such as "16G" (K, M, G, T); at most '
        f"{MAX_MEM_BYTES} bytes"
    )
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise wrong(value, valid)
    amount = value
    if isinstance(amount, str):
        match = _MEM.fullmatch(amount)
        amount = int(match[1]) * _UNIT_BYTES[match[2].upper()] if match else 0
    if not 1 <= amount <= MAX_MEM_BYTES:
        raise InputError(shown(value), valid=valid)
    return amount
