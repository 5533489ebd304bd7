"""Ranks of several nodes that meet by a key: a stranger is refused, said once, and they go on."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from test_hostile import as_root, by_somebody
from test_store_of_ranks import ADDRESS, launched, listening

from hpcext.process import Process
from hpcext.rendezvous import Rendezvous
from hpcext.training import door, lines
from hpcext.training.door import LocalSocket, SocketDoor
from hpcext.training.keyed import LENGTH, PROOF_BYTES, Handshake, Seal
from hpcext.training.lines import RANK, Hall, enter, read
from hpcext.training.ranks import Control
from hpcext.training.sockets import LOOPBACK, nameless
from hpcext.training.star import Launched, StarRanks

TRAIN = """
import pathlib, sys, time
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from hpcext.training.jax import Session, initialize
initialize()
mesh = Mesh(np.array(jax.devices()), ("data",))
divided = NamedSharding(mesh, PartitionSpec("data"))
session = Session(state=lambda: {"w": jnp.ones(4)}, sharding=divided)
assert float(jax.jit(jnp.sum)(session.state["w"])) == 4
here = pathlib.Path(sys.argv[1])
(here / f"trains-{session.rank}").touch()
while not (here / "end").exists():
    time.sleep(0.02)
"""

Change = Callable[[bytes], bytes]
REFUSED = "did not prove that it has this job's key"
ALTERED = "has brought a message that its sender did not write so"


def ranks_of(path: Path, size: int) -> list[Future[StarRanks]]:
    """As many ranks as on nodes of their own, which begin to meet."""
    pool = ThreadPoolExecutor(size)

    def meet(rank: int) -> StarRanks:
        place = Rendezvous(path, launcher=Process.me(), host=LOOPBACK)
        return StarRanks(Launched(place, rank, size, 0, 1))

    found = [pool.submit(meet, rank) for rank in range(size)]
    pool.shutdown(wait=False)
    return found


def published(path: Path) -> tuple[int, str]:
    """The port of rank 0, and the key."""
    place = Rendezvous(path, host=LOOPBACK)
    while (found := place.published("meeting-ranks")) is None:
        pass
    return found.port, found.key


def says(port: int, message: bytes) -> bytes:
    """What somebody who connects and says something hears until he is sent away."""
    with socket.create_connection((LOOPBACK, port), timeout=60) as stranger:
        stranger.sendall(message)
        stranger.shutdown(socket.SHUT_WR)
        heard = b""
        try:
            while data := stranger.recv(4096):
                heard += data
        except ConnectionResetError:
            pass
        return heard


class Between:
    """Somebody on the way between the ranks, who may change what is said, or say it again.

    Parameters
    ----------
    port : int
        Of rank 0.
    change : callable
        Makes of each message to rank 0 after the handshake, with its length and proof, what
        reaches it.
    """

    def __init__(self, port: int, change: Change = bytes) -> None:
        self.heard: list[bytes] = []
        self._listening = socket.create_server((LOOPBACK, 0))
        self.port = self._listening.getsockname()[1]
        self._far = port
        self._change = change
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with self._listening:
            near, _ = self._listening.accept()
        far = socket.create_connection((LOOPBACK, self._far))
        back = threading.Thread(target=self._forward, args=(far, near), daemon=True)
        back.start()
        try:
            hand = read(near, 32 + PROOF_BYTES)
            self.heard.append(hand)
            far.sendall(hand)
            while True:
                length = read(near, LENGTH.size)
                message = length + read(near, LENGTH.unpack(length)[0] + PROOF_BYTES)
                self.heard.append(message)
                far.sendall(self._change(message))
        except OSError:
            far.close()

    def _forward(self, one: socket.socket, other: socket.socket) -> None:
        try:
            while data := one.recv(4096):
                other.sendall(data)
        except OSError:
            pass
        finally:
            with contextlib.suppress(OSError):
                other.shutdown(socket.SHUT_RDWR)


def test_ranks_meet_and_agree(tmp_path: Path) -> None:
    zero, one, two = (each.result() for each in ranks_of(tmp_path, 3))
    for wants, agreed in (
        (Control(), Control()),
        (Control(1, 0, 0), Control()),
        (Control(), Control(1)),
    ):
        with ThreadPoolExecutor(3) as pool:
            asked = [(zero, Control()), (one, Control()), (two, wants)]
            found = list(pool.map(lambda pair: pair[0].exchange(pair[1]), asked))
        assert found == [agreed] * 3
    long = os.urandom(1 << 20)
    with ThreadPoolExecutor(3) as pool:
        gathered = list(pool.map(lambda ranks: ranks.gather(long), (zero, one, two)))
    assert gathered == [[long] * 3, [], []]
    assert (tmp_path / "meeting-ranks").stat().st_mode & 0o077 == 0  # it has the key


def test_strangers_are_refused_said_once_and_the_ranks_meet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Garbage, silence, a proof that was heard before, and one that is of another key."""
    place = Rendezvous(tmp_path, host=LOOPBACK)
    hall = Hall(LOOPBACK, 2)
    hall.publish(place, "meeting-ranks")
    heard = Between(hall.port)
    silent = socket.create_connection((LOOPBACK, hall.port))
    garbage = [b"", bytes(4096), b"GET / HTTP/1.1\r\n\r\n", os.urandom(200)]
    for said in garbage:
        assert len(says(hall.port, said)) <= 32  # a number, and no proof of the key
    with socket.create_connection((LOOPBACK, hall.port)) as other:
        hands = Handshake("another key", read(other, 32) + bytes(32))
        other.sendall(bytes(32) + hands.of_connecting)
        assert other.recv(1) == b""
    with ThreadPoolExecutor(1) as pool:
        # Its handshake passes somebody who remembers it.
        entering = pool.submit(enter, [(LOOPBACK, heard.port)], hall.key, 1)
        while len(heard.heard) < 2:
            pass
        assert len(says(hall.port, b"".join(heard.heard))) == 32
        (line,) = hall.lines().values()
        rank = entering.result()
    rank.put(b"step")
    assert line.get() == b"step"
    silent.close()
    said = capsys.readouterr().err
    assert said.count(REFUSED) == said.count("\n") == 1, said
    assert said.startswith(
        f"hpcext: warning: a connection of {LOOPBACK} {REFUSED}; it was sent away"
    )


