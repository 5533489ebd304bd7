"""What is written for people is true: commands, options, keys, links, examples."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import docutils.core
import docutils.nodes
import manual
import pytest

from hpcext import config, jobfile
from hpcext.cli import admin
from hpcext.cli import main as cli
from hpcext.core.errors import InputError

ROOT = Path(__file__).parents[1]
TEXTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("[a-z]*/*.md")])


def fenced(path: Path, kind: str) -> list[str]:
    """The blocks of one kind in a Markdown text."""
    return re.findall(rf"^```{kind}\n(.*?)^```", path.read_text(encoding="utf-8"), re.M | re.S)


def shown_commands() -> Iterator[tuple[str, list[str]]]:
    for path in TEXTS:
        if path.parent.name == "docs":
            continue  # Every command of these pages is run: tests/docs.
        text = path.read_text(encoding="utf-8")
        lines = re.findall(r"^\$ (.*)", "\n".join(fenced(path, "console")), re.M)
        for line in [*lines, *re.findall(r"^\| `(hpcext [^`]*)`", text, re.M)]:
            yield path.name, shlex.split(line, comments=True)


SHOWN = list(shown_commands())


@pytest.mark.parametrize(("where", "words"), SHOWN, ids=[shlex.join(words) for _, words in SHOWN])
def test_commands_that_are_shown_exist(where: str, words: list[str]) -> None:
    if words[0] == "hpcext":
        cli.parse(words[1:])
    elif words[0] == "hpcext-admin":
        admin.parse(words[1:])  # and run by tests/system/test_install.py
    elif words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.M), where
    else:
        assert words[:2] == ["pip", "install"], where
        assert words[2] in {".", ".[all]"}, where


def test_the_readme_shows_commands_and_verbs() -> None:
    readme = {" ".join(words[:2]) for where, words in SHOWN if where == "README.md"}
    assert {"make demo", "make test"} <= readme
    assert {" ".join(name.split()[:2]) for name in manual.commands()} <= readme


def test_job_files_that_are_shown_are_good() -> None:
    shown = fenced(ROOT / "README.md", "toml")
    example = manual.section(manual.page("hpcext-jobs.5.rst"), "EXAMPLE")
    shown.append(example.next_node(docutils.nodes.literal_block).astext())
    assert len(shown) == 2
    for text in shown:
        assert jobfile.parse_jobs(text, "shown", ROOT)


def test_the_error_that_the_manual_shows_is_the_real_one() -> None:
    example = manual.section(manual.page("hpcext-jobs.5.rst"), "EXAMPLE")
    good, line = (block.astext() for block in example.findall(docutils.nodes.literal_block))
    bad = good.replace("{min = 1, max = 4}", "{min = 3, max = 2}")
    with pytest.raises(InputError) as caught:
        jobfile.parse_jobs(bad, "jobs.toml", ROOT)
    assert line == f"hpcext: {caught.value}"


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_resolve(path: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text(encoding="utf-8"))
    for link in links:
        assert (path.parent / link).exists(), link


@pytest.mark.parametrize("path", sorted((ROOT / "site_configs").glob("*.toml")), ids=str)
def test_example_settings_are_good(path: Path) -> None:
    assert config.read_file(path)
    assert f"({path.name})" in (path.parent / "README.md").read_text()
