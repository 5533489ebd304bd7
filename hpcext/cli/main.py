"""``hpcext``: find the command, run it, and turn errors into one line and an exit status."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from hpcext import __version__, protocol
from hpcext.cli import output
from hpcext.cli.unwritten import drop_unwritten
from hpcext.core.errors import HpcextError, InputError, refused
from hpcext.text import did_you_mean, listed, shown

COMMANDS: Mapping[str, tuple[str, ...]] = {
    "run": ("run",),
    "pilot": ("pilot",),
    "tidy": ("prune",),
    "harvest": ("harvest",),
    "suspendable": ("suspendable",),
    "trainer": ("trainer",),
    "launch": ("launch",),
    "sweep": ("sweep",),
    "trials": ("trials",),
    "profile": ("profile",),
    "plan": ("plan",),
    "simulate": ("simulate",),
    "trace": ("trace",),
    "reproduce": ("reproduce",),
    "detach": ("attach",),
    "verbs": (
        "status", "submit", "suspend", "resume", "resize", "cancel", "drain", "why", "logs",
    ),
    "nodes": ("nodes",),
    "top": ("top",),
    "report": ("report",),
    "metrics": ("metrics",),
    "dashboard": ("dashboard",),
    "config": ("config",),
    "completion": ("completion",),
    "doctor": ("doctor",),
}  # fmt: skip
"""Module of this package → the commands that its ``add`` registers.

Their parsers have a default ``run(args, out) -> exit status``.
"""

QUIET = ("-q", "--quiet")

EXAMPLE = "example: "
"""The beginning of the last line of each help text."""

INTERRUPTED = 130
"""128 + SIGINT, as shells report it."""

PIPE_CLOSED = 141
"""128 + SIGPIPE: the reader of our output has left."""


_NUMBERS: dict[Any, str] = {int: "an integer", float: "a number"}
"""Type of an argument → what is valid, for messages."""


class Formatter(argparse.HelpFormatter):
    """A help formatter that leaves examples on one line, to be copied."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith(EXAMPLE) else super()._fill_text(text, width, indent)


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are InputErrors."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # An abbreviation that works today is ambiguous after the next option.
        usual = {"allow_abbrev": False, "formatter_class": Formatter}
        super().__init__(*args, **{**usual, **kwargs})
        # The parser of the innermost command wins: an error suggests one of its options.
        self.set_defaults(parser=self)
        self._mixing = False
        # Each parser has it, so that it may stand before the command and after it.
        self.add_argument(
            *QUIET, action="store_true", default=argparse.SUPPRESS, help="print errors only"
        )

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse arguments; options may stand between the positional ones, if no command follows."""
        takes_rest = {argparse.PARSER, argparse.REMAINDER}
        whole = any(action.nargs in takes_rest for action in self._get_positional_actions())
        # argcomplete follows a single pass, in which every argument has its place.
        if self._mixing or whole or _completes():
            return super().parse_known_args(args, namespace)
        self._mixing = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._mixing = False

    def error(self, message: str) -> NoReturn:
        """Raise an error instead of printing the usage and exiting."""
        raise InputError(message, do=f"see {self.prog} --help")

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        # Until Python 3.12, argparse takes the value of --name=-- for the end of the options, and
        # returns an empty list.
        if action.option_strings and action.nargs is None and arg_strings == ["--"]:
            raise argparse.ArgumentError(action, "expected one argument")
        return super()._get_values(action, arg_strings)

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        # The message of argparse names the Python type, and has the whole value in it.
        valid = _NUMBERS.get(action.type)
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError:
            if valid is None:
                raise
        where = "".join(action.option_strings[-1:]) or str(action.metavar)
        raise InputError(shown(arg_string), where=where, valid=valid)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        # The message of argparse suggests no correction.
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            flag = "".join(action.option_strings[-1:])
            raise InputError(
                f"unknown {str(action.metavar or flag.lstrip('-') or action.dest).lower()} "
                f"{shown(value)}",
                where=flag,
                valid=listed(known, most=40),
                do=did_you_mean(str(value), known) or f"see {self.prog} --help",
            )

    def refuse(self, extra: Sequence[str]) -> NoReturn:
        """Raise an error for arguments that no parser knows.

        Parameters
        ----------
        extra : sequence of str
            At least one; the message names the first.
        """
        first = extra[0]
        if first.startswith("-"):
            near = did_you_mean(first.partition("=")[0], self._option_string_actions)
            raise InputError(f"unknown option {shown(first)}", do=near or f"see {self.prog} --help")
        do = f"see {self.prog} --help"
        if "-- COMMAND" in (self.usage or ""):
            do = f"put -- before a command, as in {self.prog} -- python train.py; {do}"
        raise InputError(f"too many arguments: {shown(first)}", do=do)


def make_parser(words: Sequence[str] = ()) -> tuple[Parser, dict[str, Parser]]:
    """Return the parser of a command line, and those of its commands by name.

    Parameters
    ----------
    words : sequence of str
        A command line. If it begins with a command, only the module of that command is imported:
        to import all of them takes a third of a second.
    """
    parser = Parser(
        prog="hpcext",
        description="Share GPUs among deep-learning jobs; suspend and resume them without loss.",
        epilog="example: hpcext run jobs.toml --gpus 6",
    )
    parser.add_argument("--version", action="version", version=f"hpcext {__version__}")
    parser.set_defaults(quiet=False)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in _modules(words):
        importlib.import_module(f"hpcext.cli.{module}").add(commands)
    return parser, dict(commands.choices)


def _modules(words: Sequence[str]) -> Iterable[str]:
    """Return the modules of the command that a command line begins with, or all."""
    if "--version" in words[:1]:
        return ()
    first = next((word for word in words if not word.startswith("-")), "")
    meant = [module for module, names in COMMANDS.items() if first in names]
    return meant if meant and not _completes() else COMMANDS


def _completes() -> bool:
    """Return whether a tab key has started this process."""
    return "_ARGCOMPLETE" in protocol.environ()


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse a command line.

    Parameters
    ----------
    argv : sequence of str
        The arguments, without the name of the program.

    Raises
    ------
    InputError
        The command line is invalid.
    """
    parser, commands = make_parser(argv)
    if _completes():
        importlib.import_module("hpcext.cli.completion").answer(parser)
    return arguments(parser, commands, argv)


