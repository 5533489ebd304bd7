"""The site has every page, its links hold, and it needs neither a network nor a web server."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from posixpath import join, normpath
from urllib.parse import unquote, urlsplit

import pytest
from chromium import Chromium

# A build of the whole site takes longer than a hundred other tests. Links and the navigation are
# also tried without one, in test_links.py.
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("man/*.rst")])
FRONT = "index.html"
BUILD_S = 500

CSS = re.compile(r"""url\(\s*["']?([^"')]+)|@import\s+["']([^"']+)""")
STYLE = re.compile(r"<style>(.*?)</style>", re.DOTALL)
LOADING = {"script", "img", "iframe", "source", "audio", "video", "embed", "object", "use"}
"""Elements for which a browser asks a server for something; so it does for some links."""


class Page(HTMLParser):
    """What a page has, refers to and loads.

    Attributes
    ----------
    navigation : set of str
        Links of the navigation.
    prose : str
        The text of paragraphs, without what is code in them.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.loads: set[str] = set()
        self.classes: set[str] = set()
        self.navigation: set[str] = set()
        self.prose = ""
        self._navigations: list[bool] = []
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = {name: value or "" for name, value in attrs}
        self.classes.update(said.get("class", "").split())
        self.anchors.update(said[name] for name in ("id", "name") if name in said)
        if tag == "nav":
            self._navigations.append("md-nav" in said.get("class", "").split())
        if tag in {"p", "code"}:
            self._open.append(tag)
        if tag in LOADING:
            self.loads.update(said[key] for key in ("src", "data", "href", "poster") if key in said)
        elif tag == "link" and not {"prev", "next", "canonical"} & {*said["rel"].split()}:
            self.loads.add(said["href"])
        elif tag == "a" and "href" in said:
            self.links.add(said["href"])
            if any(self._navigations):
                self.navigation.add(said["href"])

    def handle_endtag(self, tag: str) -> None:
        if tag == "nav":
            self._navigations.pop()
        if self._open and tag == self._open[-1]:
            self._open.pop()
            self.prose += "\n"

    def handle_data(self, data: str) -> None:
        if self._open and "code" not in self._open:
            self.prose += data


def build(root: Path, to: Path) -> subprocess.CompletedProcess[str]:
    """Build it as `make site` does, where no other machine can be reached."""
    dead = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")
    return subprocess.run(
        [
            sys.executable, "-m", "mkdocs", "build",
            "--config-file", root / "docs" / "mkdocs" / "mkdocs.yml", "--site-dir", to,
        ],
        env={**os.environ, **dead, "NO_MKDOCS_2_WARNING": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BUILD_S,
        check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("site")
    done = build(ROOT, to)
    assert done.returncode == 0, done.stdout
    assert "WARNING" not in done.stdout
    return to


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Page]:
    """Address below the site → page."""
    found = {path.relative_to(site).as_posix(): path for path in site.rglob("*.html")}
    del found["404.html"]  # its links are those of the place of a site on a server
    return {name: Page(path.read_text(encoding="utf-8")) for name, path in found.items()}


def address(path: Path) -> str:
    """Where a page of ours is on the site."""
    name = path.relative_to(ROOT).with_suffix(".html").as_posix()
    return FRONT if name == "docs/which.html" else name


def local(page: str, link: str) -> tuple[str, str] | None:
    """Which file and anchor a link of a page leads to; None: those of another server."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    assert not parts.path.startswith("/"), f"{page}: {link}: the site may be below any address"
    path = normpath(join(page, "..", unquote(parts.path))) if parts.path else page
    return (FRONT if path == "." else path), unquote(parts.fragment)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_each_page_is_there_and_in_the_navigation(path: Path, pages: dict[str, Page]) -> None:
    assert address(path) in pages
    reached = {local(FRONT, link) for link in pages[FRONT].navigation}
    assert (address(path), "") in reached


def test_links_and_anchors_hold(site: Path, pages: dict[str, Page]) -> None:
    tried = 0
    for name, page in pages.items():
        for link in page.links | page.loads:
            target = local(name, link)
            if target is None:
                continue
            path, anchor = target
            tried += 1
            assert (site / path).is_file(), f"{name}: {link}"
            if anchor and not anchor.startswith("__"):  # those are switches of the theme
                assert anchor in pages[path].anchors, f"{name}: {link}"
    assert tried > 50 * len(PAGES)


def test_nothing_is_loaded_from_another_server(site: Path, pages: dict[str, Page]) -> None:
    for name, page in pages.items():
        foreign = [link for link in page.loads if local(name, link) is None]
        assert not foreign, f"{name}: {foreign}"
        # For these alone the theme's scripts ask another server for more.
        assert not {"mermaid", "giscus"} & page.classes, name
    styles = {path: path.read_text(encoding="utf-8") for path in site.rglob("*.css")}
    assert styles
    for path in site.rglob("*.html"):
        styles[path] = "".join(STYLE.findall(path.read_text(encoding="utf-8")))
    for path, text in styles.items():
        for words in CSS.findall(text):
            link = "".join(words)
            assert link.startswith("data:") or local("x", link), f"{path}: {link}"


def test_the_manual_refers_by_links(pages: dict[str, Page]) -> None:
    reached = {local("man/hpcext.1.html", link) for link in pages["man/hpcext.1.html"].links}
    for path in ROOT.glob("man/hpcext-*.1.rst"):
        assert (address(path), "") in reached
    assert "synopsis" in pages["man/hpcext.1.html"].anchors


def test_words_of_the_manual_are_code(pages: dict[str, Page]) -> None:
    for name, page in pages.items():
        # Of docutils, which the theme does not know.
        assert not {"literal", "literal-block", "pre", "problematic"} & page.classes, name


def imported() -> Iterator[str]:
    """What the pages of docs/ import from hpcext."""
    for path in ROOT.glob("docs/*.md"):
        for block in re.findall(r"^```python\n(.*?)^```", path.read_text(), re.M | re.S):
            for node in ast.walk(ast.parse(block)):
                if isinstance(node, ast.ImportFrom) and str(node.module).startswith("hpcext"):
                    yield from (f"{node.module}.{name.name}" for name in node.names)


def test_the_api_has_what_pages_import(pages: dict[str, Page]) -> None:
    names = {*imported()}
    assert {"hpcext.training.torch.Session", "hpcext.backends.base.Backend"} <= names
    found = {name for page in pages for name in pages[page].anchors if page.startswith("api/")}
    assert names <= found
    # Also what it has from its bases.
    assert "hpcext.training.torch.Session.epochs" in found


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_markup_is_understood_as_on_a_forge(path: Path, pages: dict[str, Page]) -> None:
    prose = pages[address(path)].prose
    assert not re.search(r"^ *([-*|] |\d+\. |#+ |```)", prose, re.MULTILINE)
    assert "](" not in prose


# A build of the whole site for each.
@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(
            "[no file](../nowhere.md) [no heading](pytorch.md#nowhere)",
            ("link '../nowhere.md'", "link 'pytorch.md#nowhere'"),
            id="links",
        ),
        pytest.param("`hpcext.core.none`", ("hpcext.core.none could not be found",), id="api"),
    ],
)
def test_faults_end_the_build(text: str, said: tuple[str, ...], tmp_path: Path) -> None:
    for entry in ROOT.iterdir():
        if entry.name not in {"docs", "build", ".git"}:
            (tmp_path / entry.name).symlink_to(entry)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    pixel = b"\x89PNG\r\n\x1a\n"
    (tmp_path / "docs" / "pixel.png").write_bytes(pixel)
    (tmp_path / "docs" / "unlisted.md").write_text(f"# Unlisted\n\n{text} ![a pixel](pixel.png)\n")
    done = build(tmp_path, tmp_path / "built")
    assert done.returncode == 1
    assert 'not included in the "nav" configuration:\n  - docs/unlisted.md\n' in done.stdout
    for each in said:
        assert each in done.stdout
    # A page may have pictures.
    assert "pixel" not in done.stdout


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    started = Chromium(tmp_path_factory.mktemp("chromium"))
    yield started
    started.close()


FOUND = "[...document.querySelectorAll('.md-search-result__link')].map(link => link.href)"
SEARCH = """(() => {
    const input = document.querySelector('.md-search__input')
    document.querySelector('#__search').click()
    input.focus()
    input.value = 'GradScaler'
    input.dispatchEvent(new KeyboardEvent('keyup'))
})()"""
COPIED = """(() => {
    const code = document.querySelector('code .gp').closest('code')
    code.setAttribute('data-md-copying', '')
    return code.innerText
})()"""


def test_a_browser_needs_no_server(site: Path, chromium: Chromium) -> None:
    chromium.open((site / FRONT).as_uri())
    copied = chromium.value(COPIED).split("\n")
    chromium.value(SEARCH)
    chromium.until(lambda: chromium.value(FOUND))
    assert any("docs/pytorch.html" in link for link in chromium.value(FOUND))
    asked = [
        event["params"]["request"]["url"]
        for event in chromium.events
        if event["method"] == "Network.requestWillBeSent"
    ]
    assert asked
    assert all(url.startswith((site.as_uri(), "data:")) for url in asked), asked
    assert not chromium.count("Runtime.exceptionThrown")
    # A copy has the commands alone.
    assert all(line.startswith("hpcext ") for line in copied if line), copied
