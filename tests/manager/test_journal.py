"""The journal: what was written is what is read, and a broken one says where."""

from __future__ import annotations

import contextlib
import errno
import json
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from hpcext.core import facts as f
from hpcext.core import values as v
from hpcext.core.engine import Engine
from hpcext.core.errors import JournalError
from hpcext.core.estimate import GoodputReport
from hpcext.core.history.node_time import Meter
from hpcext.manager import journal, kept_worlds
from hpcext.policies import find_policy

HEADER = journal.Header(began_at=1000.0, policy="marble")
MARBLE = find_policy("marble")


def a_job(number: int = 1) -> v.Job:
    return v.Job(str(number), f"job{number}", number, (1, 2, 3), 3)


GOODPUT = GoodputReport(900.5, 128, throughput=(0.02, 1e-3, 0.0, 0.0, 0.1, 0.003, 2.5))
STEPS: list[tuple[float, tuple[f.Fact, ...]]] = [
    (0.0, (f.Began(), f.NodeJoined(v.Node("n", 4)), f.Submitted(a_job(1)), f.Submitted(a_job(2)))),
    (1.0, (f.Started("1", 1, ("n:0", "n:1", "n:2")),)),
    (1.5, (f.Started("2", 2, ("n:3",)), f.Registered("1", 1, 0), f.Registered("2", 2, 0))),
    (3.0, (f.Progressed("1", 1, 10, 5, 10.0, 2.5, {"loss": 0.5}, {"start_s": 1.0}),)),
    (3.5, (f.Progressed("2", 2, 1, goodput=GOODPUT),)),
    (4.0, (f.Ended("1", 1, f.Outcome.COMPLETED, 0),)),
    (4.2, (f.Ended("2", 2, f.Outcome.SUSPENDED, 85, {"write_s": 0.1}),)),
    (5.0, (f.Hold("2"), f.Drain())),
]


def live(path: Path) -> Engine:
    """A manager's main path: step, have the question answered, write both down."""
    book = journal.Journal(path, HEADER)
    engine = Engine()
    for now_s, facts in STEPS:
        book.note(now_s, facts)
        engine.step(now_s, facts)
        if engine.wants is not None:
            decided = engine.answer(MARBLE(engine.wants.now), terse=True)
            book.note(now_s, (decided,))
            engine.step(now_s, (decided,))
        book.commit()
    book.close()
    return engine


