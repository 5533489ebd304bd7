"""The broker's port: harvesters on other hosts, honest and not, and a broker that is a stranger's.

Each has a real munged. Hosts are addresses of loopback, which are as many as a test wants.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from accounts import STRANGER
from own_munged import Munged
from ports import free_port
from running_doors import WAIT_S, RunningDoors, an_ask, asked
from site_of_test import wait_for

from hpcext.addresses import MungeAddress
from hpcext.broker import callers as bounds
from hpcext.broker import lines, remote
from hpcext.broker.callers import Callers, address_of
from hpcext.broker.identity import PeerCredentials
from hpcext.broker.remote import MOST_LINE_BYTES, Remote
from hpcext.broker.server import Server
from hpcext.core.errors import HpcextError
from hpcext.harvest import leave, ways
from hpcext.harvest.ways import munge
from hpcext.harvest.ways import remote as remote_ways
from hpcext.harvest.ways.local import Local

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
ME = os.geteuid()


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no reason to give up, unless a test says so."""
    monkeypatch.setattr(munge, "PROGRAM_S", 60.0)
    monkeypatch.setattr(lines, "LINE_S", 60.0)
    monkeypatch.setattr(remote, "PROVE_S", 240.0)


@pytest.fixture(scope="module")
def munged() -> Iterator[Munged]:
    one = Munged()
    yield one
    one.end()


@pytest.fixture(scope="module")
def other_key() -> Iterator[Munged]:
    one = Munged()
    yield one
    one.end()


@pytest.fixture
def address(munged: Munged) -> MungeAddress:
    return MungeAddress("127.0.0.1", free_port(), str(ME), str(munged.socket))


@pytest.fixture
def running(address: MungeAddress) -> Iterator[RunningDoors]:
    one = RunningDoors(lambda desk: Remote(address, desk))
    yield one
    one.end()


def way(address: MungeAddress) -> remote_ways.Remote:
    return remote_ways.Remote(address)


def sent(address: MungeAddress, data: bytes, host: str = "127.0.0.1") -> bytes:
    """What is said to these bytes, of somebody at an address."""
    with socket.create_connection(address[:2], 60, source_address=(host, 0)) as line:
        with contextlib.suppress(OSError):
            line.sendall(data)
        said = b""
        with contextlib.suppress(OSError):
            while not said.endswith(b"\n") and (part := line.recv(1 << 16)):
                said += part
    return said


def refusal(said: bytes) -> str:
    return msgspec.json.decode(said, type=leave.Answer).refused


def a_credential(
    address: MungeAddress, message: bytes | None = None, uid: int = ME
) -> tuple[bytes, bytes]:
    """The credential of a question, and what is in it."""
    payload = munge.question(message or msgspec.json.encode(an_ask()) + b"\n")
    return munge.encode(payload, uid, address.socket), payload


# Who asks.


def test_a_harvester_is_answered_as_who_it_is(address: MungeAddress, running: RunningDoors) -> None:
    assert asked(way(address)) == leave.Answer(nodes=3, claim=("n1",))
    [(peer, message)] = running.heard
    assert peer.uid == ME
    assert message == an_ask()


@ROOT_ONLY
def test_each_user_is_who_he_is_whatever_he_says(
    address: MungeAddress, running: RunningDoors
) -> None:
    assert not STRANGER.does(lambda: asked(way(address)))
    assert running.users == [STRANGER.uid]
    for more in ({"user": "root"}, {"uid": 0}):
        document = msgspec.json.decode(msgspec.json.encode(an_ask()))
        line = msgspec.json.encode({**document, **more}) + b"\n"
        credential, payload = a_credential(address, line)
        said = munge.decode(sent(address, credential), address.socket)
        assert "unknown field" in refusal(munge.answered(said.payload, payload) or b"")
    assert running.users == [STRANGER.uid]


@ROOT_ONLY
def test_an_answer_is_for_its_user_alone(address: MungeAddress, running: RunningDoors) -> None:
    credential, _ = a_credential(address)
    said = sent(address, credential)
    assert "for another account" in STRANGER.does(lambda: munge.decode(said, address.socket))
    assert munge.decode(said, address.socket).uid == ME


def test_a_long_status_is_answered_whole(address: MungeAddress, running: RunningDoors) -> None:
    running.answer = {"users": [{"user": f"u{each}" * 10} for each in range(8000)]}
    assert ways.status(way(address)) == running.answer


