"""``hpcext report``: account for the GPU time of pilots."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hpcext import private
from hpcext.checks import age_s
from hpcext.cli.output import Output, write_file
from hpcext.cli.report import view as report_view
from hpcext.config import load_settings
from hpcext.core.errors import HpcextError, InputError
from hpcext.extras import need
from hpcext.manager import directory as pilots
from hpcext.manager.views import reading
from hpcext.manager.views.accounting import PilotAccount, account
from hpcext.manager.views.reading import Follower, Reading
from hpcext.text import shown

FORMATS = ("text", "html", "json", "csv")


def add(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "report",
        help="show how GPU time was spent, by user, pilot and job",
        epilog="example: hpcext report --since 30d",
    )
    parser.add_argument(
        "pilots", nargs="*", metavar="PILOT", help="directory, id or name (default: all)"
    )
    parser.add_argument(
        "--since",
        metavar="DATE",
        help="count from this date on: 2026-11-01, or from 12h, 7d, 4w ago",
    )
    parser.add_argument(
        "--saved",
        action="store_true",
        help="estimate by simulation what sharing saved; takes some seconds for each pilot",
    )
    parser.add_argument("--format", choices=FORMATS, help="text, html, json or csv")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write it to a file")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, out: Output) -> int:
    """Print the report, or write it to a file."""
    form, now = _format(args), time.time()
    if form == "html":
        need("matplotlib", "--format html")
    since = None if args.since is None else read_since(args.since, now)
    parts = list(_parts(_readings(args.pilots, out), since, out))
    document = account(parts, user=private.own_name(), since=since, until=now)
    if args.saved:
        from hpcext.cli.report import estimate  # noqa: PLC0415  (slow: it simulates)

        estimate.add_saved(document, parts, out)
    if form == "text":
        report_view.show(out, document, jobs=bool(args.pilots))
        return 0
    if form == "json" and args.output is None:
        out.document(document)
        return 0
    if form == "json":
        data = json.dumps(document, indent=2).encode() + b"\n"
    elif form == "csv":
        data = report_view.as_table(document)
    else:
        from hpcext.cli.report import page  # noqa: PLC0415  (slow: it draws)

        data = page.page(parts, document).encode()
    if args.output is None:
        out.raw(data)
    else:
        write_file(args.output, data)
    return 0


def read_since(text: str, now: float) -> float:
    """Parse an instant: a date, with or without a time, or an age such as ``7d``.

    Parameters
    ----------
    text : str
    now : float
        The present instant, in epoch seconds.

    Returns
    -------
    float
        In epoch seconds.

    Raises
    ------
    InputError
        The text is neither, or an instant in the future.
    """
    with contextlib.suppress(InputError):
        return now - age_s(text, "--since")
    try:
        at = datetime.datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise InputError(
            f"{shown(text)} is not a date", where="--since", valid="2026-11-01, or 12h, 7d, 4w"
        ) from None
    if at > now:
        raise InputError(f"{shown(text)} is in the future", where="--since")
    return at


def _format(args: argparse.Namespace) -> str:
    """Return the format that an option names, or that the suffix of the file implies."""
    if args.json and args.format not in (None, "json"):
        raise InputError(f"means json, but --format says {args.format}", where="--json")
    said = "json" if args.json else args.format
    if args.output is None:
        return said or "text"
    form = said or args.output.suffix.removeprefix(".")
    if form not in FORMATS[1:]:
        raise InputError(
            f"cannot be written to {args.output}"
            if said
            else f"the format of {args.output} is unknown",
            where="--format",
            valid=", ".join(FORMATS[1:]),
        )
    return str(form)


def _readings(handles: Sequence[str], out: Output) -> Iterator[Reading]:
    """Read the named pilots, each once, or all that can be read."""
    state_dir = load_settings().state_dir
    if handles:
        found = {pilots.find(handle, state_dir): None for handle in handles}
        yield from map(reading.read, found)
        return
    for path, _ in pilots.known(state_dir):
        follower = Follower(path)
        try:
            if follower.begun():
                yield follower.read()
        except HpcextError as error:
            out.note(str(error))


def _parts(readings: Iterator[Reading], since: float | None, out: Output) -> Iterator[PilotAccount]:
    """Yield the part of each reading that is to be counted."""
    for now in readings:
        if since is None or since <= now.began_at:
            yield PilotAccount(now)
        elif since < now.began_at + now.now_s:
            part = PilotAccount(now, reading.read_at(now.directory, since - now.began_at))
            if part.from_s < since - now.began_at:
                from_ = datetime.datetime.fromtimestamp(now.began_at + part.from_s)
                out.note(
                    f"{now.pilot.id}: counted from {from_:%Y-%m-%d %H:%M} on, because its journal "
                    "was compacted then"
                )
            yield part
