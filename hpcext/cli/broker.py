"""``hpcext-broker``: divide the idle nodes of a partition among the harvesters of all users."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcext import __version__
from hpcext.broker import metrics as exported
from hpcext.broker import service
from hpcext.broker.reservations import when
from hpcext.broker.settings import BATCH, FILE, load
from hpcext.checks import at
from hpcext.cli import completion
from hpcext.cli import main as cli
from hpcext.cli.output import Output, write_file
from hpcext.config import load_settings
from hpcext.core.errors import HpcextError, InputError
from hpcext.extras import need
from hpcext.harvest import leave, ways
from hpcext.render.words import UNKNOWN, duration
from hpcext.text import are, counted

NO_LIMIT = "none"
NO_CLASS = "of no class"

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
        "--socket",
        metavar="WHERE",
        help="socket of the broker, munge://HOST:PORT or drop://DIRECTORY (default: as set, or the "
        "usual socket)",
    )
    status_.add_argument("--json", action="store_true", help="print one JSON document")
    status_.set_defaults(run=status)
    metrics_ = commands.add_parser(
        "metrics",
        help="write metrics of all users together for node_exporter",
        description="For root, the account of the broker, and its administrators.",
        epilog="example: hpcext-broker metrics --textfile /var/lib/node_exporter/broker.prom",
    )
    metrics_.add_argument(
        "--textfile",
        type=Path,
        metavar="FILE.prom",
        required=True,
        help="file of node_exporter's textfile collector to write",
    )
    metrics_.add_argument(
        "--users", action="store_true", help="also parts of each user, with the names"
    )
    metrics_.add_argument(
        "--socket",
        metavar="WHERE",
        help="socket of the broker, munge://HOST:PORT or drop://DIRECTORY (default: as set, or the "
        "usual socket)",
    )
    metrics_.set_defaults(run=metrics)
    return parser, dict(commands.choices)


def run(args: argparse.Namespace, out: Output) -> int:
    """Run the broker until a signal ends it."""
    settings = load(args.file)
    if args.check:
        out.line(f"{args.file} is valid")
        over = sum(each.ends_at <= time.time() for each in settings.reservations)
        if over:
            out.note(f"{counted(over, 'reservation')} {are(over)} over already")
        return 0
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="hpcext-broker: %(message)s")
    service.run(settings, args.file, out.line, _asked())
    return 0


def _asked() -> str:
    """Return where harvesters ask, as the site has set it; what is wrong there stops no broker."""
    try:
        return load_settings().broker
    except HpcextError as error:
        logging.getLogger(__name__).warning("the settings of harvesters: %s", error)
        return leave.NONE


def _way(args: argparse.Namespace) -> ways.Way:
    """Return the way to ask on."""
    given: str | None = args.socket
    if given is not None and "://" not in given and given not in {leave.AUTO, leave.NONE}:
        given = str(Path(given).absolute())
    with at("--socket"):
        way = ways.find(load_settings().broker if given is None else given)
    if way is None:
        raise InputError(
            "this machine has no broker", where=str(leave.SOCKET), do="give --socket WHERE"
        )
    return way


def _known(document: dict[str, Any]) -> dict[str, Any]:
    """Return a status, unless the broker that has sent it is older than this command."""
    if not {"all", "shares", "reservations"} <= document.keys():
        raise leave.BrokerError(
            "is of an older hpcext than this command", do="systemctl restart hpcext-broker"
        )
    return document


def status(args: argparse.Namespace, out: Output) -> int:
    """Show what the broker has decided."""
    document = _known(ways.status(_way(args)))
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
    users = [_row(row, shares["from"]) for row in document["users"]]
    out.table(COLUMNS, users + _others(document.get("others")))
    if document["together"]:
        out.table(
            ("together", "limit", "held"),
            [(row["name"], str(row["limit"]), str(row["held"])) for row in document["together"]],
        )
    # Where there are none, and from a broker of an older release, nothing is said of classes.
    if rows := document.get("classes"):
        out.table(("class", "user", "limit", "granted", "held"), [_class(row) for row in rows])
    if document["reservations"]:
        out.table(
            ("reservation", "nodes", "held", "from", "to", "in force"),
            [_reservation(row) for row in document["reservations"]],
        )
    return 0


def _class(row: Mapping[str, Any]) -> tuple[str, ...]:
    limit = NO_LIMIT if row["limit"] is None else str(row["limit"])
    return row["class"] or NO_CLASS, row["user"], limit, str(row["granted"]), str(row["held"])


def _reservation(row: Mapping[str, Any]) -> tuple[str, ...]:
    now_s = time.time()
    return (
        row["for"],
        str(row["nodes"]),
        UNKNOWN if row["held"] is None else str(row["held"]),
        *(when(row[edge], now_s) for edge in ("begins_at", "ends_at")),
        "yes" if row["holds"] else "no",
    )


def metrics(args: argparse.Namespace, out: Output) -> int:
    """Write the file; if the broker does not answer, it says that."""
    need("prometheus_client")
    if args.textfile.suffix != ".prom":
        raise InputError(
            f"{args.textfile} would not be read by node_exporter",
            where="--textfile",
            valid="a name that ends in .prom",
        )
    way = _way(args)
    try:
        document = ways.status(way)
    except leave.BrokerError as error:
        write_file(args.textfile, _exposition(None, users=False))
        raise error from None
    if not _known(document)["all"]:
        raise InputError(
            "shows you your own part alone",
            where=str(way),
            valid="root, the account of the broker, or one of its administrators",
        )
    write_file(args.textfile, _exposition(document, users=args.users))
    return 0


def _exposition(document: Mapping[str, Any] | None, *, users: bool) -> bytes:
    """Return metrics in the text format of Prometheus."""
    from prometheus_client import CollectorRegistry, generate_latest  # noqa: PLC0415  (an extra)
    from prometheus_client.core import CounterMetricFamily as Counter  # noqa: PLC0415
    from prometheus_client.core import GaugeMetricFamily as Gauge  # noqa: PLC0415

    class Once:
        def collect(self) -> Iterator[Any]:
            families: dict[str, Gauge | Counter] = {}
            for name, user, value in exported.samples(document, users=users):
                if name not in families:
                    each = exported.METRICS.get(name) or exported.USERS[name]
                    kind = Gauge if each.kind == "gauge" else Counter
                    families[name] = kind(name, each.text, labels=["user"] if user else [])
                families[name].add_metric([user] if user else [], value)
            yield from families.values()

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Once())
    found: bytes = generate_latest(registry)
    return found


def _row(row: Mapping[str, Any], shares: str) -> tuple[str, ...]:
    counts = ("trainers", "want", "granted", "held", "owed")
    return (
        row["user"],
        f"{row['weight']:.4g}",
        f"{row['fair_share']:.2f}" if shares == BATCH else "",
        f"{row['priority']:g}",
        NO_LIMIT if row["limit"] is None else str(row["limit"]),
        *(str(row[name]) for name in counts),
        *_hours(row),
    )


def _others(row: Mapping[str, Any] | None) -> list[tuple[str, ...]]:
    """Return the row of users for whom the document has no room, if there are any."""
    if not row or not row["users"]:
        return []
    return [(f"{row['users']} others", *[""] * (len(COLUMNS) - 3), *_hours(row))]


def _hours(row: Mapping[str, Any]) -> tuple[str, str]:
    return f"{row['held_node_s'] / 3600:.2f}", f"{row['without_leave_node_s'] / 3600:.2f}"


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse a command line, without the name of the program; raise InputError if it is invalid."""
    parser, commands = make_parser()
    completion.answer(parser)
    return cli.arguments(parser, commands, argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``hpcext-broker``; return its exit status, which means what that of ``hpcext`` does."""
    return cli.main(argv, parse)
