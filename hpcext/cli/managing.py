"""The options, headline and exit status of all commands that manage or follow a pilot."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path

from hpcext.cli.output import Output
from hpcext.cli.unwritten import optional
from hpcext.core.engine import Engine
from hpcext.manager import directory as pilots
from hpcext.manager.waiting import left_in, status_of
from hpcext.text import counted

LOG_FORMATS = ("text", "json")


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose the form of the output."""
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--json", action="store_true", help="print one JSON document at the end")
    either.add_argument(
        "--log-format",
        choices=LOG_FORMATS,
        default="text",
        help="how to log events: text (default), or json, one object per line",
    )


def headline(pilot: pilots.Pilot, directory: Path) -> str:
    """Return a pilot's kind, id, GPUs and directory in one line.

    Parameters
    ----------
    pilot : Pilot
    directory : pathlib.Path
        The pilot's.
    """
    gpus = counted(len(pilot.gpus), "logical slot" if pilot.logical else "GPU")
    what, each = ("harvester", " on each node") if pilot.harvest else ("pilot", "")
    return f"{what} {pilot.id}: {gpus}{each}; {directory}"


def exit_status(
    engine: Engine, stopped_by: signal.Signals | None, directory: Path, out: Output
) -> int:
    """Return the exit status of a manager; print how to go on with jobs that are left.

    Parameters
    ----------
    engine : Engine
    stopped_by : signal.Signals or None
        The signal that ended the manager, if one did.
    directory : pathlib.Path
        The pilot's.
    out : Output
    """
    if left := left_in(engine.world):
        with optional():
            out.note(f"{left}; go on with: {pilots.how_to_go_on(directory)}")
    return status_of(engine.world) if stopped_by is None else 128 + stopped_by
