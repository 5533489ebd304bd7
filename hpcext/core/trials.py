"""Trials of a sweep: the steps at which they are compared, and the rule that ends some there.

Successive halving without waiting, in its form that stops: a trial that comes to a rung is compared
with those that came there before it, once, and goes on at once or is ended. ASHA (Li et al., "A
System for Massively Parallel Hyperparameter Tuning", MLSys 2020, algorithm 2) pauses trials at
rungs and promotes from the paused ones instead; docs/sweep.md says what differs.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec


class Trial(msgspec.Struct, frozen=True):
    """A job's place in its sweep.

    Attributes
    ----------
    sweep : str
        Name of the sweep.
    settings : Mapping[str, str]
        The settings in which it differs from the other trials, for display.
    metric : str
        The metric by which trials are compared; empty: they are not compared.
    goal : {"min", "max"}
        Which values of it are better.
    first : int or None
        Step of the first rung; None: no trial is ended.
    factor : int
        Each rung has so many times the steps of the one before it, and one of so many goes on.
    """

    sweep: str
    settings: Mapping[str, str] = msgspec.field(default_factory=dict)
    metric: str = ""
    goal: Literal["min", "max"] = "min"
    first: int | None = None
    factor: int = 3

    @property
    def rules(self) -> tuple[str, str, str, int | None, int]:
        """The rules that all trials of a comparison share."""
        return self.sweep, self.metric, self.goal, self.first, self.factor

    def rung(self, step: int) -> int | None:
        """Return the step of the last rung that is not beyond a step, None before the first one.

        Examples
        --------
        >>> trial = Trial("lr", metric="loss", first=100, factor=3)
        >>> [trial.rung(step) for step in (99, 100, 299, 900)]
        [None, 100, 100, 900]
        """
        if self.first is None or step < self.first:
            return None
        rung = self.first
        while rung * self.factor <= step:
            rung *= self.factor
        return rung

    def score(self, value: float | None) -> float:
        """Return a value as a score: the smaller the better; what is no number is the worst."""
        if value is None:
            return math.inf
        return value if self.goal == "min" else -value

    def reached(
        self,
        step: int,
        metrics: Mapping[str, float | None],
        rungs: Mapping[int, Mapping[str, float | None]],
        highest: int,
    ) -> dict[int, float | None]:
        """Return the rungs that a trial reaches with a report, and its metric there.

        If it reports its metric at a rung, that counts there. Otherwise its current metric counts
        at the last rung that it has reached, and the metric at rungs that it passed before is
        unknown. A trial that goes back to a checkpoint and reaches a rung again is not counted
        again. Without the metric no rung is reached.

        Parameters
        ----------
        step : int
        metrics : Mapping[str, float or None]
            Metrics at this step; None for a value that is not a number.
        rungs : Mapping[int, Mapping[str, float or None]]
            The same at rungs that it passed, if it reports them.
        highest : int
            The last rung that it had reached before; 0: none.

        Returns
        -------
        dict of int to (float or None)
            Step of each new rung, ascending → the metric there.
        """
        known = {rung: metrics} if (rung := self.rung(step)) is not None else {}
        known |= {each: had for each, had in rungs.items() if self.rung(each) == each <= step}
        return {
            rung: had[self.metric]
            for rung, had in sorted(known.items())
            if rung > highest and self.metric in had
        }


class Trials:
    """The results of all trials at their rungs, and which trials are left."""

    def __init__(self) -> None:
        # By the rules that trials share: rung → scores, the best first.
        self._scores: dict[tuple[object, ...], dict[int, list[float]]] = {}
        self._left: dict[tuple[object, ...], set[str]] = {}

    def note(self, job: str, trial: Trial, *, left: bool) -> None:
        """Note whether a trial remains in the comparison: it waits, runs or is complete.

        Parameters
        ----------
        job : str
            Its id.
        trial : Trial
        left : bool
            Whether it remains in the comparison.
        """
        jobs = self._left.setdefault(trial.rules, set())
        if left:
            jobs.add(job)
        else:
            jobs.discard(job)

    def place(self, trial: Trial, rung: int, value: float | None) -> None:
        """Note what a trial had at a rung.

        Parameters
        ----------
        trial : Trial
        rung : int
            Its step.
        value : float or None
            The metric there; None for what is no number.
        """
        scores = self._scores.setdefault(trial.rules, {}).setdefault(rung, [])
        bisect.insort(scores, trial.score(value))

    def verdict(self, job: str, trial: Trial, rung: int, value: float | None) -> str:
        """Explain why a trial that was placed at a rung is ended there; empty if it goes on.

        Of `n` trials that have reached the rung, including this one, the best ``n / factor`` go
        on, rounded up: the first one always does. Equal trials share a place. A trial whose metric
        is not a number is never among the best. The last remaining trial is never ended.

        Parameters
        ----------
        job : str
            Its id.
        trial : Trial
        rung : int
        value : float or None
            As it was placed.
        """
        left = self._left[trial.rules]
        if len(left) == (job in left):
            return ""
        scores = self._scores[trial.rules][rung]
        score, most = trial.score(value), math.ceil(len(scores) / trial.factor)
        if bisect.bisect_left(scores, score) < most and score < math.inf:
            return ""
        return _sentence(trial, rung, value, scores, most)


def _sentence(
    trial: Trial, rung: int, value: float | None, scores: Sequence[float], most: int
) -> str:
    """Say what a trial had at a rung where it is ended, and what the best ones had."""
    had = "is not a number" if value is None else f"{value:.4g}"
    said = f"behind at step {rung} of its sweep: {trial.metric} {had}"
    sign = 1 if trial.goal == "min" else -1
    best = [f"{sign * each:.4g}" for each in scores[:most] if each < math.inf]
    if not best:
        return said
    which = "the best" if len(best) == 1 else f"the best {len(best)}"
    values = best[0] if best[0] == best[-1] else f"{best[0]} to {best[-1]}"
    return f"{said}; of {len(scores)} trials there {which} had {values}"
