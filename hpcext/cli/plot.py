"""Plots of plans and sweeps as files, in the style of the report's plots (matplotlib)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpcext.core.errors import InputError, refused
from hpcext.extras import need
from hpcext.render import canvas, style
from hpcext.render.style import LIGHT
from hpcext.text import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")

DOTS_PER_INCH = 160

INCHES_EACH = 0.4

LABELLED = 24
"""The largest number of jobs in a legend: with more it would be larger than the plot."""

SHADES = (1.0, 0.62, 0.38)
"""The strength of the colours of the first five jobs, of the next five, and so on."""

MOST_COLOURS = len(SHADES) * len(style.CURVES)

CHARS_WIDE = 100
"""The width of the axis in small letters."""


def check(path: Path) -> None:
    """Refuse a plot that cannot be drawn, before anything is computed for it.

    Raises
    ------
    InputError
        matplotlib is not installed, or the suffix is unknown.
    """
    need("matplotlib", "--plot")
    if path.suffix.lower() not in SUFFIXES:
        valid = "a name that ends in .png, .svg or .pdf"
        raise InputError(str(path), where="--plot", valid=valid)


def plot(
    path: Path, divisions: Mapping[str, Mapping[str, int]], titles: Sequence[str], gpus: int
) -> None:
    """Draw one bar for each division, made of the GPUs of each job.

    Parameters
    ----------
    path : pathlib.Path
        Its suffix gives the format: ``.png``, ``.svg``, ``.pdf``.
    divisions : Mapping of str to Mapping of str to int
        Label of a bar → job → GPUs; each has the same jobs.
    titles : sequence of str
        The text beside each bar, in the same order.
    gpus : int
        The number of all GPUs.

    Raises
    ------
    InputError
        The file cannot be written, or its suffix is unknown.
    """
    jobs = list(dict.fromkeys(job for each in divisions.values() for job in each))
    shown = [job for job in jobs if any(each.get(job) for each in divisions.values())]
    rows = -(-len(shown) // 4) if len(shown) <= LABELLED else 0

    def draw(figure: Figure) -> None:
        from matplotlib import ticker  # noqa: PLC0415  (slow to import; an extra)

        axes = figure.subplots()
        _bars(axes, divisions, shown, gpus)
        for row, title in enumerate(titles):
            axes.text(gpus * 1.015, row, title, va="center", color=LIGHT[style.MUTED])
        axes.set_yticks(range(len(divisions)), list(map(canvas.cut, divisions)))
        axes.tick_params("y", labelcolor=LIGHT[style.INK])
        axes.set_xlim(0, gpus)
        axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
        axes.set_ylim(len(divisions) - 0.45, -0.55)
        axes.grid(visible=False, axis="y")
        axes.spines["left"].set_visible(False)
        axes.set_xlabel(f"GPUs that each job begins with, of {counted(gpus, 'GPU')} in all")
        if rows:
            figure.legend(ncols=4, loc="outside lower center", alignment="left")

    write(path, 0.9 + INCHES_EACH * len(divisions) + 0.2 * rows, draw)


def _bars(
    axes: Axes, divisions: Mapping[str, Mapping[str, int]], jobs: Sequence[str], gpus: int
) -> None:
    """Draw the parts of the bars, each with its number, and the job's name if there is room."""
    begins = [0] * len(divisions)
    for place, job in enumerate(jobs):
        widths = [each.get(job, 0) for each in divisions.values()]
        colour, edge = _colour(place), LIGHT[style.PAGE]
        ink = edge if place % MOST_COLOURS < len(style.CURVES) else LIGHT[style.INK]
        axes.barh(
            range(len(divisions)), widths, 0.7, begins,
            label=canvas.cut(job), color=colour, edgecolor=edge, linewidth=1,
        )  # fmt: skip
        for row, (begin, width) in enumerate(zip(begins, widths, strict=True)):
            room = CHARS_WIDE * width / gpus
            words = next((each for each in (f"{job}: {width}", str(width)) if len(each) < room), "")
            if width and words:
                axes.text(
                    begin + width / 2, row, words, ha="center", va="center", size=8.0, color=ink
                )
        begins = [begin + width for begin, width in zip(begins, widths, strict=True)]


def _colour(place: int) -> str:
    """Return the colour of a job: one of the report's curves, paler from the sixth job on."""
    shade = SHADES[place // len(style.CURVES) % len(SHADES)]
    full = LIGHT[style.CURVES[place % len(style.CURVES)]]
    pairs = (int(full[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(255 - shade * (255 - each)):02x}" for each in pairs)


def write(path: Path, inches_high: float, draw: Callable[[Figure], None]) -> None:
    """Create a figure, have it drawn, and write it to a file.

    Parameters
    ----------
    path : pathlib.Path
        Its suffix gives the format.
    inches_high : float
    draw : callable
        Draws on the figure that it is given.

    Raises
    ------
    InputError
        The file cannot be written, or its suffix is unknown.
    HpcextError
        There is no space left.
    """
    check(path)
    with canvas.styled(path.stem):
        figure = canvas.new_figure(inches_high)
        draw(figure)
        try:
            figure.savefig(path, facecolor=LIGHT[style.PAGE], dpi=DOTS_PER_INCH)
        except OSError as error:
            raise refused(error, f"--plot {path}") from None
