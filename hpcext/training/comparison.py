"""The comparison of the ranks of a training, once in an attempt, at the boundary after a step."""

from __future__ import annotations

from typing import Any

from hpcext.training.coordinator import Coordinator
from hpcext.training.data.undivided import Observation, compare, first_batch
from hpcext.training.feature import Framework
from hpcext.training.loop import Loop


class Comparison:
    """Whether all ranks train one model, on batches of their own.

    Parameters
    ----------
    coordinator : Coordinator
    loop : Loop
        Has what this rank has seen in its first step.
    framework : Framework

    Attributes
    ----------
    made : bool
    """

    def __init__(self, coordinator: Coordinator, loop: Loop, framework: Framework) -> None:
        self._coordinator = coordinator
        self._loop = loop
        self._framework = framework
        self.made = False

    def look_at(self, loader: Any, batch: Any) -> None:
        """Record the first batch of this attempt.

        Parameters
        ----------
        loader : Any
        batch : Any
            The first one that it gave.
        """
        if self._loop.seen is None:
            alone = self._coordinator.ranks.size == 1 or self._coordinator.store is None
            apart = self._framework.divides_data and not alone
            self._loop.seen = first_batch(loader, batch) if apart else Observation()

    def make(self) -> None:
        """Compare the ranks, which all call this, and note the problems; later calls do nothing."""
        if self.made:
            return
        self.made = True
        ranks, framework = self._coordinator.ranks, self._framework
        for note in compare(ranks, self._loop.seen, use=framework.use, wrap=framework.wrap):
            self._coordinator.reporter.note(note)
