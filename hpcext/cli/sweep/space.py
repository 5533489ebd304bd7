"""The space of a sweep's settings, and the choice from it: all, random, or by Optuna."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hpcext.core.errors import InputError
from hpcext.core.trials import Trial
from hpcext.core.values import Job, Record, State
from hpcext.extras import need
from hpcext.jobfile import MAX_JOBS

Settings = dict[str, str]
"""Key → value, as in the arguments of the script."""


class Range(NamedTuple):
    """The numbers that a setting may have.

    Attributes
    ----------
    low, high : float
    log : bool
        Whether all orders of magnitude are equally likely, rather than all values.
    whole : bool
        Whether all numbers are integers.
    """

    low: float
    high: float
    log: bool
    whole: bool

    def draw(self, source: random.Random) -> str:
        """Draw one of the numbers at random, as text for the script."""
        if self.whole and not self.log:
            return str(source.randint(int(self.low), int(self.high)))
        if not self.log:
            return self.text(source.uniform(self.low, self.high))
        value = math.exp(source.uniform(math.log(self.low), math.log(self.high)))
        return self.text(min(max(value, self.low), self.high))

    def text(self, value: float) -> str:
        """Return a number as text for the script."""
        return str(round(value)) if self.whole else f"{value:.6g}"


class Space(NamedTuple):
    """The settings that may be tried.

    Attributes
    ----------
    grid : Mapping[str, tuple of str]
        Key → its values.
    ranges : Mapping[str, Range]
        Further keys, whose values are numbers from a range.
    """

    grid: Mapping[str, tuple[str, ...]]
    ranges: Mapping[str, Range]

    def every(self) -> list[Settings]:
        """Return every combination, the last key changing fastest.

        Raises
        ------
        InputError
            There are too many, or there are ranges, which have no end of values.
        """
        if self.ranges:
            raise InputError("needs --random", where="--range", do="give the number to draw")
        there_are = math.prod(map(len, self.grid.values()))
        if there_are > MAX_JOBS:
            valid = f"at most {MAX_JOBS} without --random"
            raise InputError("too many combinations", where="--grid", valid=valid)
        return [self._combination(number) for number in range(there_are)]

    def draws(self, count: int, seed: int) -> list[Settings]:
        """Draw combinations at random; without ranges they are all different.

        Parameters
        ----------
        count : int
            The number of combinations.
        seed : int

        Raises
        ------
        InputError
            There are too many combinations, or too few to draw from.
        """
        source, there_are = random.Random(seed), math.prod(map(len, self.grid.values()))
        if there_are > sys.maxsize:
            raise InputError(
                "too many combinations", where="--grid", valid=f"at most {sys.maxsize}"
            )
        most = MAX_JOBS if self.ranges else min(there_are, MAX_JOBS)
        if not 1 <= count <= most:
            raise InputError(str(count), where="--random", valid=f"1 to {most}")
        if not self.ranges:
            return [self._combination(each) for each in source.sample(range(there_are), count)]
        return [
            self._combination(source.randrange(there_are))
            | {key: numbers.draw(source) for key, numbers in self.ranges.items()}
            for _ in range(count)
        ]

    def _combination(self, number: int) -> Settings:
        """Return a combination of the grid by its number, of which each key takes a digit."""
        found = []
        for key, values in reversed(tuple(self.grid.items())):
            number, digit = divmod(number, len(values))
            found.append((key, values[digit]))
        return dict(reversed(found))


def propose(
    space: Space, tried: Sequence[tuple[Job, Trial, Record]], count: int, seed: int, goal: str
) -> list[Settings]:
    """Return the most promising settings, given the trials so far, by the TPE sampler of Optuna.

    Trials that were ended early count by the rungs that they reached. Unfinished ones count as bad
    ones, so that other settings are proposed. Trials outside the space are ignored.

    Parameters
    ----------
    space : Space
    tried : sequence of (Job, Trial, Record)
        The trials so far.
    count : int
        The number of proposals.
    seed : int
    goal : {"min", "max"}

    Raises
    ------
    InputError
        Optuna is not installed.
    """
    optuna = need("optuna", "--optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    kinds = optuna.distributions
    axes = {key: kinds.CategoricalDistribution(values) for key, values in space.grid.items()} | {
        key: kinds.IntDistribution(int(numbers.low), int(numbers.high), log=numbers.log)
        if numbers.whole
        else kinds.FloatDistribution(numbers.low, numbers.high, log=numbers.log)
        for key, numbers in space.ranges.items()
    }
    sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
    study = optuna.create_study(sampler=sampler, direction=f"{goal}imize")
    for job, trial, record in tried:
        values = _values(space, trial.settings)
        if values is not None:
            what = {"params": values, "distributions": axes, **_outcome(optuna, job, trial, record)}
            study.add_trial(optuna.trial.create_trial(**what))
    asked = (study.ask(axes).params for _ in range(count))
    return [
        {
            key: space.ranges[key].text(value) if key in space.ranges else value
            for key, value in sorted(each.items(), key=lambda item: list(axes).index(item[0]))
        }
        for each in asked
    ]


def _outcome(optuna: Any, job: Job, trial: Trial, record: Record) -> dict[str, Any]:
    """Return the outcome of a trial as arguments for Optuna."""
    states, value = optuna.trial.TrialState, record.metrics.get(trial.metric)
    if not job.state.final:
        return {"state": states.RUNNING}
    if job.state is State.COMPLETED and value is not None:
        return {"state": states.COMPLETE, "value": value}
    if record.rungs:
        had = {rung: math.nan if each is None else each for rung, each in record.rungs.items()}
        return {"state": states.PRUNED, "intermediate_values": had}
    return {"state": states.FAIL}


def _values(space: Space, settings: Mapping[str, str]) -> dict[str, Any] | None:
    """Return settings as values of the space; None if they are not in it."""
    if settings.keys() != space.grid.keys() | space.ranges.keys():
        return None
    found: dict[str, Any] = {}
    for key, text in settings.items():
        if key in space.grid:
            if text not in space.grid[key]:
                return None
            found[key] = text
            continue
        numbers = space.ranges[key]
        try:
            value = int(text) if numbers.whole else float(text)
        except ValueError:
            return None
        if not numbers.low <= value <= numbers.high:
            return None
        found[key] = value
    return found
