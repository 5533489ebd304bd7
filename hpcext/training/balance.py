"""Balanced batches: what the workers of a training tell each other, and what they make of it.

At a boundary every worker tells all others how long its last batch took, and each computes the same
division of the next step (:mod:`hpcext.scaling.balance`), so nothing runs beside the training. No
framework is needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcext.training.checkpoint import warn

if TYPE_CHECKING:
    from hpcext.scaling.balance import Bounds, Rule, Seen

MODES = ("auto", "cpu", "gpu")
"""When the workers hear of each other: at once, or while the next step computes."""

RULES = ("affine", "speeds", "leader")
"""As :data:`hpcext.scaling.balance_lines.RULES` has them."""

REMEMBERED = 256
"""Workers that are remembered, so that a checkpoint stays small."""

WARN_AFTER = 20
"""Iterations in a row in which a worker must be a straggler, before it is said."""


class Told(NamedTuple):
    """What a worker tells the others at a boundary.

    Attributes
    ----------
    samples : float
        Of the batch that was measured.
    time_s : float
        That it took; no number if nothing was measured.
    cpu : float
        Cores that it had, on average.
    memory : float
        Share of its memory that is in use.
    speed : float
        Samples per second that it expects of the next iteration.
    drawn : float
        Batches whose samples its loader has chosen.
    """

    samples: float
    time_s: float
    cpu: float
    memory: float
    speed: float
    drawn: float


class Measured(NamedTuple):
    """One batch of one worker; as in :class:`Told`."""

    samples: int
    time_s: float
    cpu: float


class Balance:
    """Divides the steps of one training.

    Parameters
    ----------
    rule : str
        One of :data:`RULES`.
    bounds : tuple of int
        Fewest and most samples of a worker.
    waits : bool
        Whether an iteration waits for what was told of the one before.
    predictor : str
        What expects the speed of this worker, by its name in :mod:`hpcext.scaling.speed`.

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
        # A training that is not balanced need not load it.
        from hpcext.scaling import balance as rules  # noqa: PLC0415
        from hpcext.scaling.balance_lines import RULES as made  # noqa: PLC0415
        from hpcext.scaling.speed import find_predictor  # noqa: PLC0415

        self.waits = waits
        self.sizes: tuple[int, ...] = ()
        self._name = rule
        self._make: Callable[..., Rule] = made[rule]
        self._seen: type[Seen] = rules.Seen
        self._even, self._removable = rules.even, rules.removable
        self._bounds: Bounds = rules.Bounds(*bounds)
        self._fitted = self._bounds
        self._warns = True
        self._expects, self._predictor = predictor, find_predictor(predictor)
        self._rule: Rule | None = None
        self._workers: tuple[str, ...] = ()
        self._book: dict[str, Any] = {}
        self._straggling: tuple[int | None, int] = (None, 0)

    def meet(self, workers: Sequence[str], total: int, *, warns: bool = True) -> None:
        """The workers are these from now on; those that are known are balanced at once.

        Parameters
        ----------
        workers : sequence of str
            Their names, by rank; workers whose names begin alike, up to a "/", are alike.
        total : int
            Samples of a step.
        warns : bool
            Whether this worker says what the user should know, for all.
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
                f"{self._bounds.least} to {self._bounds.most}: they have {low} to {high}"
            )
        self._rule = self._make(self._even(total, len(workers)), self._fitted, known)
        self.sizes = self._rule.sizes
        self._straggling = None, 0

    def resize(self, total: int) -> None:
        """A step has so many samples from now on."""
        if total == sum(self.sizes) or self._rule is None:
            return
        if self._bounds.fitted(total, len(self.sizes)) == self._fitted:
            self.sizes = self._rule.resize(total)
        else:
            self.meet(self._workers, total, warns=self._warns)

    def tell(self, measured: Measured | None, memory: float, drawn: int) -> Told:
        """What this worker tells of its last batch; None: it was not measured."""
        if measured is None or not (measured.time_s > 0 and measured.samples > 0):
            none = float("nan")
            return Told(0, none, none, memory, none, drawn)
        samples, time_s, cpu = measured
        self._predictor.observe(samples / time_s, cpu, memory)
        return Told(samples, time_s, cpu, memory, self._predictor.predict(), drawn)

    def hear(self, told: Sequence[Sequence[float]]) -> int:
        """What all workers told; the first batch that can be divided by the new :attr:`sizes`."""
        said = [Told(*each) for each in told]
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

    def _watch(self, seen: Seen) -> None:
        """Say once of a worker that no batch is small enough for it."""
        found = self._removable(seen, self._fitted)
        before, times = self._straggling
        self._straggling = found, times + 1 if found == before else 1
        if found is not None and self._straggling[1] == WARN_AFTER and self._warns:
            warn(
                f"rank {found} ({self._workers[found]}) is the slowest one with its fewest "
                "samples: a step would be faster without it"
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
        """As JSON values."""
        self._remember()
        # That of the rank that writes: the next training of this kind need not begin with nothing.
        learned = {self._expects: self._predictor.state()}
        return {"rule": self._name, "workers": dict(self._book), "learned": learned}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state` gave."""
        if saved["rule"] == self._name:
            self._book = dict(saved["workers"])
        if (learned := saved["learned"].get(self._expects)) is not None:
            self._predictor.load(learned)
