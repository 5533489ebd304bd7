"""``hpcext config``: show the settings in effect and where they come from, or check a file."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from hpcext import config
from hpcext.cli.output import Output


def add(subparsers: Any) -> None:
    """Register the commands."""
    parser = subparsers.add_parser(
        "config",
        help="show the settings, or check a settings file",
        epilog="example: hpcext config show --origin",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    check_ = actions.add_parser(
        "check",
        help="check a settings file, or all those that commands read",
        epilog="example: hpcext config check site_configs/workstation.toml",
    )
    check_.add_argument("file", nargs="?", type=Path, metavar="FILE")
    show_ = actions.add_parser(
        "show",
        help="show the settings as commands see them",
        epilog="example: hpcext config show --origin",
    )
    show_.add_argument("--origin", action="store_true", help="say where each value came from")
    for action, run in ((check_, check), (show_, show)):
        action.add_argument("--json", action="store_true", help="print one JSON document")
        action.set_defaults(run=run)


def show(args: argparse.Namespace, out: Output) -> int:
    """Print every setting, as a settings file would state it."""
    settings = config.load_settings()
    values, origins = settings.values(), settings.origins
    if args.json:
        found = {name: {"value": values[name], "origin": origins[name]} for name in values}
        out.document({"schema": "hpcext.config/1", "settings": found})
        return 0
    for name, value in values.items():
        # JSON writes numbers and strings as TOML does.
        stated = f"{name} = {json.dumps(value)}"
        out.line(f"{stated}  # {origins[name]}" if args.origin else stated)
    return 0


def check(args: argparse.Namespace, out: Output) -> int:
    """Check one file, or all files that a command would read.

    Raises
    ------
    InputError
        A file is invalid; it names the first fault.
    """
    if args.file is not None:
        found = {str(args.file): config.read_file(args.file)}
    else:
        config.load_settings()
        found = {
            str(path): config.read_file(path)
            for path in (config.SITE_FILE, config.user_file())
            if path.exists()
        }
    if args.json:
        files = [{"file": file, "settings": sorted(values)} for file, values in found.items()]
        out.document({"schema": "hpcext.config-check/1", "files": files})
        return 0
    for file, values in found.items():
        out.line(f"{file}: valid, {len(values)} setting{'' if len(values) == 1 else 's'}")
    if not found:
        out.line(f"no file: neither {config.SITE_FILE} nor {config.user_file()} is there")
    return 0
