"""``hpcext-broker``: divide the idle nodes of a partition among the harvesters of all users."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcext import __version__
from hpcext.broker import service
from hpcext.broker.settings import BATCH, FILE, load
from hpcext.cli import completion
from hpcext.cli import main as cli
from hpcext.cli.output import Output
from hpcext.config import load_settings
from hpcext.core.errors import InputError
from hpcext.harvest import leave
from hpcext.render.words import duration

NO_LIMIT = "none"

COLUMNS = (
    "user", "weight", "fair share", "priority", "limit", "trainers", "want", "granted", "held",
    "owed", "held node-h", "without leave",
)  # fmt: skip


def make_parser() -> tuple[cli.Parser, dict[str, cli.Parser]]:
    """Return the parser of the whole command line, and those of its commands by name."""
    parser = cli.Parser(
        prog="hpcext-broker",
        description="Divide idle nodes of a partition among harvesters of all users.",
        epilog="example: hpcext-broker status",
    )
    parser.add_argument("--version", action="version", version=f"hpcext {__version__}")
    parser.set_defaults(quiet=False)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    run_ = commands.add_parser(
        "run",
        help="divide nodes until stopped",
        description="For the account of the service, which need not be root.",
        epilog="example: hpcext-broker run --file /etc/hpcext/broker.toml",
    )
    run_.add_argument(
        "--file",
        metavar="FILE",
        type=Path,
        default=FILE,
        help="settings of the broker (default: %(default)s)",
    )
    run_.add_argument("--check", action="store_true", help="only read the settings")
    run_.set_defaults(run=run)
    status_ = commands.add_parser(
        "status",
        help="show who may have how many nodes",
        description="Administrators see all users, others themselves.",
        epilog="example: hpcext-broker status --json",
    )
    status_.add_argument(
        "--socket", metavar="PATH", help="socket of the broker (default: as set, or the usual one)"
    )
    status_.add_argument("--json", action="store_true", help="print one JSON document")
    status_.set_defaults(run=status)
    return parser, dict(commands.choices)


def run(args: argparse.Namespace, out: Output) -> int:
    """Run the broker until a signal ends it."""
    settings = load(args.file)
    if args.check:
        out.line(f"{args.file} is valid")
        return 0
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="hpcext-broker: %(message)s")
    service.run(settings, args.file, out.line)
    return 0


def status(args: argparse.Namespace, out: Output) -> int:
    """Show what the broker has decided."""
    path = leave.find(args.socket or load_settings().broker)
    if path is None:
        raise InputError(
            "this machine has no broker", where=str(leave.SOCKET), do="give --socket PATH"
        )
    document = leave.status(path)
    if args.json:
        out.document(document)
        return 0
    waits = "" if document["decides"] else "; decides nothing yet, or cannot write its journal"
    out.line(f"{document['nodes']} nodes of {document['partition']} to divide{waits}")
    if document["failed"]:
        out.note(f"the policy {document['failed']}; all keep what they have")
    shares = document["shares"]
    if shares["failed"]:
        age_s = shares["age_s"]
        holds = "as nobody was known" if age_s is None else f"as it was {duration(age_s)} ago"
        out.note(f"the fair share stays {holds}: {shares['failed']}")
    out.table(COLUMNS, [_row(row, shares["from"]) for row in document["users"]])
    if document["together"]:
        out.table(
            ("together", "limit", "held"),
            [(row["name"], str(row["limit"]), str(row["held"])) for row in document["together"]],
        )
    return 0


def _row(row: Mapping[str, Any], shares: str) -> tuple[str, ...]:
    counts = ("trainers", "want", "granted", "held", "owed")
    return (
        row["user"],
        f"{row['weight']:.4g}",
        f"{row['fair_share']:.2f}" if shares == BATCH else "",
        f"{row['priority']:g}",
        NO_LIMIT if row["limit"] is None else str(row["limit"]),
        *(str(row[name]) for name in counts),
        f"{row['held_node_s'] / 3600:.2f}",
        f"{row['without_leave_node_s'] / 3600:.2f}",
    )


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse a command line, without the name of the program; raise InputError if it is invalid."""
    parser, commands = make_parser()
    completion.answer(parser)
    return cli.arguments(parser, commands, argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``hpcext-broker``; return its exit status, which means what that of ``hpcext`` does."""
    return cli.main(argv, parse)
