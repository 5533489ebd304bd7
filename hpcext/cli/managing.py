"""What all commands have that manage or follow a pilot: options, first line and exit status."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path

from hpcext.cli.output import Output
from hpcext.core.engine import Engine
from hpcext.manager import pilot as pilots
from hpcext.manager.waiting import left_in, status_of

LOG_FORMATS = ("text", "json")


def add_output(parser: argparse.ArgumentParser) -> None:
    """The options of a manager that say what it prints."""
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--json", action="store_true", help="print one JSON document at the end")
    either.add_argument(
        "--log-format",
        choices=LOG_FORMATS,
        default="text",
        help="how to say what happens: text (default), or json: an object a line",
    )


def headline(pilot: pilots.Pilot, directory: Path) -> str:
    """What a pilot is, in a line."""
    kind = "logical slots" if pilot.logical else "GPUs"
    what, each = ("harvester", " on each node") if pilot.harvest else ("pilot", "")
    return f"{what} {pilot.id}: {len(pilot.gpus)} {kind}{each}; {directory}"


def exit_status(
    engine: Engine, stopped_by: signal.Signals | None, directory: Path, out: Output
) -> int:
    """Find that of a manager; what is to be done about jobs that are left is said."""
    if left := left_in(engine.world):
        out.note(f"{left}; go on with: {pilots.how_to_go_on(directory)}")
    return status_of(engine.world) if stopped_by is None else 128 + stopped_by
