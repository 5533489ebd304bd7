"""The choice of the copies from which ranks go on, by what each of them has.

A copy is of the shards of a rank as they were after some step, in some group of ranks. A rank may
also have that of another one, its *ward*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Place(NamedTuple):
    """The place of a rank in a group.

    Attributes
    ----------
    group, size, rank : int
    """

    group: int
    size: int
    rank: int


class Told(NamedTuple):
    """What a rank tells the others of one of its copies.

    Attributes
    ----------
    group, size, rank : int
        The rank's place when it was made.
    step : int
        The steps that had been made.
    ward : int
        The rank of which it has a copy, too; -1 for none.
    """

    group: int
    size: int
    rank: int
    step: int
    ward: int


class Choice(NamedTuple):
    """The copies from which the ranks go on.

    Attributes
    ----------
    group, step : int
    size : int
        The ranks of that group.
    stay : tuple of int
        The rank in that group of each rank.
    copies : Mapping of int to int
        Ranks of that group that are gone, and for each the present rank that has its copy.
    """

    group: int
    step: int
    size: int
    stay: tuple[int, ...]
    copies: Mapping[int, int]


def choose(told: Sequence[Sequence[Told]], shards: int | None) -> Choice | None:
    """Choose the latest copies that are whole; None if there are none.

    Parameters
    ----------
    told : sequence of sequences of Told
        What each rank has.
    shards : int or None
        The ranks that hold a model together; None: all of a group.
    """
    keys = {(each.step, each.group) for each in told[0]}
    for step, group in sorted(keys, reverse=True):
        found = [
            next((each for each in mine if (each.step, each.group) == (step, group)), None)
            for mine in told
        ]
        whole = [each for each in found if each is not None]
        if len(whole) < len(found):
            continue
        size, stay = whole[0].size, tuple(each.rank for each in whole)
        copies = {each.ward: rank for rank, each in enumerate(whole) if each.ward >= 0}
        each_of = shards or size
        there = {rank % each_of for rank in stay}
        gone = {*range(size)} - {*stay}
        if all(rank % each_of in there or rank in copies for rank in gone):
            return Choice(
                group, step, size, stay, {rank: copies[rank] for rank in gone if rank in copies}
            )
    return None


def numbered(told: Sequence[Told], most: int) -> list[float]:
    """Return what a rank has as equally many numbers, for at most so many copies."""
    nothing = [Told(-1, 0, 0, -1, -1)] * (most - len(told))
    return [float(number) for each in (*told, *nothing) for number in each]


def from_numbers(numbers: Sequence[float]) -> list[Told]:
    """Reverse :func:`numbered`."""
    width = len(Told._fields)
    starts = range(0, len(numbers), width)
    told = [Told(*map(int, numbers[start : start + width])) for start in starts]
    return [each for each in told if each.group >= 0]
