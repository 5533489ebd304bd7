"""The broker's socket, its callers, honest and not, and the harvester that must not trust any."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from running_doors import NAME, Running, an_ask

from hpcext.broker import lines
from hpcext.broker.desk import Desk
from hpcext.broker.gate import BURST, EACH_S, REMEMBERED, Gate
from hpcext.broker.identity import Peer, PeerCredentials
from hpcext.broker.server import Server
from hpcext.core.errors import InputError
from hpcext.harvest import leave, ways
from hpcext.harvest.ways import local
from hpcext.harvest.ways.local import Local


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    path = tmp_path / "run"
    path.mkdir(mode=0o755)
    one = Running(path / "socket")
    yield one
    one.end()


def sent(running: Running, data: bytes) -> leave.Answer:
    """What is answered to these bytes, after which the other end is silent."""
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(60)
        line.connect(str(running.path))
        try:
            line.sendall(data)
            line.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        said = b""
        while part := line.recv(1 << 16):
            said += part
    return msgspec.json.decode(said, type=leave.Answer)


def test_a_harvester_is_answered_as_who_it_is(running: Running) -> None:
    answer = ways.ask(Local(running.path), an_ask(), 240.0)
    assert answer == leave.Answer(nodes=3, claim=("n1",))
    [(peer, message)] = running.heard
    assert peer.uid == os.getuid()
    assert message == an_ask()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "no whole line"),
        (b"{", "no whole line"),
        (b"hello\n", "malformed"),
        (b"[]\n", "Expected"),
        (b'{"type":"ask"}\n', "missing required field"),
        (b'{"type":"shutdown"}\n', "Invalid value"),
        (b"[" * 100_000 + b"\n", "Expected"),
        (b'{"type":"ask","trainers":' + b"[" * 100_000 + b"\n", "Expected"),
        (b"\xff\xfe\n", "malformed"),
        (b"x" * (2 * leave.MOST_BYTES) + b"\n", "more than"),
    ],
)
def test_what_is_no_message_is_refused(running: Running, data: bytes, why: str) -> None:
    assert why in sent(running, data).refused
    assert running.heard == []
    assert ways.ask(Local(running.path), an_ask(), 240.0).nodes == 3


@pytest.mark.parametrize(
    "change",
    [
        {"user": "ann"},
        {"uid": 0},
        {"harvester": "ann"},
        {"harvester": "hpcext-../../x-20261124-120000-ab12"},
        {"harvester": NAME + "\n"},
        {"want": -1},
        {"want": 10**9},
        {"want": 1e999},
        {"gpus": 0},
        {"partition": ""},
        {"partition": "x" * 300},
        {"schema": "hpcext.broker/2"},
        {"trainers": [{"number": 1, "sizes": []}]},
        {"trainers": [{"number": 1, "sizes": [0]}]},
        {"trainers": [{"number": 1, "sizes": [4], "weight": 0}]},
        {"trainers": [{"number": 1, "sizes": [4], "speed": 1e9}]},
        {"trainers": [{"number": -1, "sizes": [4]}]},
        {"trainers": [{"number": each, "sizes": [4]} for each in range(257)]},
    ],
)
def test_a_message_says_no_more_than_it_may(running: Running, change: dict[str, Any]) -> None:
    document = msgspec.json.decode(msgspec.json.encode(an_ask()))
    document.update(change)
    assert sent(running, msgspec.json.encode(document) + b"\n").refused
    assert running.heard == []


def test_whoever_says_nothing_holds_up_nobody(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call of a user at a time, and only for so long."""
    monkeypatch.setattr(lines, "LINE_S", 0.5)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.settimeout(60)
        silent.connect(str(running.path))
        silent.sendall(b'{"type":')
        assert b"in time" in silent.recv(1 << 16)
    assert ways.ask(Local(running.path), an_ask(), 240.0).nodes == 3


