"""The server of the dashboard: read-only, with one token, on a loopback address.

It listens on another address only for the proxies that are named (:class:`Peers`), since what they
send is not encrypted, and a token is all that it shows.

The token is a part of the path and not a cookie, because browsers send the cookies of a host to all
its ports, and on a login node servers there are other users'. No log contains the token.
"""

from __future__ import annotations

import ipaddress
import socket
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from hpcext.core.errors import InputError
from hpcext.dashboard.bounded import BoundedHandler, BoundedServer
from hpcext.dashboard.pages import Pages
from hpcext.text import shown

HEADERS = {
    # Nothing external, nothing inline, no frames: text that was not escaped by mistake is inert.
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Root(NamedTuple):
    """The address at which a proxy shows the dashboard.

    Attributes
    ----------
    prefix : str
        The part of paths before the token, without a slash at its end.
    host : str
        The value of the header ``Host`` behind the proxy, besides names of the loopback address.
    origin : str
        Such as ``https://HOST``; empty if only a path was given.
    """

    prefix: str = ""
    host: str = ""
    origin: str = ""


NO_PROXY = Root()


def read_root(text: str) -> Root:
    """Parse ``--root-path``: a path, the whole address, or nothing.

    Raises
    ------
    InputError
        The text is none of these.
    """
    if not text:
        return NO_PROXY
    valid = "a path such as /node/HOST/PORT, or an address such as https://HOST/node/HOST/PORT"
    try:
        parts = urlsplit(text)
        host = parts.hostname or ""
    except ValueError:
        raise InputError(shown(text), where="--root-path", valid=valid) from None
    whole = parts.scheme in {"http", "https"} and host
    path = not parts.scheme and not parts.netloc and text.startswith("/")
    plain = parts.path.isascii() and parts.path.isprintable() and " " not in parts.path
    if not (whole or path) or parts.query or parts.fragment or not plain:
        raise InputError(shown(text), where="--root-path", valid=valid)
    origin = f"{parts.scheme}://{parts.netloc}" if whole else ""
    return Root(parts.path.rstrip("/"), host, origin)


Peers = tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]
"""Those who may connect; empty: everybody who can."""

MAX_PEERS = 64


def read_peers(text: str) -> Peers:
    """Parse ``--from``: addresses and networks, with commas.

    Raises
    ------
    InputError
        One of them is no address, or there is no limit in it.
    """
    found: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
    for each in filter(None, text.split(",")):
        try:
            network = ipaddress.ip_network(each.strip(), strict=False)
        except ValueError:
            network = None
        if network is None or network.prefixlen == 0 or len(found) == MAX_PEERS:
            raise InputError(
                shown(each),
                where="--from",
                valid=f"at most {MAX_PEERS} addresses or networks of proxies, such as 10.0.0.7 or "
                "10.0.1.0/24",
            )
        found.append(network)
    if text and not found:
        raise InputError("no address", where="--from", valid="the addresses of proxies")
    return tuple(found)


def check_host(text: str, peers: Peers = ()) -> str:
    """Return the address to listen on.

    Parameters
    ----------
    text : str
    peers : Peers
        Who may connect. If nobody is named, only a loopback address is valid.

    Raises
    ------
    InputError
        The text is not an address, or other machines could connect to it, or nobody could.
    """
    address = "127.0.0.1" if text == "localhost" else text
    try:
        good = bool(peers) or ipaddress.ip_address(address).is_loopback
        ipaddress.ip_address(address)
    except ValueError:
        good = False
    if not good:
        raise InputError(
            f"{shown(text)} is not {'an' if peers else 'a loopback'} address",
            where="--host",
            valid="0.0.0.0, or an address of this machine"
            if peers
            else "127.0.0.1, ::1 or localhost",
            do="reach it from elsewhere through ssh -L or a proxy on this machine; or let a proxy "
            "on another machine connect: --from",
        )
    where = ipaddress.ip_address(address)
    if peers and where.is_loopback and not any(where in network for network in peers):
        raise InputError(
            f"nobody whom --from names reaches {address}",
            where="--host",
            valid="0.0.0.0, or an address of this machine",
        )
    return address


class Server(BoundedServer):
    """A server of the pages at ``PREFIX/TOKEN/``.

    Parameters
    ----------
    pages : Pages
    host : str
        An address that :func:`check_host` accepts.
    port : int
        0 for any free port.
    root : Root
    peers : Peers
        Who may connect.

    Raises
    ------
    InputError
        The port is not available.
    """

    def __init__(
        self,
        pages: Pages,
        host: str = "127.0.0.1",
        port: int = 0,
        root: Root = NO_PROXY,
        peers: Peers = (),
    ) -> None:
        self.pages = pages
        self.root = root
        self._peers = peers
        # Nobody's browser connects where only proxies may, which send names of their own.
        self.hosts = () if peers else {host, "localhost", root.host} - {""}
        do = "--port 0 takes one that is free"
        super().__init__(Handler, host, port, where="--port", do=do)

    @property
    def address(self) -> str:
        """The address to open in a browser, on this machine or through the proxy."""
        origin = self.origin
        if ipaddress.ip_address(self.server_name).is_unspecified:
            origin = f"http://{socket.gethostname()}:{self.server_port}"
        return f"{self.root.origin or origin}{self.root.prefix}/{self.token}/"

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Return whether this client may connect; the connection is closed if not."""
        if not self._peers:
            return True
        client = ipaddress.ip_address(str(client_address[0]).partition("%")[0])
        client = getattr(client, "ipv4_mapped", None) or client
        return any(client in network for network in self._peers)


class Handler(BoundedHandler):
    """The handler of one connection."""

    server: Server
    not_expected = "the host name of this address is not allowed; see hpcext dashboard --root-path"

    def _parts(self) -> tuple[str, str, str, str]:
        """Return the token, a slash if there is one, the rest of the path, and the query."""
        path, _, query = self.path.partition("?")
        # A proxy may remove the prefix, or leave it.
        path = path.removeprefix(self.server.root.prefix).removeprefix("/")
        return (*path.partition("/"), query)

    def allowed(self) -> bool:
        """Return whether the path begins with the token."""
        return self.is_token(self._parts()[0])

    def refusal(self) -> None:
        """Send an error that says which address to use."""
        self.send_error(HTTPStatus.FORBIDDEN, "use the address that hpcext dashboard printed")

    def reply(self) -> None:
        """Send a page, a document or a file."""
        _, slash, rest, query = self._parts()
        found = self.server.pages.answer(rest, query) if slash else None
        if found is None:
            self.send_error(HTTPStatus.NOT_FOUND, "there is no such page")
        else:
            self.answer(found.kind, found.body)

    def end_headers(self) -> None:
        """Add the security headers to every answer."""
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()
