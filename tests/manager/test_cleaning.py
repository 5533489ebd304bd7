"""What may be removed of pilots, how it goes, and that it goes on where it was interrupted."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from made_pilots import STORY, make
from msgspec.structs import replace
from told_journal import tell

from hpcext import backends, documents
from hpcext.backends.slurm import job as slurm_job
from hpcext.batch.jobs import Seen
from hpcext.config import Settings, load_settings
from hpcext.core import facts as f
from hpcext.core.errors import BatchError, HpcextError, InputError, NoManagerError
from hpcext.core.values import Node
from hpcext.harvest.leases import Terms
from hpcext.jobspec import Gpus, JobSpec
from hpcext.launch import agent
from hpcext.launch.tree import boot_id
from hpcext.manager import cleaning, locks
from hpcext.manager import journal as journals
from hpcext.manager import pilot as pilots
from hpcext.manager.cleaning import emptying
from hpcext.manager.cleaning.places import GOING
from hpcext.manager.submissions import Submissions
from hpcext.process import Process
from hpcext.training.checkpoint import Store

OVER = [
    (0.0, [f.NodeJoined(Node("a", 2)), f.Started("1", 1, ("a:0", "a:1"))]),
    (9.0, [f.Ended("1", 1, f.Outcome.COMPLETED, 0)]),
]
"""All jobs have ended."""

DAY_S = 86_400.0


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HPCEXT_STATE_DIR", str(tmp_path / "state"))
    return load_settings().state_dir


def begin(
    state: Path,
    name: str,
    *,
    directory: Path | None = None,
    story: Any = OVER,
    days_ago: float = 0.0,
    **spec: Any,
) -> Path:
    """A pilot with one job of some files."""
    path = pilots.create(
        [JobSpec("one", spec.pop("command", ("true",)), gpus=Gpus(2, 2), **spec)],
        pilots.NewPilot(
            name=name,
            gpus=range(2),
            logical=True,
        ),
        settings=Settings(policy="equal_share", state_dir=state),
        where="jobs.toml",
        directory=directory,
    )
    header = journals.Header(began_at=time.time(), policy="equal_share")
    jobs = map(f.Submitted, Submissions(path / "submissions").jobs)
    tell(path / "journal.jsonl", header, (0.0, jobs), *story)
    attempt = path / "jobs" / "1" / "attempt-0001"
    attempt.mkdir(parents=True)
    (attempt / "exit.json").write_text("{}")
    (path / "jobs" / "1" / "log.txt").write_text("said\n" * 1000)
    (path / "jobs" / "1" / "checkpoint").mkdir()
    if days_ago:
        old = time.time() - days_ago * DAY_S
        what = replace(pilots.load(path), began_at=old)
        documents.write_file(path / "pilot.json", msgspec.json.encode(what))
        for each in ("pilot.json", "journal.jsonl"):
            os.utime(path / each, (old, old))
    return path


def entry(state: Path, path: Path) -> Path:
    return state / "pilots" / pilots.load(path).id


def whole(state: Path, path: Path) -> cleaning.RemovalPlan:
    return cleaning.plan_whole(path, cleaning.Needs(state))


def listing(path: Path) -> dict[str, bytes | None]:
    return {
        str(each.relative_to(path)): each.read_bytes() if each.is_file() else None
        for each in sorted(path.rglob("*"))
        if each.name != "manager.lock"
    }


@pytest.fixture(params=["in the state directory", "elsewhere"])
def place(request: pytest.FixtureRequest, state: Path, tmp_path: Path) -> Callable[[str], Path]:
    def make_(name: str) -> Path:
        away = tmp_path / f"dir-{name}" if request.param == "elsewhere" else None
        return begin(state, name, directory=away)

    return make_


def test_all_of_a_pilot_goes_and_its_place_in_the_list(
    state: Path, place: Callable[[str], Path]
) -> None:
    path, other = place("goes"), place("stays")
    before, listed = listing(other), entry(state, path)
    plan = whole(state, path)
    assert plan.size.bytes >= 5000
    assert (plan.parts, plan.left) == ((), 0)
    assert cleaning.remove(plan, state) == 0
    assert not os.path.lexists(path)
    assert not os.path.lexists(listed)
    assert listing(other) == before
    assert [each for each, _ in pilots.known(state)] == [other]


class Killed(BaseException):
    """As if the process were no more."""


@pytest.mark.parametrize("outside", [False, True])
def test_a_removal_that_is_killed_at_any_moment_is_finished_by_the_next(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outside: bool
) -> None:
    """Before its first rename all is as it was; after it there is no pilot."""
    moments = 0
    while True:
        path = begin(state, f"p{moments}", directory=tmp_path / f"d{moments}" if outside else None)
        listed, before, plan = entry(state, path), listing(path), whole(state, path)
        calls = 0

        def dying(real: Callable[..., Any], moment: int) -> Callable[..., Any]:
            def call(*args: Any, **words: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls > moment:
                    raise Killed
                return real(*args, **words)

            return call

        with monkeypatch.context() as patch:
            for name in ("unlink", "rmdir", "rename", "replace"):
                patch.setattr(os, name, dying(getattr(os, name), moments))
            try:
                cleaning.remove(plan, state)
                survived = True
            except Killed:
                survived = False
        if survived:
            break
        if os.path.lexists(path / "pilot.json"):
            assert moments == 0
            assert listing(path) == before
            cleaning.remove(plan, state)
        else:
            assert pilots.known(state) == []
            for handle in (str(path), listed.name, f"p{moments}"):
                with pytest.raises(NoManagerError):
                    pilots.load(pilots.find(handle, state))
            cleaning.finish(state)
        assert not os.path.lexists(path)
        assert os.listdir(state / "pilots") == []
        moments += 1
    assert moments >= 10
    assert cleaning.finish(state) == []


def test_a_pilot_that_is_being_made_is_not_an_unfinished_removal(
    state: Path, tmp_path: Path
) -> None:
    whole_one = begin(state, "whole", directory=tmp_path / "whole")
    half = begin(state, "half", directory=tmp_path / "half")
    (half / "pilot.json").unlink()
    away = begin(state, "away", directory=tmp_path / "away")
    shutil.move(tmp_path / "away", tmp_path / "not mounted")
    before = sorted(os.listdir(state / "pilots"))
    assert cleaning.finish(state) == []
    assert sorted(os.listdir(state / "pilots")) == before
    assert whole_one.is_dir()
    assert half.is_dir()
    assert not away.exists()


# What may not go.


def test_a_pilot_that_a_manager_runs_stays(state: Path) -> None:
    path = begin(state, "runs")
    plan = whole(state, path)
    before = listing(path)
    with locks.held(path / "manager.lock"):
        with pytest.raises(NoManagerError, match="a manager runs it"):
            whole(state, path)
        with pytest.raises(NoManagerError, match="a manager runs it"):
            cleaning.remove(plan, state)
        _, kept = cleaning.plan(state, older_than_s=-1, keep="none", now=time.time())
        assert [(each.id, "a manager runs it" in each.why) for each in kept] == [(path.name, True)]
    assert listing(path) == before


def test_a_pilot_whose_training_goes_on_without_a_manager_stays(state: Path) -> None:
    path = begin(state, "alone", story=STORY)
    me = Process.me()
    attempt = path / "jobs" / "1" / "attempt-0001"
    facts = {"schema": "hpcext.supervisor/1", "pid": me.pid, "start": me.start}
    documents.write_json(attempt / "supervisor.json", {**facts, "boot_id": boot_id()})
    (attempt / "exit.json").unlink()
    with pytest.raises(NoManagerError, match=f"still runs .pid {me.pid}"):
        whole(state, path)
    (attempt / "exit.json").write_text("{}")
    assert whole(state, path).left == 1
    (attempt / "exit.json").unlink()
    documents.write_json(attempt / "supervisor.json", {**facts, "boot_id": "another"})
    manager = {"schema": "hpcext.manager/1", "pid": 1, "start": 1, "host": "far"}
    documents.write_json(path / "manager.json", {**manager, "boot_id": "another"})
    with pytest.raises(NoManagerError, match="may still run on far"):
        whole(state, path)


class Batch:
    """What a batch system says of jobs."""

    def __init__(self, said: dict[int, str] | BatchError) -> None:
        self.said = said

    def seen(self, ids: list[int]) -> dict[int, Seen]:
        if isinstance(self.said, BatchError):
            raise self.said
        return {each: Seen(self.said[each]) for each in ids if each in self.said}


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({7: "running"}, "its job 7 of Slurm still exists .running"),
        ({7: "pending"}, "pending"),
        ({7: "completing"}, "completing"),
        ({7: "suspended"}, "suspended"),
        ({7: "unknown"}, "it is unknown whether its job 7 of Slurm runs"),
        (BatchError("no answer"), "Slurm does not say"),
        ({7: "timeout"}, ""),
        ({}, ""),
    ],
)
def test_a_pilot_whose_allocation_is_there_or_cannot_be_asked_for_stays(
    state: Path, monkeypatch: pytest.MonkeyPatch, said: dict[int, str] | BatchError, why: str
) -> None:
    monkeypatch.setattr(backends.find("slurm"), "jobs", lambda: Batch(said))
    path = pilots.create(
        [],
        pilots.NewPilot(
            name="batch",
            gpus=range(2),
            logical=False,
            batch="slurm",
        ),
        settings=Settings(state_dir=state),
        where="",
    )
    with pytest.raises(NoManagerError, match="its submission may be in progress"):
        whole(state, path)
    slurm_job.SUBMITTED.write(path, 7, None)
    if why:
        with pytest.raises(NoManagerError, match=why):
            whole(state, path)
    else:
        assert cleaning.remove(whole(state, path), state) == 0


def test_a_used_pilot_of_an_unknown_job_stays(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On another cluster nobody knows it, and there it may run."""
    path = begin(state, "ran", story=OVER[:1])
    what = replace(pilots.load(path), batch="slurm")
    documents.write_file(path / "pilot.json", msgspec.json.encode(what))
    slurm_job.SUBMITTED.write(path, 7, ["--nodes=1"])
    monkeypatch.setattr(backends.find("slurm"), "jobs", lambda: Batch({}))
    with pytest.raises(NoManagerError, match=r"neither Slurm nor its accounting knows job 7.*one"):
        whole(state, path)
    monkeypatch.setattr(backends.find("slurm"), "jobs", lambda: Batch({7: "cancelled"}))
    assert cleaning.remove(whole(state, path), state) == 0