def test_a_flood_is_cut_short_and_forgotten() -> None:
    gate, now_s = Gate(), 100.0

    def calls(uid: int, number: int) -> int:
        passed = 0
        for _ in range(number):
            if not gate.enter(uid, now_s):
                passed += 1
                gate.leave(uid)
        return passed

    assert calls(7, 1000) == BURST
    assert calls(8, 3) == 3
    now_s += 5 * EACH_S
    assert calls(7, 1000) == 5
    assert not gate.enter(9, now_s)
    assert gate.enter(9, now_s) == "one call at a time"
    for uid in range(5 * REMEMBERED):
        now_s += 2 * EACH_S
        calls(10_000 + uid, 1)
    assert len(gate._left) <= REMEMBERED + 1


def test_a_socket_of_a_dead_broker_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    one = Running(path)
    assert ways.ask(Local(path), an_ask(), 240.0).nodes == 3
    one.end()
    assert not path.exists()
    path.write_text("mine")
    with pytest.raises(InputError, match="no socket"):
        asyncio.run(Server(path, PeerCredentials(), Desk(lambda *_: None)).begin())
    assert path.read_text() == "mine"


def begun_and_ended(path: Path) -> None:
    """Have a server listen for a moment, where there is nothing else."""
    server = Server(path, PeerCredentials(), Desk(lambda *_: None))

    async def both() -> None:
        await server.begin()
        assert [file.name for file in path.parent.iterdir()] == [path.name]
        await server.end()

    asyncio.run(both())


def test_where_its_socket_is_it_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody may look at any instant of its beginning."""
    path = tmp_path / "socket"
    listen, seen = socket.socket.listen, []

    def looks(self: socket.socket, *backlog: int) -> None:
        seen.append(path.exists())
        listen(self, *backlog)

    monkeypatch.setattr(socket.socket, "listen", looks)
    begun_and_ended(path)
    assert seen == [False]


def test_a_socket_that_others_cannot_reach_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """For them it is as if there was no broker."""
    for mode, said in ((0o755, 0), (0o700, 1)):
        tmp_path.chmod(mode)
        begun_and_ended(tmp_path / "socket")
        assert (
            caplog.text.count(f"harvesters of others cannot reach it: chmod o+x {tmp_path}") == said
        )


# Whom a harvester believes.


def refusal(path: Path, answer_s: float = 240.0) -> str:
    with pytest.raises(leave.BrokerError) as caught:
        ways.ask(Local(path), an_ask(), answer_s)
    return str(caught.value)


def test_a_socket_that_another_could_have_made_is_not_believed(running: Running) -> None:
    os.chmod(running.path.parent, 0o777)
    assert "can be written by others" in refusal(running.path)
    os.chmod(running.path.parent, 0o1777)
    assert "can be written by others" in refusal(running.path)
    os.chmod(running.path.parent, 0o755)
    link = running.path.parent / "link"
    link.symlink_to(running.path)
    assert "not a socket" in refusal(link)
    assert running.heard == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to others")
def test_a_directory_of_another_user_is_not_believed(running: Running) -> None:
    """As that of a user who waits in a place where the site's broker might be."""
    os.chown(running.path.parent, 65_001, 65_001)
    assert "belongs to uid 65001" in refusal(running.path)
    # The account of the service has its directory and its socket, but does not serve it here.
    os.chown(running.path, 65_001, 65_001)
    assert "is served by uid 0" not in str(ways.ask(Local(running.path), an_ask(), 240.0))
    os.chown(running.path.parent.parent, 65_001, 65_001)
    try:
        assert "belongs to uid 65001" in refusal(running.path)
    finally:
        os.chown(running.path.parent.parent, 0, 0)