def test_a_rank_gives_nothing_to_who_does_not_have_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody listens where rank 0 was; it is found at the next of its addresses."""
    hall = Hall(LOOPBACK, 2)
    heard: list[bytes] = []
    with socket.create_server((LOOPBACK, 0)) as theirs, ThreadPoolExecutor(2) as pool:

        def listen() -> None:
            with theirs.accept()[0] as rank:
                rank.sendall(bytes(32))
                heard.append(read(rank, 32 + PROOF_BYTES))
                rank.sendall(bytes(PROOF_BYTES))
                heard.append(rank.recv(4096))

        pool.submit(listen)
        places = [(LOOPBACK, theirs.getsockname()[1]), (LOOPBACK, hall.port)]
        entering = pool.submit(enter, places, hall.key, 1)
        assert list(hall.lines()) == [1]
        entering.result()
    assert [len(each) for each in heard] == [64, 0]

    for module in (lines, door):
        monkeypatch.setattr(module, "PATIENCE_S", 0.3)
    with socket.create_server((LOOPBACK, 0)) as nobody:
        port = nobody.getsockname()[1]
    unreached = f"rank 0 of this job cannot be reached at {LOOPBACK}, port {port} .*Errno 111"
    with pytest.raises(RuntimeError, match=unreached):
        enter([(LOOPBACK, port)], "key", 1)
    window = LocalSocket([(LOOPBACK, port)], "key")
    with pytest.raises(RuntimeError, match=unreached):
        window.reach()
    window.close()


def flipped(message: bytes) -> bytes:
    return message[: LENGTH.size] + bytes([message[LENGTH.size] ^ 1]) + message[LENGTH.size + 1 :]


def test_what_was_changed_or_repeated_on_the_way_is_not_believed() -> None:
    for change in (flipped, lambda message: message * 2):
        hall = Hall(LOOPBACK, 2)
        hands: list[Change] = [bytes]
        between = Between(hall.port, lambda message, hands=hands: hands[0](message))
        with ThreadPoolExecutor(1) as pool:
            entering = pool.submit(enter, [(LOOPBACK, between.port)], hall.key, 1)
            (line,) = hall.lines().values()
            rank = entering.result()
        hands[0] = change
        rank.put(b"suspend")
        with pytest.raises(ConnectionError, match=ALTERED):
            assert (line.get(), line.get()) == ("never", "both")


def test_a_message_of_another_direction_or_turn_is_not_believed() -> None:
    hands = Handshake("key", bytes(64))
    mine, other = hands.listens(), hands.connects()
    first, second = mine.sends.seal(b"a"), mine.sends.seal(b"a")
    assert first != second
    assert other.sends.seal(b"a") not in (first, second)
    other.receives.check(b"a", first[-PROOF_BYTES:])
    with pytest.raises(ConnectionError):
        other.receives.check(b"a", first[-PROOF_BYTES:])


def test_a_rank_that_says_a_number_of_nobody_is_not_taken(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It has the key; a mistake of ours, then, that must not stay for ever."""
    hall = Hall(LOOPBACK, 2)
    with ThreadPoolExecutor(1) as pool:
        for said in (b"\x01", RANK.pack(0), RANK.pack(2), bytes(100)):
            line = lines._entered((LOOPBACK, hall.port), hall.key)
            line.put(said)
            with pytest.raises(ConnectionError):
                line.get()
        entering = pool.submit(enter, [(LOOPBACK, hall.port)], hall.key, 1)
        assert list(hall.lines()) == [1]
        entering.result()
    assert capsys.readouterr().err.count("does not say which of the ranks 1 to 1 it is") == 1


