"""Small drawings: marks of jobs, and bars, as SVG that needs no style of its own.

A job has a colour of Okabe and Ito's palette (https://jfly.uni-koeln.de/color/) and a letter; a
secondary is also hatched: colour is never the only sign.
"""

from __future__ import annotations

from collections.abc import Sequence

from hpcext.dashboard.document import JobView
from hpcext.render.markup import text

COLOURS = 7
"""The number of colours, which are classes ``c0`` to ``c6`` of the style sheet."""

HATCH = (
    '<svg class="patterns" aria-hidden="true"><defs><pattern id="hatch" width="6" height="6" '
    'patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect class="stripe" width="2.5" height="6"/></pattern></defs></svg>'
)
"""The pattern to which hatched shapes refer, needed once on a page."""


def colour(job: JobView) -> str:
    """Return the class of the colour of a job."""
    return f"c{job.place % COLOURS}"


def chip(job: JobView, gpu: str = "") -> str:
    """Return the mark of a job; with a GPU, the mark of that GPU, which the job has.

    Parameters
    ----------
    job : JobView
    gpu : str
        ``HOST:INDEX``; empty for the job itself.
    """
    title = f"{gpu}: {job.name}, {job.role}" if gpu else job.name
    index = f'<span class="index">{text(_index(gpu))}</span> ' if gpu else ""
    kind = " secondary" if job.role == "secondary" else ""
    hidden = f'<span class="away"> {text(job.name)}</span>' if gpu else ""
    return (
        f'{index}<span class="chip {colour(job)}{kind}" title="{text(title)}">'
        f"{text(job.mark)}{hidden}</span>"
    )


def free(gpu: str) -> str:
    """Return the mark of a free GPU."""
    return (
        f'<span class="index">{text(_index(gpu))}</span> '
        f'<span class="chip none" title="{text(gpu)}: free">·<span class="away">free</span></span>'
    )


def bar(share: float, words: str) -> str:
    """Return a progress bar.

    Parameters
    ----------
    share : float
        From 0 to 1.
    words : str
        Text beside the bar, as HTML.
    """
    return f'<span class="done"><progress max="1" value="{share:.4f}"></progress> {words}</span>'


def swatch(index: int) -> str:
    """Return a sample of the colour and pattern of a part of :func:`stack`, for a legend."""
    return f'<svg class="swatch" aria-hidden="true">{_filled(index, "100%", "0")}</svg>'


def stack(values: Sequence[float]) -> str:
    """Return the parts of a whole, side by side; a table must state the figures."""
    whole = sum(values)
    if not whole:
        return ""
    at, drawn = 0.0, []
    for index, value in enumerate(values):
        drawn.append(_filled(index, length(value / whole), length(at / whole)))
        at += value
    return f'<svg class="stack" aria-hidden="true">{"".join(drawn)}</svg>'


def _filled(index: int, width: str, x: str) -> str:
    place = f'x="{x}" width="{width}" height="100%"'
    over = f'<rect {place} fill="url(#hatch)"/>' if index % 2 else ""
    return f'<rect class="c{index % COLOURS}" {place}/>{over}'


def _index(gpu: str) -> str:
    return gpu.rpartition(":")[2]


def length(share: float) -> str:
    """Format a share as a length in SVG."""
    return f"{100 * share:.3f}%"
