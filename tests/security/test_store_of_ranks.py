"""The store of ranks on several nodes: what listens; a stranger neither reads nor writes."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
from site_of_test import wait_for
from test_hostile import SOMEBODY, as_root, by_somebody
from torch._C._distributed_c10d import TCPStore

from hpcext import protocol
from hpcext.launch import ranks
from hpcext.process import Process
from hpcext.training import sockets
from hpcext.training.door import Door, LocalDoor
from hpcext.training.sockets import LOOPBACK
from hpcext.training.torch.group import _is_empty, _store_at

ADDRESS = "198.51.100.7"
"""Of the node, on a network that leads nowhere (RFC 5737)."""

TRAIN = """
import pathlib, sys, time
import torch
from hpcext.training.torch import Session
model = torch.nn.Linear(2, 2)
session = Session(model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1), seed=1)
here = pathlib.Path(sys.argv[1])
(here / f"trains-{session.rank}").touch()
while not (here / "end").exists():
    time.sleep(0.02)
"""

# A node with a name, an address and no way out; $1 launchers.
NODE = f"""
ip link set lo up && ip addr add {ADDRESS}/32 dev lo && mount --bind hosts /etc/hosts || exit 99
for node in $(seq 0 $(($1 - 1))); do
    HPCEXT_NODE_INDEX=$node "$PYTHON" -I -S "$LAUNCHER" 0 "$PYTHON" train.py . &
    all="$all $!"
done
code=0
for each in $all; do wait $each || code=$?; done
exit $code
"""


class Meeting(NamedTuple):
    """A store behind its door, and a window to it."""

    store: TCPStore
    listening: socket.socket
    door: Door
    window: LocalDoor

    def client(self) -> TCPStore:
        """As a rank has it."""
        return TCPStore(LOOPBACK, self.window.port, is_master=False, wait_for_workers=False)


@pytest.fixture
def meeting() -> Iterator[Meeting]:
    store, listening = sockets.own_socket(_store_at, _is_empty)
    door = Door(LOOPBACK, listening)
    window = LocalDoor([(LOOPBACK, door.port)], door.key)
    yield Meeting(store, listening, door, window)
    window.close()
    door.close()


def says(port: int, message: bytes = b"") -> bytes:
    """What somebody who connects and says something hears until he is sent away."""
    with socket.create_connection((LOOPBACK, port), timeout=500) as stranger:
        stranger.sendall(message)
        heard = b""
        while data := stranger.recv(4096):
            heard += data
        return heard


def test_ranks_reach_the_store_and_what_they_put_there(meeting: Meeting) -> None:
    one, other = meeting.client(), meeting.client()
    one.set("key", "value")
    assert other.get("key") == b"value"
    # As NCCL's own threads have it.
    assert other.clone().get("key") == b"value"
    long = "x" * (1 << 20)
    one.set("long", long)
    assert other.get("long") == long.encode()


def test_only_the_door_is_open_to_others_and_it_asks_for_the_key(meeting: Meeting) -> None:
    meeting.client().set("key", "value")
    nonce = says(meeting.door.port, bytes(64))
    assert len(nonce) == 32  # and no proof of the door's: it was not shown the key
    assert says(meeting.door.port, b"\x00" * 4096)[32:] == b""
    # Nor does it help to have heard what others say: each time it is another question.
    assert says(meeting.door.port, bytes(64)) != nonce
    assert meeting.client().get("key") == b"value"


def test_a_door_without_the_key_is_not_entered(meeting: Meeting) -> None:
    """Somebody listens where the door was, and would like to hear what ranks say."""
    heard: list[bytes] = []
    with socket.create_server((LOOPBACK, 0)) as theirs:

        def listen() -> None:
            with theirs.accept()[0] as rank:
                rank.sendall(bytes(32))
                heard.append(rank.recv(4096))
                rank.sendall(bytes(32))
                heard.append(rank.recv(4096))

        thread = threading.Thread(target=listen)
        thread.start()
        places = [(LOOPBACK, theirs.getsockname()[1]), (LOOPBACK, meeting.door.port)]
        window = LocalDoor(places, meeting.door.key)
        client = TCPStore(LOOPBACK, window.port, is_master=False, wait_for_workers=False)
        client.set("key", "value")
        # The store has it: a set is not answered, and a window that closes hands nothing on.
        assert client.get("key") == b"value"
        thread.join()
    window.close()
    assert [len(each) for each in heard] == [64, 0]
    assert meeting.client().get("key") == b"value"


def test_clients_without_the_key_do_not_block_others(meeting: Meeting) -> None:
    crowd = [socket.create_connection((LOOPBACK, meeting.door.port)) for _ in range(300)]
    try:
        meeting.client().set("key", "value")
        assert meeting.client().get("key") == b"value"
    finally:
        for each in crowd:
            each.close()


def tries(port: int) -> None:
    """As somebody else on the node: connect, and set a key."""
    with socket.socket() as one:
        one.settimeout(1)
        one.connect((LOOPBACK, port))
        one.settimeout(60)
        if one.recv(1) == b"":
            raise PermissionError("sent away")


@as_root
def test_another_user_of_the_node_reaches_neither_store_nor_window(meeting: Meeting) -> None:
    port = meeting.listening.getsockname()[1]
    # Linux answers nobody whose port is not one of the door's.
    assert "TimeoutError" in by_somebody(lambda: tries(port))
    assert by_somebody(lambda: tries(meeting.window.port)).startswith(
        ("PermissionError: sent away", "ConnectionResetError")
    )
    meeting.client().set("key", "value")
    assert "TimeoutError" in by_somebody(lambda: tries(port))


@as_root
def test_a_store_that_a_stranger_has_found_first_is_not_used() -> None:
    """Between the moment in which it listens and that in which it hears nobody else."""
    made, gone = [], []

    def visited(port: int, listening: int) -> TCPStore:
        store = _store_at(port, listening)
        made.append(port)
        if len(made) == 1:
            stranger = socket.create_connection((LOOPBACK, port))
            os.fchown(stranger.fileno(), SOMEBODY, SOMEBODY)
            gone.append(stranger)
        elif len(made) == 2:
            _ = TCPStore(LOOPBACK, port, is_master=False, wait_for_workers=False).set("planted", "")
        return store

    store, listening = sockets.own_socket(visited, _is_empty)
    assert len(made) == 3
    assert listening.getsockname()[1] == made[2]
    assert store.num_keys() == 0
    for each in (listening, *gone):
        each.close()


def test_a_name_of_this_node_is_where_it_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that leads to loopback, as Debian has it, means another address to other nodes."""
    found = {"literal": LOOPBACK, "node": "127.0.1.1", "nowhere": "192.0.2.1"}

    def look_up(host: str, *_: object, **__: object) -> list[object]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (found.get(host, host), 0))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    everywhere = {"0.0.0.0", "::"}
    for host, addresses in ((LOOPBACK, {LOOPBACK}), ("node", everywhere), ("nowhere", everywhere)):
        with sockets.listening_on(host) as listening:
            assert listening.getsockname()[0] in addresses


