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
from hpcext.harvest import leave


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
        default="slurm",
        help="batch system (default: %(default)s)",
    )
    parser.add_argument(
        "--account",
        metavar="USER",
        default=broker.ACCOUNT,
        help="account of the service, which exists and is not root (default: %(default)s)",
    )
    for flag, default, text in (
        ("--state-dir", broker.STATE_DIR, "directory of its journal"),
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
    site = broker.Site(
        args.partition or "",
        args.batch,
        command,
        args.account,
        args.state_dir,
        args.usr,
        args.conf_dir,
        args.unit_dir,
        args.prefix,
    )
    if (there := site.place.on_disk(site.settings)).exists():
        site = _as_set(site, there, args.partition)
    elif args.partition is None:
        raise InputError("no partition", where="--partition", valid="the one that harvesters use")
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


def _as_set(site: broker.Site, path: Path, partition: str | None) -> broker.Site:
    """Return a site with the partition of its settings, which are there.

    Raises
    ------
    InputError
        They are invalid; or they were edited, and are not for this installation.
    """
    found = broker_settings.load(path)
    site = dataclasses.replace(site, partition=partition or found.partition)
    if broker.edited(site):
        for flag, ours, theirs in (
            ("--partition", site.partition, found.partition),
            ("--batch", site.batch, found.batch),
            ("--state-dir", site.state_dir, found.state_dir),
        ):
            if ours != theirs:
                raise InputError(
                    f"has {theirs}, and {flag} is {ours}",
                    where=str(path),
                    do=f"change that file, or give {flag} {theirs}",
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
        leave.status(socket)
    except leave.BrokerError:
        return False
    return True


def report(args: argparse.Namespace, out: Output) -> int:
    """Run ``hpcext-admin status broker``."""
    place = broker.Site(usr=args.usr, root=args.prefix).place
    found = status.of_broker(place, _socket(place))
    return show_status(found, args, out) or int(bool(found.steps))
