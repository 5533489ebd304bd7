"""How every picture looks that is drawn here, on a page or in a file (matplotlib)."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hpcext.extras import need
from hpcext.sim.report import style
from hpcext.sim.report.style import LIGHT
from hpcext.text import clean, columns

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INCHES_WIDE = 8.6

LABEL_CHARS = 30
"""A longer label is cut beside a bar; tables have it whole."""

_SETTINGS = {
    # Words stay words, so that they can be read aloud and searched.
    "svg.fonttype": "none",
    # A name such as "$x$" is a name.
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
    """Draw and write in its body, by settings that are ours alone.

    Parameters
    ----------
    name : str
        Names of parts of an SVG are made of it.

    Raises
    ------
    InputError
        matplotlib is not installed.
    """
    styles = need("matplotlib.style")
    settings = {**_SETTINGS, "svg.hashsalt": name}
    with styles.context(["default", settings]), warnings.catch_warnings():
        # Its own fonts lack a letter of some name: the reader has it.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        yield


def new_figure(inches_high: float) -> Figure:
    """An empty figure, as wide as all of ours."""
    from matplotlib.figure import Figure  # noqa: PLC0415  (slow to import; an extra)

    return Figure(figsize=(INCHES_WIDE, inches_high), layout="constrained")


def cut(label: str) -> str:
    """A label that has room beside a bar."""
    label = clean(label)
    if columns(label) <= LABEL_CHARS:
        return label
    while columns(label) > LABEL_CHARS - 1:
        label = label[:-1]
    return f"{label}…"
