"""``hpcext top``: a live view of pilots, their GPUs and their jobs that fills the terminal."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from hpcext.cli.output import Output
from hpcext.config import load_settings
from hpcext.core.errors import InputError
from hpcext.extras import need
from hpcext.manager.views.reading import Followers


def add(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "top",
        help="show pilots, GPUs and jobs as they change; suspend and resume jobs",
        epilog="example: hpcext top jobs",
    )
    parser.add_argument(
        "pilot", nargs="?", metavar="PILOT", help="directory, id or name (default: all)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, out: Output) -> int:
    """Show the view until the user quits."""
    need("textual")
    named = [args.pilot] if args.pilot else []
    followers = Followers(load_settings().state_dir, named)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InputError("needs a terminal", do="see hpcext status, or hpcext report")
    from hpcext.cli.top.app import Top  # noqa: PLC0415  (Textual is slow to import; an extra)

    top = Top(lambda: list(followers.read(recent=True)))
    top.run()
    return top.return_code or 0
