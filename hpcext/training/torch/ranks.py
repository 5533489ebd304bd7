"""Communication of the ranks of a PyTorch job, apart from the training's own traffic."""

from __future__ import annotations

import importlib
import threading
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from hpcext.protocol import environ
from hpcext.training.ranks import Control, Ranks

LOOK = timedelta(seconds=1)
"""The time between two looks whether to go on waiting."""


_LATE = "timed out"
"""What PyTorch says where an operation has not ended yet, among other words."""


class NeverEnds(RuntimeError):
    """An operation does not end, though it was aborted."""


class TorchRanks(Ranks):
    """Ranks of an initialised process group, which communicate in a gloo group of their own.

    The exchange of control vectors is asynchronous: it is started at one boundary and read at the
    next, so that it runs while the step computes. It needs its own group, because all ranks must
    send the messages of one group in the same order, and DistributedDataParallel sends its own in
    the meantime.

    Parameters
    ----------
    **options
        Options of ``new_group``.

    Attributes
    ----------
    freed : threading.Event or None
        Set when operations that do not end are not to be waited for any more.
    """

    def __init__(self, **options: Any) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self._group: dist.ProcessGroup = dist.new_group(backend="gloo", **options)
        self._vector = torch.zeros(len(Control()), dtype=torch.int64)
        # A view of the same memory, since setting it through NumPy takes a tenth of the time.
        self._values = self._vector.numpy()
        self._work: dist.Work | None = None
        self._adding: tuple[dist.Work, torch.Tensor] | None = None
        self._gathering: tuple[dist.Work, list[torch.Tensor]] | None = None
        self.freed: threading.Event | None = None

    @property
    def group(self) -> dist.ProcessGroup:
        """The control group, which the training's own traffic does not use."""
        return self._group

    def exchange(self, requests: Control) -> Control:
        """Return what was agreed on since the last call, and send the next requests."""
        agreed = self._take()
        if not agreed.suspend and not agreed.resize:
            self._values[:] = requests
            self._work = dist.all_reduce(
                self._vector, op=dist.ReduceOp.MAX, group=self._group, async_op=True
            )
        return agreed

    def works(self) -> list[dist.Work]:
        """Return the operations that have been begun and not been waited for."""
        begun = [self._work, *(pair and pair[0] for pair in (self._adding, self._gathering))]
        return [work for work in begun if work is not None]

    def settle(self) -> None:
        """Finish the running exchanges, whatever their result."""
        self._take()
        self.summed()
        self.gathered()

    def begin_sum(self, values: list[float]) -> None:
        """Begin to add numbers over all ranks, beside the training."""
        numbers = torch.tensor(values, dtype=torch.float64)
        work = dist.all_reduce(numbers, group=self._group, async_op=True)
        self._adding = work, numbers

    def summed(self) -> list[float] | None:
        """Wait for the sum that was begun and return it, or None if none was."""
        if self._adding is None:
            return None
        (work, numbers), self._adding = self._adding, None
        self._wait(work)
        found: list[float] = numbers.tolist()
        return found

    def begin_gather(self, values: list[float]) -> None:
        """Begin to send numbers to all ranks, beside the training."""
        mine = torch.tensor(values, dtype=torch.float64)
        parts = [torch.empty_like(mine) for _ in range(self.size)]
        work = dist.all_gather(parts, mine, group=self._group, async_op=True)
        self._gathering = work, parts

    def gathered(self) -> list[list[float]] | None:
        """Wait for the numbers of all ranks and return them, or None if none were sent."""
        if self._gathering is None:
            return None
        (work, parts), self._gathering = self._gathering, None
        self._wait(work)
        return [part.tolist() for part in parts]

    def smallest(self, value: int) -> int:
        """Return the smallest value of all ranks."""
        if self._work is not None:
            # If it fails, nothing else should wait for what gloo does not read any more.
            self._wait(self._work)
        number = torch.tensor([value])
        self._wait(dist.all_reduce(number, op=dist.ReduceOp.MIN, group=self._group, async_op=True))
        return int(number)

    def gather(self, data: bytes) -> list[bytes]:
        """Return the data of each rank, by rank; an empty list on all ranks but 0."""
        length = torch.tensor([len(data)])
        lengths = [torch.zeros_like(length) for _ in range(self.size)]
        dist.all_gather(lengths, length, group=self._group)
        # All messages of one collective have the same size.
        mine = torch.zeros(int(max(lengths)), dtype=torch.uint8)
        mine[: len(data)] = _tensor(data)
        parts = [torch.zeros_like(mine) for _ in range(self.size)] if self.rank == 0 else None
        dist.gather(mine, parts, dst=0, group=self._group)
        pairs = zip(parts or (), lengths, strict=False)
        return [part[: int(length)].numpy().tobytes() for part, length in pairs]

    def broadcast(self, data: bytes) -> bytes:
        """Return the data of rank 0."""
        length = torch.tensor([len(data)])
        dist.broadcast(length, src=0, group=self._group)
        content = _tensor(data) if self.rank == 0 else torch.zeros(int(length), dtype=torch.uint8)
        dist.broadcast(content, src=0, group=self._group)
        return content.numpy().tobytes()

    def _take(self) -> Control:
        """Return what the running exchange agreed on."""
        if self._work is None:
            return Control()
        self._wait(self._work)
        self._work = None
        return Control(*self._values.tolist())

    def _wait(self, work: dist.Work) -> None:
        wait_for(work, self.freed)


