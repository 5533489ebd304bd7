"""Process groups on a GPU, as a session forms them: again and again, or with a rank missing."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from hpcext.training.torch.ranks import init

TIMES = 5
ABORT_AFTER_S = 1.0


def device() -> torch.device:
    """The GPU, or what takes its place in a rehearsal."""
    return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


def again() -> None:
    """Form a group of one rank and leave it, some times."""
    here = device()
    times: dict[str, list[float]] = {"formed_s": [], "left_s": []}
    used = []
    for number in range(TIMES):
        with tempfile.TemporaryDirectory() as place:
            began_s = time.monotonic()
            init(here, store=dist.FileStore(f"{place}/store", 1), rank=0, world_size=1)
            x = torch.full((1 << 20,), 1.0, device=here)
            dist.all_reduce(x)
            total = float(x.mean())
            times["formed_s"].append(time.monotonic() - began_s)
            began_s = time.monotonic()
            dist.destroy_process_group()
            times["left_s"].append(time.monotonic() - began_s)
        if here.type == "cuda":
            free, there = torch.cuda.mem_get_info()
            used.append((there - free) >> 20)
        assert number or total
    print(json.dumps({"sum": total, **times, "used_mib": used}))


def blocked(rank: int, store: Path, told: Path) -> None:
    """Wait in a collective, in which rank 1 takes no part; then abort the group."""
    here = device()
    init(here, store=dist.FileStore(str(store), 2), rank=rank, world_size=2)
    if rank:
        time.sleep(600)
    with told.open("a", buffering=1) as account:

        def note(**facts: Any) -> None:
            account.write(json.dumps({"at": time.time(), "pid": os.getpid(), **facts}) + "\n")

        def wait() -> None:
            try:
                x = torch.ones(1 << 20, device=here)
                dist.all_reduce(x)
                float(x.mean())
                note(freed="it came to its end")
            except Exception as error:
                note(freed=f"{type(error).__name__}: {error}".splitlines()[0][:200])

        threading.Thread(target=wait, daemon=True).start()
        time.sleep(ABORT_AFTER_S)
        note(blocked=True)
        try:
            dist.distributed_c10d._get_default_group().abort()
        except Exception as error:
            note(refused=f"{type(error).__name__}: {error}".splitlines()[0][:200])
        time.sleep(600)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("again", "blocked"))
    parser.add_argument("--rank", type=int)
    parser.add_argument("--store", type=Path)
    parser.add_argument("--told", type=Path)
    args = parser.parse_args()
    if args.what == "again":
        again()
    else:
        blocked(args.rank, args.store, args.told)


if __name__ == "__main__":
    main()
