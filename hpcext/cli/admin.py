"""``hpcext-admin``: what root does once for everybody on a cluster."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hpcext import __version__
from hpcext.admin import install as installing
from hpcext.admin import lsf, slurm
from hpcext.admin.install import Change
from hpcext.cli import completion
from hpcext.cli import main as cli
from hpcext.cli.output import Output
from hpcext.core.errors import InputError

Run = Callable[[argparse.Namespace, Output], int]


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
        "install",
        help="put hpcext in place",
        description="For whoever owns these places.",
        epilog="example: hpcext-admin install slurm --dry-run",
    )
    systems = parser.add_subparsers(dest="system", metavar="SYSTEM", required=True)
    for_slurm = _add_slurm(systems, install_slurm, "build the hooks and put them in place")
    for_slurm.add_argument(
        "--conf-dir",
        metavar="DIR",
        type=Path,
        default=slurm.CONF_DIR,
        help="directory of slurm.conf (default: %(default)s)",
    )
    for_slurm.add_argument(
        "--include",
        metavar="DIR",
        type=Path,
        default=slurm.INCLUDE,
        help="directory that has slurm/spank.h (default: %(default)s)",
    )
    for_lsf = _add_lsf(systems, install_lsf, "put the esub and the job starter in place")
    for each in (for_slurm, for_lsf):
        each.add_argument(
            "--hpcext",
            metavar="PATH",
            type=Path,
            default=_beside(),
            help="hpcext as users and jobs run it (default: the one beside hpcext-admin)",
        )


def _add_uninstall(commands: Any) -> None:
    parser = commands.add_parser(
        "uninstall",
        help="remove what was installed",
        description="For whoever installed it.",
        epilog="example: hpcext-admin uninstall slurm --dry-run",
    )
    systems = parser.add_subparsers(dest="system", metavar="SYSTEM", required=True)
    _add_slurm(systems, uninstall_slurm, "remove what was installed under a prefix")
    _add_lsf(systems, uninstall_lsf, "remove what was installed for an LSF")


def _add_slurm(systems: Any, run: Run, goal: str) -> cli.Parser:
    parser: cli.Parser = systems.add_parser("slurm", help=goal, description="Needs root.")
    parser.epilog = f"{cli.EXAMPLE}{parser.prog}"
    parser.add_argument(
        "--prefix",
        metavar="DIR",
        type=Path,
        default=slurm.PREFIX,
        help="where programs go (default: %(default)s)",
    )
    _add_common(parser, run)
    return parser


def _add_lsf(systems: Any, run: Run, goal: str) -> cli.Parser:
    parser: cli.Parser = systems.add_parser(
        "lsf", help=goal, description="For the owner of LSF_SERVERDIR, often lsfadmin."
    )
    parser.epilog = f"{cli.EXAMPLE}{parser.prog} --serverdir /opt/lsf/10.1/etc"
    parser.add_argument(
        "--serverdir",
        metavar="DIR",
        type=Path,
        required=True,
        help="LSF_SERVERDIR, as lsf.conf has it",
    )
    _add_common(parser, run)
    return parser


def _add_common(parser: cli.Parser, run: Run) -> None:
    parser.add_argument("--dry-run", action="store_true", help="say what would be done")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def _beside() -> Path | None:
    """The command hpcext of this installation."""
    for folder in (Path(sys.argv[0]).absolute().parent, Path(sys.executable).parent):
        if (folder / "hpcext").is_file():
            return folder / "hpcext"
    return None


def install_slurm(args: argparse.Namespace, out: Output) -> int:
    """Run ``hpcext-admin install slurm``."""
    site = slurm.Site(args.prefix, args.conf_dir, args.include, args.hpcext)
    release = slurm.release(site.include)
    changes = installing.plan(site.home, slurm.pieces(site))
    out.line(f"hpcext {__version__} for Slurm {release}")
    _carry_out(site.home, changes, args, out)
    left = slurm.left_to_do(site)
    _show_left(left, out)
    if not any("man" in change.path.parts for change in changes):
        out.note("no manual pages: docutils, which makes them, is not installed")
    _document(changes, args, out, slurm=release, left=left)
    return 0


def install_lsf(args: argparse.Namespace, out: Output) -> int:
    """Run ``hpcext-admin install lsf``."""
    site = lsf.Site(args.serverdir, args.hpcext)
    changes = installing.plan(site.home, lsf.pieces(site))
    out.line(f"hpcext {__version__} for LSF")
    _carry_out(site.home, changes, args, out)
    left = lsf.left_to_do(site)
    _show_left(left, out)
    _document(changes, args, out, left=left)
    return 0


def _carry_out(
    home: Path, changes: Sequence[Change], args: argparse.Namespace, out: Output
) -> None:
    _show(changes, out)
    if not args.dry_run:
        installing.apply(home, changes)
        out.line("done")


def _show_left(left: Sequence[str], out: Output) -> None:
    for line in ("", "left to you:", *left) if left else ():
        out.line(line)


def uninstall_slurm(args: argparse.Namespace, out: Output) -> int:
    """Run ``hpcext-admin uninstall slurm``."""
    return _uninstall(slurm.Site(args.prefix).home, "--prefix", args, out)


def uninstall_lsf(args: argparse.Namespace, out: Output) -> int:
    """Run ``hpcext-admin uninstall lsf``."""
    return _uninstall(lsf.Site(args.serverdir).home, "--serverdir", args, out)


def _uninstall(home: Path, flag: str, args: argparse.Namespace, out: Output) -> int:
    changes = installing.plan_removal(home, flag)
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
    parser, _ = make_parser()
    completion.answer(parser)
    args, extra = parser.parse_known_args(argv)
    if extra:
        args.parser.refuse(extra)
    for name in ("prefix", "conf_dir", "include", "hpcext", "serverdir"):
        path = getattr(args, name, None)
        if path is not None and (not path.is_absolute() or ".." in path.parts):
            flag = f"--{name.replace('_', '-')}"
            raise InputError(str(path), where=flag, valid="an absolute path without ..")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``hpcext-admin``; exit status as that of ``hpcext``."""
    os.umask(0o022)
    return cli.main(argv, parse)
