"""``hpcext trace pilot``: record a pilot's jobs for the simulator."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from hpcext.cli.output import Output
from hpcext.config import load_settings
from hpcext.core.errors import InputError
from hpcext.manager import journal, spool
from hpcext.manager import pilot as pilots
from hpcext.render.words import duration
from hpcext.sim.pilots.piloted import Piloted
from hpcext.sim.pilots.recording import write_recording
from hpcext.text import clean, counted, listed


def add(actions: Any) -> None:
    """Register the command."""
    parser = actions.add_parser(
        "pilot",
        help="record the jobs of a pilot as they were measured, to simulate them",
        epilog="example: hpcext trace pilot jobs -o jobs.json",
    )
    parser.add_argument("pilot", metavar="PILOT", help="directory, id or name")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.json")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, out: Output) -> int:
    """Write a recording made from the journal of a pilot, which may still be running."""
    if args.output.suffix != ".json":
        raise InputError(clean(str(args.output)), where="-o", valid="a name that ends in .json")
    directory = pilots.find(args.pilot, load_settings().state_dir)
    past, seen = replayed(directory)
    recording = seen.recording(past.header.policy)
    if recording is None:
        do = "wait until one has: it is unknown how much work the others have"
        raise InputError("no job of it has completed", where=args.pilot, do=do)
    write_recording(args.output, recording)
    left = [job.name for job in seen.left_out]
    adapting = sum(job.adapting is not None for job in recording.jobs)
    if args.json:
        out.document(
            {
                "schema": "hpcext.pilot-trace/1",
                "file": str(args.output),
                "jobs": len(recording.jobs),
                "adapting": adapting,
                "nodes": recording.machine,
                "left_out": left,
            }
        )
        return 0
    jobs = f"{counted(len(recording.jobs), 'job')}, of which {adapting} adapt"
    out.line(f"{args.output}: {jobs}, on {recording.machine}, in {duration(past.now_s)}")
    if left:
        out.note(f"left out: {listed(left)}, which did not complete")
    if past.header.saved is not None:
        early = duration(past.header.now_s)
        out.note(
            f"the course of the noise scale is known only from {early} on: the journal was "
            "compacted then"
        )
    return 0


def replayed(directory: Path) -> tuple[journal.Past, Piloted]:
    """Return the journal of a pilot, and what it says of the pilot's jobs.

    Raises
    ------
    HpcextError
        The pilot belongs to another user, cannot be read, or does not say enough.
    """
    spool.check_private(directory)
    if pilots.load(directory).shared is not None:
        raise InputError(
            "jobs shared a GPU, so their speed alone was not measured",
            valid="a pilot without --mps",
        )
    past = journal.read(directory / "journal.jsonl")
    return past, Piloted(past.begin(), ((each.now_s, each.facts) for each in past.entries))