def answering(path: Path, say: Callable[[socket.socket], None]) -> threading.Thread:
    """Somebody who answers one call in some way."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        line, _ = listener.accept()
        with line, listener:
            say(line)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"nonsense\n", "cannot be read"),
        (b'{"nodes": -1}\n', "cannot be read"),
        (b"", "hangs up"),
        (b'{"nodes"', "hangs up"),
    ],
)
def test_an_answer_that_is_none_counts_as_no_answer(tmp_path: Path, said: bytes, why: str) -> None:
    def say(line: socket.socket) -> None:
        line.recv(1 << 16)
        line.sendall(said)

    thread = answering(tmp_path / "socket", say)
    assert why in refusal(tmp_path / "socket")
    thread.join()


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"nonsense\n", "cannot be read"),
        (b"[]\n", "refuses: no status"),
        (b'{"refused": "\\u001b[2J"}\n', "refuses: \\x1b[2J"),
        (b'{"keep": "it could not answer"}\n', "refuses: it could not answer"),
        (b"", "hangs up"),
    ],
)
def test_a_status_that_is_none_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: bytes, why: str
) -> None:
    monkeypatch.setattr(ways, "TRIES", 1)

    def say(line: socket.socket) -> None:
        line.recv(1 << 16)
        line.sendall(said)

    tmp_path.chmod(0o755)
    thread = answering(tmp_path / "socket", say)
    with pytest.raises(leave.BrokerError) as caught:
        ways.status(Local(tmp_path / "socket"))
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)
    thread.join()


def test_a_status_is_asked_for_again_while_a_harvester_of_the_user_asks(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ways, "AGAIN_S", 0.01)
    said = [{"refused": "one call at a time"}, {"refused": "too many calls"}, {"users": []}]

    def reply(_peer: Peer, _message: Any) -> Any:
        running.calls += 3600
        return said.pop(0)

    monkeypatch.setattr(running.desk, "_reply", reply)
    assert ways.status(Local(running.path)) == {"users": []}
    said += [{"refused": "one call at a time"}] * 3
    with pytest.raises(leave.BrokerError, match="refuses: one call at a time"):
        ways.status(Local(running.path))
    assert said == []


def test_a_broker_that_is_stopped_is_waited_for_no_longer_than_a_while(tmp_path: Path) -> None:
    over = threading.Event()
    thread = answering(tmp_path / "socket", lambda _line: over.wait(60) and None)
    assert "does not answer" in refusal(tmp_path / "socket", 1.0)
    over.set()
    thread.join()


def test_without_a_socket_there_is_no_answer(tmp_path: Path) -> None:
    assert "is not there" in refusal(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "socket"))
    assert "does not answer" in refusal(tmp_path / "socket")


def test_a_call_that_is_refused_unread_is_told_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker has answered and hung up before the message was sent."""
    tmp_path.chmod(0o755)
    closed = threading.Event()

    class Late(socket.socket):
        def sendall(self, *words: Any) -> None:
            assert closed.wait(60)
            super().sendall(*words)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()

        def refuse() -> None:
            line, _ = listener.accept()
            line.send(b'{"refused":"too many calls"}\n')
            line.close()
            closed.set()

        thread = threading.Thread(target=refuse, daemon=True)
        thread.start()
        monkeypatch.setattr(local.socket, "socket", Late)
        assert ways.ask(Local(tmp_path / "socket"), an_ask(), 240.0).refused == "too many calls"
        thread.join()


def test_a_call_waits_for_room_in_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody who does nothing but connect and hang up fills it time and again."""
    tmp_path.chmod(0o755)
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(tmp_path / "socket"))
        listener.listen(0)
        filled = fill(stack, listener)
        threads: list[threading.Thread] = []

        def drained(_seconds: float) -> None:
            """While it waits, the broker serves those before it, and then the call itself."""
            for _ in range(filled if not threads else 0):
                listener.accept()[0].close()
            if not threads:
                threads.append(threading.Thread(target=serve))
                threads[0].start()

        def serve() -> None:
            line, _ = listener.accept()
            with line:
                line.recv(1 << 16)
                line.sendall(b'{"nodes": 3}\n')

        clock = SimpleNamespace(monotonic=time.monotonic, sleep=drained)
        monkeypatch.setattr(local, "time", clock)
        assert ways.ask(Local(tmp_path / "socket"), an_ask(), 240.0).nodes == 3
        [thread] = threads
        thread.join()
        # One that is never emptied is waited for as long as for an answer.
        fill(stack, listener)
        clock.sleep = lambda _seconds: None
        clock.monotonic = itertools.count(0.0, 100.0).__next__
        assert "does not answer" in refusal(tmp_path / "socket")


def fill(stack: contextlib.ExitStack, listener: socket.socket) -> int:
    """Connect until the queue is full; return how many are in it."""
    for number in itertools.count():
        line = stack.enter_context(socket.socket(socket.AF_UNIX))
        line.setblocking(False)
        try:
            line.connect(listener.getsockname())
        except BlockingIOError:
            return number
    raise AssertionError
