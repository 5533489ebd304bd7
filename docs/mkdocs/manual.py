"""The manual pages of man/ as pages of the site."""

from __future__ import annotations

import re

from docutils.core import publish_parts
from docutils.writers.html5_polyglot import Writer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.structure.toc import get_toc
from sources import ROOT

SETTINGS = {"halt_level": 2, "report_level": 2, "initial_header_level": 2}
SECTION = re.compile(r'<section id="([^"]+)">\n<h2>(.*?)</h2>')
HEADING = r'<section>\n<h2 id="\1">\2<a class="headerlink" href="#\1">&para;</a></h2>'
LITERAL = re.compile(r'<pre class="literal-block">(.*?)</pre>', re.DOTALL)
PRE = re.compile(r'<span class="pre">([^<]*)</span>')
WORD = re.compile(r'<span class="docutils literal">([^<]*)</span>')
REFERENCE = re.compile(r"<strong>([\w.-]+)</strong>\((\d)\)")
DOCUMENT = re.compile(r"(?<![\w/])docs/\w+\.md")


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str | None:
    """Return a page of the manual as docutils renders it, with links to what it refers to."""
    if not page.file.src_uri.startswith("man/"):
        return None
    text = (ROOT / page.file.src_uri).read_text(encoding="utf-8")
    parts = publish_parts(text, writer=Writer(), settings_overrides=SETTINGS)
    sections = SECTION.findall(parts["body"])
    page.toc = get_toc(
        [{"level": 2, "id": anchor, "name": name, "children": []} for anchor, name in sections]
    )
    page.present_anchor_ids = {*(page.present_anchor_ids or ()), *dict(sections)}

    def linked(found: re.Match[str], target: str) -> str:
        file: File | None = files.get_file_from_path(target)
        if file is None:  # of another program
            return found[0]
        return f'<a href="{file.url_relative_to(page.file)}">{found[0]}</a>'

    body = SECTION.sub(HEADING, parts["body"])
    body = LITERAL.sub(r'<div class="highlight"><pre><code>\1\n</code></pre></div>', body)
    body = WORD.sub(r"<code>\1</code>", PRE.sub(r"\1", body))
    body = REFERENCE.sub(lambda found: linked(found, f"man/{found[1]}.{found[2]}.rst"), body)
    body = DOCUMENT.sub(lambda found: linked(found, found[0]), body)
    return f'{html}\n<p class="subtitle">{parts["subtitle"]}</p>\n<div class="manual">{body}</div>'
