"""What is written for people is true: commands, options, keys, links, examples."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docutils.core
import docutils.nodes
import pytest

from hpcext import config, jobfile, protocol
from hpcext.cli import admin
from hpcext.cli import main as cli
from hpcext.core.errors import InputError
from hpcext.policies import POLICIES
from hpcext.policies.limits import read_limits
from hpcext.rendezvous import Rendezvous

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "man").glob("*.rst"))
TEXTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("[a-z]*/*.md")])
STRICT = {"halt_level": 2, "report_level": 2, "input_encoding": "utf-8"}

HARMLESS = "skipping paragraph macro: sp after SH"
"""What docutils writes at the beginning of every section; it has no effect."""


def page(name: str) -> docutils.nodes.document:
    return docutils.core.publish_doctree(
        (ROOT / "man" / name).read_text(encoding="utf-8"), settings_overrides=STRICT
    )


def section(document: docutils.nodes.document, title: str) -> docutils.nodes.section:
    for found in document.findall(docutils.nodes.section):
        if found.next_node(docutils.nodes.title).astext() == title:
            return found
    raise AssertionError(f"no section {title}")


def terms(of: docutils.nodes.section) -> Iterator[docutils.nodes.term]:
    """The terms of a section's definition lists, without those of nested ones."""
    for part in of.children:
        if isinstance(part, docutils.nodes.definition_list):
            for item in part.children:
                yield item.next_node(docutils.nodes.term)


def literals(of: docutils.nodes.Node) -> list[str]:
    return [node.astext() for node in of.findall(docutils.nodes.literal)]


PROGRAMS = {"hpcext.1.rst": cli.make_parser, "hpcext-admin.8.rst": admin.make_parser}
"""The page of each program, and its parser."""


def commands(make_parser: Any = cli.make_parser) -> dict[str, argparse.ArgumentParser]:
    """Every command that runs something, by the words that call it."""
    found = {}

    def walk(parser: argparse.ArgumentParser) -> None:
        groups = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
        for group in groups:
            for choice in group.choices.values():
                walk(choice)
        if not groups:
            found[parser.prog] = parser

    walk(make_parser()[0])
    return found


def options(parser: argparse.ArgumentParser) -> set[str]:
    return {word for action in parser._actions for word in action.option_strings} - {"-h", "--help"}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pages_are_clean_roff(path: Path, tmp_path: Path) -> None:
    roff = tmp_path / path.stem
    text = docutils.core.publish_string(
        path.read_text(encoding="utf-8"), writer="manpage", settings_overrides=STRICT
    )
    roff.write_bytes(text)
    mandoc = shutil.which("mandoc")
    assert mandoc, "mandoc is not installed; make test installs it"
    done = subprocess.run(
        [mandoc, "-Tlint", "-Wwarning", roff], capture_output=True, text=True, check=False
    )
    told = done.stdout.splitlines() + done.stderr.splitlines()
    assert [line for line in told if not line.endswith(HARMLESS)] == []


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_command_and_option_is_in_the_manual_and_no_other(name: str) -> None:
    explained: dict[str, set[str]] = defaultdict(set)
    for term in terms(section(page(name), "COMMANDS")):
        bold = [node.astext() for node in term.findall(docutils.nodes.strong)]
        assert bold[0].startswith("hpcext"), bold
        explained[bold[0]] |= set(bold[1:])
    wanted = commands(PROGRAMS[name])
    assert dict(explained) == {name: options(parser) for name, parser in wanted.items()}


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_argument_is_in_the_manual(name: str) -> None:
    explained: dict[str, list[str]] = defaultdict(list)
    for term in terms(section(page(name), "COMMANDS")):
        # Arguments come before the options, and in order.
        before = re.split(r"\s\[?--?[a-z]", term.astext())[0]
        explained[term.next_node(docutils.nodes.strong).astext()] += [
            node.astext()
            for node in term.findall(docutils.nodes.emphasis)
            if node.astext() in before
        ]
    for command, parser in commands(PROGRAMS[name]).items():
        wanted = [str(action.metavar) for action in parser._actions if not action.option_strings]
        assert explained[command] == wanted, command


