"""``hpcext-admin install broker``, ``uninstall broker`` and ``status broker``."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from hpcext import __version__
from hpcext.admin import broker, slurm, status
from hpcext.admin.install import InstallLocation
from hpcext.admin.manifest import Manifest
from hpcext.admin.trust import ROOT
from hpcext.broker import settings as broker_settings
from hpcext.cli import main as cli
from hpcext.cli.installations import (
    Run,
    add_common,
    add_dry_run,
    document,
    own_command,
    show,
    show_status,
    uninstall,
)
from hpcext.cli.output import Output
from hpcext.core.errors import HpcextError, InputError
from hpcext.harvest import leave, ways
from hpcext.harvest.ways.local import Local


def add_install(systems: Any) -> None:
    """Register ``install broker``."""
    parser = add(systems, install, "put the site's broker in place, as a service")
    parser.epilog = f"{cli.EXAMPLE}{parser.prog} --partition preemptible"
    parser.add_argument(
        "--partition",
        metavar="NAME",
        help="partition or queue that harvesters use (default: as the settings have it)",
    )
    parser.add_argument(
        "--batch",
        choices=("slurm", "lsf"),
        help="batch system (default: as the settings have it, or slurm)",
    )
    parser.add_argument(
        "--account",
        metavar="USER",
        help="account of the service, which exists and is not root (default: that of the unit, or "
        f"{broker.ACCOUNT})",
    )
    parser.add_argument(
        "--state-dir",
        metavar="DIR",
        type=Path,
        help=f"directory of its journal (default: as the settings have it, or {broker.STATE_DIR})",
    )
    for flag, default, text in (
        ("--conf-dir", broker.CONF_DIR, "directory of broker.toml"),
        ("--unit-dir", broker.UNIT_DIR, "directory of the unit file"),
    ):
        parser.add_argument(
            flag, metavar="DIR", type=Path, default=default, help=f"{text} (default: %(default)s)"
        )
    parser.add_argument(
        broker.FLAG,
        metavar="PATH",
        type=Path,
        help="path of hpcext-broker (default: the one beside hpcext-admin)",
    )
    add_dry_run(parser)


def add(systems: Any, run: Run, goal: str) -> cli.Parser:
    """Register a command of `systems` about the broker, which does `goal` by `run`."""
    parser: cli.Parser = systems.add_parser("broker", help=goal, description="Needs root.")
    parser.epilog = f"{cli.EXAMPLE}{parser.prog}"
    parser.add_argument(
        "--usr",
        metavar="DIR",
        type=Path,
        default=broker.USR,
        help="directory of lib, where the manifest is (default: %(default)s)",
    )
    add_common(parser, run)
    return parser


def install(args: argparse.Namespace, out: Output) -> int:
    """Run ``hpcext-admin install broker``."""
    command = args.broker or (
        own_command(broker.PROGRAM) if args.prefix == ROOT else slurm.USR / "bin" / broker.PROGRAM
    )
    site = _as_set(
        broker.Site(
            command=command,
            usr=args.usr,
            conf_dir=args.conf_dir,
            unit_dir=args.unit_dir,
            root=args.prefix,
        ),
        args,
    )
    changes = broker.plan(site)
    out.line(f"hpcext {__version__}, broker of {site.partition}")
    show(changes, out)
    if broker.edited(site):
        out.line(f"{site.settings} was edited, and stays as it is")
    if not args.dry_run:
        broker.apply(site, changes)
        out.line("done")
    left = broker.left_to_do(site)
    for line in ("", "left to you:", *left):
        out.line(line)
    document(changes, args, out, left=left)
    return 0


def _as_set(site: broker.Site, args: argparse.Namespace) -> broker.Site:
    """Return a site as the options say, else as it is installed, else as is usual.

    Raises
    ------
    InputError
        The settings that are there are invalid; or they were edited, and are not for these options;
        or nothing says which partition it is.
    """
    path, given = site.place.on_disk(site.settings), vars(args)
    if not path.exists() and args.partition is None:
        raise InputError("no partition", where="--partition", valid="the one that harvesters use")
    found = broker_settings.load(path)._asdict() if path.exists() else {}
    found["account"] = broker.account_of(site)
    names = ("partition", "batch", "state_dir", "account")
    said = {name: given[name] or found.get(name) or getattr(site, name) for name in names}
    site = dataclasses.replace(site, **said)
    if broker.edited(site):
        for name in names[:3]:
            if said[name] != found[name]:
                flag = f"--{name.replace('_', '-')}"
                raise InputError(
                    f"has {found[name]}, and {flag} is {said[name]}",
                    where=str(path),
                    do=f"change that file, or give {flag} {found[name]}",
                )
    return site


def remove(args: argparse.Namespace, out: Output) -> int:
    """Run ``hpcext-admin uninstall broker``."""
    site = broker.Site(usr=args.usr, root=args.prefix)
    changes = broker.plan_removal(site)
    socket = _socket(site.place)
    if args.prefix == ROOT and _answers(socket):
        raise InputError(
            "the broker runs",
            where=str(socket),
            do="systemctl disable --now hpcext-broker, and try again",
        )
    code = uninstall(site.place, changes, args, out)
    for line in ("left to you: systemctl daemon-reload", "what the broker and you wrote stays"):
        out.line(line)
    return code


def _socket(place: InstallLocation) -> Path:
    """Return where the broker of an installation answers, as its settings say."""
    settings = broker.settings_of(place.installed(trusted=False) or Manifest())
    try:
        return broker_settings.load(place.on_disk(settings)).socket
    except HpcextError:
        return leave.SOCKET


def _answers(socket: Path) -> bool:
    try:
        ways.status(Local(socket))
    except leave.BrokerError:
        return False
    return True


def report(args: argparse.Namespace, out: Output) -> int:
    """Run ``hpcext-admin status broker``."""
    place = broker.Site(usr=args.usr, root=args.prefix).place
    found = status.of_broker(place, _socket(place))
    return show_status(found, args, out) or int(bool(found.steps))
