"""The accounts that trainings write of their steps, and the check that each was done once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from hpcext import documents
from hpcext.acceptance.training import SAVE_EVERY
from hpcext.text import are

SKEW_S = 2.0
"""Seconds by which clocks of two hosts may differ, and lives seem to overlap that do not."""


class Life(NamedTuple):
    """A life of a training: one process of it.

    Attributes
    ----------
    began_s, last_s : float
        The instants of its begin and of its last step, in epoch seconds.
    attempt : int
        The number of the attempt; 0 outside hpcext.
    steps : tuple of int
        The steps that it did, counted from 1.
    ended : bool
        Whether it ended by itself, after its last step.
    wrong : bool
        Whether its state did not match its steps.
    """

    began_s: float
    last_s: float
    attempt: int
    steps: tuple[int, ...]
    ended: bool
    wrong: bool


class Verdict(NamedTuple):
    """The judgement of a training's accounts.

    Attributes
    ----------
    steps, lives : int
        The number of steps, and of the processes that did them.
    lost : int
        The number of steps that were done again, because they had not been saved.
    faults : tuple of str
        What went wrong, a sentence each.
    """

    steps: int
    lives: int
    lost: int
    faults: tuple[str, ...]


def parse(text: str) -> Life | None:
    r"""Parse one account; None if it has no first line. An incomplete last line is ignored.

    Examples
    --------
    >>> parse("begin 5.0 1\nstep 1 5.1\nstep 2 5.2\nstep").steps
    (1, 2)
    """
    lines = [line.split() for line in text.split("\n")[:-1]]
    if not lines or lines[0][:1] != ["begin"]:
        return None
    done = [(int(words[1]), float(words[2])) for words in lines if words[0] == "step"]
    said = {words[0] for words in lines}
    began_s = float(lines[0][1])
    last_s = done[-1][1] if done else began_s
    steps = tuple(step for step, _ in done)
    return Life(began_s, last_s, int(lines[0][2]), steps, "end" in said, "wrong" in said)


def read(directory: Path) -> list[Life]:
    """Return all lives of a training in the order in which they began."""
    found = []
    for path in directory.glob("*.txt"):
        try:
            life = parse(path.read_text(encoding="utf-8"))
        except documents.UNFIT:
            continue
        if life is not None:
            found.append(life)
    return sorted(found)


def last_step(lives: Sequence[Life]) -> int:
    """Return the highest step that was done; 0 if none was."""
    return max((life.steps[-1] for life in lives if life.steps), default=0)


def judge(lives: Sequence[Life], save_every: int = SAVE_EVERY) -> Verdict:
    """Judge whether each step was done, and only those since the last checkpoint were repeated.

    Parameters
    ----------
    lives : sequence of Life
        In the order in which they began.
    save_every : int
        Steps between two checkpoints.

    Examples
    --------
    >>> first = Life(0, 2, 1, (1, 2, 3), False, False)
    >>> judge([first, Life(5, 7, 2, (4, 5), True, False)])
    Verdict(steps=5, lives=2, lost=0, faults=())
    >>> judge([first, Life(5, 7, 2, (3, 4), True, False)]).lost
    1
    >>> judge([first, Life(5, 7, 2, (5, 6), True, False)]).faults
    ('step 4 is not recorded',)
    """
    faults, lost, last = [], 0, 0
    for life in lives:
        if life.wrong:
            faults.append(f"after step {life.steps[-1]} its state did not match its steps")
        if not life.steps:
            continue
        if life.steps != tuple(range(life.steps[0], life.steps[-1] + 1)):
            faults.append("a process left out steps or repeated one")
        again = last + 1 - life.steps[0]
        if again < 0:
            missing = f"{last + 1} to {life.steps[0] - 1}" if again < -1 else str(last + 1)
            faults.append(f"step{'s' * (again < -1)} {missing} {are(-again)} not recorded")
        if again > save_every + 1:
            faults.append(f"{again} steps were lost, more than since the last checkpoint")
        lost += max(0, again)
        last = life.steps[-1]
    for one, other in pairwise(lives):
        if other.began_s + SKEW_S < one.last_s:
            faults.append("two of its processes trained at the same time")
    return Verdict(last_step(lives), len(lives), lost, tuple(faults))
