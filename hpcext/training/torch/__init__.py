"""The session for PyTorch: one process, or DistributedDataParallel under torchrun.

Six lines make a script suspendable and resumable::

    from hpcext.training.torch import Session

    session = Session(model=model, optimizer=optimizer, scheduler=scheduler)
    model = session.parallel(model)
    loader = DataLoader(data, batch_sampler=session.batch_sampler(data, global_batch=64))
    for epoch in session.epochs(5):
        for x, y in session.batches(loader):
            ...
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from hpcext.training.accumulation import accumulated, microbatches, split
from hpcext.training.checkpoint import Checkpoint, Store
from hpcext.training.checkpoint.keeper import Keeper
from hpcext.training.checkpoint.place import AFTER
from hpcext.training.checkpoint.state import Tree
from hpcext.training.data.undivided import Seen
from hpcext.training.learning_rate import Rates, Rule
from hpcext.training.leave import leave
from hpcext.training.ranks import Ranks
from hpcext.training.torch.balance import Balanced
from hpcext.training.torch.compiled import keep_safe
from hpcext.training.torch.group import Member, check_equal, receive, send
from hpcext.training.torch.parallel import Parallel
from hpcext.training.torch.ranks import join, own_device
from hpcext.training.torch.sharding import shard
from hpcext.training.torch.stall import Stall
from hpcext.training.torch.state import TorchState, plain, with_arrays
from hpcext.training.torch.whole import Steps, norm_of_gradients

Batch = TypeVar("Batch")

__all__ = ["Session", "accumulated", "microbatches", "shard", "split"]


class Session(Balanced):
    """A session that makes a PyTorch training loop resumable.

    See :class:`hpcext.training.session.Session`. Under torchrun it joins the process group, unless
    the script has done so before (then make the session after ``init_process_group``;
    :meth:`parallel` is not needed if the script wraps its model itself).

    Parameters
    ----------
    deterministic : bool
        Whether weights are bit-identical however often training is interrupted at one number of
        ranks: deterministic algorithms, DDP without the rebuilding of its buckets after the first
        step, and the number of threads that the training began with. Slower.
    learning_rate : {"linear", "sqrt", "none"} or callable, optional
        How the learning rates follow the global batch of a :meth:`batch_sampler`, see
        :class:`~hpcext.training.learning_rate.Rescale`. Not given: they stay.
    warm_up : int
        Steps over which a larger learning rate is reached.
    on_resize : iterable of callables
        Called with this session on every rank when the number of ranks has changed in place.
    **options
        Those of the base class, and objects to save by name: ``model=``, ``optimizer=``,
        ``scheduler=``, ``scaler=``, generators, anything with ``state_dict`` and
        ``load_state_dict``.

    See Also
    --------
    adapt : lets the session choose the batch while it trains.
    balance : divides each step so that unequal ranks finish together.

    Attributes
    ----------
    device : torch.device
        Device that this rank computes on.
    """

    _use = "use DataLoader(data, batch_sampler=session.batch_sampler(data, global_batch=...))"
    _wrap = "use model = session.parallel(model), or DistributedDataParallel"

    def __init__(
        self,
        *,
        deterministic: bool = False,
        learning_rate: Rule | None = None,
        warm_up: int = 0,
        on_resize: Iterable[Callable[[Session], object]] = (),
        **options: Any,
    ) -> None:
        self._rates = Rates(learning_rate, warm_up)
        self._on_resize = tuple(on_resize)
        self._models: list[Parallel] = []
        self._stall = Stall()
        self._new = False
        self._received: Tree | None = None
        self.device = own_device()
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        self._deterministic = deterministic
        if deterministic:
            # cuBLAS reads it at its first use; without it PyTorch refuses deterministic algorithms.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True)
            torch.backends.cudnn.benchmark = False
        super().__init__(**options)
        self._steps = Steps(self._heard_step, self._in_turn)

    def parallel(self, model: torch.nn.Module) -> torch.nn.Module:
        """Move the model to this rank's device, and wrap it in DDP if there are other ranks.

        Optimizers that the session holds follow. The ranks average their gradients; each gets a
        part of the batch.

        Parameters
        ----------
        model : torch.nn.Module

        Returns
        -------
        torch.nn.Module
            The model, or its DistributedDataParallel.
        """
        if cast(TorchState, self._state).sharded:
            # FSDP does all of this in its own way.
            return model
        model.to(self.device)
        cast(TorchState, self._state).follow(model)
        alone = self.world_size == 1 and self._member is None
        if alone or not any(p.requires_grad for p in model.parameters()):
            return model
        cuda = self.device.type == "cuda"
        parallel = Parallel(
            model,
            device_ids=[self.device] if cuda else None,
            # Else the buckets are rebuilt after the first step, once per attempt: gradients
            # are then added in another order, and differ in the last bit.
            find_unused_parameters=self._deterministic,
        )
        self._models.append(parallel)
        if not self._joining:
            # Ranks have different weights unless they were seeded or restored from a checkpoint.
            parallel.form(equal=False)
        return parallel

    def _join(self) -> Ranks:
        self._member = Member.here(self.device)
        if not (dist.is_available() and dist.is_initialized()):
            atexit.register(self._part)
        return self._member.ranks() if self._member else join(self.device)

    def _part(self) -> None:
        """Leave the process group that this session formed, and keep nothing of it."""
        if self._phase != AFTER:
            # Ended by an error: an exchange may be under way, and leaving would wait for ranks
            # that may never answer. The launcher must learn of the error now.
            return
        for model in self._models:
            model.dissolve()
        self._ranks = Ranks()
        if self._keeper is not None:
            self._keeper.regroup(self._ranks)
        if dist.is_available() and dist.is_initialized():
            dist.destroy_process_group()

    def rate(self, lr: float) -> float:
        """Return the learning rate of the next step.

        Parameters
        ----------
        lr : float
            The rate of the schedule.
        """
        return self._rates.rate(lr)

    def validation(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches of a validation, each a place to stop; resumption begins it anew."""
        self._changed()
        self._reporter.register()
        return super().validation(loader)

    def finish(self) -> None:
        """Write the final checkpoint, so that a rerun trains no more."""
        self._changed()
        self._steps.close()
        super().finish()

    # Changing the number of ranks in place.

    @property
    def _joining(self) -> bool:
        return self._member is not None and self._member.joining

    def _begin(self) -> None:
        if not self._joining:
            super()._begin()
            return
        # What others restore from a checkpoint comes from rank 0 at the first epoch.
        self._state.check()
        self._resume, self.resumed = None, True
        # The other ranks have compared what they train before.
        self._compared = True
        if self._seed is not None:
            self._state.seed(self._seed + self.rank)
        self._epoch_random = self._state.random()

    def _register(self) -> None:
        # Whether the size can change in place is known only once the loader is open; a request
        # before that would suspend the training.
        if self._member is None:
            super()._register()

    def _join_group(self) -> None:
        member = self._member
        if member is None or not member.joining:
            return
        member.wait()
        group = member.proposed(member.group.number)
        self._regroup(member.form(group))
        tree = receive(self.device, range(group.kept, group.size))
        self._received = with_arrays(tree["objects"])
        self._restore_facts(tree["facts"])
        if self._keeper is not None:
            self._keeper.run_id = tree["facts"]["run_id"]
        self._resume = Checkpoint(Path(), tree["facts"])

    def _restore_state(self, checkpoint: Checkpoint) -> None:
        if self._received is None:
            super()._restore_state(checkpoint)
            return
        self._state.apply(self._received)
        self._received = self._resume_random = None
        self._seed_anew()

    def _next_group(self) -> int:
        member = self._member
        if member is None or self.rank != 0:
            return 0
        stall_s = self._stall.boundary()
        if stall_s is not None:
            member.answer(stall_s=stall_s)
        group = member.proposal()
        if group is None:
            return 0
        why = self._why_not()
        if why:
            member.answer(why=why)
        return 0 if why else group.number

    def _why_not(self) -> str:
        """Return why the number of ranks cannot change in place; empty if it can."""
        refusal = self._state.in_place_refusal
        if refusal:
            return refusal
        if not self._models:
            return "no model is wrapped by session.parallel(model)"
        if self._elastic is None:
            return "the loader has no batch_sampler=session.batch_sampler(data, ...)"
        if not self._elastic.of_any_ranks:
            return "each rank holds a part of the data"
        if self._validations:
            return "an epoch begins with a validation"
        return ""

    def _change_group(self, number: int) -> None:
        member = self._member
        assert member is not None
        group = member.proposed(number)
        self._stall.begin()
        for model in self._models:
            model.dissolve()
        member.leave()
        if self.rank not in group.stay:
            leave(0)
        if self.rank == 0:
            member.begin(group)
        self._regroup(member.form(group))
        if group.kept < group.size:
            facts = {"step": self.step, "world_size": group.size, "run_id": self.run_id}
            tree = {
                "facts": {**self._facts(), **self._place.as_dict(), **facts},
                "objects": plain(self._state.capture(), "Session") if self.rank == 0 else None,
            }
            send(tree, range(group.kept, group.size))

    def _regroup(self, ranks: Ranks) -> None:
        self._ranks, self._new = ranks, True
        self.rank, self.world_size = ranks.rank, ranks.size
        self._reporter.resized(ranks.size)
        if self._keeper is not None:
            self._keeper.regroup(ranks)
        for walk in self._walks:
            walk.resize(self.rank, self.world_size)
        self._follow_ranks()

    # What a session is to be given.

    def _in_turn(self) -> bool:
        """Return whether a step of this training is under way."""
        return self._turn is not None

    def _heard_step(self, optimizer: torch.optim.Optimizer, scaler: Any) -> None:
        """Check, after each optimizer's first step in this attempt, that its state is saved."""
        state = cast(TorchState, self._state)
        if self.world_size > 1 and self._seen and not self._stepped and not state.sharded:
            norms = (*self._seen.gradients, norm_of_gradients(optimizer))
            self._seen = self._seen.norms(norms)
        if self._unsaved is None:
            return
        missing = state.given(self._unsaved).lacks(optimizer, scaler)
        if not missing:
            return
        if not self._stepped:
            raise ValueError(missing)
        # The optimizer was used late: do not lose what was trained so far for it.
        if self.rank == 0:
            self._reporter.note(missing)

    def _first_batch(self, loader: Any, batch: Any) -> Seen:
        # Ranks that divide layers among them are to have the same batches.
        state = cast(TorchState, self._state)
        parts = state.sharded and not state.data_parallel
        return Seen() if parts else super()._first_batch(loader, batch)

    def _opened(self) -> None:
        super()._opened()
        batches = self._elastic
        if batches is not None:
            self._rates.use(batches.global_batch, cast(TorchState, self._state).optimizers())
            for model in self._models:
                if not model.weighed:
                    model.weigh(self._weight_in_backward)
        if self._new:
            self._new = False
            parameters = (p for model in self._models for p in model.parameters())
            check_equal(parameters, self._ranks)
            for model in self._models:
                model.form(equal=True)
            for callback in self._on_resize:
                callback(self)
        if self._member is not None:
            self._reporter.register(in_place=not self._why_not())

    def _changed(self) -> None:
        """Report the cost of a change of ranks after which no step came."""
        stall_s = self._stall.end()
        if stall_s is not None and self._member is not None and self.rank == 0:
            self._member.answer(stall_s=stall_s)

    def _make_state(self, objects: dict[str, Any]) -> TorchState:
        keep_safe()
        return TorchState(objects)

    def _make_keeper(self, store: Store) -> Keeper:
        state = cast(TorchState, self._state)
        if not state.sharded:
            return super()._make_keeper(store)
        # Importing DTensor takes a while, and few need it.
        from hpcext.training.torch.sharded import ShardedKeeper  # noqa: PLC0415

        return ShardedKeeper(store, state, self._ranks)

    def _begin_epoch(self, epoch: int) -> None:
        cast(TorchState, self._state).check_order()
        super()._begin_epoch(epoch)

    def _facts(self) -> dict[str, Any]:
        more = {"threads": torch.get_num_threads(), "learning_rate": self._rates.state()}
        return {**super()._facts(), **more}

    def _restore_facts(self, manifest: Mapping[str, Any]) -> None:
        super()._restore_facts(manifest)
        self._rates.restore(manifest["learning_rate"])
        if self._deterministic:
            # Sums computed by another number of threads differ in the last bit.
            torch.set_num_threads(manifest["threads"])