def test_the_end_of_a_rank_is_one_line(tmp_path: Path) -> None:
    zero, one = (each.result() for each in ranks_of(tmp_path, 2))
    one._peers[0]._end.close()  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError) as caught:
        zero.smallest(1)
    assert str(caught.value) == "worker 1 has ended; the job goes on from its last checkpoint"


def own_addresses() -> list[str]:
    """Those of this machine that are not loopback's."""
    ends = [end for ends in psutil.net_if_addrs().values() for end in ends]
    found = [end.address for end in ends if end.family == socket.AF_INET]
    return [address for address in found if not address.startswith("127.")]


@pytest.mark.skipif(not own_addresses(), reason="this machine has no network")
def test_the_address_by_which_other_nodes_reach_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name leads to loopback, as Debian has it: it is known by who came."""
    found = {"node": "127.0.1.1"}

    def look_up(host: str, port: int, *_: object, **__: object) -> list[object]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (found.get(host, host), port))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    address = own_addresses()[0]
    hall = Hall("node", 3)
    assert (hall.address, hall.reached) == ("", "")
    with ThreadPoolExecutor(2) as pool:
        for rank, host in enumerate((address, LOOPBACK), 1):
            pool.submit(enter, [(host, hall.port)], hall.key, rank)
        assert sorted(hall.lines()) == [1, 2]
    assert hall.reached == address


@pytest.fixture
def service() -> Iterator[tuple[SocketDoor, LocalSocket]]:
    """A service that says back what it hears, its door, and a window to it on another node."""
    listening, path = nameless()

    def echo() -> None:
        while True:
            try:
                end, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(end,), daemon=True).start()

    def answer(end: socket.socket) -> None:
        with end:
            while data := end.recv(4096):
                end.sendall(data)

    threading.Thread(target=echo, daemon=True).start()
    gate = SocketDoor(LOOPBACK, path)
    between = Between(gate.port, lambda message: flipped(message) if b"bad" in message else message)
    window = LocalSocket([(LOOPBACK, between.port), (LOOPBACK, gate.port)], gate.key)
    yield gate, window
    window.close()
    gate.close()
    listening.close()


def client(path: str) -> socket.socket:
    end = socket.socket(socket.AF_UNIX)
    end.connect(path)
    return end


def test_a_service_is_reached_by_the_key_alone(
    service: tuple[SocketDoor, LocalSocket], capsys: pytest.CaptureFixture[str]
) -> None:
    gate, window = service
    for _ in range(2):
        assert len(says(gate.port, os.urandom(200))) <= 32
    window.reach()
    assert window.address == LOOPBACK
    with client(window.path) as one:
        one.sendall(b"good")
        assert read(one, 4) == b"good"
        # Changed on its way: not one byte of it is handed on.
        one.sendall(b"bad")
        assert one.recv(4096) == b""
    with client(window.path) as again:
        long = os.urandom(1 << 20)
        threading.Thread(target=again.sendall, args=(long,)).start()
        assert read(again, len(long)) == long
    said = capsys.readouterr().err.splitlines()
    assert [REFUSED in line for line in said] == [True, False], said
    assert ALTERED in said[1]


def test_the_last_words_of_a_service_are_handed_on() -> None:
    """Its process may end the moment it has said them."""
    listening, path = nameless()
    gate = SocketDoor(LOOPBACK, path)
    window = LocalSocket([(LOOPBACK, gate.port)], gate.key)
    with client(window.path) as one:
        end, _ = listening.accept()
        last = os.urandom(1 << 18)
        with ThreadPoolExecutor(1) as pool:
            heard = pool.submit(read, one, len(last))
            with end:
                end.sendall(last)
            gate.finish(60)
            gate.close()
            assert heard.result() == last
    window.close()
    listening.close()


@as_root
def test_a_socket_without_a_name_is_for_this_user_alone() -> None:
    listening, path = nameless()
    mine = path.replace("self", str(os.getpid()))
    with listening:
        client(mine).close()
        assert "PermissionError" in by_somebody(lambda: client(mine))


def test_a_seal_counts() -> None:
    seal = Seal(b"key")
    said = {seal.seal(b"") for _ in range(100)}
    assert len(said) == 100
    assert all(struct.unpack_from("<I", each) == (0,) for each in said)


@as_root
@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "address"), [(1, LOOPBACK), (2, ADDRESS)], ids=["one", "two"])
def test_what_a_training_of_jax_listens_on(tmp_path: Path, nodes: int, address: str) -> None:
    """Its coordinator on none, and gloo on no other address than ranks need."""
    with listening(tmp_path, launched(tmp_path, nodes, TRAIN)) as found:
        assert found == {address}
        for way in tmp_path.glob("attempt/ranks/meeting-*"):
            assert json.loads(way.read_text())["hosts"] == [ADDRESS, ADDRESS]
            assert way.stat().st_mode & 0o077 == 0  # it has the key
