"""What the site consists of: docs/, man/, the API, and each file of ours that these link to.

Every source keeps its path in the repository. So a link such as ``../benchmarks/RESULTS.md`` is the
same on the site and on a forge, and MkDocs checks it as it checks those between pages.
"""

from __future__ import annotations

import ast
import fnmatch
import re
from collections.abc import Iterator
from pathlib import Path
from posixpath import join, normpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from pygments.lexers import find_lexer_class_for_filename

ROOT = Path(__file__).parents[2]
FRONT = "docs/which.md"
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)")
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MENTION = re.compile(r"`(hpcext(?:\.\w+){2,})")
PICTURES = (".gif", ".jpg", ".png", ".svg", ".webp")
UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n"


class Source(File):
    """A file of the repository that becomes a page, whatever its name ends with."""

    def is_documentation_page(self) -> bool:
        """Return that it is one."""
        return True


def on_config(config: MkDocsConfig) -> None:
    """Put every page that it fits in the place of a pattern of the navigation."""
    every = [*pages(), *api()]
    config.nav = [expanded(entry, every) for entry in config.nav]


def expanded(entry: Any, every: list[str]) -> Any:
    """Return an entry of the navigation, its patterns replaced."""
    if isinstance(entry, dict):
        return {title: expanded(below, every) for title, below in entry.items()}
    if isinstance(entry, list):
        return [expanded(below, every) for below in entry]
    return fnmatch.filter(every, entry) if "*" in entry else entry


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pages, and what they link to."""
    for path, text in api().items():
        files.append(source(config, path, text, InclusionLevel.UNDEFINED))
    listed = pages()
    waiting, known = [*listed], {*listed}
    while waiting:
        path = waiting.pop()
        if path.endswith(PICTURES):
            files.append(File(path, str(ROOT), config.site_dir, use_directory_urls=False))
            continue
        # Those that docs/ and man/ only link to may be in the navigation, and need not be.
        listing = InclusionLevel.UNDEFINED if path in listed else InclusionLevel.NOT_IN_NAV
        text = content(path)
        files.append(source(config, path, text, listing))
        new = {*links(path, text)} - known
        waiting.extend(sorted(new))
        known |= new


def pages() -> list[str]:
    """Return the paths of what the navigation has to have."""
    found = [*ROOT.glob("docs/*.md"), *ROOT.glob("man/*.rst")]
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def source(config: MkDocsConfig, path: str, text: str, listing: InclusionLevel) -> Source:
    """Return a page; its address is its path, that of the front page the site's."""
    made = Source(
        path,
        src_dir=None,
        dest_dir=config.site_dir,
        use_directory_urls=config.use_directory_urls,
        dest_uri="index.html" if path == FRONT else f"{re.sub(r'[.](md|rst)$', '', path)}.html",
        inclusion=listing,
    )
    made.content_string = text
    return made


def content(path: str) -> str:
    """Return the Markdown of a page: its own, or what shows a file or a directory."""
    where = ROOT / path
    if where.is_dir():
        names = (each.name for each in where.iterdir())
        below = sorted(name for name in names if not name.startswith((".", "__pycache__")))
        items = "\n".join(f"- [{name}]({where.name}/{name})" for name in below)
        return f"{UNSEARCHED}# {path}\n\n{items}\n"
    text = where.read_text(encoding="utf-8")
    if path.endswith(".md"):
        return text
    if path.startswith("man/"):
        name, section = where.stem.rsplit(".", 1)
        return f"# {name}({section})\n"  # manual.py makes the rest
    lexer = find_lexer_class_for_filename(where.name)
    language = lexer.aliases[0] if lexer else "text"
    fence = max(re.findall("`{3,}", text), default="``") + "`"
    return f"{UNSEARCHED}# {path}\n\n{fence}{language}\n{text}\n{fence}\n"


def links(path: str, text: str) -> Iterator[str]:
    """Yield what a page links to in the repository; MkDocs reports links to what is not there."""
    if (ROOT / path).is_file() and not path.endswith(".md"):
        return
    for link in LINK.findall(FENCE.sub("", text)):
        target = normpath(join(path, "..", link))
        if not target.startswith("..") and (ROOT / target).exists():
            yield target


def api() -> dict[str, str]:
    """Return pages of what docs/ import from hpcext, or name by its whole path."""
    names = set()
    for path in ROOT.glob("docs/*.md"):
        text = path.read_text(encoding="utf-8")
        names.update(MENTION.findall(FENCE.sub("", text)))
        names.update(name for block in PYTHON.findall(text) for name in imports(block))
    by_page: dict[str, list[str]] = {}
    for name in sorted(names):
        by_page.setdefault(page_of(name), []).append(name)
    return {
        f"api/{page}.md": f"# {page}\n\n" + "\n\n".join(f"::: {name}" for name in several) + "\n"
        for page, several in by_page.items()
    }


def imports(program: str) -> Iterator[str]:
    """Yield the names that a program imports from hpcext."""
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("hpcext."):
            yield from (f"{node.module}.{each.name}" for each in node.names)


def page_of(name: str) -> str:
    """Return the page of a name: that of its package, in hpcext.training that of the framework."""
    words = name.split(".")
    return ".".join(words[: 3 if words[1] == "training" else 2])