def launched(path: Path, nodes: int, script: str = TRAIN) -> psutil.Popen:
    """A training of two ranks on as many nodes, all of them this machine."""
    (path / "train.py").write_text(script)
    (path / "hosts").write_text(f"127.0.0.1 localhost\n{ADDRESS} {socket.gethostname()}\n")
    (path / "attempt").mkdir(mode=0o700)
    attempt = protocol.Attempt(
        job_id="1",
        attempt=1,
        op=1,
        checkpoint_dir=path / "checkpoints",
        report_dir=path / "attempt",
        num_gpus=2 // nodes,
        num_nodes=nodes,
        rendezvous=f"{ADDRESS}:20123" if nodes > 1 else "",
        notify=Process.me(),
    )
    environ = {"PYTHON": sys.executable, "LAUNCHER": ranks.__file__, **attempt.environ()}
    words = ["unshare", "-m", "-n", "sh", "-c", NODE, "node", str(nodes)]
    return psutil.Popen(words, env={**os.environ, **environ}, cwd=path)


@as_root
@pytest.mark.parametrize(
    ("nodes", "addresses"),
    [pytest.param(1, {LOOPBACK}, marks=pytest.mark.slow), (2, {LOOPBACK, ADDRESS})],
    ids=["one node", "two"],
)
def test_what_a_training_listens_on(tmp_path: Path, nodes: int, addresses: set[str]) -> None:
    node = launched(tmp_path, nodes)
    with listening(tmp_path, node) as found:
        assert found == addresses
        if nodes > 1:
            way = tmp_path / "attempt" / "ranks" / "store-0"
            assert json.loads(way.read_text())["hosts"] == [ADDRESS, ADDRESS]
            assert way.stat().st_mode & 0o077 == 0  # it has the key


@contextlib.contextmanager
def listening(path: Path, node: psutil.Popen) -> Iterator[set[str]]:
    """The addresses on which a training listens that has been launched; it ends well."""
    try:
        both = [path / f"trains-{rank}" for rank in range(2)]
        wait_for(lambda: node.poll() is not None or all(map(Path.exists, both)), "both ranks")
        # Nothing else is in that network.
        ends = sockets.connections(f"/proc/{node.children()[0].pid}/net")
        yield {local[0] for local, _, state, _ in ends if state == sockets.LISTEN}
    finally:
        (path / "end").touch()
        code = node.wait(60)
    assert code == 0
