"""``hpcext-admin``: what root does once for everybody on a cluster."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcext import __version__
from hpcext.admin import install as installing
from hpcext.admin import slurm
from hpcext.admin.install import Change
from hpcext.cli import main as cli
from hpcext.cli.output import Output
from hpcext.core.errors import InputError

SYSTEMS = ("slurm",)


def make_parser() -> tuple[cli.Parser, dict[str, cli.Parser]]:
    """The parser of the whole command line, and that of each command."""
    parser = cli.Parser(
        prog="hpcext-admin",
        description="Put hpcext into a batch system, for all users, and take it out again.",
        epilog="example: hpcext-admin install slurm --dry-run",
    )
    parser.add_argument("--version", action="version", version=f"hpcext {__version__}")
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_install(commands)
    _add_uninstall(commands)
    return parser, dict(commands.choices)


def _add_install(commands: Any) -> None:
    parser = commands.add_parser(
        "install", help="build the hooks and put them in place", description="Needs root."
    )
    _add_common(parser)
    parser.add_argument(
        "--conf-dir",
        metavar="DIR",
        type=Path,
        default=slurm.CONF_DIR,
        help="directory of slurm.conf (default: %(default)s)",
    )
    parser.add_argument(
        "--include",
        metavar="DIR",
        type=Path,
        default=slurm.INCLUDE,
        help="directory that has slurm/spank.h (default: %(default)s)",
    )
    parser.add_argument(
        "--hpcext",
        metavar="PATH",
        type=Path,
        default=_beside(),
        help="hpcext as users and jobs run it (default: the one beside hpcext-admin)",
    )
    parser.set_defaults(run=install)


def _add_uninstall(commands: Any) -> None:
    parser = commands.add_parser(
        "uninstall", help="remove what was installed", description="Needs root."
    )
    _add_common(parser)
    parser.set_defaults(run=uninstall)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("system", choices=SYSTEMS, metavar="slurm", help="the batch system")
    parser.add_argument(
        "--prefix",
        metavar="DIR",
        type=Path,
        default=slurm.PREFIX,
        help="where programs go (default: %(default)s)",
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be done")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def _beside() -> Path | None:
    """The command hpcext of this installation."""
    for folder in (Path(sys.argv[0]).absolute().parent, Path(sys.executable).parent):
        if (folder / "hpcext").is_file():
            return folder / "hpcext"
    return None


def install(args: argparse.Namespace, out: Output) -> int:
    """Run ``hpcext-admin install``."""
    site = slurm.Site(args.prefix, args.conf_dir, args.include, args.hpcext)
    release = slurm.release(site.include)
    changes = installing.plan(site.home, slurm.pieces(site))
    out.line(f"hpcext {__version__} for Slurm {release}")
    _show(changes, out)
    if not args.dry_run:
        installing.apply(site.home, changes)
        out.line("done")
    left = slurm.left_to_do(site)
    for line in ("", "left to you:", *left) if left else ():
        out.line(line)
    if not any("man" in change.path.parts for change in changes):
        out.note("no manual pages: docutils, which makes them, is not installed")
    _document(changes, args, out, slurm=release, left=left)
    return 0


def uninstall(args: argparse.Namespace, out: Output) -> int:
    """Run ``hpcext-admin uninstall``."""
    home = slurm.Site(args.prefix).home
    changes = installing.plan_removal(home)
    _show(changes, out)
    if not args.dry_run:
        installing.remove(home, changes)
    changed = [str(change.path) for change in changes if change.verb == "changed"]
    for path in changed:
        out.note(f"{path}: changed since it was installed, so it stays; remove it yourself")
    if not args.dry_run:
        out.line("done" if not changed else "done, but for what was changed")
    _document(changes, args, out)
    return 1 if changed else 0


def _show(changes: Sequence[Change], out: Output) -> None:
    out.table(("", "file"), [(change.verb, str(change.path)) for change in changes])


def _document(
    changes: Sequence[Change], args: argparse.Namespace, out: Output, **more: Any
) -> None:
    if args.json:
        done = [{"do": change.verb, "path": str(change.path)} for change in changes]
        document = {"schema": f"hpcext.{args.command}/1", "dry_run": args.dry_run, "files": done}
        out.document({**document, **more})


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read a command line.

    Raises
    ------
    InputError
        It is none of ours.
    """
    parser, commands = make_parser()
    cli.check_command(argv, commands)
    args, extra = parser.parse_known_args(argv)
    if extra:
        commands[args.command].refuse(extra)
    for name in ("prefix", "conf_dir", "include", "hpcext"):
        path = getattr(args, name, None)
        if path is not None and (not path.is_absolute() or ".." in path.parts):
            flag = f"--{name.replace('_', '-')}"
            raise InputError(str(path), where=flag, valid="an absolute path without ..")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``hpcext-admin``; exit status as that of ``hpcext``."""
    os.umask(0o022)
    return cli.main(argv, parse)
