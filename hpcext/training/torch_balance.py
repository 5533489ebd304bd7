"""The half of a PyTorch session that balances the batches of its ranks (LB-BSP).

What the ranks tell each other travels in the group that they agree in: between two steps where each
iteration is to know of the one before (``"cpu"``), or while the next step computes (``"gpu"``). All
make the same division of it, and their loaders follow from the same batch on, however far they read
ahead.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar, cast

import torch

from hpcext.protocol import environ
from hpcext.training.balance import MODES, RULES, Balance
from hpcext.training.loading import elastic
from hpcext.training.ranks import Ranks
from hpcext.training.torch_adapt import Adaptive
from hpcext.training.torch_clock import Clock
from hpcext.training.torch_state import TorchState

Batch = TypeVar("Batch")


class Balanced(Adaptive):
    """What :class:`hpcext.training.torch.Session` has of it."""

    _balancing: Balance | None = None
    _saved_balance: Mapping[str, Any] | None = None
    _clock: Clock
    _deterministic: bool
    _met: Ranks | None = None

    def balance(
        self,
        mode: str = "auto",
        *,
        max_batch: int | None = None,
        min_batch: int = 1,
        rule: str = "affine",
        predictor: str = "memoryless",
    ) -> None:
        """Divide each step so that all ranks finish together, as fast as each of them is.

        Call it before the first epoch, give the loader ``batch_sampler=session.batch_sampler(data,
        global_batch=...)``, and wrap one model by :meth:`parallel`. The samples of a step stay the
        same, and count alike in its gradients, whoever trains them.

        Parameters
        ----------
        mode : {"auto", "cpu", "gpu"}
            "cpu": a rank's speed may change from one step to the next, so a step is divided by
            what is known of the last one. "gpu": the ranks hear of a step while the next one
            computes, which waits for nothing. "auto": by what this rank computes on.
        max_batch, min_batch : int, optional
            Most and fewest samples of a rank. Without a most, a batch grows to twice the largest
            one so far at a time, and not on ranks that use more than 95 % of their memory. Layers
            such as BatchNorm want more than one sample.
        rule : {"affine", "speeds", "leader"}
            How the division is found, see :mod:`hpcext.scaling.balance`; "affine" is
            :mod:`hpcext.scaling.balance_lines`.
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
        state = cast(TorchState, self._state)
        if state.sharded:
            raise ValueError("balance(): the model is sharded; valid are models of parallel(model)")
        if self._deterministic:
            raise ValueError(
                "balance(): the session is deterministic; sums of unequal batches differ in their "
                "last digits from run to run"
            )
        if mode == "auto":
            mode = "gpu" if self.device.type == "cuda" else "cpu"
        self._clock = Clock(self.device)
        self._balancing = Balance(
            rule, (min_batch, max_batch), waits=mode == "cpu", predictor=predictor
        )
        for optimizer in state.optimizers():
            optimizer.register_step_pre_hook(lambda *_: self._clock.exchanged())
        if self._saved_balance is not None:
            self._balancing.restore(self._saved_balance)

    @property
    def balanced_batches(self) -> tuple[int, ...]:
        """Samples of each rank in the next step, as :meth:`balance` has divided it."""
        if self._balancing is None:
            raise RuntimeError("the session does not balance: call session.balance(...) first")
        return self._balancing.sizes

    def _open(self, loader: Iterable[Batch]) -> tuple[Callable[[int], int], Iterator[Batch]]:
        balance, batches = self._balancing, elastic(loader)
        if balance is not None and batches is None:
            raise ValueError(
                "batches(loader): the session balances, and must divide the batches of this "
                "loader; give it batch_sampler=session.batch_sampler(data, global_batch=...)"
            )
        if balance is not None and batches is not None and self.world_size > 1:
            if len(self._models) != 1:
                raise ValueError(
                    f"batches(loader): the session balances, and has {len(self._models)} models "
                    "of session.parallel(model); it times the gradients of exactly one"
                )
            self._hear()
            if self._met is not self._ranks:
                self._met = self._ranks
                balance.meet(self._names(), batches.global_batch, warns=self.rank == 0)
            balance.resize(batches.global_batch)
            batches.divide(balance.sizes)
        return super()._open(loader)

    def _opened(self) -> None:
        super()._opened()
        if self._balancing is not None:
            # The first step of a loader reads ahead and allocates: it is not timed.
            self._clock.forget()

    def _end_turn(self) -> None:
        if self._turn is not None and self._balancing is not None:
            self._clock.end(self._own_samples())
        super()._end_turn()

    def _boundary(self) -> bool:
        balance = self._balancing
        if balance is None or self.world_size == 1:
            return super()._boundary()
        turn = self._hear()
        if super()._boundary():
            return True
        drawn = self._elastic.drawn if self._elastic else 0
        measured = self._clock.take()
        told = balance.tell(measured, self._clock.memory(), drawn)
        self._ranks.begin_gather(list(told))
        if balance.waits:
            turn = self._hear()
        if turn is not None and self._elastic is not None:
            self._elastic.divide(balance.sizes, turn, trained=self._turns)
        self._clock.begin()
        return False

    def _hear(self) -> int | None:
        """Take in what the ranks told, if they did; the first batch that can follow it."""
        told = self._ranks.gathered()
        balance = self._balancing
        return balance.hear(told) if told is not None and balance is not None else None

    def _own_samples(self) -> int:
        """Samples of this rank in this step."""
        if self._elastic is None:
            return 0
        return round(self._samples_of_turn() * self._weight_of_batch() / self.world_size)

    def _weight_in_backward(self) -> float:
        if self._balancing is not None:
            self._clock.computed()
        return super()._weight_in_backward()

    def _passes(self, samples: int) -> int:
        agent = self._agent
        if agent is None or self._balancing is None:
            return super()._passes(samples)
        return agent.unequal_passes(samples)

    def _names(self) -> list[str]:
        """What the ranks are: where, and on what; the same after a suspension."""
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu"
        mine = f"{platform.node()} {name}/{environ().get('LOCAL_RANK', '0')}"
        told = [each.decode() for each in self._ranks.gather(mine.encode())]
        names: list[str] = json.loads(self._ranks.broadcast(json.dumps(told).encode()))
        return names

    def _facts(self) -> dict[str, Any]:
        balanced = self._balancing.state() if self._balancing else self._saved_balance
        return {**super()._facts(), "balanced": balanced}

    def _restore_facts(self, manifest: Mapping[str, Any]) -> None:
        super()._restore_facts(manifest)
        # Written by a release that did not balance.
        self._saved_balance = manifest.get("balanced")
        if self._balancing is not None and self._saved_balance is not None:
            self._balancing.restore(self._saved_balance)
