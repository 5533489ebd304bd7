"""The feature of a session that balances the batches of its ranks (LB-BSP), for every framework.

At each boundary the times of the last step are gathered from all ranks, each rank computes the same
division of the next step (:mod:`hpcext.training.balance`), and all loaders follow it from the same
batch on, however far they read ahead. In mode "cpu", each iteration needs the times of the one
before, so ranks send them as soon as their own gradients are ready; the exchange of gradients takes
longer anyway. In mode "gpu" they send their times at the boundary and receive those of others at
the next one. Neither mode waits.

The code that weighs gradients tells when those of this rank are ready (:meth:`Balancing.weigh`).
The framework provides the name of the device, and a clock that knows when the gradients of all
ranks are exchanged.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from typing import Any

from hpcext.protocol import environ
from hpcext.training.balance import MODES, RULES, Balance
from hpcext.training.balance.clock import Clock
from hpcext.training.batching import ElasticBatches
from hpcext.training.feature import Feature, Framework
from hpcext.training.ranks import Ranks


class Balancing(Feature):
    """The balancing of the batches of a session, after :meth:`begin` was called.

    Parameters
    ----------
    framework : Framework

    Attributes
    ----------
    balance : Balance or None
        The division of steps; None: nothing is balanced.
    weighed : int
        Number of times that gradients were weighed in this step.
    """

    def __init__(self, framework: Framework) -> None:
        self.balance: Balance | None = None
        self.weighed = 0
        self._framework = framework
        self._clock = Clock()
        self._saved: Mapping[str, Any] | None = None
        self._met: Ranks | None = None
        # The first batch that can follow the messages of the ranks.
        self._turn: int | None = None

    def begin(
        self,
        mode: str,
        *,
        max_batch: int | None,
        min_batch: int,
        rule: str,
        predictor: str,
    ) -> None:
        """Begin to balance; see :meth:`Balances.balance`."""
        if self.balance is not None:
            raise ValueError("balance(): it was called before; call it once")
        if mode not in MODES:
            raise ValueError(f"balance(mode={mode!r}): must be one of {', '.join(MODES)}")
        if rule not in RULES:
            raise ValueError(f"balance(rule={rule!r}): must be one of {', '.join(RULES)}")
        if min_batch < 1 or (max_batch is not None and max_batch < min_batch):
            raise ValueError(
                f"balance(min_batch={min_batch}, max_batch={max_batch}): min_batch must be at "
                "least 1, and max_batch at least min_batch"
            )
        self._framework.check_can_balance()
        if mode == "auto":
            mode = "cpu" if self._framework.device_name() == "cpu" else "gpu"
        self._clock = self._framework.clock()
        self.balance = Balance(
            rule, (min_batch, max_batch), waits=mode == "cpu", predictor=predictor
        )
        if self._saved is not None:
            self.balance.restore(self._saved)

    def weigh(self) -> float:
        """Return the weight of this rank's gradients, now ready, in the mean of all ranks.

        All ranks call it once in each step.
        """
        self.weighed += 1
        balance = self.balance
        if balance is not None and self.coordinator.ranks.size > 1 and self.weighed == 1:
            self._clock.computed(self._own_samples())
            if balance.waits:
                self._tell_others(balance)
        return self.loop.weight()

    # The hooks of a feature.

    def facts(self) -> dict[str, Any]:
        """Return the knowledge about the speed of the ranks."""
        return {"balanced": self.balance.state() if self.balance else self._saved}

    def restore(self, manifest: Mapping[str, Any]) -> None:
        """Restore the knowledge about the speed of the ranks."""
        # The key is missing in manifests of releases that could not balance.
        self._saved = manifest.get("balanced")
        if self.balance is not None and self._saved is not None:
            self.balance.restore(self._saved)

    def opening(self, loader: object, batches: ElasticBatches | None) -> None:
        """Divide the batches of a loader by the speed of the present ranks."""
        balance, ranks = self.balance, self.coordinator.ranks
        if balance is None:
            return
        if batches is None:
            raise ValueError(
                "batches(loader): the session balances, and must divide the batches of this "
                f"loader; give it {self._framework.divisible}"
            )
        if ranks.size == 1:
            return
        self._framework.check_gradients()
        self._hear_others(balance)
        if self._met is not ranks:
            self._met = ranks
            balance.meet(self._names(), batches.global_batch, warns=ranks.rank == 0)
        balance.resize(batches.global_batch)
        batches.divide(balance.sizes)

    def opened(self) -> None:
        """Discard the times of the step before."""
        # A loop that was left by `break` did not reach a boundary.
        self.weighed = 0
        if self.balance is not None:
            # The first step of a loader reads ahead and allocates, so it is not timed.
            self._clock.forget()

    def step_ends(self) -> None:
        """Time the end of a step."""
        if self.balance is not None:
            self._clock.end()

    def before_boundary(self) -> bool:
        """Process the times of the ranks."""
        self.weighed, self._turn = 0, None
        if self.balance is not None and self.coordinator.ranks.size > 1:
            self._turn = self._hear_others(self.balance)
        return False

    def after_boundary(self, *, reopens: bool, resized: bool) -> None:
        """Divide the following steps, and begin to time the next one."""
        balance = self.balance
        if reopens or balance is None or self.coordinator.ranks.size == 1:
            return
        if self._turn is not None and self.loop.batches is not None:
            self.loop.batches.divide(balance.sizes, self._turn, trained=self.loop.turns)
        if not balance.waits:
            self._tell_others(balance)
        self._clock.begin()

    # Small parts.

    def _tell_others(self, balance: Balance) -> None:
        """Begin to send the other ranks the newest step of this one whose time is known."""
        drawn = 0 if self.loop.batches is None else self.loop.batches.drawn
        told = balance.tell(self._clock.take(), self._clock.memory(), drawn)
        self.coordinator.ranks.begin_gather(list(told))

    def _hear_others(self, balance: Balance) -> int | None:
        """Process the ranks' times if they have arrived; return the first batch to follow them."""
        told = self.coordinator.ranks.gathered()
        return None if told is None else balance.hear(told)

    def _own_samples(self) -> int:
        """Return the number of samples of this rank in this step."""
        if self.loop.batches is None:
            return 0
        return round(self.loop.samples() * self.loop.weight() / self.coordinator.ranks.size)

    def _names(self) -> list[str]:
        """Return the names of the ranks: their nodes and devices.

        They stay the same after a suspension on the same nodes.
        """
        ranks, device = self.coordinator.ranks, self._framework.device_name()
        mine = f"{platform.node()} {device}/{environ().get('LOCAL_RANK', '0')}"
        told = [each.decode() for each in ranks.gather(mine.encode())]
        names: list[str] = json.loads(ranks.broadcast(json.dumps(told).encode()))
        return names


