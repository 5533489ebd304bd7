"""``hpcext launch``: start a job's command with one rank for each GPU."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from typing import Any

from hpcext.cli.output import Output
from hpcext.core.errors import InputError
from hpcext.launch import ranks
from hpcext.launch.words import MAX_RANKS, MAX_REPLACED
from hpcext.text import shown


def add(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "launch",
        help="start a command once for each GPU of the job, and resize it while it runs",
        description="Start a command once for each GPU of the job. Trainings with a session can "
        "then be given more or fewer GPUs without stopping.",
        epilog="example: hpcext launch --ranks 2 python train.py",
    )
    parser.add_argument(
        "--ranks", type=int, help="number of ranks (default: the GPUs of the job, or 1)"
    )
    parser.add_argument(
        "--replace",
        type=int,
        metavar="N",
        help="ranks that die on one node to replace, while the others go on (default: none; those "
        "of a lost lease of hpcext harvest are replaced unless N is 0)",
    )
    parser.add_argument("argv", nargs=argparse.REMAINDER, metavar="COMMAND", help="command to run")
    parser.set_defaults(run=launch)


def launch(args: argparse.Namespace, out: Output) -> int:
    """Become the launcher; return only if that is not possible."""
    argv = args.argv[1:] if args.argv[:1] == ["--"] else args.argv
    if not argv:
        raise InputError("no command", valid="hpcext launch [--ranks N] [--replace N] COMMAND ...")
    if args.ranks is not None and not 1 <= args.ranks <= MAX_RANKS:
        raise InputError(f"{args.ranks} ranks", where="--ranks", valid=f"1 to {MAX_RANKS}")
    if not 0 <= (args.replace or 0) <= MAX_REPLACED:
        raise InputError(f"{args.replace} ranks", where="--replace", valid=f"0 to {MAX_REPLACED}")
    check_program(argv[0])
    # A separate interpreter, which imports only the standard library for as long as the job runs.
    python = [sys.executable, "-I", "-S", str(ranks.__file__)]
    replace = "" if args.replace is None else f"+{args.replace}"
    os.execv(python[0], [*python, f"{args.ranks or 0}{replace}", *argv])


def check_program(name: str) -> None:
    """Refuse a command that does not exist.

    Parameters
    ----------
    name : str
        A program in ``PATH``, or the path of one.

    Raises
    ------
    InputError
        There is no such program.
    """
    if shutil.which(name) is None:
        raise InputError(
            f"command {shown(name)} was not found", valid="a program in PATH, or its path"
        )
