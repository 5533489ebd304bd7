"""``hpcext sweep``: one script with many settings, as a job file."""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hpcext import protocol
from hpcext.cli.output import Output
from hpcext.core.errors import InputError
from hpcext.core.trials import Trial
from hpcext.jobfields import metric
from hpcext.jobfile import MAX_JOBS, parse_jobs
from hpcext.text import shown

_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\Z")
_RANGE = re.compile(r"(\d+)(?::(\d+))?\Z")
_LONGEST = 64
LAUNCH = ("hpcext", "launch", "python")
"""How a script is run on whatever a trainer has, and goes on when that changes."""

Axis = tuple[str, tuple[str, ...]]
"""A key of the grid and its values."""


def add(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "sweep",
        usage="hpcext sweep SCRIPT --grid KEY=VALUE,... [OPTION...] [-- ARGUMENT...]",
        help="make a job file of one script with many settings",
        epilog="example: hpcext sweep train.py --grid lr=0.1,0.01 --grid seed=1,2,3",
    )
    parser.add_argument("script", type=Path, metavar="SCRIPT")
    parser.add_argument(
        "--grid",
        action="append",
        required=True,
        metavar="KEY=VALUE,...",
        help="the script gets --KEY=VALUE; each combination is a job",
    )
    parser.add_argument(
        "--random", type=int, metavar="N", help="so many of the combinations, drawn at random"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of that draw: the same seed, the same (default: 0)"
    )
    parser.add_argument("--metric", help="what trials are compared by, as the script reports it")
    parser.add_argument(
        "--goal", choices=("min", "max"), help="which values of it are better (default: min)"
    )
    parser.add_argument(
        "--first",
        type=int,
        metavar="STEPS",
        help="end trials early: they are compared for the first time after so many steps",
    )
    parser.add_argument(
        "--factor",
        type=int,
        metavar="N",
        help="then after N times as many, and so on; one of N goes on each time (default: 3)",
    )
    parser.add_argument("--nodes", default="1", metavar="MIN[:MAX]", help="nodes (default: 1)")
    parser.add_argument(
        "--gpus", default="1", metavar="MIN[:MAX]", help="GPUs on each (default: 1)"
    )
    parser.add_argument("--scaling", help="name of a stored curve of its speed")
    parser.add_argument("-o", "--out", type=Path, help="write it there; must not exist")
    parser.set_defaults(run=sweep, rest=())


def sweep(args: argparse.Namespace, out: Output) -> int:
    """Print the job file, or write it."""
    if not args.script.is_file():
        raise InputError(f"{shown(str(args.script))} is no file", where="SCRIPT")
    text = job_file(
        args.script,
        _chosen([_axis(text) for text in args.grid], args.random, args.seed),
        _rules(args),
        rest=args.rest,
        nodes=_range(args.nodes, "--nodes"),
        gpus=_range(args.gpus, "--gpus"),
        scaling=args.scaling,
    )
    if args.scaling is None:
        # Whatever is wrong is said now, and not when it is handed in.
        parse_jobs(text, "--grid", Path.cwd())
    if args.out is None:
        out.raw(text.encode())
        return 0
    try:
        if args.out.exists():
            raise InputError(f"{args.out} exists", where="--out", do="choose another name")
        protocol.write_file(args.out, text.encode(), mode=0o644)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(args.out)) from None
    out.line(f"{text.count('[[job]]')} jobs in {args.out}")
    return 0


def job_file(
    script: Path,
    settings: Sequence[dict[str, str]],
    rules: Trial,
    *,
    rest: Sequence[str] = (),
    nodes: tuple[int, int] = (1, 1),
    gpus: tuple[int, int] = (1, 1),
    scaling: str | None = None,
) -> str:
    """A job for each of the settings.

    Parameters
    ----------
    script : pathlib.Path
    settings : sequence of dict of str to str
        Key → value, in the order in which the script gets them.
    rules : Trial
        How they are compared.
    rest : sequence of str
        Further arguments, the same for all.
    nodes, gpus : (int, int)
        Fewest and most.
    scaling : str, optional
        Name of a stored curve.
    """
    found = []
    for number, chosen in enumerate(settings, start=1):
        words = [f"--{key}={value}" for key, value in chosen.items()]
        command = [*LAUNCH, str(script.absolute()), *words, *rest]
        lines = [
            f"name = {_toml(_name(script, number, chosen))}",
            f"command = [{', '.join(map(_toml, command))}]",
            f"nodes = {{min = {nodes[0]}, max = {nodes[1]}}}",
            f"gpus = {{min = {gpus[0]}, max = {gpus[1]}}}",
            f"trial = {{{', '.join(_trial(rules, chosen))}}}",
        ]
        if scaling is not None:
            lines.append(f"scaling = {_toml(scaling)}")
        found.append("\n".join(["[[job]]", *lines, ""]))
    return "\n".join(found)


