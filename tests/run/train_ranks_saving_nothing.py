"""A loop of PyTorch under torchrun that saves nothing, in ``STEPS`` steps.

The last line of its first rank depends on each step of all.
"""

from __future__ import annotations

import hashlib
import sys
import time

import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    torch.manual_seed(0)
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    chance = torch.Generator().manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    for step in range(int(sys.argv[1])):
        loss = (model(torch.randn(8, 64, generator=chance)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print("step", step, flush=True)
        time.sleep(0.02)
    if rank == 0:
        weights = b"".join(each.detach().numpy().tobytes() for each in model.parameters())
        print("end", hashlib.sha256(weights).hexdigest(), flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
