"""Every snippet of every page in docs/ does what the page says.

A page's ``python`` and ``toml`` blocks begin with a comment that names their file; its ``console``
blocks are commands after ``$ ``, and lines that must be among what they print.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from hpcext.config import POLICIES

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"# ([\w.-]+)\n")
COMMAND_S = 240


class Block(NamedTuple):
    """A fenced block: its language, its text, its line in the page."""

    language: str
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(match[1], match[2], text.count("\n", 0, match.start()) + 1)
        for match in FENCE.finditer(text)
    ]


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each command, and the lines that it is shown to print."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, *shown = part.splitlines()
        yield command, [line.strip() for line in shown if line.strip()]


def environment(home: Path) -> dict[str, str]:
    state = {f"XDG_{kind}_HOME": str(home / kind.lower()) for kind in ("STATE", "CONFIG")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    quiet = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    return {**os.environ, **state, **quiet, "PATH": path, "HF_HUB_OFFLINE": "1"}


NVIDIA = ROOT / "tests" / "fakes" / "nvidia"


def machine(page: Path, environ: dict[str, str]) -> dict[str, str]:
    """The same where a page is about hardware that no test has: with what stands for it."""
    if page.stem == "containers":
        path = os.pathsep.join([str(NVIDIA.with_name("containers")), environ["PATH"]])
        return {**environ, "PATH": path}
    if page.stem != "mps":
        return environ
    del environ["CUDA_VISIBLE_DEVICES"]
    for name in ("PATH", "PYTHONPATH"):
        environ[name] = os.pathsep.join(filter(None, [str(NVIDIA), environ.get(name)]))
    return {**environ, "FAKE_GPUS": "2"}


def test_there_are_pages() -> None:
    assert PAGES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_is_tested(page: Path) -> None:
    for block in blocks(page):
        place = f"{page.name}:{block.line}"
        assert block.language in {"python", "toml", "console", "text"}, place
        if block.language in {"python", "toml"}:
            assert NAMED.match(block.text), f"{place}: begins with no `# FILE`"
        if block.language == "console":
            assert block.text.startswith("$ "), place


LONG = {
    "balance",
    "elastic",
    "extending",
    "goodput",
    "jax",
    "keras",
    "lightning",
    "monitoring",
    "packages",
    "profile",
    "pytorch",
    "resizing",
    "simulate",
    "submitit",
    "sweep",
    "tensorflow",
    "traces",
    "transformers",
    "tutorial",
    "which",
}
"""Pages whose commands take most of a minute; what they show has other tests too."""


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.stem, marks=pytest.mark.slow if page.stem in LONG else ())
        for page in PAGES
    ],
)
def test_page(page: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "examples").symlink_to(ROOT / "examples")
    for block in blocks(page):
        if block.language in {"python", "toml"}:
            name = NAMED.match(block.text)
            assert name, block
            (work / name[1]).write_text(block.text, encoding="utf-8")
        elif block.language == "console":
            for command, shown in commands(block.text):
                done = subprocess.run(
                    ["bash", "-ec", command],
                    cwd=work,
                    env=machine(page, environment(tmp_path)),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    timeout=COMMAND_S,
                    check=False,
                )
                place = f"{page.name}:{block.line}: {command}\n{done.stdout}"
                assert done.returncode == 0, place
                for line in shown:
                    assert line in done.stdout, f"{line!r} is not in what it prints: {place}"


def test_each_policy_has_a_section() -> None:
    text = (ROOT / "docs" / "policies.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^## ([a-z_-]+)$", text, re.MULTILINE)) == sorted(POLICIES)
