"""``hpcext doctor``: check what works on this machine, and say how to fix the rest."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from hpcext import __version__
from hpcext.cli.output import Output
from hpcext.config import Settings, load_settings
from hpcext.core.errors import InputError
from hpcext.doctor.checks import CHECKS
from hpcext.doctor.checkup import CheckOptions, Finding, examine
from hpcext.doctor.job import jobs_of


def add(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "doctor",
        help="check what works on this machine, and say how to fix the rest",
        epilog="example: hpcext doctor",
    )
    parser.add_argument(
        "--submit",
        action="store_true",
        help="submit a job of two minutes, to check what only a job can tell (LSF)",
    )
    parser.add_argument(
        "--queue", default="", metavar="NAME", help="queue to which --submit submits it"
    )
    parser.add_argument(
        "--job",
        type=Path,
        metavar="JOBS.toml",
        help="start the first training of a file, suspend it, and resume it",
    )
    parser.add_argument(
        "--probe",
        default="",
        metavar="PARTITION",
        help="train on an idle node of this partition or queue, have it preempted, and go on",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, out: Output) -> int:
    """Run all checks; return 1 if one of them found something wrong."""
    if args.queue and not args.submit:
        raise InputError("can be given with --submit only", where="--queue")
    settings = _settings()
    if args.job:
        # An invalid file is refused before any check runs.
        jobs_of(args.job, settings)
    found: list[Finding] = []
    asked = CheckOptions(settings, args.submit, args.queue, args.job, args.probe)
    for finding in examine(CHECKS, asked):
        found.append(finding)
        said = "; ".join(filter(None, (finding.says, finding.why, finding.do)))
        out.line(f"{finding.verdict:5} {finding.name}: {said}")
    works = all(finding.verdict != "wrong" for finding in found)
    if args.json:
        checks = [finding._asdict() for finding in found]
        document = {"schema": "hpcext.doctor/1", "hpcext": __version__, "works": works}
        out.document({**document, "findings": checks})
    return 0 if works else 1


def _settings() -> Settings | None:
    try:
        return load_settings()
    except InputError:
        return None  # one of the checks says why
