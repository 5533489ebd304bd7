"""``hpcext harvest sweep``: one script with many settings, as a job file."""

from __future__ import annotations

import argparse
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hpcext import protocol
from hpcext.cli.output import Output
from hpcext.core.errors import InputError
from hpcext.jobfile import MAX_JOBS, parse_jobs
from hpcext.text import shown

_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\Z")
_RANGE = re.compile(r"(\d+)(?::(\d+))?\Z")
_LONGEST = 64
LAUNCH = ("hpcext", "launch", "python")
"""How a script is run on whatever a trainer has, and goes on when that changes."""


def add(actions: Any) -> None:
    """Register the command among those of ``hpcext harvest``."""
    parser = actions.add_parser(
        "sweep",
        usage="hpcext harvest sweep SCRIPT --grid KEY=VALUE,... [OPTION...] [-- ARGUMENT...]",
        help="make a job file of one script with many settings",
        epilog="example: hpcext harvest sweep train.py --grid lr=0.1,0.01 --grid seed=1,2,3",
    )
    parser.add_argument("script", type=Path, metavar="SCRIPT")
    parser.add_argument(
        "--grid",
        action="append",
        required=True,
        metavar="KEY=VALUE,...",
        help="the script gets --KEY=VALUE; each combination is a job",
    )
    parser.add_argument("--nodes", default="1", metavar="MIN[:MAX]", help="nodes (default: 1)")
    parser.add_argument(
        "--gpus", default="1", metavar="MIN[:MAX]", help="GPUs on each (default: 1)"
    )
    parser.add_argument("--scaling", help="name of a stored curve of its speed")
    parser.add_argument("-o", "--out", type=Path, help="write it there; must not exist")
    parser.set_defaults(run=sweep)


def sweep(args: argparse.Namespace, out: Output) -> int:
    """Print the job file, or write it."""
    if not args.script.is_file():
        raise InputError(f"{shown(str(args.script))} is no file", where="SCRIPT")
    text = job_file(
        args.script,
        [_axis(text) for text in args.grid],
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
    axes: Sequence[tuple[str, tuple[str, ...]]],
    *,
    rest: Sequence[str] = (),
    nodes: tuple[int, int] = (1, 1),
    gpus: tuple[int, int] = (1, 1),
    scaling: str | None = None,
) -> str:
    """A job for each combination, the last axis changing fastest.

    Raises
    ------
    InputError
        There are too many.
    """
    keys = [key for key, _ in axes]
    if len(set(keys)) < len(keys):
        raise InputError(f"{', '.join(keys)}: one of them twice", where="--grid")
    found = []
    for number, values in enumerate(itertools.product(*(values for _, values in axes)), start=1):
        if number > MAX_JOBS:
            raise InputError("too many combinations", where="--grid", valid=f"at most {MAX_JOBS}")
        words = [f"--{key}={value}" for key, value in zip(keys, values, strict=True)]
        command = [*LAUNCH, str(script.absolute()), *words, *rest]
        lines = [
            f"name = {json.dumps(_name(script, number, keys, values))}",
            f"command = {json.dumps(command)}",
            f"nodes = {{min = {nodes[0]}, max = {nodes[1]}}}",
            f"gpus = {{min = {gpus[0]}, max = {gpus[1]}}}",
        ]
        if scaling is not None:
            lines.append(f"scaling = {json.dumps(scaling)}")
        found.append("\n".join(["[[job]]", *lines, ""]))
    return "\n".join(found)


def _name(script: Path, number: int, keys: Sequence[str], values: Sequence[str]) -> str:
    """``train-7-lr0.1-seed2``: unlike all others, and as much of it as a name may be long."""
    parts = (f"{key}{value}" for key, value in zip(keys, values, strict=True))
    whole = "-".join([script.stem, str(number), *parts])
    return "".join(_allowed(whole)).lstrip("._-")[:_LONGEST].rstrip("._-") or str(number)


def _allowed(text: str) -> Iterator[str]:
    return (char if char.isascii() and (char.isalnum() or char in "._-") else "_" for char in text)


def _axis(text: str) -> tuple[str, tuple[str, ...]]:
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
