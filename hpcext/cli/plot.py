"""Pictures of plans and sweeps, with the plots extra (matplotlib)."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcext.core.errors import HpcextError, InputError, refused

INCHES_WIDE, INCHES_EACH = 8.0, 0.45

LABELLED = 24
"""With more jobs than this the legend would be larger than the picture."""


def plot(
    path: Path, divisions: Mapping[str, Mapping[str, int]], titles: Sequence[str], gpus: int
) -> None:
    """Draw one bar for each division, in it the GPUs of each job.

    Parameters
    ----------
    path : pathlib.Path
        Its suffix says what it is: ``.png``, ``.svg``, ``.pdf``.
    divisions : Mapping of str to Mapping of str to int
        Label of a bar → job → GPUs; all of the same jobs.
    titles : sequence of str
        Beside each bar, in the same order.
    gpus : int
        All that there are.

    Raises
    ------
    HpcextError
        matplotlib is not installed.
    InputError
        The file cannot be written, or its suffix is none that is known.
    """
    figure = new_figure(1.5 + INCHES_EACH * len(divisions))
    axes = figure.subplots()
    jobs = list(next(iter(divisions.values())))
    begins = [0] * len(divisions)
    for job in jobs:
        widths = [each.get(job, 0) for each in divisions.values()]
        axes.barh(list(divisions), widths, left=begins, label=job, edgecolor="white")
        begins = [begin + width for begin, width in zip(begins, widths, strict=True)]
    for row, title in enumerate(titles):
        axes.text(begins[row], row, f" {title}", va="center")
    axes.axvline(gpus, color="grey", linewidth=1)
    axes.margins(x=0.2)
    axes.invert_yaxis()
    axes.set_xlabel("GPUs")
    if len(jobs) <= LABELLED:
        axes.legend(ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.25))
    save(figure, path)


def new_figure(inches_high: float) -> Any:
    """An empty figure of matplotlib.

    Raises
    ------
    HpcextError
        matplotlib is not installed.
    """
    try:
        figures = importlib.import_module("matplotlib.figure")
    except ImportError:
        raise HpcextError("matplotlib is not installed", do="pip install 'hpcext[plots]'") from None
    return figures.Figure(figsize=(INCHES_WIDE, inches_high), layout="constrained")


def save(figure: Any, path: Path) -> None:
    """Write a figure.

    Raises
    ------
    HpcextError
        The file cannot be written.
    InputError
        Its suffix is none that is known.
    """
    try:
        figure.savefig(path)
    except OSError as error:
        raise refused(error, f"--plot {path}") from None
    except ValueError as error:
        raise InputError(str(error), where=f"--plot {path}", valid="a .png, .svg or .pdf") from None
