"""Files that a library wrote, taken into a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcext.training.checkpoint import MANIFEST, CheckpointError, Draft, Store, verify
from hpcext.training.checkpoint.hashing import checksum


def fill(draft: Draft) -> None:
    (draft.path / "part" / "deep").mkdir(parents=True)
    (draft.path / "top").write_bytes(b"top")
    (draft.path / "part" / "deep" / "file").write_bytes(b"deep")
    draft.adopt()


def store(path: Path) -> Store:
    made = Store(path / "store", attempt=1)
    made.open()
    return made


def test_a_tree_of_files_is_checked_whole(tmp_path: Path) -> None:
    checkpoint = store(tmp_path).commit(3, {}, fill)
    assert {entry["name"] for entry in checkpoint.manifest["files"]} == {"top", "part/deep/file"}
    assert verify(checkpoint.path)["step"] == 3
    (checkpoint.path / "part" / "deep" / "file").write_bytes(b"torn")
    with pytest.raises(CheckpointError, match="checksum differs"):
        verify(checkpoint.path)


def test_a_link_is_not_taken_in(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("secret")
    made = store(tmp_path)

    def link(draft: Draft) -> None:
        (draft.path / "link").symlink_to(tmp_path / "elsewhere")
        draft.adopt()

    with pytest.raises(OSError, match="link"):
        made.commit(3, {}, link)
    assert made.newest() is None


@pytest.mark.parametrize("name", ["../outside", "{}/outside", "part/../../../outside"])
def test_a_manifest_that_names_a_file_outside_is_refused(tmp_path: Path, name: str) -> None:
    checkpoint = store(tmp_path).commit(3, {}, fill)
    (tmp_path / "outside").write_bytes(b"top")
    (checkpoint.path.parent / "outside").write_bytes(b"top")
    manifest = json.loads((checkpoint.path / MANIFEST).read_text())
    del manifest["sha256"]
    manifest["files"][0]["name"] = name.format(tmp_path)
    manifest["sha256"] = checksum(json.dumps(manifest, sort_keys=True).encode())
    (checkpoint.path / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="not a file of this checkpoint"):
        verify(checkpoint.path)