def _trial(rules: Trial, chosen: dict[str, str]) -> Iterator[str]:
    yield f"sweep = {_toml(rules.sweep)}"
    yield f"settings = {{{', '.join(f'{_toml(k)} = {_toml(v)}' for k, v in chosen.items())}}}"
    if rules.metric:
        yield f"metric = {_toml(rules.metric)}, goal = {_toml(rules.goal)}"
    if rules.first is not None:
        yield f"first = {rules.first}, factor = {rules.factor}"


def _toml(text: str) -> str:
    """A string of TOML: as JSON has it, but for what is not ASCII and the one character more."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _rules(args: argparse.Namespace) -> Trial:
    """How trials are compared, and when."""
    for flag, needed in (("goal", "metric"), ("first", "metric"), ("factor", "first")):
        if getattr(args, flag) is not None and getattr(args, needed) is None:
            raise InputError(f"needs --{needed}", where=f"--{flag}")
    for flag, least in (("first", 1), ("factor", 2)):
        value = getattr(args, flag)
        if value is not None and value < least:
            raise InputError(str(value), where=f"--{flag}", valid=f"a number from {least} on")
    if args.metric is not None:
        try:
            metric(args.metric)
        except InputError as error:
            raise InputError(error.what, where="--metric", valid=error.valid) from None
    stem = args.script.stem
    return Trial(
        sweep=_allowed(f"sweep-{stem}" if stem.isdecimal() else stem) or "sweep",
        metric=args.metric or "",
        goal=args.goal or "min",
        first=args.first,
        factor=args.factor or 3,
    )


def _chosen(axes: Sequence[Axis], draws: int | None, seed: int) -> list[dict[str, str]]:
    """Every combination, the last axis changing fastest; or so many of them, drawn at random.

    Raises
    ------
    InputError
        There are too many, or too few to draw from.
    """
    keys = [key for key, _ in axes]
    if len(set(keys)) < len(keys):
        raise InputError(f"{', '.join(keys)}: one of them twice", where="--grid")
    there_are = math.prod(len(values) for _, values in axes)
    # No range is longer than the second one.
    if there_are > (MAX_JOBS if draws is None else sys.maxsize):
        do = f"at most {MAX_JOBS} without --random"
        raise InputError("too many combinations", where="--grid", valid=do)
    numbers: Sequence[int] = range(there_are)
    if draws is not None:
        most = min(there_are, MAX_JOBS)
        if not 1 <= draws <= most:
            raise InputError(str(draws), where="--random", valid=f"1 to {most}")
        numbers = random.Random(seed).sample(numbers, draws)
    return [_combination(axes, number) for number in numbers]


def _combination(axes: Sequence[Axis], number: int) -> dict[str, str]:
    """The combination of this number: its digits, each to the base of its axis."""
    found = []
    for key, values in reversed(axes):
        number, digit = divmod(number, len(values))
        found.append((key, values[digit]))
    return dict(reversed(found))


def _name(script: Path, number: int, chosen: dict[str, str]) -> str:
    """``train-7-lr0.1-seed2``: unlike all others, and as much of it as a name may be long."""
    parts = (f"{key}{value}" for key, value in chosen.items())
    return _allowed("-".join([script.stem, str(number), *parts])) or str(number)


def _allowed(text: str) -> str:
    """As much of a text as a name may hold."""
    good = (char if char.isascii() and (char.isalnum() or char in "._-") else "_" for char in text)
    return "".join(good).lstrip("._-")[:_LONGEST].rstrip("._-")


def _axis(text: str) -> Axis:
    key, equals, values = text.partition("=")
    listed = tuple(value for value in values.split(",") if value)
    if not equals or not _KEY.match(key) or not listed:
        raise InputError(shown(text), where="--grid", valid="KEY=VALUE,VALUE,...")
    return key, listed


def _range(text: str, flag: str) -> tuple[int, int]:
    found = _RANGE.match(text)
    low, high = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= low <= high:
        raise InputError(shown(text), where=flag, valid="N or MIN:MAX, from 1 on")
    return low, high
