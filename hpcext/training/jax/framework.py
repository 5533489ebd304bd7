"""The JAX part of a session: its processes, its state, and a check that the script trains it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from hpcext.training.checkpoint import CheckpointError
from hpcext.training.checkpoint.shards import Shards
from hpcext.training.feature import Framework
from hpcext.training.jax.cluster import join
from hpcext.training.jax.held import WRITE
from hpcext.training.jax.sharded import JaxShards
from hpcext.training.jax.state import JaxState
from hpcext.training.ranks import Ranks

_SETTINGS = ("jax_enable_x64", "jax_threefry_partitionable")
"""Settings that decide what numbers a training computes, or draws."""


class Jax(Framework):
    """The interface of a session to JAX.

    Parameters
    ----------
    sharding : sharding, function, pytree or None
        How the state is divided among the devices when it is made.
    """

    use = "use session.dataset(data, global_batch=..., sharding=...)"

    state: JaxState

    def __init__(self, sharding: Any) -> None:
        self._sharding = sharding
        self._beside = Ranks()
        # Of the step under way, and of this attempt.
        self._read = self._assigned = False

    def join(self) -> Ranks:
        """Join the processes of this job."""
        ranks, self._beside = join()
        return ranks

    def make_state(self, objects: dict[str, Any]) -> JaxState:
        """Make the state of the objects that the script names."""
        self.state = JaxState(objects, self._sharding)
        return self.state

    def shards(self) -> Shards:
        """Return how the processes write and read their pieces of divided arrays."""
        return JaxShards(self._beside)

    @property
    def divides_data(self) -> bool:
        """Whether each process has batches of its own; here they may all have the whole batch."""
        return False

    def facts(self) -> dict[str, Any]:
        """Return the settings of JAX that a training must keep."""
        return {"jax": {name: bool(getattr(jax.config, name)) for name in _SETTINGS}}

    def restore(self, manifest: Mapping[str, Any]) -> None:
        """Check that the settings are those with which the checkpoint was written.

        Raises
        ------
        CheckpointError
            They are not.
        """
        for name, value in self.facts()["jax"].items():
            before = manifest["jax"].get(name, value)
            if before != value:
                raise CheckpointError(
                    f"the checkpoint was written with {name}={before}, and now it is {value}",
                    do=f"set {name.upper()}={int(before)}, or use another checkpoint directory",
                )

    def began(self) -> None:
        """Check that the processes train one model."""
        ranks = self.coordinator.ranks
        alone = all(leaf.is_fully_addressable for leaf in self.state.held.leaves)
        if ranks.size > 1 and ranks.rank == 0 and alone:
            self.coordinator.reporter.note(
                f"the {ranks.size} ranks do not average their gradients: no array of the state is "
                "one of all processes, so each rank trains its own model, and a checkpoint holds "
                "only that of rank 0; give Session(sharding=...), one over a mesh of jax.devices()"
            )

    # The state, which the script gives back.

    def get(self) -> Any:
        """Return the pytree that is trained."""
        self._read = True
        return self.state.held.get()

    def set(self, tree: Any) -> None:
        """Replace the pytree by what a step has made of it.

        Raises
        ------
        RuntimeError
            The step cannot have made it of the pytree, which it has not read.
        """
        if self.loop.in_step and not self._read:
            raise RuntimeError(
                "session.state is assigned, but this step has not read it: the step trains a copy "
                f"that would have its initial values when the training is resumed; {WRITE}"
            )
        self.state.held.set(tree)
        self._assigned = self._assigned or self.loop.in_step

    def opened(self) -> None:
        """Forget what was read before the place in the data."""
        self._read = False

    def step_ends(self) -> None:
        """Have the next step read the state anew."""
        self._read = False

    def before_boundary(self) -> bool:
        """Check, at the first boundary, that the step has given the state back."""
        super().before_boundary()
        if not self._assigned:
            raise RuntimeError(
                f"step {self.coordinator.step - 1} has not assigned session.state, so what it "
                f"trains would not be saved; {WRITE}"
            )
        return False

    def finished(self) -> None:
        """Leave together, because a process that is still writing needs the others."""
        self.coordinator.ranks.smallest(0)

    def device_name(self) -> str:
        """Return the name of this process's device: "cpu", or that of a GPU."""
        device = jax.local_devices()[0]
        return "cpu" if device.platform == "cpu" else str(device.device_kind)