@contextlib.contextmanager
def full_disk(at_bytes: int) -> Iterator[None]:
    """No file of this process can grow beyond so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (at_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_replay_leads_to_the_same_world(tmp_path: Path) -> None:
    engine = live(tmp_path / "j")
    past = journal.read(tmp_path / "j")
    assert past.now_s == 5.0
    assert past.replay().world.save() == engine.world.save()
    assert engine.world.jobs["1"].state is v.State.COMPLETED
    assert past.replay().world.jobs["2"].estimate.goodput == GOODPUT


def test_compaction_keeps_the_world_and_what_follows(tmp_path: Path) -> None:
    engine = live(tmp_path / "j")
    book = journal.Journal(tmp_path / "j", HEADER)
    book.compact(5.0, engine.world.save())
    book.append(6.0, (f.Release("2"),))
    book.close()
    engine.step(6.0, (f.Release("2"),))
    past = journal.read(tmp_path / "j")
    assert (len(past.entries), past.header.began_at) == (1, 1000.0)
    assert past.replay().world.save() == engine.world.save()


def test_compaction_keeps_what_the_time_of_nodes_went_into(tmp_path: Path) -> None:
    live(tmp_path / "j")
    whole, far = journal.read(tmp_path / "j").recount()[1], (9.0, (f.Release("2"),))
    engine, time = journal.read(tmp_path / "j").recount()
    book = journal.Journal(tmp_path / "j", HEADER)
    book.compact(5.0, engine.world.save(), time)
    book.append(*far)
    book.close()
    meter = Meter(engine.world, whole)
    engine.step(*far)
    meter.watch(*far)
    past = journal.read(tmp_path / "j")
    assert past.recount()[1] == past.recount()[1] == whole
    assert whole.held_s == 9.0 - STEPS[0][0]


def test_what_an_older_release_compacted_counts_from_there(tmp_path: Path) -> None:
    engine = live(tmp_path / "j")
    book = journal.Journal(tmp_path / "j", HEADER)
    book.compact(5.0, engine.world.save())
    book.append(6.0, (f.Release("2"),))
    book.close()
    _, time = journal.read(tmp_path / "j").recount()
    assert (time.held_s, time.at_s, time.away_s) == (1.0, 6.0, 5.0)


def test_what_release_0_1_0_knew_of_an_attempt_is_kept(tmp_path: Path) -> None:
    engine = Engine(MARBLE)
    job = v.Job("1", "one", 1, (1, 2), 2, nodes=(1, 1))
    engine.step(0.0, (f.NodeJoined(v.Node("n", 2)), f.Submitted(job)))
    engine.step(1.0, (f.Started("1", 1, ("n:0", "n:1")),))
    engine.step(2.0, (f.Registered("1", 1, 0, in_place=True), f.NotSaved("1", 1, "disk full", 1)))
    engine.world.change_run(engine.world.jobs["1"], degraded=True, resize_to={"n": 1})
    book = journal.Journal(tmp_path / "j", HEADER)
    book.compact(2.0, engine.world.save())
    book.close()
    # It stood among the job's own values.
    document = json.loads((tmp_path / "j").read_bytes())
    (its,) = document["saved"]["jobs"]
    its |= its.pop("run")
    its["maimed"], its["asked"] = its.pop("degraded"), its.pop("resize_to")
    (tmp_path / "j").write_text(json.dumps(document) + "\n")
    assert its.keys() >= {"registered", "in_place", "unsaved"}
    assert journal.read(tmp_path / "j").replay().world.save() == engine.world.save()


def test_a_drain_that_suspends_is_written_and_read_as_release_0_1_0_called_it(
    tmp_path: Path,
) -> None:
    engine = Engine(MARBLE)
    book = journal.Journal(tmp_path / "j", HEADER)
    book.append(0.0, (f.Drain(suspend=True),))
    engine.step(0.0, (f.Drain(suspend=True),))
    assert json.loads((tmp_path / "j").read_text().splitlines()[1])[1][0]["stop"] is True
    assert journal.read(tmp_path / "j").replay().world.suspending
    book.compact(0.0, engine.world.save())
    book.close()
    assert json.loads((tmp_path / "j").read_bytes())["saved"]["stopping"] is True
    assert journal.read(tmp_path / "j").replay().world.suspending


@pytest.mark.parametrize("cut", [1, 7, 30])
def test_a_torn_last_line_is_left_out_and_overwritten(tmp_path: Path, cut: int) -> None:
    live(tmp_path / "j")
    data = (tmp_path / "j").read_bytes()
    (tmp_path / "j").write_bytes(data[:-cut])
    past = journal.read(tmp_path / "j")
    lines = data.splitlines()
    assert (len(past.entries), past.size < len(data) - cut) == (len(lines) - 2, True)
    book = journal.Journal(tmp_path / "j", HEADER)
    last = msgspec.json.decode(lines[-1], type=journal.Entry)
    book.append(last.now_s, last.facts)
    book.close()
    assert (tmp_path / "j").read_bytes() == data


@pytest.mark.parametrize("line", [1, 3, len(STEPS) + 1])
def test_a_damaged_line_is_named_and_nothing_is_changed(tmp_path: Path, line: int) -> None:
    live(tmp_path / "j")
    lines = (tmp_path / "j").read_bytes().splitlines(keepends=True)
    lines[line - 1] = lines[line - 1].replace(b"[", b"#", 1).replace(b"{", b"#", 1)
    damaged = b"".join(lines)
    (tmp_path / "j").write_bytes(damaged)
    with pytest.raises(JournalError, match=f"line {line} is damaged"):
        journal.read(tmp_path / "j")
    with pytest.raises(JournalError):
        journal.Journal(tmp_path / "j", HEADER)
    assert (tmp_path / "j").read_bytes() == damaged


def test_an_empty_journal_and_none_at_all(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(JournalError, match="is empty"):
        journal.read(tmp_path / "empty")
    with pytest.raises(JournalError, match="No such file"):
        journal.read(tmp_path / "none")


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    (tmp_path / "j").write_text('{"schema":"hpcext.journal/3","began_at":1,"policy":"x"}\n')
    with pytest.raises(JournalError, match="written by a later release"):
        journal.read(tmp_path / "j")


@pytest.mark.parametrize("room", [0, 5, 60])
def test_a_full_disk_leaves_whole_lines_and_writing_goes_on_later(
    tmp_path: Path, room: int
) -> None:
    live(tmp_path / "j")
    book = journal.Journal(tmp_path / "j", HEADER)
    before = (tmp_path / "j").read_bytes()
    entry = (6.0, tuple(f.Submitted(replace(a_job(), id=str(n))) for n in range(3, 9)))
    with full_disk(len(before) + room), pytest.raises(JournalError, match="cannot be written"):
        book.append(*entry)
    assert (tmp_path / "j").read_bytes() == before
    assert book.behind
    book.commit()
    book.close()
    assert journal.read(tmp_path / "j").entries[-1].facts == entry[1]


def test_a_compaction_on_a_full_disk_keeps_the_old_journal(tmp_path: Path) -> None:
    engine = live(tmp_path / "j")
    book = journal.Journal(tmp_path / "j", HEADER)
    before = (tmp_path / "j").read_bytes()
    with full_disk(100), pytest.raises(OSError, match="large"):
        book.compact(5.0, engine.world.save())
    assert (tmp_path / "j").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["j"]
    book.append(6.0, (f.Release("2"),))
    assert journal.read(tmp_path / "j").now_s == 6.0
    book.close()


def test_a_directory_that_cannot_be_flushed_costs_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the new journal has its name, nothing goes to the old one any more."""
    engine, errors = live(tmp_path / "j"), [OSError(errno.EIO, "Input/output error")] * 2
    book, sync = journal.Journal(tmp_path / "j", HEADER), journal.sync_directory

    def failing(path: Path) -> None:
        if errors:
            raise errors.pop()
        sync(path)

    monkeypatch.setattr(journal, "sync_directory", failing)
    book.compact(5.0, engine.world.save())
    with pytest.raises(JournalError, match="Input/output error"):
        book.append(6.0, (f.Release("2"),))
    book.commit()
    book.close()
    past = journal.read(tmp_path / "j")
    assert (past.header.now_s, past.now_s) == (5.0, 6.0)


