"""The part of a session that balances the batches of its ranks (LB-BSP), for every framework.

At each boundary the times of the last step are gathered from all ranks, each rank computes the same
division of the next step (:mod:`hpcext.training.balance`), and all loaders follow it from the same
batch on, however far they read ahead. In mode "cpu", where each iteration needs the times of the
one before, ranks send their times as soon as their own gradients are ready; the exchange of the
gradients takes longer anyway. In mode "gpu" they send them at the boundary and receive those of
others at the next one. Neither mode waits.

A framework's session says when this rank's gradients are ready (:meth:`Balancing._weigh`) and what
it computes on; a session that knows when the gradients of all ranks are exchanged tells its clock.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from hpcext.protocol import environ
from hpcext.training.balance import MODES, RULES, Balance
from hpcext.training.balance.clock import Clock
from hpcext.training.data.loading import elastic
from hpcext.training.ranks import Ranks
from hpcext.training.session import Session as BaseSession

Batch = TypeVar("Batch")


class Balancing(BaseSession):
    """Base class of sessions that can balance the batches of their ranks."""

    _balancing: Balance | None = None
    _saved_balance: Mapping[str, Any] | None = None
    _clock: Clock
    _met: Ranks | None = None
    # How often gradients were weighed in this step.
    _weighed = 0

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
        (TensorFlow, with gradients weighed by ``weighted``). The samples of a step stay the same,
        and count alike in its gradients, whoever trains them.

        Parameters
        ----------
        mode : {"auto", "cpu", "gpu"}
            "cpu": a rank's speed may change from one step to the next, so a step is divided by
            what is known of the last one. "gpu": the ranks hear of a step while the next one
            computes. "auto": by what this rank computes on.
        max_batch, min_batch : int, optional
            Most and fewest samples of a rank. Without a most, a batch grows to twice the largest
            one so far at a time, and not on ranks that use more than 95 % of their memory. Layers
            such as BatchNorm want more than one sample.
        rule : {"affine", "speeds", "leader"}
            How the division is found, see :mod:`hpcext.scaling.balance`; "affine" is
            :mod:`hpcext.scaling.balance.lines`.
        predictor : {"memoryless", "ema", "arima", "rnn", "lstm", "narx"}
            What expects the next speed of a rank, for "speeds"; see :mod:`hpcext.scaling.speed`.
            All but the first two learn in a thread, from step 500 on.

        Raises
        ------
        ValueError
            A parameter is not valid, or this session cannot balance.
        """
        if self._balancing is not None:
            raise ValueError("balance(): it has been called before")
        if mode not in MODES:
            raise ValueError(f"balance(mode={mode!r}): must be one of {', '.join(MODES)}")
        if rule not in RULES:
            raise ValueError(f"balance(rule={rule!r}): must be one of {', '.join(RULES)}")
        if min_batch < 1 or (max_batch is not None and max_batch < min_batch):
            raise ValueError(
                f"balance(min_batch={min_batch}, max_batch={max_batch}): must be 1 or more, and "
                "the most at least the fewest"
            )
        self._check_can_balance()
        if mode == "auto":
            mode = "cpu" if self._kind_of_device() == "cpu" else "gpu"
        self._clock = self._make_clock()
        self._balancing = Balance(
            rule, (min_batch, max_batch), waits=mode == "cpu", predictor=predictor
        )
        if self._saved_balance is not None:
            self._balancing.restore(self._saved_balance)

    @property
    def balanced_batches(self) -> tuple[int, ...]:
        """Samples of each rank in the next step, as :meth:`balance` divides it.

        Raises
        ------
        RuntimeError
            The session does not balance.
        """
        if self._balancing is None:
            raise RuntimeError("the session does not balance: call session.balance(...) first")
        return self._balancing.sizes

    # What a framework says.

    def _make_clock(self) -> Clock:
        """Make the clock that times the steps of this rank."""
        return Clock()

    def _kind_of_device(self) -> str:
        """Return what this rank computes on: "cpu", or the name of a GPU."""
        return "cpu"

    def _check_can_balance(self) -> None:
        """Raise ValueError if this session cannot balance."""

    def _check_gradients(self) -> None:
        """Raise ValueError if the gradients of this training cannot be weighed."""

    def _weigh(self) -> float:
        """Return the weight of this rank's gradients, which are ready, in the mean of all ranks.

        All ranks call it once in each step.
        """
        self._weighed += 1
        balance = self._balancing
        if balance is not None and self.world_size > 1 and self._weighed == 1:
            self._clock.computed(self._own_samples())
            if balance.waits:
                self._tell_others(balance)
        return self._weight_of_batch()

    # At boundaries.

    def _open(self, loader: Iterable[Batch]) -> tuple[Callable[[int], int], Iterator[Batch]]:
        balance, batches = self._balancing, elastic(loader)
        if balance is not None and batches is None:
            raise ValueError(
                "batches(loader): the session balances, and must divide the batches of this "
                f"loader; give it {self._example}"
            )
        if balance is not None and batches is not None and self.world_size > 1:
            self._check_gradients()
            self._hear_others(balance)
            if self._met is not self._ranks:
                self._met = self._ranks
                balance.meet(self._names(), batches.global_batch, warns=self.rank == 0)
            balance.resize(batches.global_batch)
            batches.divide(balance.sizes)
        return super()._open(loader)

    _example = "batch_sampler=session.batch_sampler(data, global_batch=...)"

    def _opened(self) -> None:
        super()._opened()
        # A loop that was left by `break` came to no boundary.
        self._weighed = 0
        if self._balancing is not None:
            # The first step of a loader reads ahead and allocates: it is not timed.
            self._clock.forget()

    def _end_turn(self) -> None:
        if self._turn is not None and self._balancing is not None:
            self._clock.end()
        super()._end_turn()

    def _boundary(self) -> bool:
        balance = self._balancing
        self._weighed = 0
        if balance is None or self.world_size == 1:
            return super()._boundary()
        turn = self._hear_others(balance)
        if super()._boundary():
            return True
        if turn is not None and self._elastic is not None:
            self._elastic.divide(balance.sizes, turn, trained=self._turns)
        if not balance.waits:
            self._tell_others(balance)
        self._clock.begin()
        return False

    def _tell_others(self, balance: Balance) -> None:
        """Begin to send the other ranks the newest step of this one whose time is known."""
        drawn = self._elastic.drawn if self._elastic else 0
        told = balance.tell(self._clock.take(), self._clock.memory(), drawn)
        self._ranks.begin_gather(list(told))

    def _hear_others(self, balance: Balance) -> int | None:
        """Take in the ranks' times if they are there; return the first batch to follow them."""
        told = self._ranks.gathered()
        return None if told is None else balance.hear(told)

    def _own_samples(self) -> int:
        """Return the number of samples of this rank in this step."""
        if self._elastic is None:
            return 0
        return round(self._samples_of_turn() * self._weight_of_batch() / self.world_size)

    def _names(self) -> list[str]:
        """Return the names of the ranks: their nodes and devices.

        They are the same after a suspension on the same nodes.
        """
        mine = f"{platform.node()} {self._kind_of_device()}/{environ().get('LOCAL_RANK', '0')}"
        told = [each.decode() for each in self._ranks.gather(mine.encode())]
        names: list[str] = json.loads(self._ranks.broadcast(json.dumps(told).encode()))
        return names

    def _facts(self) -> dict[str, Any]:
        balanced = self._balancing.state() if self._balancing else self._saved_balance
        return {**super()._facts(), "balanced": balanced}

    def _restore_facts(self, manifest: Mapping[str, Any]) -> None:
        super()._restore_facts(manifest)
        # The key is missing where a release that could not balance wrote the manifest.
        self._saved_balance = manifest.get("balanced")
        if self._balancing is not None and self._saved_balance is not None:
            self._balancing.restore(self._saved_balance)