class Balances:
    """The methods for scripts of a session that can balance."""

    balancing: Balancing

    def balance(
        self,
        mode: str = "auto",
        *,
        max_batch: int | None = None,
        min_batch: int = 1,
        rule: str = "affine",
        predictor: str = "memoryless",
    ) -> None:
        """Divide each step by the speed of the ranks, so that all finish together.

        Call it before the first epoch, and make batches of ``global_batch=`` samples by
        :meth:`batch_sampler` (PyTorch, and one model wrapped by ``parallel``) or ``dataset``
        (TensorFlow, with gradients weighed by ``weighted``). A step still has the same samples, and
        they count equally in its gradients, whichever rank trains them.

        Parameters
        ----------
        mode : {"auto", "cpu", "gpu"}
            "cpu": a rank's speed may change from one step to the next, so a step is divided by the
            times of the last one. "gpu": the ranks receive the times of a step while the next one
            computes. "auto": by the device of this rank.
        max_batch, min_batch : int, optional
            Largest and smallest number of samples of a rank. Without a maximum, a batch may grow to
            twice the largest one so far, but not on ranks that use more than 95 % of their memory.
            Layers such as BatchNorm need more than one sample.
        rule : {"affine", "best", "speeds", "leader"}
            The rule for the division, see :mod:`hpcext.scaling.balance`; "affine" is
            :mod:`hpcext.scaling.balance.lines`, "best" :mod:`hpcext.scaling.balance.best`.
        predictor : {"memoryless", "ema", "arima", "rnn", "lstm", "narx"}
            The predictor of a rank's next speed, for "speeds"; see :mod:`hpcext.scaling.speed`. All
            but the first two learn in a thread, from step 500 on.

        Raises
        ------
        ValueError
            A parameter is not valid, or this session cannot balance.
        """
        self.balancing.begin(
            mode, max_batch=max_batch, min_batch=min_batch, rule=rule, predictor=predictor
        )

    @property
    def balanced_batches(self) -> tuple[int, ...]:
        """The samples of each rank in the next step, as :meth:`balance` divides it.

        Raises
        ------
        RuntimeError
            The session does not balance.
        """
        if self.balancing.balance is None:
            raise RuntimeError("the session does not balance: call session.balance(...) first")
        return self.balancing.balance.sizes
