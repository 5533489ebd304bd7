"""The other ranks of a training: it joins them, changes with them, and goes on without the dead."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from hpcext.training.checkpoint.keeper import Keeper
from hpcext.training.coordinator import Coordinator
from hpcext.training.feature import Feature, Resizing
from hpcext.training.loop import Loop
from hpcext.training.ranks import Ranks

Heard = TypeVar("Heard")


class Others:
    """The other ranks of a training.

    Parameters
    ----------
    coordinator : Coordinator
    loop : Loop
    resizing : Resizing
    features : sequence of Feature
    keeper : Keeper or None
    facts : callable
        Returns what a manifest says of the training.
    follow : callable
        Takes what another rank says of the training, whose state comes with the next loader.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        loop: Loop,
        resizing: Resizing,
        features: Sequence[Feature],
        *,
        keeper: Keeper | None,
        facts: Callable[[], Mapping[str, Any]],
        follow: Callable[[Mapping[str, Any]], object],
    ) -> None:
        self._coordinator = coordinator
        self._loop = loop
        self._resizing = resizing
        self._features = features
        self._keeper = keeper
        self._facts = facts
        self._follow = follow

    def join(self) -> None:
        """Join them, if this process was started to join a training."""
        facts = self._resizing.join(self._regroup)
        if facts is None:
            return
        self._follow(facts)
        if self._keeper is not None:
            self._keeper.run_id = facts["run_id"]

    def change(self, number: int) -> None:
        """Form the group with this number, or leave the training."""
        self._before_change()
        self.outlived(lambda: self._resizing.change(number, self._regroup, self._facts_for_others))

    # Going on without ranks that die.

    def step_is_broken(self) -> bool:
        """Return whether a rank has died in the present step, which must be made again."""
        return self._resizing.broke()

    def drop_step(self) -> None:
        """End the present step, which is broken, as if it had not been made."""
        self._loop.abandon_step()
        self._resizing.undo()

    def meet(self) -> bool:
        """Meet the others when a loader is read; return whether to reopen it.

        So no rank begins another epoch before all have made the last step of this one.
        """
        return self.outlived(self._resizing.meet) and not self._resizing.is_behind

    def outlived(self, communicate: Callable[[], object], *, later: bool = False) -> bool:
        """Communicate as :meth:`heard` does; return whether some have died."""
        return self.heard(lambda: (communicate(),), later=later) is None

    def heard(self, communicate: Callable[[], Heard], *, later: bool = False) -> Heard | None:
        """Communicate with the others; return None if some have died, and the training goes on.

        Parameters
        ----------
        communicate : callable
        later : bool
            Whether it goes on without them only from the next step, as in a validation.
        """
        try:
            return communicate()
        except RuntimeError as error:
            if not self._resizing.broke(error):
                raise
        if not later:
            self.outlive()
        return None

    def outlive(self) -> None:
        """Go on without those that have died, from the last step that any rank has made."""
        self._before_change()
        self._loop.abandon_step()
        facts = self._resizing.mend(self._regroup, self._facts_for_others)
        if facts is not None:
            self._follow(facts)

    def _before_change(self) -> None:
        assert self._keeper is not None
        self.outlived(self._keeper.before_change, later=True)

    def _facts_for_others(self) -> dict[str, Any]:
        assert self._keeper is not None
        size, step = self._coordinator.ranks.size, self._coordinator.step
        return {**self._facts(), "step": step, "world_size": size, "run_id": self._keeper.run_id}

    def _regroup(self, ranks: Ranks) -> None:
        self._coordinator.regroup(ranks)
        for walk in self._loop.walks:
            walk.resize(ranks.rank, ranks.size)
        for feature in self._features:
            feature.regrouped()
