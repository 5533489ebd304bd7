"""A plain loop of PyTorch with torch.save, in place: nothing but time makes a file whole."""

import os
import sys
import time

import torch

steps, step = int(sys.argv[1]), 0
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.Adam(model.parameters())
if os.path.exists("model.pt"):
    saved = torch.load("model.pt")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    step = saved["step"]
while step < steps:
    optimizer.zero_grad()
    model(torch.randn(8, 64)).pow(2).mean().backward()
    optimizer.step()
    time.sleep(0.02)
    step += 1
    with open("steps", "a") as file:
        file.write(f"{step} {time.time()}\n")
    if step % 10 == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, "model.pt")
