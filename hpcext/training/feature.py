"""The parts of a session: its framework, and features with hooks.

A session calls the hooks of its features at fixed places of the loop. Hooks before an event
(:meth:`Feature.opening`, :meth:`Feature.before_boundary` ...) are called in the order of the
features, those after it (:meth:`Feature.opened`, :meth:`Feature.after_boundary`) in reverse, so
that features enclose each other.
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
        """Join a training."""
        self.coordinator, self.loop = coordinator, loop

    # For checkpoints.

    def shards(self) -> Shards | None:
        """Return how the ranks write and read their shards; None: all hold the same state."""
        return None

    def facts(self) -> dict[str, Any]:
        """Return entries for a manifest, as JSON values under keys of this feature."""
        return {}

    def restore(self, manifest: Mapping[str, Any]) -> None:
        """Restore the result of :meth:`facts`; an earlier release's may lack some keys."""

    def capturing(self) -> None:
        """Prepare the state to be captured; called on all ranks."""

    # The loop over epochs and batches.

    def beginning(self) -> None:
        """Check that the training can begin; its state is made, and not restored yet."""

    def began(self) -> None:
        """React to the beginning of the training, with its state restored."""

    def epoch_begins(self) -> None:
        """React to the beginning of an epoch."""

    def opening(self, loader: object, batches: ElasticBatches | None) -> None:
        """Prepare a loader that is about to be read.

        Parameters
        ----------
        loader : iterable
        batches : ElasticBatches or None
            The batches of the loader, if it follows the number of ranks.
        """

    def opened(self) -> None:
        """React to the opening of a loader, with the state of its place."""

    def step_begins(self) -> None:
        """React to the beginning of a step, whose batch is read."""

    def step_ends(self) -> None:
        """React to the end of a step, which is not counted yet."""

    def work(self, samples: int) -> float | None:
        """Return the work that a step of `samples` samples adds; None: as the session counts it."""
        return None

    def before_boundary(self) -> bool:
        """Take part in the boundary after a step; return whether to reopen the loader."""
        return False

    def after_boundary(self, *, reopens: bool, resized: bool) -> None:
        """React to the end of a boundary after which the training goes on.

        Parameters
        ----------
        reopens : bool
            Whether the loader is reopened.
        resized : bool
            Whether that is because the number of ranks has changed.
        """

    def regrouped(self) -> None:
        """Follow another number of ranks."""

    def validating(self) -> None:
        """React to the beginning of a validation."""

    def finishing(self) -> None:
        """React to the end of the training, before its final checkpoint."""

    def finished(self) -> None:
        """React to the final checkpoint, which is written."""


class Framework(Feature):
    """The interface of a session to a framework; this one is for NumPy, and one process.

    Attributes
    ----------
    state : TrainingState
        The state, once it is made.
    unsaved : collection or None
        Objects that are deliberately not saved; None for any.
    """

    # For messages: how to divide the data among ranks, to average models, and to balance.
    use = "give each rank its part"
    wrap = "average them"
    divisible = "batch_sampler=session.batch_sampler(data, global_batch=...)"

    state: TrainingState
    unsaved: Collection[Any] | None = ()
    _whole = False  # whether no state was missing after a step

    def before_boundary(self) -> bool:
        """Check the state once more, since some missing objects are found only after a step."""
        if not self._whole:
            self._whole = True
            self.refuse_missing(stepped=True)
        return False

    def join(self) -> Ranks:
        """Join the ranks of this job."""
        ranks = protocol.environ().get("WORLD_SIZE", "1")
        if ranks != "1":
            # Otherwise each process would act as the whole job and overwrite the checkpoints.
            raise ValueError(
                f"WORLD_SIZE={ranks}: this session is for one process; use that of "
                "hpcext.training.torch, hpcext.training.tensorflow or hpcext.training.jax"
            )
        return Ranks()

    def make_state(self, objects: dict[str, Any]) -> TrainingState:
        """Make the state of the objects that the script names."""
        self.state = TrainingState(objects)
        return self.state

    def refuse_missing(self, *, stepped: bool = False) -> None:
        """Raise ValueError if the training has state that is not saved.

        Parameters
        ----------
        stepped : bool
            Whether a step has been made.
        """
        if self.unsaved is None:
            return
        if missing := self.state.missing(self.unsaved, stepped=stepped):
            raise ValueError(missing)

    @property
    def divides_data(self) -> bool:
        """Whether each rank should have batches of its own."""
        return True

    # For balanced batches.

    def device_name(self) -> str:
        """Return the name of this rank's device: "cpu", or that of a GPU."""
        return "cpu"

    def clock(self) -> Clock:
        """Make the clock that times the steps of this rank."""
        return Clock()

    def check_can_balance(self) -> None:
        """Raise ValueError if the batches of this session cannot be balanced."""

    def check_gradients(self) -> None:
        """Raise ValueError if the gradients of this training cannot be weighed."""


class Resizing(Feature):
    """The change of the number of ranks in living processes; this class does not change it.

    Attributes
    ----------
    is_behind : bool
        Whether others had begun the next epoch already when a rank died, at the end of this one.
    """

    is_behind = False

    @property
    def joining(self) -> bool:
        """Whether this process was started to join a running training, and has not joined yet."""
        return False

    @property
    def possible(self) -> bool:
        """Whether the number of ranks can change now."""
        return False

    def join(self, regroup: Callable[[Ranks], object]) -> Mapping[str, Any] | None:
        """Join the other ranks, if this process should; return the facts of their training.

        Parameters
        ----------
        regroup : callable
            Called with the new group.
        """
        return None

    def received(self) -> Tree | None:
        """Return, once, the objects that rank 0 has sent; None if there are none."""
        return None

    def next_group(self) -> int:
        """Return the number of the group into which the ranks should change; 0 for none."""
        return 0

    def broke(self, error: RuntimeError | None = None) -> bool:
        """Return whether a rank has died, so that the others are to go on without it.

        Parameters
        ----------
        error : RuntimeError, optional
            An error of communication; by default what happened in the present step.
        """
        return False

    def undo(self) -> None:
        """Set back what the present step has changed, which is broken."""

    def meet(self) -> None:
        """Meet the other ranks, if they go on without ranks that die."""

    def mend(
        self, regroup: Callable[[Ranks], object], facts: Callable[[], Mapping[str, Any]]
    ) -> Mapping[str, Any] | None:
        """Go on without ranks that have died.

        Parameters
        ----------
        regroup : callable
            Called with the new group.
        facts : callable
            Returns the facts of the training that others need.

        Returns
        -------
        Mapping or None
            The facts of the training of another rank, which had made the step that was broken here.
        """
        raise NotImplementedError("this session cannot go on without a rank")

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
            Called with the new group.
        facts : callable
            Returns the facts of the training that new ranks need.
        """
        raise NotImplementedError("this session cannot change the number of its ranks")


class Parts(NamedTuple):
    """The parts of a session.

    Attributes
    ----------
    framework : Framework
    resizing : Resizing
    features : tuple of Feature
        Further features, in the order in which their hooks are called.
    """

    framework: Framework
    resizing: Resizing
    features: tuple[Feature, ...] = ()
