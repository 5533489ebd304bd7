"""Strangers on the machine who connect, drip, and stay: the owner is answered all the same."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from site_of_test import Site, wait_for

from hpcext.dashboard import bounded
from hpcext.dashboard.bounded import BoundedHandler, BoundedServer

FLOOD = 200


class Plain(BoundedHandler):
    """Answers whoever names the token."""

    def allowed(self) -> bool:
        return self.is_token(self.path[1:])

    def reply(self) -> None:
        self.answer("text/plain", b"yes")

    def refusal(self) -> None:
        self.send_error(403)


@pytest.fixture
def server() -> Iterator[BoundedServer]:
    with BoundedServer(Plain, "127.0.0.1", 0) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.02,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@contextlib.contextmanager
def crowd(port: int, number: int = FLOOD, first: bytes = b"") -> Iterator[list[socket.socket]]:
    """Strangers who connect, say as much as this, and stay."""
    with contextlib.ExitStack() as left:
        found = []
        for _ in range(number):
            found.append(left.enter_context(socket.create_connection(("127.0.0.1", port), 60)))
            # Those that are closed for others have had their time.
            with contextlib.suppress(OSError):
                found[-1].sendall(first)
        yield found


def status(connection: http.client.HTTPConnection, path: str, **headers: str) -> int:
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    answer.read()
    return answer.status


def asked(server: BoundedServer, path: str = "") -> int:
    with contextlib.closing(
        http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=500)
    ) as connection:
        return status(connection, path or f"/{server.token}")


@pytest.mark.parametrize("first", [b"", b"GET / HTTP/1.1\r\nHost: lo"], ids=["silent", "half"])
def test_a_crowd_that_stays_does_not_shut_the_owner_out(
    server: BoundedServer, first: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    # None of them leaves by the deadline.
    monkeypatch.setattr(bounded, "READ_S", 600.0)
    before = threading.active_count()
    with crowd(server.server_port, first=first) as strangers:
        assert asked(server) == 200
        assert threading.active_count() - before <= 2 * server.most
        # The oldest went first.
        for each in strangers[: FLOOD - server.most]:
            with contextlib.suppress(ConnectionResetError):
                assert each.recv(1) == b""
        assert asked(server) == 200


def test_clients_with_the_token_are_not_displaced(
    server: BoundedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded, "READ_S", 600.0)
    owner = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=500)
    with contextlib.closing(owner):
        assert status(owner, f"/{server.token}") == 200
        mine = owner.sock
        with crowd(server.server_port):
            assert status(owner, f"/{server.token}") == 200
        # On the same connection, and on no new one.
        assert owner.sock is mine


def test_a_request_that_drips_ends_at_its_deadline(
    server: BoundedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded, "READ_S", 0.5)
    with crowd(server.server_port, 1) as (stranger,):
        stranger.settimeout(0.05)
        for byte in itertools.cycle(b"GET / HTTP/1.1 "):
            # Each byte comes long before the deadline: only the whole is too late.
            try:
                stranger.sendall(bytes([byte]))
                if not stranger.recv(1):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
    assert asked(server) == 200


def test_an_answer_that_is_not_received_is_given_up(
    server: BoundedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded, "WRITE_S", 0.2)
    ended = threading.Event()
    forget = server._forget
    monkeypatch.setattr(server, "_forget", lambda each: (forget(each), ended.set()))
    monkeypatch.setattr(Plain, "reply", lambda self: self.answer("text/plain", bytes(50 << 20)))
    with crowd(server.server_port, 1, f"GET /{server.token} HTTP/1.1\r\n\r\n".encode()):
        assert ended.wait(120)


EXHAUSTED = """
import contextlib, resource, socket, sys, threading, time
from hpcext.dashboard import bounded

class Plain(bounded.BoundedHandler):
    def allowed(self):
        return self.is_token(self.path[1:])
    def reply(self):
        self.answer("text/plain", b"yes")

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
server = bounded.BoundedServer(Plain, "127.0.0.1", 0)
assert server.most == 16
client = socket.socket()
held = []
with contextlib.suppress(OSError):
    while True:
        held.append(open("/dev/null"))
client.connect(("127.0.0.1", server.server_port))
naps, asleep, sleep = 0, threading.Event(), time.sleep
def nap(seconds):
    global naps
    naps += 1
    if naps == 3:
        asleep.set()
    sleep(seconds)
tries = 0
bounded.time.sleep = nap
get = server.get_request
def counted():
    global tries
    tries += 1
    return get()
server.get_request = counted
threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
asleep.wait()
# It has slept after each try but, perhaps, the one that it is at.
seen = naps
assert tries - seen <= 1, (tries, seen)
for each in held:
    each.close()
client.sendall(f"GET /{server.token} HTTP/1.1\\r\\n\\r\\n".encode())
print(client.recv(12))
"""


def test_without_files_it_waits_and_does_not_spin() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", EXHAUSTED], capture_output=True, text=True, timeout=500, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "b'HTTP/1.1 200'\n"), ended.stderr


def test_metrics_stay_small_and_answer_clients_with_the_token(site: Site) -> None:
    site.environ["PYTHONPATH"] = str(Path(bounded.__file__).parents[2])
    process = site.start("metrics", "--listen", "127.0.0.1:0")
    assert process.stdout
    address = process.stdout.readline().strip()
    port = int(address.rpartition(":")[2].partition("/")[0])
    token = (site.path / "state/hpcext/metrics-token").read_text().strip()
    shown = {"Authorization": f"Bearer {token}"}
    with crowd(port, first=b"GET /metrics HTTP/1.1\r\n"):
        one = http.client.HTTPConnection("127.0.0.1", port, timeout=500)
        wait_for(lambda: status(one, "/metrics", **shown) == 200, "an answer in the crowd")
        assert psutil.Process(process.pid).num_threads() <= 2 * bounded.MOST_CONNECTIONS + 8
        assert psutil.Process(process.pid).num_fds() <= 2 * bounded.MOST_CONNECTIONS + 32
