"""ARCHITECTURE.md is one page, and it and the packages say what is there."""

from __future__ import annotations

import ast
import configparser
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "hpcext"
PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
LINES = 100
"""One page."""

FILE = r"(?:[\w-]+/)*(?:[\w-]+\.py|[\w-]+/)"
"""A module, or a folder with a slash behind it."""


def layers_of_the_page() -> list[set[str]]:
    block = re.findall(r"^```\n(notebook .*?)^```$", PAGE, re.M | re.S)
    return [
        set(layer.replace(" ", "").split(",")) for layer in " ".join(block[0].split()).split(" → ")
    ]


def test_it_is_one_page() -> None:
    assert len(PAGE.splitlines()) <= LINES


def test_it_has_every_room() -> None:
    table = PAGE.partition("## The rooms")[2].partition("\n## ")[0]
    named = re.findall(r"`([\w-]+)`", " ".join(re.findall(r"^\| (`[^|]*) \|", table, re.M)))
    rooms = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
    assert sorted(named) == rooms


def test_what_it_names_is_there() -> None:
    named = re.findall(rf"`({FILE})`", PAGE)
    assert len(named) > 30
    assert [
        name for name in named if not any((top / name).exists() for top in (ROOT, PACKAGE))
    ] == []


def test_imports_go_as_it_says() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    layers = setup["importlinter:contract:layers"]["layers"].split("\n")
    checked = [set(layer.split(" | ")) - {"__main__"} for layer in layers if layer]
    assert layers_of_the_page() == checked


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("__init__.py")), ids=lambda path: path.parent.name
)
def test_what_a_package_names_is_there(path: Path) -> None:
    said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    named = re.findall(rf"``({FILE})``", said)
    gone = [name for name in named if not (ROOT / name).exists()]
    assert [name for name in gone if not [*path.parent.rglob(name.rstrip("/"))]] == []
