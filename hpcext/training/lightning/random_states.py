"""The random states of all ranks, captured at one moment and written at a later one."""

from __future__ import annotations

import json

import numpy as np

from hpcext.training.checkpoint.state import Tree
from hpcext.training.ranks import Ranks
from hpcext.training.torch.random import TorchRandom


class RandomStates:
    """The random states of Python, NumPy, PyTorch and this rank's GPU.

    Attributes
    ----------
    gathered : str
        JSON: the states of each rank, by rank. Only rank 0 has more than a placeholder. Empty
        before :meth:`gather`.
    """

    def __init__(self) -> None:
        self._state = TorchRandom({})
        self._kept: Tree | None = None
        self.gathered = ""

    def keep(self) -> None:
        """Keep the present random states for a checkpoint that is written later."""
        self._kept = self._state.random()

    def gather(self, ranks: Ranks) -> None:
        """Gather the states that every rank kept last; collective."""
        if self._kept is None:
            self.keep()
        parts = ranks.gather(json.dumps(self._kept).encode())
        self.gathered = json.dumps([json.loads(part) for part in parts])

    def restore(self, gathered: str, ranks: Ranks, step: int) -> None:
        """Restore the random states of a checkpoint.

        Parameters
        ----------
        gathered : str
        ranks : Ranks
        step : int
            Optimizer steps done.
        """
        states: list[Tree] = json.loads(gathered)
        if ranks.rank < len(states):
            self._state.set_random(states[ranks.rank])
            return
        # A rank that did not exist then gets a stream of its own, another one after each resize.
        entropy = np.random.SeedSequence((ranks.rank, step))
        self._state.seed(int(entropy.generate_state(1)[0]))