# Whom the broker does not believe.


def test_a_credential_counts_once(address: MungeAddress, running: RunningDoors) -> None:
    """munged refuses it, however it comes there for the second time."""
    credential, _ = a_credential(address)
    assert munge.is_credential(sent(address, credential))
    assert refusal(sent(address, credential)) == "the credential was decoded before"
    assert len(running.heard) == 1


def test_a_credential_of_another_key_is_none(
    address: MungeAddress, running: RunningDoors, other_key: Munged
) -> None:
    credential, _ = a_credential(address._replace(socket=str(other_key.socket)))
    assert "Invalid credential" in refusal(sent(address, credential))
    assert running.heard == []


def test_a_credential_that_was_changed_is_none(
    address: MungeAddress, running: RunningDoors
) -> None:
    """What is said is in it, so there is nothing beside it that could be exchanged."""
    credential, _ = a_credential(address)
    middle = len(credential) // 2
    changed = b"A" if credential[middle : middle + 1] != b"A" else b"B"
    said = sent(address, credential[:middle] + changed + credential[middle + 1 :])
    assert "unmunge failed: " in refusal(said)
    assert running.heard == []


def test_a_credential_that_has_expired_is_none(
    address: MungeAddress, running: RunningDoors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(munge, "TTL_S", 1)
    credential, _ = a_credential(address)
    time.sleep(3)  # its time is counted in whole seconds, by munged's clock
    assert "the credential has expired" in refusal(sent(address, credential))
    assert running.heard == []


@pytest.mark.parametrize("uid", [ME + 1])
def test_a_credential_for_another_account_is_none(
    address: MungeAddress, running: RunningDoors, uid: int
) -> None:
    """As one that somebody has made for another service."""
    credential, _ = a_credential(address, uid=uid)
    assert refusal(sent(address, credential)) == "the credential is for another account"
    assert running.heard == []


@pytest.mark.parametrize(
    "payload", [b"", b"hello", munge.QUESTION, munge.QUESTION + b"\n12", munge.ANSWER + b"\n1\n{}"]
)
def test_a_credential_that_asks_nothing_is_refused(
    address: MungeAddress, running: RunningDoors, payload: bytes
) -> None:
    said = sent(address, munge.encode(payload, ME, address.socket))
    assert refusal(said) == "the credential asks a broker nothing"
    assert running.heard == []


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"hello\n", "no credential"),
        (b"\n", "no credential"),
        (msgspec.json.encode(an_ask()) + b"\n", "no credential"),
        (b"MUNGE::\n", "no credential"),
        (b"MUNGE:$(id):\n", "no credential"),
        (b"MUNGE:AAAA:\n", "unmunge failed"),
        (b"MUNGE:" + b"A" * 100_000 + b":\n", "unmunge failed"),
        (b"\0" * 1000 + b"\n", "no credential"),
        (b"A" * (MOST_LINE_BYTES + 10) + b"\n", "more than"),
    ],
)
def test_what_is_no_credential_is_refused(
    address: MungeAddress, running: RunningDoors, data: bytes, why: str
) -> None:
    assert why in refusal(sent(address, data))
    assert running.heard == []
    assert asked(way(address)).nodes == 3


def test_a_message_is_no_longer_than_at_the_socket(
    address: MungeAddress, running: RunningDoors
) -> None:
    credential, _ = a_credential(address, b"x" * (leave.MOST_BYTES + 100) + b"\n")
    assert "more than 262144 bytes" in refusal(sent(address, credential))
    credential, payload = a_credential(address, b"[" * (leave.MOST_BYTES - 1) + b"\n")
    said = munge.decode(sent(address, credential), address.socket)
    assert "Expected" in refusal(munge.answered(said.payload, payload) or b"")
    assert running.heard == []


def test_a_user_has_as_many_calls_as_at_the_socket(
    address: MungeAddress, running: RunningDoors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running.desk, "_clock", lambda: 0.0)
    monkeypatch.setattr("hpcext.broker.gate.BURST", 2.0)
    for _ in range(2):
        assert asked(way(address)).nodes == 3
    with pytest.raises(leave.BrokerError) as caught:
        asked(way(address))
    assert 'says: {"refused":"too many calls"}' in str(caught.value)


# Floods.


