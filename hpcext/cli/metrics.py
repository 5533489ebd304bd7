"""``hpcext metrics``: what Prometheus and the like collect of this user's pilots."""

from __future__ import annotations

import argparse
import ipaddress
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcext.cli.output import Output
from hpcext.cli.serving import until_ended
from hpcext.config import load_settings
from hpcext.core.errors import HpcextError, InputError, refused
from hpcext.documents import write_file
from hpcext.manager.metrics import METRICS, UNREADABLE, UNREADABLE_TEXT, samples
from hpcext.manager.reading import Followers
from hpcext.numerals import whole
from hpcext.text import shown

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

LISTEN = "127.0.0.1:9738"


def add(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "metrics",
        help="tell Prometheus of the pilots, by HTTP or in a file",
        epilog="example: hpcext metrics --textfile /var/lib/node_exporter/hpcext.prom",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--listen",
        metavar="ADDRESS:PORT",
        default=LISTEN,
        help=f"answer there until ended (default: {LISTEN}); port 0: any",
    )
    where.add_argument(
        "--textfile",
        type=Path,
        metavar="FILE.prom",
        help="write a file for node_exporter once, and end",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, out: Output) -> int:
    """Answer until told to end; or write the file."""
    registry = make_registry(Pilots(load_settings().state_dir))
    if args.textfile is None:
        return _serve(*read_address(args.listen), registry, out)
    if args.textfile.suffix != ".prom":
        raise InputError(
            f"{args.textfile} would not be read", where="--textfile", valid="a name with .prom"
        )
    from prometheus_client import generate_latest  # noqa: PLC0415  (an extra)

    try:
        write_file(args.textfile, generate_latest(registry), mode=0o644)
    except OSError as error:
        raise refused(error, str(args.textfile)) from None
    return 0


class Pilots:
    """The pilots of this user, as Prometheus's client collects them: at each question.

    Parameters
    ----------
    state_dir : pathlib.Path
    """

    def __init__(self, state_dir: Path) -> None:
        self._followers = Followers(state_dir)
        self._one = threading.Lock()

    def collect(self) -> Iterator[Metric]:
        """What is known now."""
        from prometheus_client.core import CounterMetricFamily as Counter  # noqa: PLC0415
        from prometheus_client.core import GaugeMetricFamily as Gauge  # noqa: PLC0415

        families = {
            name: (Gauge if each.kind == "gauge" else Counter)(
                name, each.text, labels=["pilot", *([each.label] if each.label else [])]
            )
            for name, each in METRICS.items()
        }
        families[UNREADABLE] = Gauge(UNREADABLE, UNREADABLE_TEXT, labels=[])
        # Two questions may come at once, and followers keep what they have read.
        with self._one:
            for name, *labels, value in samples(self._followers.read(recent=True)):
                families[name].add_metric([word for word in labels if word], value)
        yield from families.values()


def make_registry(pilots: Pilots) -> CollectorRegistry:
    """What a question is answered from.

    Raises
    ------
    HpcextError
        prometheus_client is not installed.
    """
    try:
        from prometheus_client import CollectorRegistry  # noqa: PLC0415  (an extra)
    except ImportError:
        raise HpcextError(
            "prometheus_client is not installed", do="pip install 'hpcext[metrics]'"
        ) from None
    # Not asked what it has when it is registered: that would read every journal once more.
    registry = CollectorRegistry(auto_describe=False)
    registry.register(pilots)
    return registry


def read_address(text: str) -> tuple[str, int]:
    """``ADDRESS:PORT``; of IPv6 ``[ADDRESS]:PORT``.

    Raises
    ------
    InputError
        It is neither.
    """
    address, _, port = text.rpartition(":")
    try:
        host = str(ipaddress.ip_address(address.removeprefix("[").removesuffix("]")))
        number = whole(port)
    except ValueError:
        number = None
    if number is None or number > 65_535:
        raise InputError(
            f"{shown(text)} is no address", where="--listen", valid=f"ADDRESS:PORT, as {LISTEN}"
        )
    return host, number


def _serve(host: str, port: int, registry: CollectorRegistry, out: Output) -> int:
    from prometheus_client import start_http_server  # noqa: PLC0415  (an extra)

    with until_ended():
        try:
            server, thread = start_http_server(port, host, registry)
        except OSError as error:
            raise InputError(
                error.strerror or os.strerror(error.errno or 0), where=f"--listen {host}:{port}"
            ) from None
        bracketed = f"[{host}]" if ":" in host else host
        out.line(f"http://{bracketed}:{server.server_port}/metrics")
    server.shutdown()
    server.server_close()
    thread.join()
    return 0