def test_without_free_descriptors_the_old_journal_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = live(tmp_path / "j")
    book = journal.Journal(tmp_path / "j", HEADER)

    def none_free(path: Path) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(journal.private, "open_log", none_free)
        with pytest.raises(OSError, match="Too many open files"):
            book.compact(5.0, engine.world.save())
    book.append(6.0, (f.Release("2"),))
    book.close()
    assert journal.read(tmp_path / "j").now_s == 6.0


def test_each_line_is_plain_json(tmp_path: Path) -> None:
    live(tmp_path / "j")
    documents = [json.loads(line) for line in (tmp_path / "j").read_text().splitlines()]
    assert documents[0]["schema"] == "hpcext.journal/2"
    assert documents[1][1][1]["node"] == {
        "name": "n",
        "gpus": 4,
        "kind": "",
        "since_s": None,
        "ends_s": None,
        "planned": True,
        "seats": 0,
    }


def test_of_a_compacted_journal_a_world_a_day_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first of each day, for so many days; a full disk costs these alone."""
    monkeypatch.setattr(kept_worlds, "MOST_KEPT", 3)
    path = tmp_path / "journal.jsonl"
    book, saved = journal.Journal(path, HEADER), Engine(MARBLE).world.save()
    day_s = kept_worlds.KEPT_EVERY_S
    for at_s in (10.5, 20.0, *(day_s * day + 11 for day in range(1, 5))):
        book.compact(at_s, saved)
    kept = [at_s for at_s in range(0, int(6 * day_s), 3600) if journal.read_kept(path, at_s)]
    assert kept[0] == pytest.approx(2 * day_s + 11, abs=3600)
    found = journal.read_kept(path, 3.5 * day_s)
    assert found is not None
    assert found.now_s == day_s * 3 + 11
    shutil.rmtree(tmp_path / kept_worlds.KEPT_DIR)
    (tmp_path / kept_worlds.KEPT_DIR).write_text("")
    book.compact(9 * day_s, saved)
    assert "could not be stored for reports" in caplog.text
    assert journal.read(path).now_s == 9 * day_s
    book.close()


def test_a_kept_world_that_is_damaged_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    book = journal.Journal(path, HEADER)
    book.compact(5.0, Engine(MARBLE).world.save())
    book.compact(200_000.0, Engine(MARBLE).world.save())
    book.close()
    folder = tmp_path / kept_worlds.KEPT_DIR
    shutil.copy(folder / f"{5:012d}.json.gz", folder / "5 (copy).json.gz")
    (folder / f"{200_000:012d}.json.gz").write_bytes(b"no gzip")
    found = journal.read_kept(path, 1e6)
    assert found is not None
    assert found.now_s == 5.0
