"""What mkdocstrings makes of docstrings, in which reStructuredText is not Markdown."""

from __future__ import annotations

import re

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

# Of {"linear", "sqrt"} it takes the first for the default; the signature has the true ones.
DEFAULT = re.compile(r",\s+default:\s+<code>.*?</code>\s*\)", re.DOTALL)
ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):<code>(~?)([\w.]+)</code>")


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str | None:
    """Return a page of the API with a link for each role that names what the site describes."""
    if not page.file.src_uri.startswith("api/"):
        return None
    return ROLE.sub(reference, DEFAULT.sub(")", html)).replace("::</p>", ":</p>")


def reference(role: re.Match[str]) -> str:
    """Return a reference that stays plain if the site has no such name."""
    shown = role[2].rpartition(".")[2] if role[1] else role[2]
    return f'<autoref optional identifier="{role[2]}"><code>{shown}</code></autoref>'
