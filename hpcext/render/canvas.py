"""The common look of all plots, on a page or in a file (matplotlib)."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hpcext.extras import need
from hpcext.render import style
from hpcext.render.style import LIGHT
from hpcext.text import clean, columns

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INCHES_WIDE = 8.6

LABEL_CHARS = 30
"""The largest width of a label beside a bar, in characters; tables have the whole label."""

_SETTINGS = {
    # Text stays text, so that it can be searched and read aloud.
    "svg.fonttype": "none",
    # The name of a job may look like a formula: "$x$".
    "text.parse_math": False,
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "axes.edgecolor": LIGHT[style.MUTED],
    "axes.labelcolor": LIGHT[style.MUTED],
    "axes.linewidth": 0.7,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "grid.color": LIGHT[style.RULE],
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "text.color": LIGHT[style.INK],
    "xtick.color": LIGHT[style.MUTED],
    "ytick.color": LIGHT[style.MUTED],
    "xtick.major.size": 3.0,
    "ytick.major.size": 0.0,
    "lines.linewidth": 1.8,
    "lines.scale_dashes": True,
}


@contextlib.contextmanager
def styled(name: str) -> Iterator[None]:
    """Set the look of plots that are drawn and written in this context.

    Parameters
    ----------
    name : str
        The ids of parts of an SVG are derived from it.

    Raises
    ------
    InputError
        matplotlib is not installed.
    """
    styles = need("matplotlib.style")
    settings = {**_SETTINGS, "svg.hashsalt": name}
    with styles.context(["default", settings]), warnings.catch_warnings():
        # matplotlib's fonts may lack a letter of a name that the reader's fonts have.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        yield


def new_figure(inches_high: float) -> Figure:
    """Return an empty figure of the common width."""
    from matplotlib.figure import Figure  # noqa: PLC0415  (slow to import; an extra)

    return Figure(figsize=(INCHES_WIDE, inches_high), layout="constrained")


def cut(label: str) -> str:
    """Shorten a label to fit beside a bar."""
    label = clean(label)
    if columns(label) <= LABEL_CHARS:
        return label
    while columns(label) > LABEL_CHARS - 1:
        label = label[:-1]
    return f"{label}…"
