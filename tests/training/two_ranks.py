"""Two ranks of which one dies, while the other reads nothing more from it; for test_aborted.py."""

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


def abort(member: Member) -> None:
    """Abort, in a thread, what waits; if that has no effect, the process ends."""
    for _ in range(100):
        time.sleep(0.1)
        member.abort()
    print("it waits on", flush=True)
    os._exit(1)


def main() -> None:
    place, rank = Path(sys.argv[1]), int(sys.argv[2])
    member = Member(Rendezvous(place), rank=rank, size=2, device=torch.device("cpu"))
    member.ranks()
    numbers, asked, dies = torch.ones(1000), place / "asked", place / "dies"
    if rank == 1:
        while not asked.exists():
            time.sleep(0.01)
        dist.send(numbers, 0, tag=1)
        dies.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    # As an operation of the backend that fails: what is sent for it has no place any more.
    work = dist.irecv(numbers, 1, tag=1)
    del work
    asked.touch()
    while not dies.exists():
        time.sleep(0.01)
    threading.Thread(target=abort, args=(member,), daemon=True).start()
    try:
        dist.recv(numbers, 1, tag=2)
    except RuntimeError as error:
        print(f"it ends: {error}", flush=True)
    os._exit(0)


main()
