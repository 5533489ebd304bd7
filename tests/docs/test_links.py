"""Pages lead to what there is, and the navigation to every page.

The slow tests build the site, and so see the same of it and of its API.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("tests/*/README.md")])
CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The anchors that a forge makes of headings."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    words = (re.sub(r"[^\w\- ]", "", title.lower()) for title in HEADING.findall(text))
    return {each.strip().replace(" ", "-") for each in words}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_what_there_is(page: Path) -> None:
    for link in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
        assert target.exists(), link
        if parts.fragment and target.suffix == ".md":
            assert parts.fragment in anchors(target), link


def test_the_navigation_has_every_page() -> None:
    text = (ROOT / "docs" / "mkdocs" / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r"^ +- (?:[^:\n]+: )?\"?([^\s\":]+)\"?$", text.partition("\nnav:")[2], re.M)
    assert len(listed) == len(set(listed))
    # Those of the API are made by the build.
    found = {name: [*ROOT.glob(name)] for name in listed if not name.startswith("api/")}
    assert [name for name in found if not found[name]] == []
    reached = {path for paths in found.values() for path in paths}
    assert {*ROOT.glob("docs/*.md"), *ROOT.glob("man/*.rst")} <= reached
