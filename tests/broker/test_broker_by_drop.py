"""A broker asked through a directory that hosts share, and what hostile users put there."""

from __future__ import annotations

import errno
import os
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from accounts import STRANGER, VICTIM, Account
from running_doors import RunningDoors, an_ask
from site_of_test import wait_for

from hpcext import documents
from hpcext.broker import drop, questions
from hpcext.broker.desk import Desk
from hpcext.broker.drop import Drop
from hpcext.core.errors import HpcextError, InputError
from hpcext.harvest import leave, ways
from hpcext.harvest.ways import drop as drop_ways

ME = os.geteuid()
ROOT_ONLY = pytest.mark.skipif(ME != 0, reason="only root can be somebody else")
LINE = msgspec.json.encode(an_ask()) + b"\n"


@pytest.fixture
def place() -> Iterator[Path]:
    """Where all can go, as pytest's own directories cannot be."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        path = Path(name) / "shared"
        path.mkdir(mode=0o755)
        yield path


@pytest.fixture
def running(place: Path) -> Iterator[RunningDoors]:
    one = RunningDoors(lambda desk: Drop(place, desk))
    yield one
    one.end()


def asks(place: Path) -> leave.Answer:
    return ways.ask(drop_ways.Drop(place), an_ask(), 60.0)


def test_a_harvester_is_answered_as_who_it_is(place: Path, running: RunningDoors) -> None:
    assert asks(place) == leave.Answer(nodes=3, claim=("n1",))
    [(peer, message)] = running.heard
    assert peer.uid == ME
    assert message == an_ask()
    assert os.listdir(place / "questions") == []


@ROOT_ONLY
def test_each_user_is_the_owner_of_his_file(place: Path, running: RunningDoors) -> None:
    for account in (VICTIM, STRANGER):
        # Whatever the umask is.
        assert not account.does(lambda: asks(place), umask=0o077)
    assert running.users == [VICTIM.uid, STRANGER.uid]


@ROOT_ONLY
def test_nobody_sees_who_asks_and_what_is_answered(place: Path, running: RunningDoors) -> None:
    asks(place)
    assert os.listdir(place / "answers")
    for name in ("questions", "answers"):
        said = STRANGER.does(lambda name=name: os.listdir(place / name))
        assert "PermissionError" in said
        said = STRANGER.does(lambda name=name: (place / name / "x").write_text(""))
        assert ("PermissionError" in said) == (name == "answers")
    said = STRANGER.does(lambda: (place / "beat").write_text("9999999"))
    assert "PermissionError" in said


def test_a_status_is_answered_as_by_the_socket(place: Path, running: RunningDoors) -> None:
    running.answer = {"users": [{"user": f"u{each}" * 10} for each in range(8000)]}
    assert ways.status(drop_ways.Drop(place)) == running.answer


def test_a_beat_goes_on_where_the_broker_before_ended(place: Path) -> None:
    for _ in range(2):
        one = RunningDoors(lambda desk: Drop(place, desk))
        asks(place)
        before = int((place / "beat").read_text())
        one.end()
    Drop(place, Desk(lambda *_: None)).prepare()
    assert int((place / "beat").read_text()) > before
    assert os.listdir(place / "answers") == []


def test_a_user_has_as_many_calls_as_at_the_socket(
    place: Path, running: RunningDoors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running.desk, "_clock", lambda: 0.0)
    monkeypatch.setattr("hpcext.broker.gate.BURST", 2.0)
    for _ in range(2):
        assert asks(place).nodes == 3
    with pytest.raises(leave.BrokerError, match="too many calls of this user"):
        asks(place)


# What is no question. One look is taken at a time, so that nothing depends on speed.


class Looking:
    """A broker's directory, at which it looks when a test says so; what it hears is noted."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place = place
        self.questions, self.answers = place / "questions", place / "answers"
        self.heard: list[int] = []
        self.drop = Drop(place, Desk(lambda *_: None))
        monkeypatch.setattr(self.drop, "_hear", self._hear)
        self.drop.prepare()

    def _hear(self, peer: Any, line: bytes) -> bytes:
        assert line.endswith(b"\n")
        self.heard.append(peer.uid)
        return b"{}\n"

    def puts(
        self, account: Account | None = None, line: bytes = LINE, name: str = "", mode: int = 0o644
    ) -> str:
        """Somebody puts a question there, under his own name if none is given."""
        name = name or drop_ways.new_name(account.uid if account else ME)
        data = drop_ways.framed(name, line)

        def write() -> None:
            documents.write_file(self.questions / name, data, durable=False, mode=mode)

        if account is None:
            write()
        else:
            assert not account.does(write)
        return name

    @property
    def left(self) -> list[str]:
        return os.listdir(self.questions)


