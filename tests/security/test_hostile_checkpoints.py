"""Checkpoints that somebody else has made: whatever they are, the one before is gone on with."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcext.training.checkpoint import MANIFEST, CheckpointError, Draft, Store, manifest
from hpcext.training.checkpoint.hashing import checksum


def put(store: Store, step: int) -> Path:
    def fill(draft: Draft) -> None:
        (draft.path / "part").mkdir()
        draft.write("state", lambda file: file.write(b"state"))
        (draft.path / "part" / "more").write_bytes(b"more")
        draft.adopt()

    return store.commit(step, {"format": "test/1"}, fill).path


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "checkpoint", attempt=1)
    store.open()
    put(store, 1)
    return store


def forge(path: Path, **changes: Any) -> None:
    """Write a manifest as who knows the format would: its own checksum is right."""
    manifest = json.loads((path / MANIFEST).read_bytes())
    del manifest["sha256"]
    manifest = {key: value for key, value in {**manifest, **changes}.items() if value != "DROP"}
    text = json.dumps(manifest, sort_keys=True)
    manifest["sha256"] = checksum(text.encode())
    (path / MANIFEST).write_text(json.dumps(manifest))


def entry(name: Any, content: bytes = b"", **changes: Any) -> dict[str, Any]:
    return {"name": name, "size": len(content), "sha256": checksum(content), **changes}


def sparse(path: Path) -> None:
    path.unlink()
    with path.open("wb") as file:
        file.truncate(40 << 30)


def replaced(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def replace(path: Path) -> None:
        path.unlink()
        make(path)

    return replace


KINDS: dict[str, Callable[[Path], None]] = {
    "a FIFO": replaced(os.mkfifo),
    "a directory": replaced(os.mkdir),
    "a link out": replaced(lambda path: path.symlink_to("/etc/passwd")),
    "a link to itself": replaced(lambda path: path.symlink_to(path)),
    "a link to a device": replaced(lambda path: path.symlink_to("/dev/zero")),
    "nothing": os.unlink,
    "40 GiB of nothing": sparse,
}
if os.getuid() == 0:
    KINDS["a device"] = replaced(lambda path: os.mknod(path, 0o020600, os.makedev(1, 5)))


@pytest.mark.parametrize("name", [MANIFEST, "state", "part/more"])
@pytest.mark.parametrize("kind", KINDS)
def test_paths_that_are_not_files_do_not_block(
    store: Store, capsys: pytest.CaptureFixture[str], kind: str, name: str
) -> None:
    path = put(store, 2)
    KINDS[kind](path / name)
    found = store.newest()
    assert found is not None
    assert found.manifest["step"] == 1
    warning = capsys.readouterr().err
    assert warning.count("\n") == 1
    assert f"{path / name}: " in warning


def test_a_directory_of_it_may_be_no_link(store: Store, tmp_path: Path) -> None:
    path = put(store, 2)
    (path / "part").rename(tmp_path / "elsewhere")
    (path / "part").symlink_to(tmp_path / "elsewhere")
    found = store.newest()
    assert found is not None
    assert found.manifest["step"] == 1


FORGED: dict[str, dict[str, Any]] = {
    "no files": {"files": "DROP"},
    "files of another kind": {"files": {"state": 1}},
    "an entry that is none": {"files": [7]},
    "an entry without a name": {"files": [{"size": 0, "sha256": ""}]},
    "a name that is a number": {"files": [entry(7)]},
    "a name with a NUL": {"files": [entry("a\0b")]},
    "an empty name": {"files": [entry("")]},
    "itself": {"files": [entry(".")]},
    "what is above": {"files": [entry("../outside", b"outside")]},
    "what is above, later": {"files": [entry("part/../../outside", b"outside")]},
    "an absolute name": {"files": [entry("/etc/hostname")]},
    "a size below nothing": {"files": [entry("state", b"state", size=-1)]},
    "a size that is none": {"files": [entry("state", b"state", size=True)]},
    "a size of NaN": {"files": [entry("state", b"state", size=float("nan"))]},
    "a huge size": {"files": [entry("state", b"state", size=10**30)]},
    "no step": {"step": "DROP"},
    "a huge step": {"step": 10**400},
    "a step of NaN": {"step": float("nan")},
    "an infinite step": {"step": float("inf")},
    "a step of words": {"step": "many"},
    "a format that is a list": {"format": []},
}


@pytest.mark.parametrize("what", FORGED)
def test_a_manifest_that_makes_no_sense_is_not_believed(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    (tmp_path / "checkpoint" / "outside").write_bytes(b"outside")
    path = put(store, 2)
    forge(path, **FORGED[what])
    found = store.newest()
    assert found is not None
    assert found.manifest["step"] == 1
    assert str(path) in capsys.readouterr().err


@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 5000, "7", "null", "{", "\0", ""])
def test_an_invalid_manifest_is_not_trusted(store: Store, text: str) -> None:
    (put(store, 2) / MANIFEST).write_text(text)
    found = store.newest()
    assert found is not None
    assert found.manifest["step"] == 1


def test_a_checkpoint_without_the_file_that_is_read_next_is_not_used(store: Store) -> None:
    """It may be a FIFO that the manifest does not name."""
    path = put(store, 2)
    forge(path, files=[])
    KINDS["a FIFO"](path / "state")
    found = store.newest({"test/1": "state"})
    assert found is not None
    assert found.manifest["step"] == 1
    with pytest.raises(CheckpointError, match="names no such file"):
        found.part("/etc/passwd")
    assert found.part("part") == found.path / "part"


def test_a_name_of_the_run_that_blocks_is_replaced(store: Store) -> None:
    os.mkfifo(store.directory / "run-id")
    assert len(store.run_id(None)) == 32
    assert (store.directory / "run-id").is_file()


def test_what_could_not_be_read_again_is_not_written(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "MOST_MANIFEST_BYTES", 100)
    with pytest.raises(OSError, match="the limit is 100"):
        put(store, 2)


def test_checkpoints_that_a_colleague_made_are_taken(store: Store, tmp_path: Path) -> None:
    """By a link to where they are, too; nothing of them is obeyed."""
    copy = tmp_path / "copy"
    shutil.copytree(store.directory, copy)
    if os.getuid() == 0:
        for directory, _, names in os.walk(copy):
            for name in names:
                os.chown(Path(directory, name), 65534, 65534)
    (tmp_path / "link").symlink_to(copy)
    found = Store(tmp_path / "link", attempt=2).newest()
    assert found is not None
    assert found.manifest["step"] == 1