def test_connections_that_say_nothing_keep_out_nobody(
    address: MungeAddress, running: RunningDoors
) -> None:
    """Neither those of other hosts, nor those of the same one."""
    with contextlib.ExitStack() as stack:
        for host in ("127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"):
            for _ in range(bounds.MOST_OF_ADDRESS + 10):
                line = socket.create_connection(address[:2], 60, source_address=(host, 0))
                stack.enter_context(line).sendall(b"MUNGE:")
        # One of 32 is given up by chance, for each that is new: it may be this one.
        tries = iter(range(20))
        wait_for(lambda: next(tries) < 20 and answered(address), "an answer")
    assert running.users


def answered(address: MungeAddress) -> bool:
    try:
        return asked(way(address)).nodes == 3
    except leave.BrokerError:
        return False


def test_a_flood_of_what_is_no_credential_keeps_out_nobody(
    address: MungeAddress, running: RunningDoors
) -> None:
    over = threading.Event()

    def flood(host: str) -> None:
        while not over.is_set():
            with contextlib.suppress(OSError):
                sent(address, b"MUNGE:" + b"A" * 1000 + b":\n", host)

    threads = [
        threading.Thread(target=flood, args=(host,)) for host in ("127.0.0.1", "127.0.0.2") * 4
    ]
    for thread in threads:
        thread.start()
    try:
        wait_for(lambda: answered(address), "an answer")
        wait_for(lambda: answered(address), "another one")
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert running.users == [ME, ME]


def test_whoever_says_nothing_is_hung_up_on(
    address: MungeAddress, running: RunningDoors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "LINE_S", 0.5)
    assert refusal(sent(address, b"MUNGE:AAAA")) == "no whole line in time"


def test_callers_of_one_address_do_not_push_out_others() -> None:
    async def main() -> None:
        callers, given_up = Callers(most=6, of_address=4), list[str]()

        async def call(address: str) -> None:
            try:
                with callers.one(address):
                    await asyncio.sleep(1000)
            except asyncio.CancelledError:
                given_up.append(address)

        async def begin(address: str) -> None:
            tasks.append(asyncio.create_task(call(address)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)

        tasks: list[asyncio.Task[None]] = []
        for _ in range(10):
            await begin("a")
        assert (len(callers), given_up) == (4, ["a"] * 6)
        for address in ("b", "c", "d", "e"):
            await begin(address)
        assert given_up == ["a"] * 8
        assert len(callers) == 6
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)
        assert len(callers) == 0

    asyncio.run(main())


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        (("10.0.0.1", 5), "10.0.0.1"),
        (("::ffff:10.0.0.1", 5, 0, 0), "10.0.0.1"),
        (("2001:db8::1", 5, 0, 0), "2001:db8::/64"),
        (("2001:db8::2:1", 5, 0, 0), "2001:db8::/64"),
        (("fe80::1%eth0", 5, 0, 2), "fe80::/64"),
        (None, "unknown"),
        ((), "unknown"),
    ],
)
def test_senders_are_told_apart_by_address(peer: Any, address: str) -> None:
    assert address_of(peer) == address


def test_a_munged_that_hangs_delays_nobody_on_the_host(
    munged: Munged, address: MungeAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(munge, "PROGRAM_S", 3.0)
    monkeypatch.setattr(remote, "PROVE_S", 15.0)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "socket"
        running = RunningDoors(
            lambda desk: Remote(address, desk),
            lambda desk: Server(path, PeerCredentials(), desk),
        )
        credentials = [a_credential(address)[0] for _ in range(20)]
        munged.process.send_signal(signal.SIGSTOP)
        said: list[bytes] = []
        threads = [
            threading.Thread(target=lambda each=each: said.append(sent(address, each)))
            for each in credentials
        ]
        try:
            for thread in threads:
                thread.start()
            # While all programs hang.
            for _ in range(5):
                assert asked(Local(path)).nodes == 3
            assert said == []
            for thread in threads:
                thread.join()
        finally:
            munged.process.send_signal(signal.SIGCONT)
        assert {refusal(each) for each in said} <= {
            "unmunge has not ended in 3 s",
            "too many calls of this address",
        }
        wait_for(lambda: answered(address), "an answer when munged goes on")
        running.end()


# Whom a harvester does not believe.


def doubt(address: MungeAddress, answer_s: float = WAIT_S) -> str:
    with pytest.raises(leave.BrokerError) as caught:
        ways.ask(way(address), an_ask(), answer_s)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@contextlib.contextmanager
def listening(address: MungeAddress, say: Callable[[bytes], bytes]) -> Iterator[None]:
    """Somebody who listens where the broker should, and answers one call in some way."""
    with socket.create_server(address[:2]) as listener:

        def serve() -> None:
            line, _ = listener.accept()
            with line, line.makefile("rb") as file:
                line.sendall(say(file.readline()))

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        except AssertionError:
            faulthandler.dump_traceback()
            raise
        thread.join()


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b'{"nodes":9999}\n', 'does not prove who it is, and says: {"nodes":9999}'),
        (b"\x1b[2J\n", "does not prove who it is, and says: \\x1b[2J"),
        (b"MUNGE:AAAA:\n", "cannot be asked by MUNGE: unmunge failed"),
        (b"", "hangs up in the middle"),
        (b"MUNGE:", "hangs up in the middle"),
        (b"x" * (1 << 20) + b"yy", "answers too much"),
    ],
)
def test_whoever_proves_nothing_is_not_believed(
    address: MungeAddress, said: bytes, why: str
) -> None:
    with listening(address, lambda _question: said):
        assert why in doubt(address)


