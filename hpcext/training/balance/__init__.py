"""Balanced batches: the messages between the ranks of a training, and the division of a step.

At a boundary every rank sends all others the time of its last batch, and each computes the same
division of the next step (:mod:`hpcext.scaling.balance`), so that no other process is needed. No
framework is needed either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcext.training.checkpoint import warn

if TYPE_CHECKING:
    from hpcext.scaling.balance import IterationRecord, Rule, WorkerBounds

MODES = ("auto", "cpu", "gpu")
"""Modes: ranks exchange their times at once ("cpu"), or while the next step computes ("gpu")."""

RULES = ("affine", "best", "speeds", "leader")
"""Names of rules for dividing a step; those of :data:`hpcext.scaling.balance.rules.RULES`."""

REMEMBERED = 256
"""Largest number of workers to remember, so that a checkpoint stays small."""

WARN_AFTER = 20
"""Number of iterations in a row after which the user is warned of a straggler."""


class BoundaryMessage(NamedTuple):
    """The message of a worker to the others at a boundary.

    Attributes
    ----------
    samples : float
        Samples in the measured batch.
    time_s : float
        Seconds that the batch took; NaN if it was not measured.
    cpu : float
        Cores that the worker had, on average.
    memory : float
        Share of its memory that is in use, 0 to 1.
    speed : float
        Samples per second that the worker expects in the next iteration.
    drawn : float
        Number of batches whose samples its loader has already drawn.
    """

    samples: float
    time_s: float
    cpu: float
    memory: float
    speed: float
    drawn: float


class MeasuredBatch(NamedTuple):
    """A measured batch of a worker; fields as in :class:`BoundaryMessage`."""

    samples: int
    time_s: float
    cpu: float


class Balance:
    """The division of one training's steps among its workers.

    Parameters
    ----------
    rule : str
        One of :data:`RULES`.
    bounds : tuple of int
        Smallest and largest number of samples of a worker.
    waits : bool
        Whether an iteration waits for the messages about the one before.
    predictor : str
        Predictor of this worker's speed, by its name in :mod:`hpcext.scaling.speed`.

    Attributes
    ----------
    sizes : tuple of int
        Samples of each worker in the next step.
    """

    def __init__(
        self,
        rule: str,
        bounds: tuple[int, int | None],
        *,
        waits: bool,
        predictor: str = "memoryless",
    ) -> None:
        # Imported here, since trainings that are not balanced do not need it.
        from hpcext.scaling import balance as rules  # noqa: PLC0415
        from hpcext.scaling.balance.rules import RULES as made  # noqa: PLC0415
        from hpcext.scaling.speed import find_predictor  # noqa: PLC0415

        self.waits = waits
        self.sizes: tuple[int, ...] = ()
        self._name = rule
        self._make: Callable[..., Rule] = made[rule]
        self._seen: type[IterationRecord] = rules.IterationRecord
        self._even, self._removable = rules.even, rules.removable
        self._bounds: WorkerBounds = rules.WorkerBounds(*bounds)
        self._fitted = self._bounds
        self._warns = True
        self._expects, self._predictor = predictor, find_predictor(predictor)
        self._rule: Rule | None = None
        self._workers: tuple[str, ...] = ()
        self._book: dict[str, Any] = {}
        self._straggling: tuple[int | None, int] = (None, 0)

    def meet(self, workers: Sequence[str], total: int, *, warns: bool = True) -> None:
        """Set the workers from now on, and balance known ones at once.

        Parameters
        ----------
        workers : sequence of str
            Their names, by rank. Workers whose names agree up to a "/" are of one kind.
        total : int
            Samples in a step.
        warns : bool
            Whether this worker prints warnings on behalf of all.
        """
        self._warns = warns
        self._remember()
        kinds = {name.split("/")[0]: known for name, known in self._book.items()}
        known = [self._book.get(name, kinds.get(name.split("/")[0])) for name in workers]
        self._workers = tuple(workers)
        self._fitted = self._bounds.fitted(total, len(workers))
        if self._fitted != self._bounds and warns:
            low, high = self._fitted
            warn(
                f"a step of {total} samples does not fit {len(workers)} ranks of "
                f"{self._bounds.least} to {self._bounds.most} samples: they take {low} to {high}"
            )
        self._rule = self._make(self._even(total, len(workers)), self._fitted, known)
        self.sizes = self._rule.sizes
        self._straggling = None, 0

    def resize(self, total: int) -> None:
        """Set the number of samples in a step from now on."""
        if total == sum(self.sizes) or self._rule is None:
            return
        if self._bounds.fitted(total, len(self.sizes)) == self._fitted:
            self.sizes = self._rule.resize(total)
        else:
            self.meet(self._workers, total, warns=self._warns)

    def tell(self, measured: MeasuredBatch | None, memory: float, drawn: int) -> BoundaryMessage:
        """Return the message of this worker about its last batch.

        Parameters
        ----------
        measured : MeasuredBatch or None
            Times of the batch; None if it was not measured.
        memory : float
            Share of memory in use.
        drawn : int
            Batches already drawn by its loader.
        """
        if measured is None or not (measured.time_s > 0 and measured.samples > 0):
            none = float("nan")
            return BoundaryMessage(0, none, none, memory, none, drawn)
        samples, time_s, cpu = measured
        self._predictor.observe(samples / time_s, cpu, memory)
        return BoundaryMessage(samples, time_s, cpu, memory, self._predictor.predict(), drawn)

    def hear(self, told: Sequence[Sequence[float]]) -> int:
        """Process the messages of all workers, and divide the next step by them.

        Parameters
        ----------
        told : sequence of sequence of float
            The fields of each worker's :class:`BoundaryMessage`, by rank.

        Returns
        -------
        int
            Number of the first batch that can follow the new :attr:`sizes`.
        """
        said = [BoundaryMessage(*each) for each in told]
        turn = int(max(each.drawn for each in said)) + (not self.waits)
        if self._rule is None or any(not math.isfinite(each.time_s) for each in said):
            return turn
        seen = self._seen(
            tuple(int(each.samples) for each in said),
            tuple(each.time_s for each in said),
            tuple(each.memory for each in said),
            tuple(each.speed for each in said),
        )
        self._watch(seen)
        self.sizes = self._rule.see(seen)
        return turn

    def _watch(self, seen: IterationRecord) -> None:
        """Warn once about a worker that is too slow even for the smallest batch."""
        found = self._removable(seen, self._fitted)
        before, times = self._straggling
        self._straggling = found, times + 1 if found == before else 1
        if found is not None and self._straggling[1] == WARN_AFTER and self._warns:
            warn(
                f"rank {found} ({self._workers[found]}) is the slowest even with its "
                "minimum of samples: a step would be faster without it"
            )

    def _remember(self) -> None:
        known = self._rule.state() if self._rule is not None else []
        for name, each in zip(self._workers, known, strict=True):
            self._book.pop(name, None)
            if each is not None:
                self._book[name] = each
        while len(self._book) > REMEMBERED:
            del self._book[next(iter(self._book))]

    def state(self) -> dict[str, Any]:
        """Return the knowledge about the workers as JSON values."""
        self._remember()
        # The predictor of the rank that writes, so that ranks do not start from nothing after a
        # restart.
        learned = {self._expects: self._predictor.state()}
        return {"rule": self._name, "workers": dict(self._book), "learned": learned}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Restore the result of :meth:`state`."""
        if saved["rule"] == self._name:
            self._book = dict(saved["workers"])
        if (learned := saved["learned"].get(self._expects)) is not None:
            self._predictor.load(learned)
