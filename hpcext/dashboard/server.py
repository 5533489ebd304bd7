"""The server of the dashboard: loopback only, read-only, one token.

The token is a part of the path and not a cookie: all servers of a machine share its cookies,
whatever their ports, and on a login node those are other users'. No log has it.
"""

from __future__ import annotations

import ipaddress
import logging
import secrets
import socket
import socketserver
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from hpcext.core.errors import InputError
from hpcext.dashboard.pages import Pages
from hpcext.text import shown

log = logging.getLogger(__name__)

TIMEOUT_S = 20.0
"""A connection on which nothing comes is closed."""

MOST_CONNECTIONS = 32
"""Anybody on the machine can connect: no more than so many at once get a thread."""

TOKEN_BYTES = 24

HEADERS = {
    # Nothing from elsewhere, nothing in line, no frame: a name that slipped through is inert.
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
    """Where a proxy shows the dashboard.

    Attributes
    ----------
    prefix : str
        Before the token in paths, without a slash at its end.
    host : str
        What the proxy lets the header ``Host`` say, beside names of this machine's loopback.
    origin : str
        As ``https://HOST``; empty where only a path was given.
    """

    prefix: str = ""
    host: str = ""
    origin: str = ""


NO_PROXY = Root()


def read_root(text: str) -> Root:
    """Read ``--root-path``: a path, the whole address, or nothing.

    Raises
    ------
    InputError
        It is none of these.
    """
    if not text:
        return NO_PROXY
    valid = "a path as /node/HOST/PORT, or an address as https://HOST/node/HOST/PORT"
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
    """The loopback address to listen on.

    Raises
    ------
    InputError
        Others could connect to it, or it is none.
    """
    address = "127.0.0.1" if text == "localhost" else text
    try:
        loopback = ipaddress.ip_address(address).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise InputError(
            f"{shown(text)} is no loopback address",
            where="--host",
            valid="127.0.0.1, ::1 or localhost",
            do="reach it from elsewhere through ssh -L or a proxy on this machine",
        )
    return address


class Server(ThreadingHTTPServer):
    """Serves the pages at ``PREFIX/TOKEN/``.

    Parameters
    ----------
    pages : Pages
    host : str
        A loopback address.
    port : int
        0: any that is free.
    root : Root

    Raises
    ------
    InputError
        The port cannot be had.
    """

    daemon_threads = True
    request_queue_size = MOST_CONNECTIONS

    def __init__(
        self, pages: Pages, host: str = "127.0.0.1", port: int = 0, root: Root = NO_PROXY
    ) -> None:
        self.pages = pages
        self.root = root
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        self.hosts = {host, "localhost", root.host} - {""}
        self._room = threading.BoundedSemaphore(MOST_CONNECTIONS)
        if ":" in host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((host, port), Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise InputError(
                f"{host} port {port}: {reason}",
                where="--port",
                do="--port 0 takes one that is free",
            ) from None

    def server_bind(self) -> None:
        """Bind, and do not ask for the name of the address, which may take long."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    @property
    def address(self) -> str:
        """What to open in a browser: on this machine, or where the proxy shows it."""
        host = f"[{self.server_name}]" if ":" in self.server_name else self.server_name
        origin = self.root.origin or f"http://{host}:{self.server_port}"
        prefix = self.root.prefix
        return f"{origin}{prefix}/{self.token}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give a connection a thread, or close it where there are too many."""
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever reads may leave at any time, which is nothing to tell; the rest is a fault."""
        if not isinstance(sys.exc_info()[1], OSError):
            log.exception("a page could not be made")


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Server
    timeout = TIMEOUT_S
    protocol_version = "HTTP/1.1"
    error_content_type = "text/plain; charset=utf-8"
    error_message_format = "%(code)d %(message)s\n"

    def do_GET(self) -> None:
        """Send a page, a document or a file."""
        if not self._expected_host():
            self.send_error(
                HTTPStatus.FORBIDDEN, "this host is not expected; see hpcext dashboard --root-path"
            )
            return
        path, _, query = self.path.partition("?")
        # A proxy may take the prefix away, or leave it.
        path = path.removeprefix(self.server.root.prefix).removeprefix("/")
        token, slash, rest = path.partition("/")
        if not secrets.compare_digest(token.encode("latin-1"), self.server.token.encode()):
            self.send_error(HTTPStatus.FORBIDDEN, "use the address that hpcext dashboard printed")
            return
        answer = self.server.pages.answer(rest, query) if slash else None
        if answer is None:
            self.send_error(HTTPStatus.NOT_FOUND, "there is no such page")
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_HEAD = do_GET

    def _refuse(self) -> None:
        """Nothing can be changed here."""
        self.close_connection = True  # its body is not read
        self.send_error(HTTPStatus.METHOD_NOT_ALLOWED, "the dashboard is read-only")

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = _refuse

    def _expected_host(self) -> bool:
        """Whether the browser was told a name that is ours, and not a stranger's that leads here.

        Of DNS rebinding; the token alone would do, this is the second lock.
        """
        try:
            said = urlsplit(f"//{self.headers.get('Host', '')}").hostname
        except ValueError:
            return False
        return said in self.server.hosts

    def end_headers(self) -> None:
        """Say with every answer what a browser may do with it."""
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def send_response(self, code: int, message: str | None = None) -> None:
        """Begin an answer; what may be asked belongs to a refusal."""
        super().send_response(code, message)
        if code == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")

    def version_string(self) -> str:
        """Nothing that helps to choose an attack."""
        return "hpcext"

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: an address holds the token."""
