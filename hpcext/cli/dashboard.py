"""``hpcext dashboard``: show pilots and harvesters in a browser, read-only."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Iterator
from typing import Any

import msgspec

from hpcext.cli.output import Output
from hpcext.cli.serving import until_ended
from hpcext.config import load_settings
from hpcext.core.errors import HpcextError
from hpcext.dashboard.pages import Pages, Read, now
from hpcext.manager import pilot as pilots
from hpcext.manager.views.reading import Follower, Followers, Reading


def add(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "dashboard",
        help="show pilots and harvesters in a browser, live and read-only",
        epilog="example: hpcext dashboard --port 8765",
    )
    parser.add_argument(
        "pilots", nargs="*", metavar="PILOT", help="directory, id or name (default: all)"
    )
    parser.add_argument(
        "--port", type=int, default=0, help="port to listen on (default: 0, any free one)"
    )
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="ADDRESS", help="a loopback address to listen on"
    )
    parser.add_argument(
        "--root-path",
        default="",
        metavar="PATH|URL",
        help="where a proxy shows it, as https://ondemand.example.org/node/HOST/PORT",
    )
    parser.add_argument("--json", action="store_true", help="print the document once, and exit")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, out: Output) -> int:
    """Serve until interrupted, or print the document."""
    read = _reader(args.pilots)
    if args.json:
        out.document(msgspec.structs.asdict(now(read)))
        return 0
    # The server is slow to import, and only used here.
    from hpcext.dashboard.server import Server, check_host, read_root  # noqa: PLC0415

    root = read_root(args.root_path)
    with Server(Pages(read), check_host(args.host), args.port, root) as server:
        with until_ended():
            threading.Thread(target=server.serve_forever, daemon=True).start()
            out.line(server.address)
            out.note("anyone who has this address can see the pilots; Ctrl-C stops the server")
        server.shutdown()
    return 0


def _reader(handles: list[str]) -> Read:
    """Return a function that reads these pilots, or all of this user."""
    state_dir = load_settings().state_dir
    if not handles:
        return Followers(state_dir).read
    followers = [Follower(pilots.find(handle, state_dir)) for handle in handles]

    def read() -> Iterator[Reading | HpcextError]:
        for follower in followers:
            try:
                yield follower.read()
            except HpcextError as error:
                yield error

    return read