@ROOT_ONLY
def test_another_user_who_listens_there_is_not_believed(address: MungeAddress) -> None:
    """He cannot read the question either."""
    heard: list[bytes] = []

    def run(argv: tuple[str, ...], data: bytes) -> subprocess.CompletedProcess[bytes]:
        # Not by a fork: what libraries do before one may wait for threads, and this is a thread.
        he = (f"--reuid={STRANGER.uid}", f"--regid={STRANGER.uid}", "--clear-groups")
        words = ["setpriv", *he, *argv]
        return subprocess.run(words, input=data, capture_output=True, timeout=100, check=False)

    def say(question: bytes) -> bytes:
        heard.append(run(munge.decoder(address.socket), question).stderr)
        payload = munge.answer(b"what he believes was asked", b'{"nodes":9999}\n')
        return run(munge.encoder(ME, address.socket), payload).stdout

    with listening(address, say):
        assert f"is served by uid {STRANGER.uid}, and {ME} is believed" in doubt(address)
    assert b"Unauthorized" in heard[0]


def test_an_answer_to_another_question_is_not_believed(address: MungeAddress) -> None:
    def say(_question: bytes) -> bytes:
        payload = munge.answer(munge.question(b"{}\n"), b'{"nodes":9999}\n')
        return munge.encode(payload, ME, address.socket)

    with listening(address, say):
        assert "answers another question" in doubt(address)


def test_a_broker_that_is_silent_is_waited_for_no_longer_than_a_while(
    address: MungeAddress,
) -> None:
    over = threading.Event()

    def say(_question: bytes) -> bytes:
        over.wait(60)
        return b""

    with listening(address, say):
        assert "does not answer (timed out)" in doubt(address, 2.0)
        over.set()


def test_without_a_broker_munged_or_account_there_is_one_line(
    address: MungeAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "does not answer (Connection refused)" in doubt(address)
    assert "munge failed: " in doubt(address._replace(socket=str(tmp_path / "none")))
    said = doubt(address._replace(account="nobody-has-this-name"))
    assert "account nobody-has-this-name of the broker is not known on this host" in said
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "munge cannot be run (No such file or directory)" in doubt(address)


# A broker that cannot listen.


@pytest.mark.parametrize(
    ("change", "why", "status"),
    [
        # Each of these may pass, so that systemd tries again.
        ({"socket": "/nowhere/socket"}, "cannot be served: munge failed: ", 1),
        ({"host": "192.0.2.1"}, "cannot be listened at", 1),
        ({"host": "no-such-host.invalid"}, "cannot be listened at", 1),
        ({"account": "4000000"}, "harvesters would believe 4000000 alone, and this is", 2),
    ],
)
def test_a_broker_says_in_one_line_why_it_cannot_listen(
    address: MungeAddress, change: dict[str, Any], why: str, status: int
) -> None:
    with pytest.raises(HpcextError) as caught:
        RunningDoors(lambda desk: Remote(address._replace(**change), desk))
    assert why in str(caught.value)
    assert caught.value.exit_status == status
    assert "\n" not in str(caught.value)


def test_a_port_that_is_taken_is_said(address: MungeAddress, running: RunningDoors) -> None:
    with pytest.raises(HpcextError, match="cannot be listened at") as caught:
        RunningDoors(lambda desk: Remote(address, desk))
    assert caught.value.exit_status == 1
    assert asked(way(address)).nodes == 3
