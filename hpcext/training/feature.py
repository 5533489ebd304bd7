"""The parts of which a session is composed: its framework, and features with hooks.

A session calls the hooks of its features at fixed places of the loop. Those that are about what
comes (:meth:`Feature.opening`, :meth:`Feature.before_boundary` ...) are called in the order of the
features, those about what was done (:meth:`Feature.opened`, :meth:`Feature.after_boundary`) in
reverse, so that features enclose each other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from hpcext import protocol
from hpcext.training.balance.clock import Clock
from hpcext.training.batching import ElasticBatches
from hpcext.training.checkpoint.shards import Shards
from hpcext.training.checkpoint.state import TrainingState, Tree
from hpcext.training.coordinator import Coordinator
from hpcext.training.loop import Loop
from hpcext.training.ranks import Ranks


class Feature:
    """A part of a session; each hook does nothing unless a feature defines it.

    Attributes
    ----------
    coordinator : Coordinator
    loop : Loop
    """

    coordinator: Coordinator
    loop: Loop

    def attach(self, coordinator: Coordinator, loop: Loop) -> None:
        """Belong to a training from now on."""
        self.coordinator, self.loop = coordinator, loop

    # What goes into a checkpoint.

    def shards(self) -> Shards | None:
        """Return how the ranks write and read their shards; None: all hold the same state."""
        return None

    def facts(self) -> dict[str, Any]:
        """Return entries for a manifest, as JSON values under keys of this feature's own."""
        return {}

    def restore(self, manifest: Mapping[str, Any]) -> None:
        """Restore what :meth:`facts` returned; keys may be missing from an earlier release's."""

    def capturing(self) -> None:
        """Prepare the state to be captured; called on all ranks."""

    # The loop over epochs and batches.

    def beginning(self) -> None:
        """Check that the training can begin; its state is made, and not restored yet."""

    def began(self) -> None:
        """Take note that the training begins, with its state restored."""

    def epoch_begins(self) -> None:
        """Take note that an epoch begins."""

    def opening(self, loader: object, batches: ElasticBatches | None) -> None:
        """Prepare a loader that is about to be read.

        Parameters
        ----------
        loader : iterable
        batches : ElasticBatches or None
            Those of the loader, if it follows the number of ranks.
        """

    def opened(self) -> None:
        """Take note that a loader was opened, and that the state is that of its place."""

    def step_ends(self) -> None:
        """Take note that a step ends; it is not counted yet."""

    def work(self, samples: int) -> float | None:
        """Return the work that a step of `samples` samples adds; None: as the session counts."""
        return None

    def before_boundary(self) -> bool:
        """Take part in the boundary after a step; return whether to open the loader anew."""
        return False

    def after_boundary(self, *, reopens: bool, resized: bool) -> None:
        """Take note that the boundary is over, and the training goes on.

        Parameters
        ----------
        reopens : bool
            Whether the loader is opened anew.
        resized : bool
            Whether that is because the number of ranks has changed.
        """

    def regrouped(self) -> None:
        """Follow another number of ranks."""

    def validating(self) -> None:
        """Take note that a validation begins."""

    def finishing(self) -> None:
        """Take note that the training is over, and its final checkpoint is next."""

    def finished(self) -> None:
        """Take note that the final checkpoint is written."""


class Framework(Feature):
    """What a session asks of a framework; this one is for NumPy, and one process.

    Attributes
    ----------
    state : TrainingState
        The state, once it is made.
    unsaved : collection or None
        Objects that are deliberately not saved; None: any.
    """

    # For messages: what divides the data among ranks, what averages models, what balances.
    use = "give each rank its part"
    wrap = "average them"
    divisible = "batch_sampler=session.batch_sampler(data, global_batch=...)"

    state: TrainingState
    unsaved: Collection[Any] | None = ()

    def join(self) -> Ranks:
        """Join the ranks of this job."""
        ranks = protocol.environ().get("WORLD_SIZE", "1")
        if ranks != "1":
            # Each process would take itself for the whole job and overwrite the checkpoints.
            raise ValueError(
                f"WORLD_SIZE={ranks}: this session is for one process; use that of "
                "hpcext.training.torch, hpcext.training.tensorflow or hpcext.training.jax"
            )
        return Ranks()

    def make_state(self, objects: dict[str, Any]) -> TrainingState:
        """Make the state of the objects that the script names."""
        self.state = TrainingState(objects)
        return self.state

    @property
    def divides_data(self) -> bool:
        """Whether each rank is to have batches of its own."""
        return True

    # For balanced batches.

    def device_name(self) -> str:
        """Return what this rank computes on: "cpu", or the name of a GPU."""
        return "cpu"

    def clock(self) -> Clock:
        """Make the clock that times the steps of this rank."""
        return Clock()

    def check_can_balance(self) -> None:
        """Raise ValueError if the batches of this session cannot be balanced."""

    def check_gradients(self) -> None:
        """Raise ValueError if the gradients of this training cannot be weighed."""


class Resizing(Feature):
    """How the number of ranks changes while the processes live; here it does not."""

    @property
    def joining(self) -> bool:
        """Whether this process was started to join a running training, and has not joined yet."""
        return False

    @property
    def possible(self) -> bool:
        """Whether the number of ranks can change now."""
        return False

    def join(self, regroup: Callable[[Ranks], object]) -> Mapping[str, Any] | None:
        """Join the other ranks, if this process is to; return the facts of their training.

        Parameters
        ----------
        regroup : callable
            Called with the group that was formed.
        """
        return None

    def received(self) -> Tree | None:
        """Return, once, the objects that rank 0 has sent; None if there are none."""
        return None

    def next_group(self) -> int:
        """Return the number of the group that the ranks should change into; 0: none."""
        return 0

    def change(
        self,
        number: int,
        regroup: Callable[[Ranks], object],
        facts: Callable[[], Mapping[str, Any]],
    ) -> None:
        """Join the group with this number, or leave the training.

        Parameters
        ----------
        number : int
        regroup : callable
            Called with the group that was formed.
        facts : callable
            Returns what new ranks must know of the training.
        """
        raise NotImplementedError("this session cannot change the number of its ranks")


class Parts(NamedTuple):
    """The parts of which a session is composed.

    Attributes
    ----------
    framework : Framework
    resizing : Resizing
    features : tuple of Feature
        Further ones, in the order in which their hooks are called.
    """

    framework: Framework
    resizing: Resizing
    features: tuple[Feature, ...] = ()
