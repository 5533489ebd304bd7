"""Process groups whose operations do nothing in a step that a dead rank has broken.

The layers of a sharded model exchange their parameters and gradients in the midst of the script's
own code, which must not see an error there: the step ends with values of no meaning, without
effect, and is made again.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store
from torch.distributed import distributed_c10d

from hpcext.training.torch.ranks import wait_for

BACKEND = "hpcext_gloo"
"""The name under which PyTorch makes such groups."""

_KIND = dist.ProcessGroup.BackendType.GLOO


class Survivor(Protocol):
    """What decides whether a step survives an error of communication."""

    @property
    def skips(self) -> bool:
        """Whether the present step is one without effect."""

    def survives(self, error: RuntimeError) -> bool:
        """Return whether the present step goes on, without effect, in spite of an error."""


class Surviving(dist.ProcessGroup):
    """A process group of gloo for the layers of sharded models.

    Parameters
    ----------
    store : Store
    rank, size : int
    timeout : timedelta

    Attributes
    ----------
    survivor : Survivor or None
        Asked about errors; None: they are raised.
    freed : threading.Event or None
        Set when operations that do not end are not to be waited for any more.
    """

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta) -> None:
        # Only so may a class in Python override what PyTorch calls from C++.
        cast(Any, super()).__init__(rank, size)
        self.survivor: Survivor | None = None
        self.freed: threading.Event | None = None
        self._gloo = dist.ProcessGroup(store, rank, size)
        backend = dist.ProcessGroupGloo(store, rank, size, timeout)
        # Both have it: names are kept there, and what is not overridden goes there.
        for group in (self, self._gloo):
            group._set_default_backend(_KIND)
            group._register_backend(torch.device("cpu"), _KIND, backend)

    def getBackendName(self) -> str:
        """Return the name of the backend."""
        return "gloo"

    def _carry_out(self, operation: str, fill: Callable[[], object], args: Any, named: Any) -> Any:
        """Carry an operation out to its end; in a step that is broken, fill in what there is."""
        survivor = self.survivor
        if survivor is None or not survivor.skips:
            try:
                if operation in _SCATTERS:
                    return self._reduce_scatter(*args)
                work: dist.Work = getattr(self._gloo, operation)(*args, **named)
                # FSDP2 waits for it at once, too.
                wait_for(work, self.freed)
                return work
            except RuntimeError as error:
                if survivor is None or not survivor.survives(error):
                    raise
        fill()
        return _Ended()

    def _reduce_scatter(self, output: torch.Tensor, whole: torch.Tensor, options: Any) -> dist.Work:
        """Reduce all of it, as gloo does here, but in an operation that need not be waited for."""
        sums, how = whole.reshape(-1).clone(), dist.AllreduceOptions()
        how.reduceOp = options.reduceOp
        work: dist.Work = self._gloo.allreduce([sums], how)
        wait_for(work, self.freed)
        output.view(-1).copy_(sums.view(self.size(), -1)[self.rank()])
        return work


class _Ended(dist.Work):
    """An operation that has ended, as far as anybody is told."""

    def wait(self, timeout: timedelta = timedelta()) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


def _nothing(*_args: Any) -> None:
    """Leave the tensors as they are."""


def _gather(output: torch.Tensor, own: torch.Tensor, *_options: Any) -> None:
    """Take the own part for that of every rank."""
    if own.numel():
        # FSDP2 has it in its place of the output already.
        output.view(-1, own.numel()).copy_(own.reshape(1, -1).clone())


def _scatter(output: torch.Tensor, whole: torch.Tensor, *_options: Any) -> None:
    """Take the first part."""
    output.view(-1).copy_(whole.reshape(-1)[: output.numel()])


def _gather_lists(outputs: Any, own: Any, *_options: Any) -> None:
    for parts, each in zip(outputs, own, strict=True):
        for part in parts:
            part.copy_(each)


def _scatter_lists(outputs: Any, inputs: Any, *_options: Any) -> None:
    for output, parts in zip(outputs, inputs, strict=True):
        output.copy_(parts[0])


def _zero(output: torch.Tensor, *_args: Any) -> None:
    output.zero_()


def _of_each(fill: Callable[..., None]) -> Callable[..., None]:
    """Return the same for several pairs of tensors."""

    def each(outputs: Any, inputs: Any, *_options: Any) -> None:
        for output, own in zip(outputs, inputs, strict=True):
            fill(output, own)

    return each


_FILLS: dict[str, Callable[..., None]] = {
    "allreduce": _nothing,
    "allreduce_coalesced": _nothing,
    "broadcast": _nothing,
    "barrier": _nothing,
    "allgather": _gather_lists,
    "reduce_scatter": _scatter_lists,
    # Each has two names, of which earlier releases of PyTorch call the second.
    "all_gather_single": _gather,
    "_allgather_base": _gather,
    "reduce_scatter_single": _scatter,
    "_reduce_scatter_base": _scatter,
    "all_gather_single_coalesced": _of_each(_gather),
    "allgather_into_tensor_coalesced": _of_each(_gather),
    "reduce_scatter_single_coalesced": _of_each(_scatter),
    "reduce_scatter_tensor_coalesced": _of_each(_scatter),
    "all_to_all_single": _zero,
    "alltoall_base": _zero,
}
"""What a broken step goes on with, by the operation."""

_SCATTERS = {"reduce_scatter_single", "_reduce_scatter_base"}


def _operation(name: str, fill: Callable[..., None]) -> Callable[..., Any]:
    def operation(self: Surviving, *args: Any, **named: Any) -> Any:
        return self._carry_out(name, functools.partial(fill, *args), args, named)

    return operation


for _name, _fill in _FILLS.items():
    if hasattr(dist.ProcessGroup, _name):
        setattr(Surviving, _name, _operation(_name, _fill))


def register() -> str:
    """Make PyTorch know this kind of groups; return its name."""
    if BACKEND.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(BACKEND, Surviving, devices=["cpu"])
    return BACKEND


def call(group: Surviving, name: str) -> None:
    """Give a group a name of its own, by which it is found."""
    kept: Any = distributed_c10d
    kept._unregister_process_group(group.group_name)
    cast(Any, group)._set_group_name(name)
    kept._world.pg_names[group] = name
    kept._register_process_group(name, group)