@pytest.fixture
def looking(place: Path, monkeypatch: pytest.MonkeyPatch) -> Looking:
    return Looking(place, monkeypatch)


def test_a_question_is_heard_once(looking: Looking) -> None:
    name = looking.puts()
    looking.drop.look()
    assert (looking.heard, looking.left) == ([ME], [])
    assert (looking.answers / name).read_bytes() == f"{name}\n{{}}\n".encode()
    # As whoever has kept the file puts it back.
    looking.puts(name=name)
    looking.drop.look()
    assert (looking.heard, looking.left) == ([ME], [])


@ROOT_ONLY
def test_a_name_makes_nobody_another_user(looking: Looking) -> None:
    looking.puts(STRANGER, name=drop_ways.new_name(VICTIM.uid))
    looking.puts(STRANGER, name=drop_ways.new_name(0))
    looking.drop.look()
    assert (looking.heard, looking.left) == ([], [])
    looking.puts(VICTIM)
    looking.drop.look()
    assert looking.heard == [VICTIM.uid]


@ROOT_ONLY
def test_a_file_of_somebody_is_no_question_of_his_under_another_name(looking: Looking) -> None:
    """A stranger may have made a link to it, and its owner have removed its first name."""
    name = looking.puts(VICTIM)
    kept = looking.place.parent / "kept"
    os.link(looking.questions / name, kept)
    looking.drop.look()
    # It has two names, so nobody knows whose it is to give one away.
    assert (looking.heard, looking.left) == ([], [])
    os.rename(kept, looking.questions / drop_ways.new_name(VICTIM.uid))
    looking.drop.look()
    assert (looking.heard, looking.left) == ([], [])


def links(path: Path) -> None:
    target = path.parent.parent.parent / "target"
    target.write_bytes(drop_ways.framed(path.name, LINE))
    path.symlink_to(target)


def grows(path: Path) -> None:
    path.touch(0o644)
    os.truncate(path, 1 << 40)


def socket_at(path: Path) -> None:
    fd = os.open(path.parent, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as one:
        # Its own path may be too long for a socket.
        one.bind(f"/proc/self/fd/{fd}/{path.name}")
    os.close(fd)


def framed(line: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(drop_ways.framed(path.name, line))  # type: ignore[return-value]


def of_others(path: Path) -> None:
    framed(LINE)(path)
    path.chmod(0o646)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(links, id="link"),
        pytest.param(lambda path: path.symlink_to("/dev/zero"), id="link to a device"),
        pytest.param(os.mkfifo, id="fifo"),
        pytest.param(socket_at, id="socket"),
        pytest.param(lambda path: path.mkdir(), id="directory"),
        pytest.param(grows, id="large"),
        pytest.param(of_others, id="others can write it"),
        pytest.param(lambda path: path.touch(), id="empty"),
        pytest.param(framed(b""), id="no line"),
        pytest.param(framed(LINE[:-1]), id="no whole line"),
        pytest.param(lambda path: path.write_bytes(LINE), id="no name"),
        pytest.param(
            lambda path: path.write_bytes(drop_ways.framed("0." + "a" * 32, LINE)),
            id="another name",
        ),
    ],
)
def test_what_is_no_question_is_removed_unheard(
    looking: Looking, make: Callable[[Path], object]
) -> None:
    make(looking.questions / drop_ways.new_name(ME))
    looking.puts()
    looking.drop.look()
    assert looking.heard == [ME]
    assert looking.left == []


