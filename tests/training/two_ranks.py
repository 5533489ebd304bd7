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


def main() -> None:
    place, rank, how = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    rendezvous = Rendezvous(place, replaces=True)
    member = Member(rendezvous, rank=rank, size=2, device=torch.device("cpu"))
    ranks = member.ranks()
    assert isinstance(ranks, TorchRanks)
    try:
        if how == "unread":
            unread(member, place)
        else:
            unsent(member, place, ranks)
    except RuntimeError as error:
        print(f"it ends: {type(error).__name__}", flush=True)
    del ranks
    member.leave()
    print("it has left", flush=True)


main()
