"""The reproduction of a paper: its figures, hpcext's beside them, and the assumptions."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TypeVar

import msgspec

Case = TypeVar("Case", bound=Hashable)
Answer = TypeVar("Answer")

FAR = 0.15
"""Relative difference from the paper's figure beyond which a figure needs a reason."""


class Row(msgspec.Struct, frozen=True):
    """One figure.

    Attributes
    ----------
    what : str
    ours : float or None
        hpcext's figure; None if it was not measured, for the reason in `why`.
    paper : float or None
        The paper's figure; None if it has none.
    unit : str
    why : str
        Why the two differ, or what else the reader should know.
    """

    what: str
    ours: float | None
    paper: float | None = None
    unit: str = ""
    why: str = ""

    @property
    def ratio(self) -> float | None:
        """The figure of hpcext as a multiple of the paper's."""
        return None if self.ours is None or not self.paper else self.ours / self.paper

    @property
    def far(self) -> bool:
        """Whether the two differ by more than :data:`FAR`."""
        return self.ratio is not None and abs(self.ratio - 1) > FAR


def figure(
    what: str,
    ours: float | None,
    paper: float | None = None,
    unit: str = "",
    why: str = "",
    *,
    more: str = "",
) -> Row:
    """Return a row, with its reason only if it is far from the paper's figure or not measured.

    Parameters
    ----------
    what, ours, paper, unit, why
        As for :class:`Row`.
    more : str
        A remark that is always shown, after the reason.
    """
    row = Row(what, ours, paper, unit)
    needed = why if row.far or ours is None else ""
    return Row(what, ours, paper, unit, "; ".join(filter(None, (needed, more))))


class Table(msgspec.Struct, frozen=True):
    """The figures of one table or figure of a paper."""

    title: str
    rows: tuple[Row, ...]
    note: str = ""


class Study(msgspec.Struct, frozen=True):
    """The reproduction of a paper, and the assumptions where the paper is silent."""

    paper: str
    title: str
    tables: tuple[Table, ...]
    assumed: tuple[str, ...] = ()


class Extent(msgspec.Struct, frozen=True):
    """The extent of a reproduction.

    Attributes
    ----------
    data : Path or None
        The folder of recorded data (``--data``); without it, experiments that need data are left
        out.
    seeds : tuple of int
    workers : int
        Processes that simulate at once.
    quick : bool
        Whether to reproduce only a representative part, in about a minute.
    """

    data: Path | None = None
    seeds: tuple[int, ...] = (0,)
    workers: int = 1
    quick: bool = False


def many(
    simulate: Callable[[Case], Answer], cases: Iterable[Case], workers: int = 1
) -> dict[Case, Answer]:
    """Return the result of each case, in their order, computed by some number of processes.

    Parameters
    ----------
    simulate : callable
        A function of a module, whose result depends on its argument alone.
    cases : iterable
        The cases, those that take longest first.
    workers : int
        Number of processes.
    """
    every = list(dict.fromkeys(cases))
    workers = min(workers, len(every))
    if workers < 2:
        return {case: simulate(case) for case in every}
    # Not forked, because libraries have threads of their own.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        return dict(zip(every, pool.map(simulate, every), strict=True))