@pytest.mark.parametrize(
    "name",
    ["x", "1001", "1001.", f"1001.{'g' * 32}", f"01001.{'a' * 32}", f"-1.{'a' * 32}",
     f"1001.{'a' * 33}", f"{'9' * 40}.{'a' * 32}", "\udcff\n\x1b[2J", ".x"],
)  # fmt: skip
def test_a_name_that_is_none_is_removed(looking: Looking, name: str) -> None:
    assert drop_ways.parse_name(name) is None
    path = looking.questions / name
    path.touch()
    os.utime(path, (1e9, 1e9))
    looking.drop.look()
    assert (looking.heard, looking.left) == ([], [])


def test_what_is_being_written_is_left_alone_until_it_is_stale(looking: Looking) -> None:
    draft = looking.questions / f".{drop_ways.new_name(ME)}.abcdef"
    draft.touch()
    looking.drop.look()
    assert looking.left == [draft.name]
    old_s = time.time() - drop.STALE_S - 10
    os.utime(draft, (old_s, old_s))
    looking.drop.look()
    assert looking.left == []


def test_a_stale_question_is_not_answered_and_a_stale_answer_goes(looking: Looking) -> None:
    name = looking.puts()
    old_s = time.time() - drop.STALE_S - 10
    os.utime(looking.questions / name, (old_s, old_s))
    looking.drop.look()
    assert (looking.heard, looking.left) == ([], [])
    name = looking.puts()
    looking.drop.look()
    os.utime(looking.answers / name, (old_s, old_s))
    looking.drop._tidied_s = 0.0
    looking.drop.look()
    assert os.listdir(looking.answers) == []


