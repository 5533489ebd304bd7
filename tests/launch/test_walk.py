"""The walk through directories: what it finds, and in which order."""

from __future__ import annotations

import glob
import itertools
import os
from pathlib import Path

import pytest

from hpcext.launch.walk import Walk

FILES = (
    "a.pt", "out/1.pt", "out/checkpoint-5/state.json", "out/checkpoint-50/state.json",
    "out/deep/er/checkpoint-7/state.json", "out/.hidden/2.pt", ".cache/checkpoint-9/state.json",
    "data/x/y/z/w.pt", "[odd]/3.pt", "out/checkpoint-5/weights/4.pt",
)  # fmt: skip


def found(pattern: str, cwd: Path) -> set[str]:
    return {os.path.normpath(name) for name in Walk(pattern, cwd).matches() if name}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in FILES:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    (tmp_path / "gone").symlink_to("nowhere")
    (tmp_path / "link").symlink_to("out/deep")
    return tmp_path


@pytest.mark.parametrize(
    "pattern",
    [
        "*.pt", "out/*.pt", "**/*.pt", "./out/*", "**/checkpoint-*/state.json", "out/**", "**",
        "**/checkpoint-[0-9]/**/*.pt", "out/**/state.json", "out/checkpoint-5/state.json",
        "out/none", "none/*.pt", ".cache/**/state.json", "out/.hidden/*.pt", "[[]odd]/*.pt",
        "**/out/**/er/**/*.json", "a.pt/*", "out/../*.pt", "**/**/*.pt", "gone/*", "out//1.pt",
    ],
)  # fmt: skip
def test_it_finds_the_files_that_glob_finds(place: Path, pattern: str) -> None:
    for each in (pattern, f"{glob.escape(str(place))}/{pattern}"):
        names = glob.glob(each, root_dir=place, recursive=True)
        files = {os.path.normpath(place / name) for name in names if (place / name).is_file()}
        assert {name for name in found(each, place) if Path(name).is_file()} == files


def test_links_that_lead_in_circles_are_followed_once(place: Path) -> None:
    for name in ("one", "two", "three"):
        (place / "out" / name).symlink_to(place)
    ways = {str(place / "out" / name / "data/x/y/z/w.pt") for name in ("one", "two", "three")}
    assert len(ways & found("**/*.pt", place)) == 1
    assert len(list(Walk("**/*.pt", place).matches())) < 500


def test_what_lies_higher_is_found_before_what_is_deep(tmp_path: Path) -> None:
    for first, second in itertools.product(range(10), range(10)):
        (tmp_path / "data" / str(first) / str(second)).mkdir(parents=True)
    (tmp_path / "runs" / "out").mkdir(parents=True)
    (tmp_path / "runs" / "out" / "1.pt").write_text("x")
    steps = list(Walk("**/*.pt", tmp_path).matches())
    assert steps.index(str(tmp_path / "runs" / "out" / "1.pt")) < len(steps) / 2


def test_places_where_something_was_found_are_searched_first(tmp_path: Path) -> None:
    for each in range(50):
        (tmp_path / "data" / str(each)).mkdir(parents=True)
    old = tmp_path / "data" / "49" / "run" / "checkpoint-1" / "state.json"
    old.parent.mkdir(parents=True)
    old.write_text("x")
    walk = Walk("**/checkpoint-*/state.json", tmp_path)
    assert list(filter(None, walk.matches())) == [str(old)]
    new = old.parent.parent / "checkpoint-2" / "state.json"
    new.parent.mkdir()
    new.write_text("x")
    soon = list(filter(None, itertools.islice(walk.matches(), 6)))
    assert sorted(soon) == [str(old), str(new)]
