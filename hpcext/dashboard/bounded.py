"""Bounded HTTP servers, to which strangers on the machine can connect, but which they cannot block.

The number of connections is limited, and so are threads and files. If there is no room for a new
connection, the oldest one that has not shown a token is closed. A request must be complete by a
deadline, and its answer be received by another, however steadily bytes drip.
"""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import resource
import secrets
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Collection
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from hpcext.core.errors import InputError

log = logging.getLogger(__name__)

READ_S = 10.0
"""Seconds to wait for a whole request."""

WRITE_S = 20.0
"""Seconds to send an answer."""

MOST_CONNECTIONS = 32

BACKOFF_S = 0.2
"""Seconds to wait before the next connection, if the machine has no room for another one."""

TOKEN_BYTES = 24

_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class BoundedServer(ThreadingHTTPServer):
    """A server with a bounded number of connections, each for a bounded time.

    Parameters
    ----------
    handler : type of BoundedHandler
    host : str
        The address to listen on.
    port : int
        0 for any free port.
    token : str, optional
        Only requests that show it are answered; random by default.
    where, do : str
        For error messages: the option that says where to listen, and what to do.

    Raises
    ------
    InputError
        The port is not available.
    """

    daemon_threads = True
    request_queue_size = 128

    hosts: Collection[str] = ()
    """The valid values of the header ``Host``; empty if any is valid."""

    def __init__(
        self,
        handler: type[BoundedHandler],
        host: str,
        port: int,
        *,
        token: str = "",
        where: str = "",
        do: str = "",
    ) -> None:
        self.token = token or secrets.token_urlsafe(TOKEN_BYTES)
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        # Not all file descriptors of this process, since answers need others.
        self.most = max(4, min(MOST_CONNECTIONS, files // 4))
        self._open: dict[socket.socket, bool] = {}
        self._lock = threading.Lock()
        # Twice as many, because threads of closed connections may still be running.
        self._threads_left = threading.BoundedSemaphore(2 * self.most)
        if ":" in host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((host, port), handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise InputError(f"{host} port {port}: {reason}", where=where, do=do) from None

    def server_bind(self) -> None:
        """Bind without looking up the name of the address, which may take long."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    @property
    def origin(self) -> str:
        """The origin of the server, as a browser names it."""
        host = f"[{self.server_name}]" if ":" in self.server_name else self.server_name
        return f"http://{host}:{self.server_port}"

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection; if there is no room, close another one and wait."""
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in _NO_ROOM:
                with self._lock:
                    self._close_oldest()
                time.sleep(BACKOFF_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give a connection a thread, or close it."""
        if not self._admit(request):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._forget(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection in its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._forget(request)

    def trust(self, request: socket.socket) -> None:
        """Note that a connection has shown the token, and is not closed to make room for others."""
        with self._lock:
            if request in self._open:
                self._open[request] = True

    def _admit(self, request: socket.socket) -> bool:
        with self._lock:
            full = len(self._open) >= self.most
            if full and not self._close_oldest():
                return False
        if not self._threads_left.acquire(timeout=BACKOFF_S):
            return False
        with self._lock:
            self._open[request] = False
        return True

    def _close_oldest(self) -> bool:
        """Shut down the oldest connection that has shown no token; its thread closes it."""
        oldest = next((each for each, trusted in self._open.items() if not trusted), None)
        if oldest is None:
            return False
        del self._open[oldest]
        with contextlib.suppress(OSError):
            oldest.shutdown(socket.SHUT_RDWR)
        return True

    def _forget(self, request: socket.socket) -> None:
        with self._lock:
            self._open.pop(request, None)
        self._threads_left.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log errors other than those of a client that has left."""
        if not isinstance(sys.exc_info()[1], OSError):
            log.exception("an answer could not be produced")


class _TimedInput(io.RawIOBase):
    """The incoming bytes of a connection, which must arrive before a deadline."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.until = 0.0

    def readable(self) -> bool:
        """Return True, as the base class demands."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the bytes that have arrived, or wait for some until the deadline."""
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request did not arrive in time")
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


class BoundedHandler(BaseHTTPRequestHandler):
    """A read-only handler of one connection; subclasses check the token, and answer."""

    server: BoundedServer
    protocol_version = "HTTP/1.1"
    error_content_type = "text/plain; charset=utf-8"
    error_message_format = "%(code)d %(message)s\n"
    not_expected = "the host name of this address is not allowed"

    def allowed(self) -> bool:
        """Return whether the request shows the token."""
        raise NotImplementedError

    def reply(self) -> None:
        """Answer a request that shows the token."""
        raise NotImplementedError

    def refusal(self) -> None:
        """Answer a request that does not show the token."""
        raise NotImplementedError

    def setup(self) -> None:
        """Prepare to read with a deadline."""
        super().setup()
        self._incoming = _TimedInput(self.connection)
        self.rfile = io.BufferedReader(self._incoming)

    def handle_one_request(self) -> None:
        """Read and answer the next request."""
        self._incoming.until = time.monotonic() + READ_S
        super().handle_one_request()

    def do_GET(self) -> None:
        """Answer the request, if it shows the token and names an expected host."""
        if not self._expected_host():
            self.send_error(HTTPStatus.FORBIDDEN, self.not_expected)
        elif not self.allowed():
            self.refusal()
        else:
            self.server.trust(self.connection)
            self.reply()

    do_HEAD = do_GET

    def _refuse(self) -> None:
        """Refuse a method that would change something."""
        self.close_connection = True  # its body is not read
        self.send_error(HTTPStatus.METHOD_NOT_ALLOWED, "this is read-only")

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = _refuse

    def is_token(self, said: str) -> bool:
        """Return whether a text is the token, by a comparison in constant time."""
        return secrets.compare_digest(said.encode("latin-1"), self.server.token.encode())

    def answer(self, kind: str, body: bytes) -> None:
        """Send an answer within :data:`WRITE_S`.

        Parameters
        ----------
        kind : str
            The media type.
        body : bytes
        """
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def flush_headers(self) -> None:
        """Send the headers, after setting the time limit of this and of later writes."""
        self.connection.settimeout(WRITE_S)
        super().flush_headers()

    def send_response(self, code: int, message: str | None = None) -> None:
        """Begin an answer; a refusal of a method lists the allowed ones."""
        super().send_response(code, message)
        if code == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")

    def _expected_host(self) -> bool:
        """Return whether the header ``Host`` is a name of this server.

        This is a second defence against DNS rebinding, besides the token.
        """
        try:
            said = urlsplit(f"//{self.headers.get('Host', '')}").hostname
        except ValueError:
            return False
        return not self.server.hosts or said in self.server.hosts

    def version_string(self) -> str:
        """Return a name without a version, which would help to choose an attack."""
        return "hpcext"

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: an address may contain the token."""