def test_what_is_stale_the_file_server_says(
    looking: Looking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever this host believes what time it is."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 86_400)
    looking.puts()
    looking.drop.look()
    assert looking.heard == [ME]


@ROOT_ONLY
def test_many_files_of_one_user_cost_others_nothing(looking: Looking) -> None:
    def flood() -> None:
        for _ in range(3 * questions.MOST_LOOKED):
            name = drop_ways.new_name(STRANGER.uid)
            (looking.questions / name).write_bytes(drop_ways.framed(name, LINE))
        # He makes some that cannot be removed.
        for each in range(2 * questions.MOST_DIRECTORIES):
            path = looking.questions / f"d{each}"
            path.mkdir()
            (path / "x").touch()

    assert not STRANGER.does(flood)
    looking.puts(VICTIM)
    looks = 0
    while looking.drop.look():
        looks += 1
        # It hears no more of him in a look than of anybody.
        assert looking.heard.count(STRANGER.uid) <= (looks + 1) * drop.MOST_OF_USER
    assert looks <= 3
    assert looking.heard.count(VICTIM.uid) == 1
    assert len(looking.left) == 2 * questions.MOST_DIRECTORIES
    looking.puts(VICTIM)
    assert not looking.drop.look()
    assert looking.heard.count(VICTIM.uid) == 2


def test_whose_directories_cannot_be_removed_is_said_once(
    looking: Looking, caplog: pytest.LogCaptureFixture
) -> None:
    for each in range(3):
        (looking.questions / f"d{each}").mkdir()
        (looking.questions / f"d{each}" / "x").touch()
    (looking.questions / "empty").mkdir()
    for _ in range(2):
        looking.drop.look()
    assert sorted(looking.left) == ["d0", "d1", "d2"]
    assert caplog.text.count(f"of uid {ME} cannot be removed, as something is in it: root") == 1
    assert "empty" not in caplog.text
    looking.puts()
    looking.drop.look()
    assert looking.heard == [ME]


@ROOT_ONLY
def test_links_to_a_file_of_a_user_do_not_count_as_his_questions(looking: Looking) -> None:
    """Whoever can write to a file can make such links (proc(5), protected_hardlinks)."""
    target = looking.place.parent / "target"
    target.write_bytes(b"")
    os.chown(target, VICTIM.uid, VICTIM.uid)
    for _ in range(5 * drop.MOST_OF_USER):
        os.link(target, looking.questions / drop_ways.new_name(VICTIM.uid))
    for _ in range(5):
        looking.puts(VICTIM)
    looking.drop.look()
    assert looking.heard == [VICTIM.uid] * 5
    assert looking.left == []


@ROOT_ONLY
def test_an_unreadable_file_is_no_question(place: Path) -> None:
    """The broker is not root; whoever closes his file has said nothing."""
    os.chown(place, VICTIM.uid, VICTIM.groups[0])

    def broker() -> None:
        one = Drop(place, Desk(lambda *_: None))
        one.prepare()
        name = drop_ways.new_name(VICTIM.uid)
        path = place / "questions" / name
        path.write_bytes(drop_ways.framed(name, LINE))
        path.chmod(0)
        one.look()
        assert os.listdir(place / "questions") == []
        assert os.listdir(place / "answers") == []

    assert not VICTIM.does(broker)


def test_a_full_disk_costs_an_answer_and_no_other(
    looking: Looking, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, tried = documents.write_file, list[Path]()

    def fails(path: Path, data: bytes, **more: Any) -> None:
        tried.append(path)
        if len(tried) == 1:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write(path, data, **more)

    for _ in range(2):
        looking.puts()
    monkeypatch.setattr(documents, "write_file", fails)
    before = int((looking.place / "beat").read_text())
    with pytest.raises(OSError, match="No space left"):
        looking.drop.look()
    assert len(looking.heard) == 2
    assert len(os.listdir(looking.answers)) == 1
    assert int((looking.place / "beat").read_text()) == before + 1


# Whom a harvester does not believe.


def doubt(place: Path) -> str:
    with pytest.raises(leave.BrokerError) as caught:
        ways.ask(drop_ways.Drop(place), an_ask(), 0.5)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_directory_that_others_could_change_is_not_believed(
    place: Path, running: RunningDoors
) -> None:
    asks(place)
    for path, mode, why in (
        (place, 0o777, "can be written by others"),
        (place.parent, 0o777, "can be written by others"),
        (place / "answers", 0o733, "has mode 0733"),
        (place / "questions", 0o733, "has mode 0733"),
    ):
        was = stat.S_IMODE(path.stat().st_mode)
        path.chmod(mode)
        assert why in doubt(place)
        path.chmod(was)
    link = place.parent / "link"
    link.symlink_to(place)
    assert "drop://" in doubt(link)
    asks(place)


@ROOT_ONLY
@pytest.mark.parametrize("name", ["", "questions", "answers", "beat"])
def test_what_another_user_has_made_is_not_believed(looking: Looking, name: str) -> None:
    os.chown(looking.place / name, STRANGER.uid, STRANGER.uid)
    assert f"uid {STRANGER.uid}" in doubt(looking.place) or name == ""
    if name == "":
        # Then it is his who asks there, and nothing in it is.
        assert "belongs to uid 0" in doubt(looking.place)


def test_a_directory_at_which_nobody_looks_is_waited_for_no_longer_than_a_while(
    looking: Looking,
) -> None:
    assert "does not answer (nobody has looked at it for 0 s)" in doubt(looking.place)
    assert looking.left == []
    (looking.place / "beat").write_text("many\n")
    assert "beat has no number" in doubt(looking.place)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: None, "does not answer (too many calls of this user"),
        (lambda path: path.symlink_to("/etc/passwd"), "cannot be opened"),
        (os.mkfifo, "not a regular file"),
        (lambda path: path.write_bytes(b"x" * (1 << 20)), "is too large"),
        (lambda path: path.write_bytes(b"{}\n"), "has another name, or no end"),
        (framed(b"{"), "has another name, or no end"),
        (framed(b"nonsense\n"), "answers what cannot be read"),
        (of_others, "belongs to uid"),
    ],
)
def test_an_answer_that_is_none_counts_as_no_answer(
    looking: Looking, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], object], why: str
) -> None:
    name = drop_ways.new_name(ME)
    monkeypatch.setattr(drop_ways, "new_name", lambda _uid: name)
    monkeypatch.setattr(drop_ways.Drop, "_wait", lambda *_: None)
    make(looking.answers / name)
    assert why in doubt(looking.place)