def arguments(
    parser: Parser, commands: Mapping[str, Parser], argv: Sequence[str]
) -> argparse.Namespace:
    """Return the arguments of a command line, read by the parser of a program of ours.

    Parameters
    ----------
    parser : Parser
    commands : Mapping of str to Parser
        The parser of each command.
    argv : sequence of str

    Returns
    -------
    argparse.Namespace
        What follows ``--`` is in ``rest``, if the command passes it on to another program.

    Raises
    ------
    InputError
        The command line is invalid.
    """
    argv, rest = _without_rest(argv, commands)
    args, extra = parser.parse_known_args(argv)
    if extra:
        args.parser.refuse(extra)
    if rest:
        args.rest = tuple(rest)
    return args


def _without_rest(
    argv: Sequence[str], commands: Mapping[str, argparse.ArgumentParser]
) -> tuple[Sequence[str], Sequence[str]]:
    """Split a command line at ``--``, if its command passes on what follows."""
    word = next((word for word in argv if not word.startswith("-")), "")
    if word not in commands or commands[word].get_default("rest") is None or "--" not in argv:
        return argv, ()
    # The rest is for another program, but argparse would take some of it for its own options.
    end = argv.index("--")
    return argv[:end], argv[end + 1 :]


def main(
    argv: Sequence[str] | None = None,
    read: Callable[[Sequence[str]], argparse.Namespace] = parse,
) -> int:
    """Run ``hpcext``, or another program of ours.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments without the name of the program; by default those of the process.
    read : callable
        Parses the command line.

    Returns
    -------
    int
        0 done, 1 some job failed, 2 bad input, 3 no such manager or locked by another, 4 ended with
        jobs left.
    """
    _open_closed()
    words = sys.argv[1:] if argv is None else list(argv)
    # An error in the command line itself must be printed in the requested form, too.
    out = output.make(as_json="--json" in words, quiet=any(word in words for word in QUIET))
    try:
        return _run(words, out, read)
    except BrokenPipeError:
        return PIPE_CLOSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError:
        # Not even the error could be printed.
        return HpcextError.exit_status
    finally:
        drop_unwritten()


def _run(
    words: Sequence[str],
    out: output.Output,
    read: Callable[[Sequence[str]], argparse.Namespace],
) -> int:
    try:
        args = read(words)
        # Now known for certain: the words may contain the options of a command to be launched.
        out = output.make(
            as_json=getattr(args, "json", False),
            quiet=args.quiet,
            as_log=getattr(args, "log_format", "text") == "json",
        )
        status: int = args.run(args, out)
        sys.stdout.flush()
    except HpcextError as error:
        out.error(error)
        return error.exit_status
    except BrokenPipeError:
        raise
    except OSError as error:
        # A full disk, a directory that went away: nothing that a traceback would explain.
        failure = refused(error)
        out.error(failure)
        return failure.exit_status
    return status


def _open_closed() -> None:
    """Open ``/dev/null`` for a stdin, stdout or stderr that we were started without.

    Otherwise the next file to be opened would get its number, and a job might print into a journal.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
