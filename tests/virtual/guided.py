"""Faults that are chosen by what they lead to, in place of ones that are merely drawn.

What a play leads to is told by its story: which things happened one after the other, whatever their
numbers. A play in which something follows something for the first time is kept, and its faults are
changed a little for later plays: one more, one less, one at another moment or done otherwise.
Coverage-guided fuzzing does the same with inputs (AFL, libFuzzer).
"""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from virtual.faults import BEGIN_S, Fault

NEW = 0.5
"""How many plays are of a new seed, with faults that are drawn."""

NEAR_S, NEAR_EVENTS = 0.3, 3
"""How far a fault is moved, in seconds or in events."""

_NUMBERS = re.compile(r"[0-9]+(?:\.[0-9]+)?|/[^ ]*")


class Play(NamedTuple):
    """A play that can be repeated: a seed, and the faults in place of those that it would draw."""

    seed: int
    plan: tuple[Fault, ...]

    def __str__(self) -> str:
        return f"{self.seed}:{','.join(map(written, self.plan))}"

    @classmethod
    def parse(cls, text: str) -> Play:
        """Parse what a failing play is called.

        Raises
        ------
        ValueError
            It is no such name.
        """
        seed, _, faults = text.partition(":")
        return cls(int(seed), tuple(_parsed(each) for each in faults.split(",") if each))


def written(fault: Fault) -> str:
    """Write a fault: what, its own seed, and the second or the event at which it comes."""
    when = f"#{fault.event}" if fault.event else f"@{fault.at!r}"
    return f"{fault.what}/{fault.seed}{when}"


def _parsed(text: str) -> Fault:
    found = re.fullmatch(r"(\w+)/(\d+)(?:#(\d+)|@([0-9.e-]+))", text)
    if found is None:
        raise ValueError(f"{text!r} is no fault (valid: WHAT/SEED@SECONDS or WHAT/SEED#EVENT)")
    what, seed, event, at = found.groups()
    return Fault(float(at or BEGIN_S), what, int(seed), int(event or 0))


def steps(story: Sequence[str]) -> set[str]:
    """Return what followed what in a story, without times, numbers and paths."""
    words = (_NUMBERS.sub("", line.lstrip().partition(" ")[2]).strip() for line in story)
    return {f"{one} > {other}" for one, other in itertools.pairwise(words)}


class Guide:
    """It says what to play next, and is told what that led to.

    Parameters
    ----------
    seed : int
        Of its own choices.
    draw : callable
        Draws the faults of such a room.
    until_s : float
        By when they come.
    """

    def __init__(
        self, seed: int, draw: Callable[[random.Random], list[Fault]], until_s: float
    ) -> None:
        self._chance = random.Random(seed)
        self._draw, self._until_s = draw, until_s
        self._seen: Counter[str] = Counter()
        self._kept: list[tuple[Play, set[str]]] = []
        self._seeds = seed

    def choose(self) -> Play:
        """Return what to play next."""
        if self._kept and self._chance.random() >= NEW:
            return self._changed(self._promising())
        self._seeds += 1
        return Play(self._seeds, tuple(self._draw(random.Random(self._seeds))))

    def led_to(self, play: Play, story: Sequence[str]) -> None:
        """Note what a play has led to."""
        found = steps(story)
        new = {each for each in found if not self._seen[each]}
        self._seen.update(found)
        if new:
            self._kept.append((play, new))

    def _promising(self) -> Play:
        """Choose one of the plays that are kept, rather one that led to what is still rare."""
        some = self._chance.sample(self._kept, min(8, len(self._kept)))
        return min(some, key=lambda kept: min(self._seen[each] for each in kept[1]))[0]

    def _changed(self, play: Play) -> Play:
        plan, chance = list(play.plan), self._chance
        for _ in range(chance.choice([1, 1, 2])):
            how = chance.choice(["more", "less", "moved", "moved", "otherwise"]) if plan else "more"
            at = chance.randrange(len(plan)) if plan else 0
            if how == "more":
                plan += self._drawn()
            elif how == "less":
                del plan[at]
            elif how == "moved":
                plan[at] = self._moved(plan[at])
            else:
                plan[at] = plan[at]._replace(seed=chance.getrandbits(32))
        return play._replace(plan=tuple(sorted(plan)))

    def _drawn(self) -> list[Fault]:
        while not (found := self._draw(self._chance)):
            pass
        return [self._chance.choice(found)]

    def _moved(self, fault: Fault) -> Fault:
        if fault.event:
            by = self._chance.randint(-NEAR_EVENTS, NEAR_EVENTS)
            return fault._replace(event=max(1, fault.event + by))
        at = fault.at + self._chance.uniform(-NEAR_S, NEAR_S)
        return fault._replace(at=min(max(BEGIN_S, at), self._until_s))
