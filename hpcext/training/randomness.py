"""The random numbers of a rank: which ones it draws where, in each attempt."""

from __future__ import annotations

import numpy as np

from hpcext.training.checkpoint.state import TrainingState, Tree


class Randomness:
    """The random states of a rank, from attempt to attempt.

    What a script draws before its epochs, as for a split of its data, is alike in all attempts;
    only generators that it gave to the session go on from the checkpoint at once.
    Then an epoch begins with what it began with, and its steps go on with what the checkpoint has.

    Parameters
    ----------
    state : TrainingState
    seed : int or None
        The user's; None: the states are left as they are.

    Attributes
    ----------
    saved : Tree or None
        That of the checkpoint from which the training goes on, if this rank has one there.
    epoch : Tree
        The states as the present epoch began.
    """

    def __init__(self, state: TrainingState, seed: int | None) -> None:
        self._state = state
        self._seed = seed
        self._is_due = False
        self.saved: Tree | None = None
        self.epoch: Tree = {}

    def begin(self, rank: int, *, resumed: bool) -> None:
        """Draw as at first, until the epochs begin.

        Parameters
        ----------
        rank : int
        resumed : bool
            Whether there is a checkpoint to go on from.
        """
        self._is_due = resumed
        if self._seed is not None:
            self._state.seed(self._seed + rank)
        if self.saved is not None:
            self._state.set_generators(self.saved["now"])
        self.epoch = self._state.random()

    def epochs_begin(self, rank: int, step: int) -> None:
        """Go on from the checkpoint, the first time that a script comes to epochs.

        Parameters
        ----------
        rank, step : int
        """
        if self._is_due:
            self.restore(rank, step)
            self.epoch = self._state.random()

    def epoch_begins(self, *, again: bool) -> None:
        """Note with what an epoch begins.

        Parameters
        ----------
        again : bool
            Whether it is the one in which the checkpoint was written: it begins as it did then.
        """
        if again and self.saved is not None:
            self._state.set_random(self.saved["epoch"])
        self.epoch = self._state.random()

    def restore(self, rank: int, step: int) -> None:
        """Go on from where the checkpoint was written.

        Parameters
        ----------
        rank, step : int
        """
        self._is_due = False
        if self.saved is not None:
            self._state.set_random(self.saved["now"])
        elif self._seed is not None:
            # For a rank that did not exist before; different after each resize.
            numbers = np.random.SeedSequence((self._seed, rank, step))
            self._state.seed(int(numbers.generate_state(1)[0]))
