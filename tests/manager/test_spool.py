"""The spool: strangers, liars and half-written files get one line, or nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from hpcext import documents, protocol
from hpcext.core.errors import HpcextError, InputError, NoManagerError
from hpcext.manager import spool
from hpcext.process import Process


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "pilot"
    path.mkdir(mode=0o700)
    spool.make(path)
    return path


def be_manager(directory: Path, pid: int) -> None:
    process = Process.of(pid)
    assert process
    facts = {"schema": spool.MANAGER, "pid": process.pid, "start": process.start}
    documents.write_json(directory / spool.MANAGER_FILE, facts)


def test_a_manager_that_slurm_cannot_signal_is_not_signalled() -> None:
    """Its batch script would die of it."""
    # No Slurm answers here: who would ask it is told so.
    for polls in (True, False):
        assert (
            spool.BatchManager(7, system="slurm", polls=polls).send(protocol.NEWS_SIGNAL) == polls
        )


def put(directory: Path, name: str, text: bytes) -> Path:
    path = directory / "requests" / name
    path.write_bytes(text)
    return path


GOOD = json.dumps({"schema": spool.REQUEST, "verb": "drain"}).encode()


def test_requests_come_oldest_first_and_stay_until_answered(directory: Path) -> None:
    for number, name in enumerate(["b", "a", "c"]):
        os.utime(put(directory, f"{name}.json", GOOD), ns=(number, number))
    assert [name for name, _ in spool.pending(directory)] == ["b", "a", "c"]
    spool.reply(directory, "b", {"text": "done"})
    assert [name for name, _ in spool.pending(directory)] == ["a", "c"]
    answer = json.loads((directory / "replies" / "b.json").read_text())
    assert answer == {"schema": spool.REPLY, "text": "done"}


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (b"", "not JSON"),
        (GOOD[:-3], "not JSON"),
        (b"[1]", "not a document"),
        (b'{"schema": "hpcext.request/9"}', "written by a later release"),
        (b'{"schema": "hpcext.reply/1"}', "not a document"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b" " * (documents.MAX_FILE_BYTES + 1), "larger than"),
    ],
)
def test_a_bad_request_is_removed_and_answered(directory: Path, text: bytes, wrong: str) -> None:
    path = put(directory, "bad.json", text)
    ((name, error),) = spool.pending(directory)
    assert name == "bad"
    assert isinstance(error, InputError)
    assert wrong in str(error)
    assert "\n" not in str(error)
    assert not path.exists()


def test_links_fifos_and_odd_names_are_never_read(directory: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_bytes(GOOD)
    requests = directory / "requests"
    (requests / "link.json").symlink_to(secret)
    os.mkfifo(requests / "fifo.json")
    put(directory, "name with blanks.json", GOOD)
    put(directory, "x.txt", GOOD)
    put(directory, ".half.json", GOOD)
    found = dict(spool.pending(directory))
    assert set(found) == {"link", "fifo"}
    assert all(isinstance(error, InputError) for error in found.values())
    assert [path.name for path in requests.iterdir()] == [".half.json"]
    assert secret.read_bytes() == GOOD


def test_a_request_of_somebody_else_is_refused(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(directory, "theirs.json", GOOD)
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    ((_, error),) = spool.pending(directory)
    assert f"owned by uid {mine}" in str(error)


def test_a_directory_that_others_may_enter_is_refused(directory: Path) -> None:
    directory.chmod(0o750)
    with pytest.raises(InputError, match="other users may enter"):
        spool.check_private(directory)


def test_somebody_elses_pilot_is_refused(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: mine + 1)
    with pytest.raises(InputError, match="belongs to uid"):
        spool.ask(directory, "drain")


def test_without_a_manager_nothing_is_asked(directory: Path) -> None:
    with pytest.raises(NoManagerError, match="no manager runs"):
        spool.ask(directory, "drain")
    assert not list((directory / "requests").iterdir())


def test_a_later_process_with_its_pid_is_not_the_manager(directory: Path) -> None:
    me = Process.me()
    facts = {"schema": spool.MANAGER, "pid": me.pid, "start": me.start + 1}
    documents.write_json(directory / spool.MANAGER_FILE, facts)
    assert spool.manager_of(directory) is None


def test_an_answer_comes_back_and_is_cleared_away(directory: Path) -> None:
    # The manager here is another process that ignores the signal; the answer is this test's.
    with subprocess.Popen(
        [sys.executable, "-c", "import signal;signal.signal(10,1);print();signal.pause()"],
        stdout=subprocess.PIPE,
    ) as manager:
        assert manager.stdout
        manager.stdout.readline()
        be_manager(directory, manager.pid)

        def answer() -> None:
            while not (found := list(spool.pending(directory))):
                time.sleep(0.001)
            spool.reply(directory, found[0][0], {"text": f"did {found[0][1]['verb']}"})  # type: ignore[index]

        thread = threading.Thread(target=answer)
        thread.start()
        assert spool.ask(directory, "drain")["text"] == "did drain"
        thread.join()
        assert not list((directory / "replies").iterdir())
        with pytest.raises(HpcextError, match="did not answer"):
            spool.ask(directory, "drain", timeout_s=0.05)
        manager.kill()


def test_a_manager_that_dies_is_noticed(directory: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as manager:
        be_manager(directory, manager.pid)
        # SIGUSR1 kills a sleep: the manager is gone before it answers.
        with pytest.raises(NoManagerError, match="ended before it answered"):
            spool.ask(directory, "drain")
