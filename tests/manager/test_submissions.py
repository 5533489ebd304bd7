"""The job files that were submitted: those that were refused are not among them."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from hpcext import documents
from hpcext.core.errors import JournalError
from hpcext.jobspec import Gpus, JobSpec
from hpcext.manager.submissions import Submissions


def spec(name: str) -> JobSpec:
    return JobSpec(name, ("true",), Gpus(1, 1))


def test_what_could_not_be_stored_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither if it is its directory that could not be flushed, when the file had its name."""

    def fails(path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    known = Submissions(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(documents, "sync_directory", fails)
        with pytest.raises(OSError, match="Input/output"):
            known.add("b", [spec("refused")])
    assert "b" not in known
    known.add("a", [spec("taken")])
    assert Submissions(tmp_path).names == {"taken"}


def test_of_two_with_the_same_ids_none_is_chosen(tmp_path: Path) -> None:
    """As an older release may have left: it would be chance which one is run."""
    Submissions(tmp_path).add("a", [spec("one")])
    shutil.move(tmp_path / "a.json", tmp_path / "kept")
    Submissions(tmp_path).add("b", [spec("two")])
    shutil.move(tmp_path / "kept", tmp_path / "a.json")
    with pytest.raises(JournalError, match=r"the same ids as [ab]\.json") as said:
        Submissions(tmp_path)
    assert all(name in str(said.value) for name in ("a.json", "b.json"))
