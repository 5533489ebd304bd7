"""Two ranks of which one dies, in a way that gloo does not notice; for test_aborted.py."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

from hpcext.rendezvous import Rendezvous
from hpcext.training.torch.group import Member
from hpcext.training.torch.ranks import TorchRanks


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


OVER = threading.Event()


def abort(member: Member, frees: bool) -> None:
    """Abort, in a thread, what waits; if that has no effect, the process ends."""
    for turn in range(100):
        if OVER.wait(0.1):
            return
        member.abort()
        if frees and turn == 20:
            print("free", flush=True)
            member.free()
    print("it waits on", flush=True)
    os._exit(1)


def unread(member: Member, place: Path) -> None:
    """What is sent for an operation that has failed has no place any more."""
    numbers = torch.ones(1000)
    if member.rank == 1:
        wait_for(place / "asked")
        dist.send(numbers, 0, tag=1)
        (place / "dies").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    work = dist.irecv(numbers, 1, tag=1)
    del work
    (place / "asked").touch()
    wait_for(place / "dies")
    thread = threading.Thread(target=abort, args=(member, False))
    thread.start()
    try:
        dist.recv(numbers, 1, tag=2)
    finally:
        OVER.set()
        thread.join()


def unsent(member: Member, place: Path, ranks: TorchRanks) -> None:
    """A rank dies that has read a part of what is sent to it."""
    numbers = torch.ones(50_000_000)
    work = dist.broadcast(numbers, 0, group=ranks.group, async_op=True)
    if member.rank == 1:
        # It has asked for the numbers, and read some of them.
        time.sleep(0.005)
        (place / str(os.getpid())).touch()
        os.kill(os.getpid(), signal.SIGSTOP)
    while not (there := list(place.glob("[0-9]*"))):
        time.sleep(0.01)
    # Rank 0 sends as much as the connection holds, and no more while rank 1 is stopped.
    time.sleep(0.5)
    assert not work.is_completed()
    os.kill(int(there[0].name), signal.SIGKILL)
    thread = threading.Thread(target=abort, args=(member, True))
    thread.start()
    try:
        ranks._wait(work)
    finally:
        OVER.set()
        thread.join()


class Step:
    """A step that survives errors, or does not."""

    def __init__(self, *, survives: bool) -> None:
        self.skips = False
        self._survives = survives

    def survives(self, error: RuntimeError) -> bool:
        assert "gloo" in str(error)
        self.skips = self._survives
        return self._survives


def layers(member: Member, place: Path) -> None:
    """What the layers of a sharded model exchange, before and after a rank has died."""
    group = member.surviving("layers", [[0, 1]])
    assert group.group_name == "layers"
    assert member.surviving("layers", [[0, 1]]) is group
    own = torch.arange(4.0) + member.rank
    exchanged(own, group)
    if member.rank == 1:
        (place / "dies").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    wait_for(place / "dies")
    # What is being sent as it dies, gloo may never end: see `unsent`.
    time.sleep(0.5)
    member.survive(step := Step(survives=True))
    exchanged(own, group)
    assert step.skips
    member.survive(Step(survives=False))
    dist.all_reduce(own, group=group)


def exchanged(own: torch.Tensor, group: dist.ProcessGroup) -> None:
    """Exchange in all ways that FSDP2 and DTensor have, and say what comes of it."""
    total, part, both = own.clone(), torch.empty(2), torch.empty(8)
    dist.all_reduce(total, group=group)
    dist.reduce_scatter_single(part, own, group=group)
    dist.all_gather_single(both, own, group=group)
    lists = [torch.empty(4), torch.empty(4)]
    dist.all_gather(lists, own, group=group)
    summed = functional.all_reduce(own, "sum", group) + 0
    gathered = functional.all_gather_single(own, 0, group) + 0
    scattered = functional.reduce_scatter_single(own, "sum", 0, group) + 0
    dist.barrier(group=group)
    if dist.get_rank() == 0:
        found = [total, part, both, *lists, summed, gathered, scattered]
        print([each.int().tolist() for each in found], flush=True)


def main() -> None:
    place, rank, how = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    rendezvous = Rendezvous(place, replaces=True)
    member = Member(rendezvous, rank=rank, size=2, device=torch.device("cpu"))
    ranks = member.ranks()
    assert isinstance(ranks, TorchRanks)
    try:
        if how == "layers":
            layers(member, place)
        elif how == "unread":
            unread(member, place)
        else:
            unsent(member, place, ranks)
    except RuntimeError as error:
        print(f"it ends: {type(error).__name__}", flush=True)
    del ranks
    member.leave()
    print("it has left", flush=True)


main()
