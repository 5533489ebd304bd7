"""``hpcext dashboard``: show pilots and harvesters in a browser, read-only."""

from __future__ import annotations

import argparse
from typing import Any

import msgspec

from hpcext.cli.output import Output
from hpcext.cli.serving import serve
from hpcext.config import load_settings
from hpcext.dashboard.pages import Pages, now
from hpcext.manager.views.reading import Followers


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
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="a loopback address to listen on; with --from, any address of this machine",
    )
    parser.add_argument(
        "--from",
        dest="peers",
        default="",
        metavar="ADDRESS[,ADDRESS...]",
        help="proxies on other machines, which alone may then connect",
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
    """Serve pages until interrupted, or print the document once."""
    read = Followers(load_settings().state_dir, args.pilots).read
    if args.json:
        out.document(msgspec.structs.asdict(now(read)))
        return 0
    # The server is slow to import, and only used here.
    from hpcext.dashboard.server import (  # noqa: PLC0415
        Server,
        check_host,
        read_peers,
        read_root,
    )

    root, peers = read_root(args.root_path), read_peers(args.peers)
    with Server(Pages(read), check_host(args.host, peers), args.port, root, peers) as server:
        serve(
            server,
            server.address,
            "anyone who has this address can see the pilots; Ctrl-C stops the server",
            out,
        )
    return 0
