"""Pieces of HTML. All text is escaped here, and nowhere else."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence

from hpcext.render.style import CSS
from hpcext.text import clean

# Nothing is fetched and nothing runs, so that even text that was not escaped could do no harm.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def text(words: object) -> str:
    """Escape text of any origin for use between tags or in an attribute.

    Unprintable characters (control characters, changes of the direction of writing, bytes that were
    not UTF-8) are shown as escapes.
    """
    return html.escape(clean(str(words)), quote=True)


def document(title: str, head: Iterable[str], body: Iterable[str]) -> str:
    """Return a whole document.

    Parameters
    ----------
    title : str
    head, body : iterable of str
        HTML; empty parts are left out.
    """
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{text(title)}</title>",
            *filter(None, head),
            "</head>",
            "<body>",
            *filter(None, body),
            "</body>",
            "</html>",
            "",
        ]
    )


def page(title: str, body: Iterable[str]) -> str:
    """Return a document that needs no other file.

    Parameters
    ----------
    title : str
    body : iterable of str
        HTML; empty parts are left out.
    """
    policy = f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    return document(title, (policy, f"<style>{CSS}</style>"), ("<main>", *body, "</main>"))


def section(name: str, title: str, *body: str) -> str:
    """Return a section of a page.

    Parameters
    ----------
    name : str
        The id of its heading.
    title : str
    *body : str
        HTML; empty parts are left out.
    """
    inner = "\n".join(part for part in body if part)
    heading = f'<h2 id="{name}">{text(title)}</h2>'
    return f'<section aria-labelledby="{name}">\n{heading}\n{inner}\n</section>'


def paragraph(words: str, kind: str = "") -> str:
    """Return a paragraph of plain text; `kind` is its class."""
    return f'<p class="{kind}">{text(words)}</p>' if kind else f"<p>{text(words)}</p>"


def table(
    caption: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    words: Sequence[int] = (),
) -> str:
    """Return a table; the first cell of a row is its heading.

    Parameters
    ----------
    caption : str
    columns : sequence of str
    rows : iterable of sequence of str
    words : sequence of int
        Indices of columns that hold text, not figures.
    """
    kinds = [' class="words"' if column in words else "" for column in range(len(columns))]
    head = "".join(
        f'<th scope="col"{kind}>{text(cell)}</th>'
        for kind, cell in zip(kinds, columns, strict=True)
    )
    lines = []
    for first, *cells in rows:
        inner = "".join(
            f"<td{kind}>{text(cell)}</td>" for kind, cell in zip(kinds[1:], cells, strict=True)
        )
        lines.append(f'<tr><th scope="row">{text(first)}</th>{inner}</tr>')
    # A wide table scrolls by itself, also with the keyboard.
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{text(caption)}">'
        f"<table><caption>{text(caption)}</caption><thead><tr>{head}</tr></thead>\n<tbody>"
        + "\n".join(lines)
        + "</tbody></table></div>"
    )


def figure(svg: str, caption: str, title: str = "", before: str = "") -> str:
    """Return a plot with its caption.

    Parameters
    ----------
    svg : str
    caption, title : str
    before : str
        HTML between the title and the plot.
    """
    heading = f"<h3>{text(title)}</h3>" if title else ""
    return f"<figure>{heading}{before}\n{svg}\n<figcaption>{text(caption)}</figcaption></figure>"


def legend(entries: Sequence[tuple[str, str, Sequence[float] | None]]) -> str:
    """Return the legend of the colours.

    Parameters
    ----------
    entries : sequence of (words, colour, dash)
        A dash is as in :mod:`hpcext.render.style`, or None for an area.
    """
    return (
        '<ul class="legend">'
        + "".join(
            f'<li><svg viewBox="0 0 36 12" aria-hidden="true">{_swatch(colour, dash)}</svg>'
            f"{text(words)}</li>"
            for words, colour, dash in entries
        )
        + "</ul>"
    )


def terms(entries: Mapping[str, Sequence[str]], kind: str = "") -> str:
    """Return a list of terms, each with the lines of its description; `kind` is its class."""
    given = f' class="{kind}"' if kind else ""
    lines = [
        f"<dt>{text(name)}</dt><dd>{'<br>'.join(text(words) for words in described)}</dd>"
        for name, described in entries.items()
    ]
    return f"<dl{given}>{''.join(lines)}</dl>"


def bullets(entries: Iterable[str]) -> str:
    """Return a bulleted list of plain texts."""
    return f"<ul>{''.join(f'<li>{text(words)}</li>' for words in entries)}</ul>"


def _swatch(colour: str, dash: Sequence[float] | None) -> str:
    if dash is None:
        return f'<rect width="36" height="12" rx="2" fill="var(--{colour})"/>'
    # matplotlib counts a dash in widths of the line.
    lengths = " ".join(f"{2.5 * length:g}" for length in dash)
    dashes = f' stroke-dasharray="{lengths}"' if dash else ""
    return (
        f'<line x1="0" y1="6" x2="36" y2="6" stroke="var(--{colour})" stroke-width="2.5"{dashes}/>'
    )
