"""The shape of accelerate's examples: save_state every few steps, --resume_from_checkpoint."""

import argparse
import os
import time

import torch
from accelerate import Accelerator

parser = argparse.ArgumentParser()
parser.add_argument("steps", type=int)
parser.add_argument("--resume_from_checkpoint")
args = parser.parse_args()
accelerator = Accelerator()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model, optimizer = accelerator.prepare(model, optimizer)
step = 0
if args.resume_from_checkpoint:
    accelerator.load_state(args.resume_from_checkpoint)
    step = int(os.path.basename(args.resume_from_checkpoint).removeprefix("step_"))
while step < args.steps:
    optimizer.zero_grad()
    accelerator.backward(model(torch.randn(8, 4, device=accelerator.device)).pow(2).mean())
    optimizer.step()
    time.sleep(0.02)
    step += 1
    with open("steps", "a") as file:
        file.write(f"{step} {time.time()}\n")
    if step % 10 == 0:
        accelerator.save_state(f"out/step_{step}")
