"""``hpcext completion``: tab completion, with the completion extra (argcomplete)."""

from __future__ import annotations

import argparse
import importlib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hpcext import protocol, seams
from hpcext.cli.output import Output
from hpcext.config import POLICIES, load_settings
from hpcext.core.errors import HpcextError
from hpcext.extras import need
from hpcext.manager import choosing
from hpcext.manager import directory as pilots
from hpcext.manager.submissions import Submissions

PROGRAMS = ("hpcext", "hpcext-admin")

PLACES = {
    "bash": (
        "hpcext completion bash > ~/.local/share/bash-completion/completions/hpcext",
        "or, without the package bash-completion, in ~/.bashrc:",
        'eval "$(hpcext completion bash)"',
    ),
    "zsh": (
        "hpcext completion zsh > ~/.zfunc/_hpcext",
        "and in ~/.zshrc, before compinit: fpath+=(~/.zfunc)",
    ),
    "fish": ("hpcext completion fish > ~/.config/fish/completions/hpcext.fish",),
}
"""Shell → where the printed code belongs."""

STAMP = re.compile(r"-[0-9]{8}-[0-9]{6}-[0-9a-f]{4}\Z")
"""The part of a pilot's id after its name."""


def add(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "completion",
        help="print the script with which a shell completes commands, options, pilots and jobs",
        description="Its last lines say in which file it belongs.",
        epilog="example: hpcext completion bash",
    )
    parser.add_argument("shell", metavar="SHELL", choices=PLACES, help=", ".join(PLACES))
    parser.set_defaults(run=show)


def show(args: argparse.Namespace, out: Output) -> int:
    """Print the completion code for a shell."""
    code: str = _argcomplete().shellcode(PROGRAMS, shell=args.shell)
    # The hints come last, because zsh interprets the first line.
    places = "".join(f"# {line}\n" for line in PLACES[args.shell])
    out.raw(f"{code.strip()}\n\n{places}".encode())
    return 0


def answer(parser: argparse.ArgumentParser) -> None:
    """Print completions and exit, if a shell started this process to complete a command line."""
    if "_ARGCOMPLETE" in protocol.environ():
        _argcomplete().autocomplete(
            parser, always_complete_options=False, default_completer=candidates
        )


def _argcomplete() -> Any:
    return need("argcomplete")


def candidates(
    prefix: str, action: argparse.Action, parsed_args: argparse.Namespace, **_: Any
) -> Iterable[str]:
    """Return the completions of an argument, or of the value of an option, for argcomplete.

    Parameters
    ----------
    prefix : str
        The beginning of the word, as typed so far.
    action : argparse.Action
    parsed_args : argparse.Namespace
    **_
        Further arguments of argcomplete.
    """
    if action.metavar in {"PILOT", "HARVESTER"}:
        return pilot_names(prefix)
    if action.metavar == "JOB":
        return job_names(getattr(parsed_args, "pilot", None))
    if action.dest == "policy":
        return (*POLICIES, *seams.names(seams.POLICIES))
    if action.metavar == "JOBS.toml":
        return _files(prefix, "toml")
    if action.type is Path or action.metavar in {"COMMAND", "FILE"}:
        return _files(prefix)
    return ()


def pilot_names(prefix: str) -> Iterable[str]:
    """Return the names of all pilots, or their ids if no name has the prefix."""
    if os.sep in prefix:
        return _files(prefix)
    try:
        ids = os.listdir(load_settings().state_dir / "pilots")
    except (HpcextError, OSError):
        return ()
    # A directory whose name begins with a dot is being removed.
    ids = [each for each in ids if not each.startswith(".")]
    names = {STAMP.sub("", each) for each in ids}
    return names if any(name.startswith(prefix) for name in names) else ids


def job_names(pilot: str | None) -> Iterable[str]:
    """Return the names of a pilot's jobs, by default the newest pilot's.

    Ended jobs are among them: to read their states would take too long for a tab key.
    """
    try:
        state_dir = load_settings().state_dir
        directory = pilots.find(pilot, state_dir) if pilot else choosing.newest(state_dir)
        return Submissions(directory / "submissions").names
    except HpcextError:
        return ()


def _files(prefix: str, *suffixes: str) -> Iterable[str]:
    completers = importlib.import_module("argcomplete.completers")
    found: Iterable[str] = completers.FilesCompleter(suffixes)(prefix)
    return found
