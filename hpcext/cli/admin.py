"""``hpcext-admin``: install hpcext for all users of a cluster, check it, and remove it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcext import __version__
from hpcext.admin import install as installing
from hpcext.admin import lsf, slurm, slurm_conf, status
from hpcext.admin.edits import Edit, StillNamedError, as_json
from hpcext.admin.install import FileChange, InstallLocation
from hpcext.admin.manifest import Manifest
from hpcext.admin.trust import ROOT
from hpcext.checks import check_range
from hpcext.cli import accept, admin_broker, completion
from hpcext.cli import main as cli
from hpcext.cli.installations import (
    Run,
    add_common,
    add_dry_run,
    document,
    own_command,
    show,
    show_edits,
    show_status,
    uninstall,
)
from hpcext.cli.output import Output
from hpcext.core.errors import InputError
from hpcext.extras import need


def make_parser() -> tuple[cli.Parser, dict[str, cli.Parser]]:
    """Return the parser of the whole command line, and those of its commands by name."""
    parser = cli.Parser(
        prog="hpcext-admin",
        description="Put hpcext into a batch system, for all users, and take it out again.",
        epilog="example: hpcext-admin install slurm --dry-run",
    )
    parser.add_argument("--version", action="version", version=f"hpcext {__version__}")
    parser.set_defaults(quiet=False)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_install(commands)
    _add_uninstall(commands)
    _add_status(commands)
    accept.add(commands)
    return parser, dict(commands.choices)


def _add_install(commands: Any) -> None:
    parser = commands.add_parser(
        "install",
        help="put hpcext in place",
        description="Run it as the owner of the directories.",
        epilog="example: hpcext-admin install slurm --dry-run",
    )
    systems = parser.add_subparsers(dest="part", metavar="PART", required=True)
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
    for_slurm.add_argument(
        "--no-man", action="store_true", help="leave the manual pages to another package"
    )
    for_lsf = _add_lsf(systems, install_lsf, "put the esub and the job starter in place")
    for_lsf.add_argument(
        "--max-lead",
        metavar="SECONDS",
        type=int,
        default=lsf.MAX_LEAD_S,
        help="longest lead that a suspendable job may ask for (default: %(default)s)",
    )
    for each in (for_slurm, for_lsf):
        each.add_argument(
            "--hpcext",
            metavar="PATH",
            type=Path,
            help="path of hpcext for users and jobs (default: the one beside hpcext-admin)",
        )
        add_dry_run(each)
    admin_broker.add_install(systems)


def _add_uninstall(commands: Any) -> None:
    parser = commands.add_parser(
        "uninstall",
        help="remove what was installed",
        description="Run it as whoever installed hpcext.",
        epilog="example: hpcext-admin uninstall slurm --dry-run",
    )
    systems = parser.add_subparsers(dest="part", metavar="PART", required=True)
    for_slurm = _add_slurm(systems, uninstall_slurm, "remove what was installed")
    for_lsf = _add_lsf(systems, uninstall_lsf, "remove what was installed for LSF")
    for_lsf.add_argument(
        "--conf-dir",
        metavar="DIR",
        type=Path,
        help="directory of lsb.queues, to check first that no queue needs the files",
    )
    for_broker = admin_broker.add(systems, admin_broker.remove, "remove the site's broker")
    for each in (for_slurm, for_lsf, for_broker):
        add_dry_run(each)


def _add_status(commands: Any) -> None:
    parser = commands.add_parser(
        "status",
        help="show what is installed, and what is left to do",
        description="Changes nothing.",
        epilog="example: hpcext-admin status slurm",
    )
    systems = parser.add_subparsers(dest="part", metavar="PART", required=True)
    _add_slurm(systems, status_slurm, "show what is installed for Slurm")
    _add_lsf(systems, status_lsf, "show what is installed for LSF")
    admin_broker.add(systems, admin_broker.report, "show whether the broker is whole, and answers")


def _add_slurm(systems: Any, run: Run, goal: str) -> cli.Parser:
    parser: cli.Parser = systems.add_parser("slurm", help=goal, description="Needs root.")
    parser.epilog = f"{cli.EXAMPLE}{parser.prog}"
    parser.add_argument(
        "--usr",
        metavar="DIR",
        type=Path,
        default=slurm.USR,
        help="directory of lib and share (default: %(default)s)",
    )
    add_common(parser, run)
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
        help="LSF_SERVERDIR of lsf.conf",
    )
    add_common(parser, run)
    return parser


def _command(args: argparse.Namespace, usr: Path) -> Path | None:
    """Return the path of ``hpcext`` for jobs; for a package, the one after its installation."""
    if args.hpcext is not None or args.prefix == ROOT:
        return args.hpcext or own_command()
    return usr / "bin" / "hpcext"


def install_slurm(args: argparse.Namespace, out: Output) -> int:
    """Run ``hpcext-admin install slurm``."""
    command = _command(args, args.usr)
    site = slurm.Site(args.usr, args.conf_dir, args.include, command, args.prefix, not args.no_man)
    if site.manual:
        need("docutils", otherwise="or give --no-man")
    release = slurm.release(site.include)
    changes = installing.plan(site.place, slurm.pieces(site))
    out.line(f"hpcext {__version__} for Slurm {release}")
    _carry_out(site.place, changes, args, out, release)
    left = slurm_conf.lacking(site.files)
    show_edits(left, out)
    if left:
        out.line("then: scontrol reconfigure, or restart slurmctld if a plugin is new to it")
    document(changes, args, out, slurm=release, left=as_json(left))
    return 0


def install_lsf(args: argparse.Namespace, out: Output) -> int:
    """Run ``hpcext-admin install lsf``."""
    check_range("--max-lead", args.max_lead, *lsf.MAX_LEADS_S)
    site = lsf.Site(args.serverdir, _command(args, slurm.USR), args.prefix, args.max_lead)
    changes = installing.plan(site.place, lsf.pieces(site))
    out.line(f"hpcext {__version__} for LSF")
    _carry_out(site.place, changes, args, out)
    left = lsf.left_to_do(site)
    for line in ("", "left to you:", *left):
        out.line(line)
    document(changes, args, out, left=left)
    return 0


def _carry_out(
    place: InstallLocation,
    changes: Sequence[FileChange],
    args: argparse.Namespace,
    out: Output,
    built_for: str = "",
) -> None:
    show(changes, out)
    if not args.dry_run:
        installing.apply(place, changes, built_for)
        out.line("done")


def uninstall_slurm(args: argparse.Namespace, out: Output) -> int:
    """Run ``hpcext-admin uninstall slurm``."""
    place = slurm.Site(args.usr, root=args.prefix).place
    changes = installing.plan_removal(place, "--usr")
    files = status.slurm_files(place, place.installed() or Manifest())
    edits = slurm_conf.naming(files, {str(change.path) for change in changes}) if files else []
    _refuse(edits, "scontrol reconfigure, and try again", out)
    # Before the removal, because the manifest names the command and the release.
    more = slurm_conf.unneeded(files) if files and files.release else []
    return uninstall(place, changes, args, out, more)


def uninstall_lsf(args: argparse.Namespace, out: Output) -> int:
    """Run ``hpcext-admin uninstall lsf``."""
    site = lsf.Site(args.serverdir, root=args.prefix)
    changes = installing.plan_removal(site.place, "--serverdir")
    if args.conf_dir is not None:
        _refuse(lsf.naming(site, args.conf_dir), "badmin reconfig, and try again", out)
    return uninstall(site.place, changes, args, out)


def _refuse(edits: Sequence[Edit], do: str, out: Output) -> None:
    if edits:
        show_edits(edits, out)
        raise StillNamedError(edits, do)


def status_slurm(args: argparse.Namespace, out: Output) -> int:
    """Run ``hpcext-admin status slurm``."""
    return show_status(status.of_slurm(slurm.Site(args.usr, root=args.prefix).place), args, out)


def status_lsf(args: argparse.Namespace, out: Output) -> int:
    """Run ``hpcext-admin status lsf``."""
    site = lsf.Site(args.serverdir, root=args.prefix)
    return show_status(status.of_lsf(site.place, site.serverdir), args, out)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse a command line.

    Parameters
    ----------
    argv : sequence of str
        The arguments, without the name of the program.

    Raises
    ------
    InputError
        The command line is invalid, or a path in it is not absolute.
    """
    parser, commands = make_parser()
    completion.answer(parser)
    args = cli.arguments(parser, commands, argv)
    for name in (
        "prefix",
        "usr",
        "conf_dir",
        "include",
        "hpcext",
        "serverdir",
        "broker",
        "unit_dir",
        "state_dir",
    ):
        path = getattr(args, name, None)
        if path is not None and (not path.is_absolute() or ".." in path.parts):
            flag = f"--{name.replace('_', '-')}"
            raise InputError(str(path), where=flag, valid="an absolute path without ..")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``hpcext-admin``; return its exit status, which means what that of ``hpcext`` does."""
    os.umask(0o022)
    return cli.main(argv, parse)