def test_a_harvester_with_a_lease_stays(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make("idle", OVER, terms=Terms(partition="gpu", gpus=2))
    path = state / "pilots" / made
    lease = path / "leases" / "1" / agent.LEASE_FILE
    lease.parent.mkdir(parents=True)
    documents.write_json(lease, {"schema": agent.LEASE, "job_id": 9})
    monkeypatch.setattr(backends.find("slurm"), "jobs", lambda: Batch({9: "running"}))
    with pytest.raises(NoManagerError, match="its job 9 of Slurm still exists"):
        whole(state, path)
    documents.write_json(lease, {"schema": agent.LEASE, "job_id": None})
    with pytest.raises(NoManagerError, match="unknown what became of one of its leases"):
        whole(state, path)
    documents.write_json(lease, {"schema": agent.LEASE, "job_id": 10})
    assert cleaning.remove(whole(state, path), state) == 0


def linked(state: Path, old: Path) -> Path:
    new = begin(state, "new")
    place = new / "jobs" / "1" / "checkpoint"
    place.rmdir()
    place.symlink_to(old / "jobs" / "1" / "checkpoint")
    return new


def linked_one_checkpoint(state: Path, old: Path) -> Path:
    new = begin(state, "new")
    (old / "jobs" / "1" / "checkpoint" / "step").mkdir()
    link = new / "jobs" / "1" / "checkpoint" / "base"
    link.symlink_to(old / "jobs" / "1" / "checkpoint" / "step")
    return new


def inside(state: Path, old: Path) -> Path:
    return begin(state, "new", directory=old / "nested")


def named(state: Path, old: Path) -> Path:
    return begin(state, "new", story=STORY, command=("train", f"--from={old}/jobs/1/checkpoint"))


def named_from_its_directory(state: Path, old: Path) -> Path:
    words = ("train", f"{old.name}/jobs/1/checkpoint")
    return begin(state, "new", story=STORY, command=words, workdir=str(old.parent))


@pytest.mark.parametrize(
    "refer", [linked, linked_one_checkpoint, inside, named, named_from_its_directory]
)
def test_what_another_pilot_needs_stays_until_that_is_gone(
    state: Path, refer: Callable[[Path, Path], Path]
) -> None:
    old = begin(state, "old")
    new = refer(state, old)
    with pytest.raises(InputError, match=f"pilot {new.name} needs its files"):
        whole(state, old)
    assert cleaning.remove(whole(state, new), state) == 0
    assert (old / "jobs" / "1" / "checkpoint").is_dir()
    assert cleaning.remove(whole(state, old), state) == 0


def test_a_name_that_begins_alike_or_a_job_that_is_done_needs_nothing(state: Path) -> None:
    old = begin(state, "old")
    begin(state, "alike", story=STORY, command=("train", f"{old}-more/jobs"))
    begin(state, "done", command=("train", f"--from={old}/jobs/1/checkpoint"))
    assert whole(state, old).left == 0


# What lies in it.


def test_no_link_is_followed_out(state: Path, tmp_path: Path) -> None:
    path = begin(state, "links")
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    (outside / "deep" / "precious").write_text("mine")
    job = path / "jobs" / "1"
    (job / "checkpoint").rmdir()
    (job / "checkpoint").symlink_to(outside)
    (job / "attempt-0001" / "up").symlink_to("../../../..")
    (job / "attempt-0001" / "file").symlink_to(outside / "deep" / "precious")
    (path / "jobs" / "2").symlink_to(outside)
    going, _ = cleaning.plan(state, older_than_s=-1, keep="last", now=time.time())
    assert all(outside not in part.parents for plan in going for part in plan.parts)
    assert cleaning.remove(whole(state, path), state) == 0
    assert (outside / "deep" / "precious").read_text() == "mine"
    assert not path.exists()


def test_what_is_closed_deep_or_oddly_named_goes_too(state: Path) -> None:
    path = begin(state, "odd")
    closed = path / "jobs" / "1" / "closed"
    closed.mkdir()
    (closed / "file").write_text("x")
    closed.chmod(0)
    (path / "jobs" / "1" / "a\nb\udcff").write_text("x")
    os.mkfifo(path / "jobs" / "1" / "fifo")
    fd = os.open(path / "jobs", os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    plan = cleaning.RemovalPlan(path, path.name, (), cleaning.DiskUse(), 0)
    assert cleaning.remove(plan, state) == 0
    assert not path.exists()


def test_a_full_disk_keeps_nothing_from_going(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file can be made, and only an empty one be unlinked, as on some file systems."""
    path = begin(state, "full")
    real_open, real_unlink = os.open, os.unlink

    def unlinked(name: Any, *, dir_fd: int | None = None) -> None:
        if dir_fd is not None and os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(name))
        real_unlink(name, dir_fd=dir_fd)

    def opened(name: Any, flags: int, *args: Any, **words: Any) -> int:
        if flags & os.O_CREAT and "dir_fd" not in words and not os.path.lexists(name):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(name))
        return real_open(name, flags, *args, **words)

    monkeypatch.setattr(os, "unlink", unlinked)
    monkeypatch.setattr(os, "open", opened)
    assert cleaning.remove(whole(state, path), state) == 0
    assert not path.exists()


def test_files_of_others_stay_and_are_counted(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = begin(state, "shared")
    theirs = path / "jobs" / "1" / "theirs"
    theirs.write_text("theirs")
    real, number = os.geteuid, theirs.stat().st_ino

    class Entry:
        def __init__(self, entry: os.DirEntry[str]) -> None:
            self.name, self._entry = entry.name, entry

        def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
            facts = self._entry.stat(follow_symlinks=follow_symlinks)
            if facts.st_ino != number:
                return facts
            return os.stat_result([*facts[:4], real() + 1, *facts[5:10]], facts.__reduce__()[1][1])

    class Scan:
        def __init__(self, entries: Iterator[os.DirEntry[str]]) -> None:
            self._entries = entries

        def __enter__(self) -> Iterator[Entry]:
            return map(Entry, self._entries)

        def __exit__(self, *_: object) -> None:
            self._entries.close()  # type: ignore[attr-defined]

    plan, scandir = whole(state, path), os.scandir
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", lambda fd: Scan(scandir(fd)))
        told: list[str] = []
        cleaning.doing([plan], state, told.append)
    assert told == [f"{path.name}: 1 file not removed (of other users, or on other file systems)"]
    assert theirs.read_text() == "theirs"
    assert pilots.known(state) == []
    # As soon as it is gone, the rest goes.
    assert cleaning.finish(state) == [path.name]
    assert not path.exists()


def test_what_was_to_become_a_pilot_goes_after_a_day(state: Path) -> None:
    pid = os.fork()
    if pid == 0:
        # Killed just before the directory gets its name.
        Path.rename = lambda *_: os._exit(9)  # type: ignore[method-assign]
        begin(state, "never")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    (draft,) = (state / "pilots").iterdir()
    assert (draft / "pilot.json").exists()
    assert pilots.known(state) == []
    # Somebody may be filling it.
    assert cleaning.finish(state) == []
    assert draft.exists()
    old = time.time() - DAY_S - 1
    os.utime(draft, (old, old))
    assert cleaning.finish(state) == []
    assert list((state / "pilots").iterdir()) == []


# Pruning.


def save(place: Path, *steps: int) -> list[Path]:
    store = Store(place, attempt=1, keep=10)
    store.open()
    for step in steps:
        store.commit(
            step,
            {"done": step},
            lambda draft: draft.write("state", lambda file: file.write(b"x" * 10_000) and None),
        )
    return sorted(place.glob("step-*"))


@pytest.mark.parametrize(("keep", "stay"), [("last", [2]), ("all", [0, 1, 2]), ("none", None)])
def test_checkpoints_that_stay(state: Path, keep: cleaning.Keep, stay: list[int] | None) -> None:
    old = begin(state, "old", days_ago=40)
    young, left = begin(state, "young"), begin(state, "left", story=STORY, days_ago=40)
    place = old / "jobs" / "1" / "checkpoint"
    saved = save(place, 5, 10, 15)
    second = save(place / "training-2", 5, 10, 15)
    (place / ".draft-step-1.attempt-0001.x").mkdir()
    (place / "own.ckpt").write_text("of another framework")
    others = {path: listing(path) for path in (young, left)}
    going, kept = cleaning.plan(state, older_than_s=30 * DAY_S, keep=keep, now=time.time())
    assert [plan.id for plan in going] == [old.name]
    assert [(each.id, "1 job is not done" in each.why) for each in kept] == [(left.name, True)]
    before = cleaning.size_of([old]).bytes
    assert cleaning.doing(going, state, pytest.fail) == going
    after = cleaning.size_of([old]).bytes
    assert before - after == going[0].size.bytes
    assert {path: listing(path) for path in others} == others
    if stay is None:
        assert not old.exists()
        return
    assert sorted(place.glob("step-*")) == [saved[each] for each in stay]
    assert sorted((place / "training-2").glob("step-*")) == [second[each] for each in stay]
    assert (place / "own.ckpt").exists()
    assert not list(place.glob(".draft*"))
    assert not list(old.glob("jobs/*/attempt-*"))
    # What it was and what happened is still known.
    assert pilots.load(old).id == old.name
    assert (old / "jobs" / "1" / "log.txt").exists()
    again, _ = cleaning.plan(state, older_than_s=30 * DAY_S, keep=keep, now=time.time())
    assert again == []


def test_the_last_checkpoint_that_verifies_stays(state: Path) -> None:
    old = begin(state, "old", days_ago=40)
    saved = save(old / "jobs" / "1" / "checkpoint", 5, 10, 15)
    (saved[2] / "state").write_bytes(b"damaged")
    going, _ = cleaning.plan(state, older_than_s=DAY_S, keep="last", now=time.time())
    cleaning.doing(going, state, pytest.fail)
    assert [path.exists() for path in saved] == [False, True, True]


def test_where_none_verifies_all_stay(state: Path) -> None:
    old = begin(state, "old", days_ago=40)
    saved = save(old / "jobs" / "1" / "checkpoint", 5, 10)
    for path in saved:
        (path / "state").write_bytes(b"damaged")
    going, _ = cleaning.plan(state, older_than_s=DAY_S, keep="last", now=time.time())
    cleaning.doing(going, state, pytest.fail)
    assert all(path.exists() for path in saved)


def test_an_old_checkpoint_that_another_pilot_needs_stays(state: Path) -> None:
    old = begin(state, "old", days_ago=40)
    saved = save(old / "jobs" / "1" / "checkpoint", 5, 10, 15)
    begin(state, "new", story=STORY, command=("train", f"--from={saved[0]}"))
    going, _ = cleaning.plan(state, older_than_s=DAY_S, keep="last", now=time.time())
    cleaning.doing(going, state, pytest.fail)
    assert [path.exists() for path in saved] == [True, False, True]


def test_a_half_removed_checkpoint_is_not_used(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = begin(state, "old", days_ago=40)
    place = old / "jobs" / "1" / "checkpoint"
    save(place, 5, 10)
    going, _ = cleaning.plan(state, older_than_s=DAY_S, keep="last", now=time.time())

    def killed(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(emptying, "unlink", killed)
        with pytest.raises(Killed):
            cleaning.doing(going, state, pytest.fail)
    again, _ = cleaning.plan(state, older_than_s=DAY_S, keep="last", now=time.time())
    assert any(GOING in part.name for part in again[0].parts)
    cleaning.doing(again, state, pytest.fail)
    assert [path.name[:14] for path in place.glob("step-*")] == ["step-000000010"]
    assert not list(old.rglob(f"{GOING}*"))


def test_what_stays_keeps_what_it_needs(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two are to go; the newer one cannot, so the older one does not."""
    old = begin(state, "old", days_ago=50)
    new = begin(state, "new", days_ago=40)
    place = new / "jobs" / "1" / "checkpoint"
    place.rmdir()
    place.symlink_to(old / "jobs" / "1" / "checkpoint")
    going, _ = cleaning.plan(state, older_than_s=DAY_S, keep="none", now=time.time())
    assert [plan.id for plan in going] == [new.name, old.name]
    told: list[str] = []
    with locks.held(new / "manager.lock"):
        assert cleaning.doing(going, state, told.append) == []
    assert ["a manager runs it" in told[0], "needs its files" in told[1]] == [True, True]
    assert cleaning.doing(going, state, pytest.fail) == going


def test_sizes_count_a_file_of_two_names_once_and_follow_no_link(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_bytes(b"x" * 100_000)
    alone = cleaning.size_of([tmp_path / "a"])
    os.link(tmp_path / "a" / "file", tmp_path / "a" / "again")
    (tmp_path / "a" / "link").symlink_to("/usr")
    both = cleaning.size_of([tmp_path / "a"])
    assert 100_000 <= alone.bytes <= both.bytes <= alone.bytes + 8192
    assert cleaning.size_of([tmp_path / "nowhere"]) == cleaning.DiskUse()


def test_errors_are_one_line(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = begin(state, "stuck")
    plan = whole(state, path)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), "here")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(HpcextError, match=r"here: cannot be removed: Read-only file system"):
        cleaning.remove(plan, state)
    assert pilots.load(path)
