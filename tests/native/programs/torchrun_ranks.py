"""The shape of PyTorch's ImageNet example under torchrun: rank 0 saves after each epoch."""

import os
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, steps, step = dist.get_rank(), int(sys.argv[1]), 0
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
if os.path.exists("checkpoint.pth.tar"):
    saved = torch.load("checkpoint.pth.tar")
    model.load_state_dict(saved["state_dict"])
    step = saved["step"]
while step < steps:
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
    time.sleep(0.02)
    step += 1
    if rank == 0:
        with open("steps", "a") as file:
            file.write(f"{step} {time.time()}\n")
    if step % 10 == 0 and rank == 0:
        state = {"state_dict": model.state_dict(), "step": step}
        torch.save(state, "checkpoint.new")
        os.replace("checkpoint.new", "checkpoint.pth.tar")
