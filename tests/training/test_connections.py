"""Connections that are ended under a library that does not end them."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hpcext.training import connections


def pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        return one, server.accept()[0]


def test_both_sides_hear_of_the_end() -> None:
    before = connections.sockets()
    one, other = pair()
    found = connections.sockets() - before
    assert found == {os.fstat(each.fileno()).st_ino for each in (one, other)}
    connections.end({os.fstat(one.fileno()).st_ino})
    assert (one.recv(1), other.recv(1)) == (b"", b"")
    # Its owner has it still, so that its number is not that of another file.
    assert os.fstat(one.fileno()).st_ino in found
    one.close(), other.close()


def test_others_go_on() -> None:
    one, other = pair()
    kept = pair()
    connections.end({os.fstat(one.fileno()).st_ino, 0})
    kept[0].sendall(b"x")
    assert kept[1].recv(1) == b"x"
    with socket.create_server(("127.0.0.1", 0)) as server:
        connections.end({os.fstat(server.fileno()).st_ino})
        assert socket.create_connection(server.getsockname())
    for each in (one, other, *kept):
        each.close()


def test_a_copy_of_another_process_does_not_keep_it() -> None:
    """As that of a loader's worker."""
    one, other = pair()
    one.set_inheritable(True)
    words = [sys.executable, "-c", "input()"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, close_fds=False) as worker:
        connections.end({os.fstat(one.fileno()).st_ino})
        assert other.recv(1) == b""
        worker.communicate(b"\n")
    one.close(), other.close()


AWAY = """
import os, socket, subprocess
from hpcext.training import connections
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
with socket.create_server(("127.0.0.1", 0)) as server:
    one = socket.create_connection(server.getsockname())
    other, _ = server.accept()
connections.end_if_silent(connections.sockets(), 2)
subprocess.run(["ip", "link", "set", "lo", "down"], check=True)
if SENDS:
    one.sendall(b"x")
try:
    one.recv(1)
except OSError as error:
    print(error.errno)
"""


@pytest.mark.parametrize("sends", [False, True], ids=["waits", "sends"])
def test_another_machine_that_is_silent_ends_them(sends: bool) -> None:
    """It neither says anything nor acknowledges what it was sent; without more one would wait for
    ever, or a quarter of an hour."""
    done = subprocess.run(
        ["unshare", "-Urn", sys.executable, "-c", AWAY.replace("SENDS", str(sends))],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        timeout=120,
        check=True,
    )
    assert int(done.stdout) in {errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH}