def wait_for(work: dist.Work, freed: threading.Event | None) -> None:
    """Wait for an operation.

    Parameters
    ----------
    work : Work
    freed : threading.Event or None
        Set when operations that do not end are not to be waited for any more.

    Raises
    ------
    NeverEnds
        It does not end, though it was aborted.
    """
    if freed is None:
        work.wait()
        return
    while True:
        try:
            work.wait(LOOK)
            return
        except RuntimeError as error:
            if work.is_completed():
                work.wait()
                return
            if _LATE not in str(error):
                raise
        if freed.is_set():
            raise NeverEnds("an operation of gloo does not end")


def _tensor(data: bytes) -> torch.Tensor:
    # A buffer of no bytes is refused, where the other ranks wait for it already.
    if not data:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def join(device: torch.device) -> Ranks:
    """Join the ranks of this job: an initialised process group, torchrun's, or this process alone.

    Parameters
    ----------
    device : torch.device
        The device of this rank, which determines the backend.
    """
    if not dist.is_available():
        return Ranks()
    if not dist.is_initialized():
        env = environ()
        if int(env.get("WORLD_SIZE", "1")) == 1 or "RANK" not in env:
            return Ranks()
        init(device)
    return TorchRanks() if dist.get_world_size() > 1 else Ranks()


def init(device: torch.device, **place: Any) -> None:
    """Form a process group that can be left completely.

    DistributedDataParallel imports ``torch._dynamo``, which keeps for ever the group that exists
    then (PyTorch 2.13), and with it the group's threads. A group that outlives the interpreter may
    abort the process at its very end ("terminate called without an active exception").

    Parameters
    ----------
    device : torch.device
        The device of this rank, which determines the backend.
    **place
        Arguments of ``init_process_group``: store, rank, world_size.
    """
    importlib.import_module("torch._dynamo")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", **place)


def own_device() -> torch.device:
    """Return this rank's device: a GPU of its own if this node has one for each rank."""
    if torch.cuda.is_available() and not unused_gpus():
        return torch.device("cuda", int(environ().get("LOCAL_RANK", "0")))
    return torch.device("cpu")


def unused_gpus() -> str:
    """Return why the ranks of this node use none of its GPUs; empty if they do, or it has none."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    here = int(environ().get("LOCAL_WORLD_SIZE", "1"))
    if not 0 < count < here:
        return ""
    return (
        f"the training runs on CPUs, and its GPUs are idle: this node has {here} ranks, but shows "
        f"them {count} GPU{'s' if count > 1 else ''}; start a rank for each GPU (`hpcext launch` "
        "without --ranks), or give the job more GPUs"
    )


def idle_gpus(ranks: int, gpus: int) -> str:
    """Return that one rank has several GPUs, most of which may be idle; empty if that is not so.

    Parameters
    ----------
    ranks, gpus : int
        The numbers that the job has, on all of its nodes.
    """
    if ranks != 1 or gpus < 2:
        return ""
    return (
        f"trains with 1 process on {gpus} GPUs, of which it uses one unless the script itself "
        "divides its model over them; start a process for each (`hpcext launch python train.py`), "
        "or say `gpus = 1`"
    )
