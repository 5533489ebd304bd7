"""What the ranks of a PyTorch job tell each other, apart from the training's own traffic."""

from __future__ import annotations

import importlib
from typing import Any

import torch
import torch.distributed as dist

from hpcext.protocol import environ
from hpcext.training.ranks import Control, Ranks


class TorchRanks(Ranks):
    """Ranks of an initialised process group, over a gloo group of their own.

    The exchange of control vectors is asynchronous: started at one boundary and read at the next,
    it travels while the step computes. It needs its own group, since messages of one group must
    be sent in the same order by all, and DistributedDataParallel sends its own in the meantime.
    """

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self._group: dist.ProcessGroup = dist.new_group(backend="gloo")
        self._vector = torch.zeros(len(Control()), dtype=torch.int64)
        # The same memory; setting it through NumPy costs a tenth.
        self._values = self._vector.numpy()
        self._work: dist.Work | None = None
        self._adding: tuple[dist.Work, torch.Tensor] | None = None
        self._gathering: tuple[dist.Work, list[torch.Tensor]] | None = None

    @property
    def group(self) -> dist.ProcessGroup:
        """The group that they speak in; nothing of the training's own goes through it."""
        return self._group

    def exchange(self, wish: Control) -> Control:
        """Read what was agreed on since the last call, and send the next wish on its way."""
        agreed = self._take()
        if not agreed.stop and not agreed.resize:
            self._values[:] = wish
            self._work = dist.all_reduce(
                self._vector, op=dist.ReduceOp.MAX, group=self._group, async_op=True
            )
        return agreed

    def settle(self) -> None:
        """Finish what is under way, whatever it says."""
        self._take()
        self.summed()
        self.gathered()

    def begin_sum(self, values: list[float]) -> None:
        """Begin to add up numbers of all ranks, beside the training as the exchange is."""
        numbers = torch.tensor(values, dtype=torch.float64)
        work = dist.all_reduce(numbers, group=self._group, async_op=True)
        self._adding = work, numbers

    def summed(self) -> list[float] | None:
        """What was begun, waiting for it."""
        if self._adding is None:
            return None
        (work, numbers), self._adding = self._adding, None
        work.wait()
        found: list[float] = numbers.tolist()
        return found

    def begin_gather(self, values: list[float]) -> None:
        """Begin to tell all ranks some numbers, beside the training as the exchange is."""
        mine = torch.tensor(values, dtype=torch.float64)
        parts = [torch.empty_like(mine) for _ in range(self.size)]
        work = dist.all_gather(parts, mine, group=self._group, async_op=True)
        self._gathering = work, parts

    def gathered(self) -> list[list[float]] | None:
        """What was begun, waiting for it."""
        if self._gathering is None:
            return None
        (work, parts), self._gathering = self._gathering, None
        work.wait()
        return [part.tolist() for part in parts]

    def smallest(self, value: int) -> int:
        """The smallest value of all ranks."""
        number = torch.tensor([value])
        dist.all_reduce(number, op=dist.ReduceOp.MIN, group=self._group)
        return int(number)

    def gather(self, data: bytes) -> list[bytes]:
        """The data of each rank, by rank; empty except on rank 0."""
        length = torch.tensor([len(data)])
        lengths = [torch.zeros_like(length) for _ in range(self.size)]
        dist.all_gather(lengths, length, group=self._group)
        # Messages of one collective have one size.
        mine = torch.zeros(int(max(lengths)), dtype=torch.uint8)
        mine[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        parts = [torch.zeros_like(mine) for _ in range(self.size)] if self.rank == 0 else None
        dist.gather(mine, parts, dst=0, group=self._group)
        pairs = zip(parts or (), lengths, strict=False)
        return [part[: int(length)].numpy().tobytes() for part, length in pairs]

    def broadcast(self, data: bytes) -> bytes:
        """What rank 0 passed."""
        length = torch.tensor([len(data)])
        dist.broadcast(length, src=0, group=self._group)
        if self.rank == 0:
            content = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        else:
            content = torch.zeros(int(length), dtype=torch.uint8)
        dist.broadcast(content, src=0, group=self._group)
        return content.numpy().tobytes()

    def _take(self) -> Control:
        """What the exchange under way agreed on."""
        if self._work is None:
            return Control()
        self._work.wait()
        self._work = None
        return Control(*self._values.tolist())


def join(device: torch.device) -> Ranks:
    """The ranks of this job: an initialised process group, torchrun's, or this process alone.

    Parameters
    ----------
    device : torch.device
        What this rank computes on; decides the backend.
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
    """Form a process group that can be left without a trace.

    DistributedDataParallel imports ``torch._dynamo``, which for ever keeps the group that there is
    by then (PyTorch 2.13), and with it the group's threads. One that outlives the interpreter may
    abort the process at its very end ("terminate called without an active exception").

    Parameters
    ----------
    device : torch.device
        What this rank computes on; decides the backend.
    **place
        For ``init_process_group``: store, rank, world_size.
    """
    importlib.import_module("torch._dynamo")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", **place)


def own_device() -> torch.device:
    """The device of this rank: a GPU of its own if there is one for each rank of this node."""
    env = environ()
    if torch.cuda.is_available():
        here = int(env.get("LOCAL_WORLD_SIZE", "1"))
        if torch.cuda.device_count() >= here:
            return torch.device("cuda", int(env.get("LOCAL_RANK", "0")))
    return torch.device("cpu")
