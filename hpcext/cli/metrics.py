"""``hpcext metrics``: serve metrics of this user's pilots to Prometheus, or write a file."""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import os
import re
import secrets
import threading
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcext import private
from hpcext.cli.output import Output, write_file
from hpcext.cli.serving import serve
from hpcext.config import load_settings
from hpcext.core.errors import InputError, refused
from hpcext.dashboard.bounded import TOKEN_BYTES, BoundedHandler, BoundedServer
from hpcext.extras import need
from hpcext.manager.views.metrics import METRICS, UNREADABLE, UNREADABLE_TEXT, samples
from hpcext.manager.views.reading import Followers
from hpcext.numerals import whole
from hpcext.text import shown
from hpcext.textfiles import read_text

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

LISTEN = "127.0.0.1:9738"

TOKEN_FILE = "metrics-token"

_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{16,200}")
"""What an Authorization header can hold (RFC 6750, section 2.1)."""


def add(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "metrics",
        help="export metrics of the pilots to Prometheus, by HTTP or in a file",
        epilog="example: hpcext metrics --textfile /var/lib/node_exporter/hpcext.prom",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--listen",
        metavar="ADDRESS:PORT",
        default=LISTEN,
        help=f"serve there until stopped (default: {LISTEN}); port 0: any free one",
    )
    where.add_argument(
        "--textfile",
        type=Path,
        metavar="FILE.prom",
        help="write a file for node_exporter once, and exit",
    )
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help=f"file with the token that a request must show; created if missing (default: "
        f"{TOKEN_FILE} in the "
        "state directory)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, out: Output) -> int:
    """Serve metrics until interrupted, or write the file."""
    need("prometheus_client")
    settings = load_settings()
    registry = make_registry(Pilots(settings.state_dir))
    if args.textfile is None:
        token_file = args.token_file or settings.state_dir / TOKEN_FILE
        return _serve(read_address(args.listen), token_file, out, registry)
    if args.token_file is not None:
        raise InputError("a file needs no token", where="--token-file", do="leave it out")
    if args.textfile.suffix != ".prom":
        raise InputError(
            f"{args.textfile} would not be read by node_exporter",
            where="--textfile",
            valid="a name that ends in .prom",
        )
    from prometheus_client import generate_latest  # noqa: PLC0415  (an extra)

    write_file(args.textfile, generate_latest(registry))
    return 0


class Pilots:
    """A collector of the Prometheus client that reads this user's pilots at each scrape.

    Parameters
    ----------
    state_dir : pathlib.Path
    """

    def __init__(self, state_dir: Path) -> None:
        self._followers = Followers(state_dir)
        self._one = threading.Lock()

    def collect(self) -> Iterator[Metric]:
        """Yield the present metrics."""
        from prometheus_client.core import CounterMetricFamily as Counter  # noqa: PLC0415
        from prometheus_client.core import GaugeMetricFamily as Gauge  # noqa: PLC0415

        families = {
            name: (Gauge if each.kind == "gauge" else Counter)(
                name, each.text, labels=["pilot", *([each.label] if each.label else [])]
            )
            for name, each in METRICS.items()
        }
        families[UNREADABLE] = Gauge(UNREADABLE, UNREADABLE_TEXT, labels=[])
        # Scrapes may overlap, but followers keep what they have read, and are not thread-safe.
        with self._one:
            for name, *labels, value in samples(self._followers.read(recent=True)):
                families[name].add_metric([word for word in labels if word], value)
        yield from families.values()


def make_registry(pilots: Pilots) -> CollectorRegistry:
    """Return a registry that answers scrapes from these pilots."""
    from prometheus_client import CollectorRegistry  # noqa: PLC0415  (an extra)

    # Without auto_describe, which would collect at registration, and so read every journal twice.
    registry = CollectorRegistry(auto_describe=False)
    registry.register(pilots)
    return registry


def read_token(path: Path) -> str:
    """Read the token that Prometheus must send; create the file with a random one if it is missing.

    Raises
    ------
    InputError
        The file belongs to another user, others can read or change it, or it holds no token.
    """
    where, made = f"--token-file {path}", secrets.token_urlsafe(TOKEN_BYTES)
    try:
        private.make_missing(path.parent)
        with contextlib.suppress(FileExistsError):
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with open(fd, "w", encoding="ascii") as file:
                file.write(f"{made}\n")
        facts = path.stat()
    except OSError as error:
        raise refused(error, where) from None
    if facts.st_uid not in {0, os.getuid()} or facts.st_mode & 0o026:
        valid = "a file of yours that others cannot read or change; its group may read it"
        raise InputError(f"mode {facts.st_mode & 0o777:04o}", where=where, valid=valid)
    token = read_text(path).strip()
    if not _TOKEN.fullmatch(token):
        valid = "16 to 200 letters, digits and -._~+/="
        raise InputError(
            "holds no token", where=where, valid=valid, do="remove it, and a new one is made"
        )
    return token


def read_address(text: str) -> tuple[str, int]:
    """Parse ``ADDRESS:PORT``, or ``[ADDRESS]:PORT`` for IPv6.

    Raises
    ------
    InputError
        The text has another form, or the port is too large.
    """
    address, _, port = text.rpartition(":")
    try:
        host = str(ipaddress.ip_address(address.removeprefix("[").removesuffix("]")))
        number = whole(port)
    except ValueError:
        number = None
    if number is None or number > 65_535:
        raise InputError(
            f"{shown(text)} is not an address", where="--listen", valid=f"ADDRESS:PORT, as {LISTEN}"
        )
    return host, number


class Server(BoundedServer):
    """A server that answers Prometheus at ``/metrics``.

    Parameters
    ----------
    registry : CollectorRegistry
    host : str
    port : int
    token : str
    """

    def __init__(self, registry: CollectorRegistry, host: str, port: int, token: str) -> None:
        self.registry = registry
        # Elsewhere the machine may have names that it does not know; the token keeps browsers out.
        self.hosts = {host, "localhost"} if ipaddress.ip_address(host).is_loopback else ()
        super().__init__(Handler, host, port, token=token, where="--listen")


class Handler(BoundedHandler):
    """The handler of one connection."""

    server: Server

    def allowed(self) -> bool:
        """Return whether the request has the token (RFC 6750; Prometheus: ``credentials_file``)."""
        kind, _, said = self.headers.get("Authorization", "").partition(" ")
        return kind.lower() == "bearer" and self.is_token(said.strip())

    def refusal(self) -> None:
        """Send the error that the token is missing."""
        self.send_error(HTTPStatus.UNAUTHORIZED, "the token of hpcext metrics is missing")

    def send_response(self, code: int, message: str | None = None) -> None:
        """Begin an answer; one that demands the token names the scheme (RFC 6750, section 3)."""
        super().send_response(code, message)
        if code == HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")

    def reply(self) -> None:
        """Send the metrics, in the format that the request accepts."""
        from prometheus_client.exposition import choose_encoder  # noqa: PLC0415  (an extra)

        if self.path.partition("?")[0] != "/metrics":
            self.send_error(HTTPStatus.NOT_FOUND, "the metrics are at /metrics")
            return
        encode, kind = choose_encoder(self.headers.get("Accept", ""))
        self.answer(kind, encode(self.server.registry))


def _serve(
    address: tuple[str, int], token_file: Path, out: Output, registry: CollectorRegistry
) -> int:
    with Server(registry, *address, read_token(token_file)) as server:
        note = f"requests need the token in {token_file}; Ctrl-C stops the server"
        serve(server, f"{server.origin}/metrics", note, out)
    return 0