def test_without_a_directory_there_is_one_line(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    assert "is not there" in doubt(tmp_path / "none")
    (tmp_path / "bare").mkdir(mode=0o755)
    assert "questions is not there" in doubt(tmp_path / "bare")


# A broker that cannot use its directory.


@pytest.mark.parametrize(
    ("make", "why", "status"),
    [
        # It may come: its file server is another host.
        (lambda path: None, "is not there", 1),
        (lambda path: path.write_text(""), "the broker is uid", 2),
        (lambda path: (path.mkdir(), path.chmod(0o777)), "can be written by others", 2),
    ],
)
def test_a_directory_that_harvesters_would_not_believe_is_refused(
    tmp_path: Path, make: Callable[[Path], object], why: str, status: int
) -> None:
    make(tmp_path / "shared")
    with pytest.raises(HpcextError) as caught:
        RunningDoors(lambda desk: Drop(tmp_path / "shared", desk))
    assert why in str(caught.value)
    assert caught.value.exit_status == status
    assert "\n" not in str(caught.value)


def test_what_a_unit_is_to_say_is_said(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(place))

    monkeypatch.setattr(Path, "mkdir", fails)
    with pytest.raises(InputError) as caught:
        RunningDoors(lambda desk: Drop(place, desk))
    assert "systemctl edit hpcext-broker: ReadWritePaths=" in str(caught.value)


@ROOT_ONLY
def test_a_directory_of_another_account_is_refused(place: Path) -> None:
    os.chown(place, STRANGER.uid, STRANGER.uid)
    with pytest.raises(InputError, match="belongs to uid 61003, and the broker is uid 0"):
        Drop(place, Desk(lambda *_: None)).prepare()


@ROOT_ONLY
def test_what_only_others_would_refuse_is_said(place: Path) -> None:
    """Above it only root's directories are believed by everybody."""
    for path in (place, place.parent):
        os.chown(path, VICTIM.uid, VICTIM.uid)

    def said() -> None:
        heard = list[str]()
        drop.log.warning = lambda text, *values: heard.append(text % values)  # type: ignore[method-assign]
        drop.check(place)
        assert heard == [
            f"drop://{place}: harvesters of others will refuse it: {place.parent} belongs to uid "
            f"{VICTIM.uid}, and not to root"
        ]

    # In a fork of its own.
    assert not VICTIM.does(said)
    assert STRANGER.does(lambda: asks(place)).startswith("BrokerError")


def test_a_mistake_of_ours_costs_a_look(
    place: Path,
    running: RunningDoors,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(drop, "sample", lambda _there: 1 / 0)
        wait_for(lambda: "was not looked at" in caplog.text, "what is said")
    assert asks(place).nodes == 3


def test_a_broker_goes_on_when_its_directory_is_there_again(
    place: Path, running: RunningDoors, caplog: pytest.LogCaptureFixture
) -> None:
    away = place / "away"
    (place / "questions").rename(away)
    wait_for(lambda: "cannot be used: No such file" in caplog.text, "what is said")
    away.rename(place / "questions")
    assert asks(place).nodes == 3
    wait_for(lambda: "can be used again" in caplog.text, "what is said")
    assert caplog.text.count("cannot be used") == 1
