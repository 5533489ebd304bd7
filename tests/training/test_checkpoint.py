"""The store, by its own: what a crash, a bad disk or a late writer can do to it."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcext.training.checkpoint import CheckpointError, Draft, FencedError, Store


def opened(path: Path, attempt: int | None = None, keep: int = 2) -> Store:
    store = Store(path, attempt=attempt, keep=keep)
    store.open()
    return store


def put(store: Store, step: int, content: bytes | None = None) -> Path:
    data = f"state of step {step}".encode() * 20 if content is None else content

    def fill(draft: Draft) -> None:
        draft.write("state", lambda file: file.write(data))

    return store.commit(step, {"done": step}, fill).path


def names(path: Path) -> set[str]:
    return {entry.name for entry in path.iterdir()}


def newest_step(store: Store) -> int:
    found = store.newest()
    assert found is not None
    step: int = found.manifest["step"]
    assert (found.path / "state").read_bytes() == f"state of step {step}".encode() * 20
    return step


def test_commit_and_find(tmp_path: Path) -> None:
    store = opened(tmp_path / "new" / "checkpoint", attempt=4)
    assert store.newest() is None
    path = put(store, 123)
    assert path.name == "step-000000123.attempt-0004"
    assert newest_step(store) == 123
    # Twice at one step, as when a validation is suspended after a periodic checkpoint.
    assert put(store, 123).name == "step-000000123.attempt-0004.1"
    found = store.newest()
    assert found is not None
    assert found.path.name.endswith(".1")


def test_prune_keeps_the_last(tmp_path: Path) -> None:
    store = opened(tmp_path, keep=3)
    for step in range(1, 8):
        put(store, step)
        store.prune()
    assert names(tmp_path) == {
        "attempt-0001.opened",
        *(f"step-{step:09d}.attempt-0001" for step in (5, 6, 7)),
    }


def test_what_was_resumed_from_outlives_broken_ones(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put(store, 10)
    for step in (20, 30):
        (put(store, step) / "state").write_bytes(b"")
    later = opened(tmp_path)
    assert newest_step(later) == 10
    put(later, 11)
    later.prune()
    assert sorted(path.name[:14] for path in tmp_path.glob("step-*")) == [
        "step-000000010",
        "step-000000011",
    ]


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(["state", "manifest.json"]),
    where=st.floats(0, 1, exclude_max=True),
    bit=st.none() | st.integers(0, 7),
)
def test_any_damage_falls_back_to_the_one_before(name: str, where: float, bit: int | None) -> None:
    with tempfile.TemporaryDirectory() as directory:
        store = opened(Path(directory), attempt=1)
        put(store, 10)
        file = put(store, 20) / name
        content = bytearray(file.read_bytes())
        size = len(content)
        place = int(where * size)
        if bit is None:
            del content[place:]
        else:
            content[place] ^= 1 << bit
        file.write_bytes(content)
        # A truncation may take the last line feed only; then nothing is lost.
        no_loss = name == "manifest.json" and bit is None and place == size - 1
        assert newest_step(store) == (20 if no_loss else 10)


def test_the_warning_names_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = opened(tmp_path)
    put(store, 10)
    file = put(store, 20) / "state"
    file.write_bytes(file.read_bytes()[:-1])
    assert newest_step(store) == 10
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert str(file) in line
    assert "bytes, not" in line


def test_all_broken_is_an_error_and_not_a_new_start(tmp_path: Path) -> None:
    store = opened(tmp_path)
    (put(store, 10) / "state").unlink()
    (put(store, 20) / "manifest.json").write_bytes(b"[" * 100_000)
    with pytest.raises(CheckpointError, match="none of its 2 checkpoints is intact; restore"):
        store.newest()


def test_an_older_attempt_is_fenced_off(tmp_path: Path) -> None:
    old = opened(tmp_path, attempt=3)
    put(old, 10)
    new = opened(tmp_path, attempt=4)
    before = names(tmp_path)
    with pytest.raises(FencedError, match="attempt 4 of this job has begun"):
        put(old, 11)
    assert names(tmp_path) == before
    with pytest.raises(FencedError):
        opened(tmp_path, attempt=3)
    assert newest_step(new) == 10


def test_one_that_could_not_be_marked_is_marked_with_its_next_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    old = opened(tmp_path, attempt=1)
    put(old, 1)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(Path, "touch", full)
        new = opened(tmp_path, attempt=2)
    assert "cannot mark attempt 2 (No space left on device)" in capsys.readouterr().err
    put(new, 2)
    with pytest.raises(FencedError):
        put(old, 3)


def test_fenced_while_it_writes(tmp_path: Path) -> None:
    old = opened(tmp_path, attempt=3)
    put(old, 10)

    def fill(draft: Draft) -> None:
        draft.write("state", lambda file: file.write(b"late"))
        opened(tmp_path, attempt=4)

    with pytest.raises(FencedError):
        old.commit(11, {}, fill)
    assert newest_step(opened(tmp_path, attempt=5)) == 10


def test_a_later_attempt_counts_more_than_a_later_step(tmp_path: Path) -> None:
    """Whatever a fenced-off attempt slips in is not what is resumed from."""
    put(opened(tmp_path, attempt=3), 120)
    put(opened(tmp_path, attempt=4), 110)
    assert newest_step(opened(tmp_path, attempt=5)) == 110


def test_killed_in_the_middle_of_a_save(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put(store, 10)
    child = os.fork()
    if child == 0:

        def fill(draft: Draft) -> None:
            (draft.path / "state").write_bytes(b"half")
            os._exit(9)

        store.commit(20, {}, fill)
    os.waitpid(child, 0)
    assert len(list(tmp_path.glob(".draft-*"))) == 1
    later = opened(tmp_path)
    assert newest_step(later) == 10
    assert not list(tmp_path.glob(".draft-*"))


def test_a_failed_save_leaves_nothing(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put(store, 10)
    before = names(tmp_path)

    def fill(draft: Draft) -> None:
        draft.write("state", lambda file: file.write(b"some"))
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        store.commit(20, {}, fill)
    assert names(tmp_path) == before


def test_unusable_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="cannot be used"):
        opened(tmp_path / "file" / "checkpoint")


def test_keep_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep=1"):
        Store(tmp_path, keep=1)


def test_attempts_count_on_without_a_manager(tmp_path: Path) -> None:
    assert [opened(tmp_path).attempt for _ in range(3)] == [1, 2, 3]
    shutil.rmtree(tmp_path)
    assert opened(tmp_path).attempt == 1
