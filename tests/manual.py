"""The manual as data; ``python tests/manual.py hpcext-NAME`` drafts the page of a command."""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docutils.core
import docutils.nodes

from hpcext.cli import admin, broker
from hpcext.cli import main as cli

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "man").glob("*.rst"))
STRICT = {"halt_level": 2, "report_level": 2, "input_encoding": "utf-8"}
PROGRAMS = {
    "hpcext.1.rst": cli.make_parser,
    "hpcext-admin.8.rst": admin.make_parser,
    "hpcext-broker.8.rst": broker.make_parser,
}
"""The page of each program, and its parser."""


@functools.cache
def page(name: str) -> docutils.nodes.document:
    path = ROOT / "man" / name
    assert path.exists(), f"no man/{name}; a draft: {drafting(name)}"
    text = path.read_text(encoding="utf-8")
    return docutils.core.publish_doctree(text, settings_overrides=STRICT)


def titles(document: docutils.nodes.Element) -> list[str]:
    """The titles of sections that are in no other one."""
    sections = [part for part in document.children if isinstance(part, docutils.nodes.section)]
    return [part.next_node(docutils.nodes.title).astext() for part in sections]


def section(document: docutils.nodes.Element, title: str) -> docutils.nodes.section:
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


def definition(term: docutils.nodes.term) -> str:
    return term.parent.next_node(docutils.nodes.definition).astext().replace("\n", " ")


def literals(of: docutils.nodes.Node) -> list[str]:
    return [node.astext() for node in of.findall(docutils.nodes.literal)]


def bold(of: docutils.nodes.Node) -> list[str]:
    return [node.astext() for node in of.findall(docutils.nodes.strong)]


# What the programs themselves say.


def commands(make_parser: Any = cli.make_parser) -> dict[str, argparse.ArgumentParser]:
    """Every command that runs something, by the words that call it."""
    return {parser.prog: parser for parser in parsers(make_parser) if not _choices(parser)}


def parsers(make_parser: Any = cli.make_parser) -> list[argparse.ArgumentParser]:
    """Those of a program, its commands and all that are below."""
    found = [make_parser()[0]]
    for parser in found:
        found += _choices(parser).values()
    return found


def _choices(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    groups = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return {name: choice for group in groups for name, choice in group.choices.items()}


def options(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    found = [action for action in parser._actions if action.option_strings]
    # Those that every command has are explained once, in the page of the program.
    return [action for action in found if action.dest not in {"help", "quiet"}]


def arguments(parser: argparse.ArgumentParser) -> list[str]:
    return [str(action.metavar) for action in parser._actions if not action.option_strings]


def page_of(prog: str) -> str:
    """``hpcext harvest start`` is in ``hpcext-harvest.1.rst``."""
    program, word = prog.split()[:2]
    return f"{program}.8.rst" if program != "hpcext" else f"hpcext-{word}.1.rst"


def own_section(prog: str) -> str:
    """Where a page has the options of a command."""
    return "OPTIONS" if prog.startswith("hpcext ") and len(prog.split()) == 2 else prog


# Drafts.


def entry(action: argparse.Action) -> str:
    """An option, as a page has it."""
    value = "" if action.nargs == 0 else f" *{action.metavar or action.dest.upper()}*"
    names = ", ".join(f"**{word}**{value}" for word in action.option_strings)
    return f"{names}\n    {_sentence((action.help or '') % {'default': action.default})}\n"


def form(parser: argparse.ArgumentParser) -> str:
    """A paragraph of a synopsis."""
    words = [f"**{parser.prog}**"]
    for action in parser._actions:
        if not action.option_strings:
            words.append(f"[*{action.metavar}*]" if action.nargs == "?" else f"*{action.metavar}*")
    for action in options(parser):
        shown = entry(action).partition("\n")[0].partition(", **")[0]
        words.append(shown if action.required else f"[{shown}]")
    return " ".join(words)


def summaries() -> dict[str, str]:
    """What each command does, in the words that are listed above it."""
    return {
        f"{parser.prog} {choice.dest}": choice.help or ""
        for make in PROGRAMS.values()
        for parser in parsers(make)
        for group in parser._actions
        if isinstance(group, argparse._SubParsersAction)
        for choice in group._choices_actions
    }


def part(parser: argparse.ArgumentParser) -> str:
    """The part of a page that is about one of several commands."""
    lines = [_title(parser.prog, "-"), _sentence(summaries()[parser.prog]), ""]
    return "\n".join([*lines, *map(entry, options(parser))])


def draft(name: str) -> str:
    """A page of a command, ``hpcext-NAME``, of what its parsers say: to be gone over."""
    top = {parser.prog: parser for parser in parsers()}[name.replace("-", " ", 1)]
    below = list(_choices(top).values())
    summary = summaries()[top.prog]
    parts = [_title("SYNOPSIS"), *(f"{form(each)}\n" for each in below or [top])]
    parts += [_title("DESCRIPTION"), _sentence(top.description or summary), ""]
    if below:
        parts += [_title("COMMANDS"), *map(part, below)]
    elif options(top):
        parts += [_title("OPTIONS"), *map(entry, options(top))]
    examples = [str(each.epilog).removeprefix("example: ") for each in below or [top]]
    parts += [_title("EXAMPLES"), "::\n", *(f"    $ {line}" for line in examples), ""]
    parts += [_title("SEE ALSO"), "**hpcext**\\(1)"]
    ends = "=" * len(name), "-" * len(summary)
    head = f"{ends[0]}\n{name}\n{ends[0]}\n\n{ends[1]}\n{summary}\n{ends[1]}\n\n"
    facts = f":Manual section: 1\n:Manual group: hpcext\n:Date: {time.strftime('%Y-%m-%d')}\n\n"
    return head + facts + "\n".join(parts)


def drafting(name: str) -> str:
    """The command that drafts a page."""
    return f"python tests/manual.py {name.removesuffix('.1.rst')} > man/{name}"


def _title(text: str, bar: str = "=") -> str:
    return f"{text}\n{bar * len(text)}\n"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


if __name__ == "__main__":
    print(draft(sys.argv[1]))
