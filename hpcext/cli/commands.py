"""Jobs without a job file: a command after ``--``, or one in each line of a file.

They become the text of a job file, so that jobs are parsed and checked in one place.
"""

from __future__ import annotations

import argparse
import itertools
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from hpcext import checkpointers, containers, shells
from hpcext import jobfields as fields
from hpcext.checks import at
from hpcext.cli import ranges
from hpcext.core.errors import InputError
from hpcext.jobfile import MAX_JOBS
from hpcext.jobtext import allowed_name, job_text
from hpcext.numerals import whole
from hpcext.text import shown
from hpcext.textfiles import read_stream, read_text

STANDARD_INPUT = "-"

_SCRIPTS = frozenset(
    {".bash", ".ipynb", ".jl", ".js", ".lua", ".m", ".pl", ".py", ".r", ".rb", ".sh", ".zsh"}
)
"""Suffixes of scripts, which name a job better than the interpreter that runs them."""


_OPTIONS = (
    "commands", "gpus_per_job", "workdir", "env", "shell", "retries", "checkpoint", "no_trackers",
    "container", "after",
)  # fmt: skip


class Written(NamedTuple):
    """Commands, written as a job file.

    Attributes
    ----------
    text : str
        The job file.
    name : str
        A name made from the first command, for a pilot.
    """

    text: str
    name: str


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options that state jobs without a job file."""
    group = parser.add_argument_group("jobs without a job file")
    group.add_argument(
        "--commands",
        metavar="FILE",
        help="a job for each line of this file, which is its command; - is standard input",
    )
    group.add_argument(
        "--gpus-per-job",
        metavar="N",
        help="GPUs of each job: a number, MIN:MAX, or MIN:MAX:MULTIPLE (default: 1)",
    )
    group.add_argument(
        "--workdir", type=Path, metavar="DIR", help="where to run the commands (default: here)"
    )
    group.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a variable to add to their environment; may be given several times",
    )
    group.add_argument("--shell", action="store_true", help="let a shell run each command")
    group.add_argument(
        "--retries", type=int, metavar="N", help="how many failures in a row are retried"
    )
    add_checkpoint(group)
    add_container(group)
    group.add_argument(
        "--no-trackers",
        action="store_true",
        help="let each attempt make runs of its own in W&B and MLflow",
    )
    parser.set_defaults(rest=())


def add_checkpoint(parser: Any) -> None:
    """Add the option that says how a command without a session saves."""
    parser.add_argument(
        "--checkpoint",
        metavar="HOW",
        help="how a command without a session saves: a preset, or a table, as in hpcext-jobs(5)",
    )


def add_container(parser: Any) -> None:
    """Add the option that names the image in which commands run."""
    parser.add_argument(
        "--container",
        metavar="IMAGE",
        help="run in a container: the path of an image, or a URI as docker://NAME:TAG",
    )


def given(args: argparse.Namespace) -> list[str]:
    """Return those of the options that a command line has, and ``--`` if a command follows it."""
    values = {name: getattr(args, name, None) for name in _OPTIONS}
    # Not `in (None, False, [])`: 0 is a value, and equal to False.
    flags = [
        k for k, value in values.items() if not (value is None or value is False or value == [])
    ]
    return [*(f"--{name.replace('_', '-')}" for name in flags), *(["--"] if args.rest else [])]


def read(args: argparse.Namespace) -> Written | None:
    """Return the jobs of a command line as a job file; None if it has no command.

    Parameters
    ----------
    args : argparse.Namespace
        From a parser to which :func:`add` has added the options. A ``name`` in it is the name of
        the job; several jobs get numbers. The jobs wait for those in ``after``.

    Raises
    ------
    InputError
        A job file is named, too; or a line or a value is invalid.
    """
    said = given(args)
    ways = [*filter("--commands".__eq__, said), *(["--"] if args.rest else [])]
    if not ways:
        if said:
            raise InputError(
                "states jobs without a job file, and there is no command",
                where=said[0],
                valid="with -- COMMAND, or with --commands FILE",
            )
        return None
    if args.jobs is not None or len(ways) > 1:
        other = f"the job file {shown(str(args.jobs))}" if args.jobs is not None else ways[0]
        raise InputError(f"cannot be given with {other}", where=f"{ways[-1]}", do="leave one out")
    same = _common(args)
    commands = _lines(args) if args.commands is not None else [_after_dashes(args)]
    names = [name_of(each) for each in commands]
    jobs = [
        {"name": name, "command": command, **same}
        for name, command in zip(_numbered(names, args.name), commands, strict=True)
    ]
    return Written(job_text(*jobs), names[0])


def _common(args: argparse.Namespace) -> dict[str, Any]:
    """Return the keys that all the jobs share; an error names the option."""
    found: dict[str, Any] = {}
    if args.gpus_per_job is not None:
        with at("--gpus-per-job"):
            found["gpus"] = _gpus(args.gpus_per_job)
    if args.workdir is not None:
        if not args.workdir.is_dir():
            raise InputError(f"no directory {shown(str(args.workdir))}", where="--workdir")
        found["workdir"] = str(args.workdir.absolute())
    if args.env:
        with at("--env"):
            found["env"] = fields.env(dict(map(_variable, args.env)))
    if after := getattr(args, "after", ()):
        found["after"] = list(after)
    if args.retries is not None:
        with at("--retries"):
            found["retries"] = fields.retries(args.retries)
    if args.checkpoint is not None:
        with at("--checkpoint"):
            found["checkpoint"] = checkpointers.stated(args.checkpoint)
    if args.container is not None:
        with at("--container"):
            found["container"] = containers.container(args.container).image
    if args.no_trackers:
        found["trackers"] = False
    return {**found, "shell": True} if args.shell else found


def _gpus(text: str) -> dict[str, int]:
    valid = f"N, MIN:MAX or MIN:MAX:MULTIPLE, 1 to {fields.MAX_GPUS}"
    ends, multiple = text, None
    if text.count(":") == 2:
        ends, _, last = text.rpartition(":")
        multiple = whole(last)
        if multiple is None:
            raise InputError(shown(text), valid=valid)
    fewest, greatest = ranges.parse(ends, most=fields.MAX_GPUS, valid=valid)
    if ":" not in text:
        return fields.gpus(fewest)
    found = {"min": fewest, "max": greatest}
    return fields.gpus(found if multiple is None else {**found, "multiple": multiple})


def _variable(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise InputError(shown(text), valid="KEY=VALUE")
    return key, value


def _after_dashes(args: argparse.Namespace) -> str | list[str]:
    """Return the command after ``--``: its words, or the one word that a shell is to run."""
    words: list[str] = list(args.rest)
    with at("--"):
        if not args.shell:
            fields.command(words)
            return words
        if len(words) > 1:
            # Joined, the quotes that the user's own shell took away would be missing.
            raise InputError(
                f"{len(words)} words, and --shell takes one",
                do="quote the command, as in --shell -- 'python train.py | tee out.txt'",
            )
        shells.for_shell(words[0])
        return words[0]


def _lines(args: argparse.Namespace) -> list[str]:
    """Return the commands of a file: its lines, except empty ones and comments."""
    if args.commands == STANDARD_INPUT:
        where = "standard input"
        text = read_stream(sys.stdin.buffer, where)
    else:
        where = args.commands
        text = read_text(Path(args.commands))
    check = shells.for_shell if args.shell else fields.command
    found = []
    for number, line in enumerate(text.split("\n"), start=1):
        command = line.strip()
        if command and not command.startswith("#"):
            with at(f"{where}: line {number}"):
                check(command)
            found.append(command)
    if not found:
        raise InputError("no command in it", where=where, valid="a command in each line")
    if len(found) > MAX_JOBS:
        raise InputError(f"{len(found)} commands", where=where, valid=f"at most {MAX_JOBS}")
    return found


def name_of(command: str | list[str]) -> str:
    """Return a name for a job: that of the script in its command, or else of the program."""
    words = command if isinstance(command, list) else _words(command)
    paths = [PurePath(word) for word in words if not word.startswith("-")]
    scripts = [path.stem for path in paths if path.suffix.lower() in _SCRIPTS]
    module = [after for word, after in itertools.pairwise(words) if word == "-m"]
    found = [*scripts[:1], *module[:1], *(path.name for path in paths[:1]), "job"]
    return allowed_name(found[0], "job")


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()  # a command for a shell, with quotes that only the shell understands


def _numbered(names: Sequence[str], name: str | None) -> list[str]:
    """Return a name for each job, with a number where several would have the same."""
    wanted = [name] * len(names) if name else names
    often = Counter(wanted)
    used = {each for each in wanted if often[each] == 1}
    last: Counter[str] = Counter()
    found = []
    for each in wanted:
        unique = each
        while often[each] > 1:
            last[each] += 1
            number = f"-{last[each]}"
            unique = f"{each[: fields.MAX_NAME_CHARS - len(number)]}{number}"
            if unique not in used:
                used.add(unique)
                break
        found.append(unique)
    return found