@pytest.mark.parametrize("name", PROGRAMS)
def test_general_options_are_in_the_manual(name: str) -> None:
    parser = PROGRAMS[name]()[0]
    wanted = {word for action in parser._actions for word in action.option_strings}
    bold = {
        node.astext()
        for term in terms(section(page(name), "OPTIONS"))
        for node in term.findall(docutils.nodes.strong)
    }
    assert bold == wanted


def test_every_job_key_is_in_the_manual_and_no_other() -> None:
    document = page("hpcext-jobs.5.rst")
    keys = [term.astext() for term in terms(section(document, "KEYS"))]
    assert keys == list(jobfile.KEYS)


def test_every_setting_and_its_variable_is_in_the_manual() -> None:
    listed = [literals(term) for term in terms(section(page("hpcext.1.rst"), "SETTINGS"))]
    assert listed == [[name, facts["variable"]] for name, facts in config.SETTINGS.items()]


def test_every_policy_and_option_is_in_the_manual() -> None:
    document = page("hpcext-policies.7.rst")
    named = [term.astext() for term in terms(section(document, "POLICIES"))]
    assert named == list(POLICIES)
    listed = {
        part.next_node(docutils.nodes.title).astext(): [each.astext() for each in terms(part)]
        for part in section(document, "OPTIONS").findall(docutils.nodes.section)
        if part.next_node(docutils.nodes.title).astext() != "OPTIONS"
    }
    assert listed == {
        name: list(known.options.__struct_fields__)
        for name, known in POLICIES.items()
        if known.options
    }


def test_the_limits_that_the_manual_shows_are_good(tmp_path: Path) -> None:
    example = section(page("hpcext-policies.7.rst"), "LIMITS")
    path = tmp_path / "limits.toml"
    path.write_text(example.next_node(docutils.nodes.literal_block).astext())
    assert [limit.name for limit in read_limits(str(path))] == [
        "licences", "share of the vision group",
    ]  # fmt: skip


def test_every_variable_of_a_job_is_in_the_manual() -> None:
    here = Path("/")
    attempt = protocol.Attempt("1", 1, 1, here, here, 1)
    listed = [term.astext() for term in terms(section(page("hpcext.1.rst"), "ENVIRONMENT"))]
    of_rank = ["HPCEXT_RANK", *Rendezvous(here).environ()]
    assert sorted(listed) == sorted({*attempt.environ(), *of_rank, "HPCEXT_NODE_INDEX"})


def test_every_variable_in_the_source_is_in_the_manual() -> None:
    known = set(re.findall(r"HPCEXT_[A-Z_]*[A-Z]", (ROOT / "man/hpcext.1.rst").read_text()))
    # A name in a comment is spoken of, not read; and HPCEXT_ alone is a prefix.
    for path in (ROOT / "hpcext").rglob("*.py"):
        code = "\n".join(line.split("#")[0] for line in path.read_text().splitlines())
        assert set(re.findall(r"[\"'](HPCEXT_[A-Z_]*[A-Z])[\"']", code)) <= known, path


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
    for path in PAGES:
        for line in re.findall(r"^    \$ (.*)", path.read_text(encoding="utf-8"), re.M):
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
        assert words == ["pip", "install", "."], where


def test_the_readme_shows_commands_and_verbs() -> None:
    readme = {" ".join(words[:2]) for where, words in SHOWN if where == "README.md"}
    assert {"make demo", "make test"} <= readme
    assert {" ".join(name.split()[:2]) for name in commands()} <= readme


def test_job_files_that_are_shown_are_good() -> None:
    shown = fenced(ROOT / "README.md", "toml")
    example = section(page("hpcext-jobs.5.rst"), "EXAMPLE")
    shown.append(example.next_node(docutils.nodes.literal_block).astext())
    assert len(shown) == 2
    for text in shown:
        assert jobfile.parse_jobs(text, "shown", ROOT)


def test_the_error_that_the_manual_shows_is_the_real_one() -> None:
    example = section(page("hpcext-jobs.5.rst"), "EXAMPLE")
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
