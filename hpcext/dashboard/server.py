"""The server of the dashboard: on a loopback address, read-only, with one token.

The token is a part of the path and not a cookie, because browsers send the cookies of a host to all
its ports, and on a login node servers there are other users'. No log contains the token.
"""

from __future__ import annotations

import ipaddress
from http import HTTPStatus
from typing import NamedTuple
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


def check_host(text: str) -> str:
    """Return the loopback address to listen on.

    Raises
    ------
    InputError
        The text is not an address, or other machines could connect to it.
    """
    address = "127.0.0.1" if text == "localhost" else text
    try:
        loopback = ipaddress.ip_address(address).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise InputError(
            f"{shown(text)} is not a loopback address",
            where="--host",
            valid="127.0.0.1, ::1 or localhost",
            do="reach it from elsewhere through ssh -L or a proxy on this machine",
        )
    return address


class Server(BoundedServer):
    """A server of the pages at ``PREFIX/TOKEN/``.

    Parameters
    ----------
    pages : Pages
    host : str
        A loopback address.
    port : int
        0 for any free port.
    root : Root

    Raises
    ------
    InputError
        The port is not available.
    """

    def __init__(
        self, pages: Pages, host: str = "127.0.0.1", port: int = 0, root: Root = NO_PROXY
    ) -> None:
        self.pages = pages
        self.root = root
        self.hosts = {host, "localhost", root.host} - {""}
        do = "--port 0 takes one that is free"
        super().__init__(Handler, host, port, where="--port", do=do)

    @property
    def address(self) -> str:
        """The address to open in a browser, on this machine or through the proxy."""
        return f"{self.root.origin or self.origin}{self.root.prefix}/{self.token}/"


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
