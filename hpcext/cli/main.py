"""``hpcext``: finds the command, runs it, turns errors into one line and an exit status."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from hpcext import __version__
from hpcext.cli import (
    config,
    dashboard,
    doctor,
    harvest,
    launch,
    output,
    pilot,
    plan,
    profile,
    reproduce,
    run,
    simulate,
    suspendable,
    trace,
    trainer,
    verbs,
)
from hpcext.core.errors import HpcextError, InputError
from hpcext.text import did_you_mean, listed, shown

COMMANDS: tuple[Callable[[Any], None], ...] = (
    run.add,
    pilot.add,
    harvest.add,
    suspendable.add,
    trainer.add,
    launch.add,
    profile.add,
    plan.add,
    simulate.add,
    trace.add,
    reproduce.add,
    verbs.add,
    dashboard.add,
    config.add,
    doctor.add,
)
"""Each registers its commands: parsers whose defaults hold ``run(args, out) -> exit status``."""

INTERRUPTED = 130
"""128 + SIGINT, as shells report it."""

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)

PIPE_CLOSED = 141
"""128 + SIGPIPE: whoever read our output has left."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are InputErrors."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # An abbreviation that works today is ambiguous after the next option.
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage and leaving."""
        raise InputError(message, do=f"see {self.prog} --help")

    def refuse(self, extra: Sequence[str]) -> NoReturn:
        """Raise for arguments that no parser took."""
        first = extra[0]
        if first.startswith("-"):
            near = did_you_mean(first.partition("=")[0], self._option_string_actions)
            raise InputError(f"unknown option {shown(first)}", do=near or f"see {self.prog} --help")
        raise InputError(f"too many arguments: {shown(first)}", do=f"see {self.prog} --help")


def make_parser() -> tuple[Parser, dict[str, Parser]]:
    """The parser of the whole command line, and that of each command."""
    parser = Parser(
        prog="hpcext",
        description="Share GPUs among deep-learning jobs; suspend and resume them without loss.",
        epilog="example: hpcext run jobs.toml --gpus 6",
    )
    parser.add_argument("--version", action="version", version=f"hpcext {__version__}")
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for add in COMMANDS:
        add(commands)
    return parser, dict(commands.choices)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read a command line.

    Raises
    ------
    InputError
        It is none of ours.
    """
    parser, commands = make_parser()
    word = check_command(argv, commands)
    rest: Sequence[str] = ()
    if word and commands[word].get_default("rest") is not None and "--" in argv:
        # They are for another program: argparse would take some of them for its own.
        end = argv.index("--")
        argv, rest = argv[:end], argv[end + 1 :]
    args, extra = parser.parse_known_args(argv)
    if extra:
        commands[args.command].refuse(extra)
    if rest:
        args.rest = tuple(rest)
    return args


def check_command(argv: Sequence[str], commands: Iterable[str]) -> str | None:
    """The command's name, if there is one.

    Raises
    ------
    InputError
        It is none of `commands`.
    """
    word = next((word for word in argv if not word.startswith("-")), None)
    if word is not None and word not in commands:
        raise InputError(
            f"unknown command {shown(word)}",
            valid=listed(commands, most=40),
            do=did_you_mean(word, commands),
        )
    return word


def main(
    argv: Sequence[str] | None = None,
    read: Callable[[Sequence[str]], argparse.Namespace] = parse,
) -> int:
    """Run ``hpcext``, or another program of ours.

    Parameters
    ----------
    argv : sequence of str, optional
        Instead of the process's arguments.
    read : callable
        Reads the command line.

    Returns
    -------
    int
        0 done, 1 some job failed, 2 bad input, 3 no such manager or locked by another.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    # The error of a command line that cannot be parsed is wanted in the right form too.
    out = output.make(as_json="--json" in words, quiet="-q" in words or "--quiet" in words)
    try:
        status = _run(words, out, read)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        _drop_output()
        return PIPE_CLOSED
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(
    words: Sequence[str],
    out: output.Output,
    read: Callable[[Sequence[str]], argparse.Namespace],
) -> int:
    try:
        args = read(words)
        # Not by the words: those of a command that is to be launched are its own.
        out = output.make(as_json=getattr(args, "json", False), quiet=args.quiet)
        status: int = args.run(args, out)
    except HpcextError as error:
        out.error(error)
        return error.exit_status
    except BrokenPipeError:
        raise
    except OSError as error:
        # A full disk, a directory that went away: nothing that a traceback would explain.
        do = "free some space and try again" if error.errno in _NO_SPACE else ""
        failure = HpcextError(error.strerror or str(error), where=str(error.filename or ""), do=do)
        out.error(failure)
        return failure.exit_status
    return status


def _drop_output() -> None:
    """Point stdout elsewhere, or the interpreter complains of it when it ends."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
