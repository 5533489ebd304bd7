"""The plots, as SVG that stands in a page and takes its colours from there (matplotlib).

With the same matplotlib, the same values give the same bytes: there are no dates and no settings of
the user, and ids are derived from the name of the plot.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from hpcext.render import canvas, style
from hpcext.render.style import LIGHT
from hpcext.text import clean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BAR_INCHES = 0.36
ROW_INCHES = 0.22
CHARS_WIDE = 130
"""The width of a timeline in small letters."""

LOG_RATIO = 50.0
"""The ratio of the longest to the shortest time beyond which the axis is logarithmic."""

Floats = npt.NDArray[np.float64]

_COLOURS = {value: name for name, value in LIGHT.items()}


class Plot(NamedTuple):
    """The properties that all plots have.

    Attributes
    ----------
    name : str
        Unique in the page, of letters, digits and dashes.
    title, description : str
        Text for readers who do not see the plot.
    """

    name: str
    title: str
    description: str


class Bar(NamedTuple):
    """One bar: its label, its parts, and the text behind it.

    Attributes
    ----------
    label : str
    parts : sequence of float
        Shares from 0 to 1, from the left.
    end, spread : float
        The position of the whisker, and its length to each side, both as shares; no whisker if the
        length is 0.
    words : str
        The text beside the bar.
    """

    label: str
    parts: Sequence[float]
    end: float
    spread: float
    words: str


class Stretch(NamedTuple):
    """A stretch of time in a row of a timeline.

    Attributes
    ----------
    row : int
    start, end : float
        On the axis of time.
    colour : str
        The name of the colour.
    words : str
        Text in it, if there is room.
    """

    row: int
    start: float
    end: float
    colour: str
    words: str


def timeline(
    plot: Plot, rows: Sequence[str], stretches: Sequence[Stretch], end: float, xlabel: str
) -> str:
    """Plot rows of stretches over time, the first row on top.

    Parameters
    ----------
    plot : Plot
    rows : sequence of str
        The labels.
    stretches : sequence of Stretch
    end : float
        The end of the axis of time, which begins at 0.
    xlabel : str
    """

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for each in stretches:
            width = each.end - each.start
            axes.barh(
                each.row, width, 0.8, each.start,
                color=LIGHT[each.colour], edgecolor=LIGHT[style.PAGE], linewidth=0.5,
            )  # fmt: skip
            if width * CHARS_WIDE > len(each.words) * end:
                middle = (each.start + each.end) / 2
                axes.text(
                    middle, each.row, each.words, ha="center", va="center", size=7.0,
                    color=LIGHT[style.PAGE],
                )  # fmt: skip
        axes.set_yticks(range(len(rows)), [canvas.cut(row) for row in rows], color=LIGHT[style.INK])
        axes.set_xlim(0, end or 1)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(xlabel)

    return drawn(plot, 0.7 + ROW_INCHES * len(rows), draw)


def curves(
    plot: Plot,
    series: Sequence[tuple[Floats, Floats]],
    xlabel: str,
    ylabel: str,
    mark: float | None = None,
) -> str:
    """Plot cumulative distributions, one for each label; empty ones are left out.

    Parameters
    ----------
    plot : Plot
    series : sequence of (x, y)
        Arrays of the same length, ascending; the index in the sequence decides the look.
    xlabel, ylabel : str
    mark : float, optional
        The position of a vertical line at a meaningful value.
    """
    shown = [(index, x, y) for index, (x, y) in enumerate(series) if len(x)]
    lowest = min(float(x[0]) for _, x, _ in shown)
    highest = max(float(x[-1]) for _, x, _ in shown)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        if lowest > 0 and highest / lowest > LOG_RATIO:
            _logarithmic(axes)
            axes.set_xlim(lowest / 1.1, highest * 1.1)
        else:
            axes.set_xlim(0, 1.03 * highest or 1)
        if mark is not None:
            axes.axvline(mark, color=LIGHT[style.MUTED], linewidth=1)
        for index, x, y in shown:
            colour, dash = style.look(index)
            axes.step(
                [x[0], *x, axes.get_xlim()[1]],
                [0, *y, y[-1]],
                where="post",
                color=LIGHT[colour],
                # Solid lines are drawn below dashed ones, which they would hide.
                zorder=2 + bool(dash),
                dashes=dash or (None, None),
            )
        axes.set_ylim(0, 1.02)
        axes.set_xlabel(xlabel)
        axes.set_ylabel(ylabel)

    return drawn(plot, 3.4, draw)


def bars(plot: Plot, rows: Sequence[Bar], colours: Sequence[str], xlabel: str) -> str:
    """Plot bars of shares, one below the other, from 0 to 100 %.

    Parameters
    ----------
    plot : Plot
    rows : sequence of Bar
    colours : sequence of str
        The name of the colour of each part.
    xlabel : str
    """

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        places = np.arange(len(rows))
        left = np.zeros(len(rows))
        for part, colour in enumerate(colours):
            widths = np.array([100 * row.parts[part] for row in rows])
            axes.barh(places, widths, 0.62, left, color=LIGHT[colour], linewidth=0)
            left += widths
        for place, row in enumerate(rows):
            if row.spread:
                axes.errorbar(
                    100 * row.end, place, xerr=100 * row.spread,
                    color=LIGHT[style.INK], linewidth=1.2, capsize=3,
                )  # fmt: skip
            axes.text(101.5, place, row.words, va="center")
        axes.set_yticks(places, [canvas.cut(row.label) for row in rows], color=LIGHT[style.INK])
        axes.set_xlim(0, 100)
        axes.set_ylim(len(rows) - 0.45, -0.55)
        axes.grid(visible=False, axis="y")
        axes.spines["left"].set_visible(False)
        axes.set_xlabel(xlabel)

    return drawn(plot, 0.7 + BAR_INCHES * len(rows), draw)


def drawn(plot: Plot, inches_high: float, draw: Callable[[Figure], None]) -> str:
    """Draw a figure, and return it as a part of a page.

    Parameters
    ----------
    plot : Plot
    inches_high : float
    draw : callable
        Draws on the empty figure that it is given.
    """
    with canvas.styled(plot.name):
        figure = canvas.new_figure(inches_high)
        draw(figure)
        written = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(written, format="svg", metadata=nothing)
    return _inline(plot, written.getvalue())


def _inline(plot: Plot, svg: str) -> str:
    """Return an SVG for a page: without a head, with unique ids, in the colours of the page."""
    svg = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.DOTALL)
    _, box, inner = re.split(r'<svg [^>]*viewBox="([^"]*)"[^>]*>', svg, maxsplit=1)
    # Text between tags stays as it is: a label may look like a colour.
    inner = re.sub(r"<[^>]+>", lambda tag: _tag(tag[0]), inner)
    inner = re.sub(r"\s*\n\s*", "\n", inner.strip())
    name = plot.name
    return (
        f'<svg viewBox="{box}" role="img" aria-labelledby="{name}-title {name}-text">'
        f'<title id="{name}-title">{html.escape(clean(plot.title))}</title>'
        f'<desc id="{name}-text">{html.escape(clean(plot.description))}</desc>\n{inner}'
    )


def _tag(tag: str) -> str:
    if tag.startswith("<g id="):
        return re.sub(r' id="[^"]*"', "", tag)
    # Rounding to a hundredth of a point is invisible, and halves the size of the page.
    if tag.startswith("<path"):
        tag = re.sub(r"(\.[0-9]{2})[0-9]+", r"\1", tag)
    return re.sub(r"#[0-9a-f]{6}\b", _variable, tag)


def _variable(found: re.Match[str]) -> str:
    name = _COLOURS.get(found[0])
    return f"var(--{name})" if name else found[0]


def _logarithmic(axes: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator  # noqa: PLC0415

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=9))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
