"""A training that is slow until a file is there, and writes down its steps and its weights.

Usage: ``train_preloaded.py GATE WEIGHTS``; steps are in ``WEIGHTS.steps``. Its weights, its order
of samples and its dropout are random, by one seed.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch

from hpcext.training.torch import Session

STEPS, EPOCHS, SLOW_S = 20, 20, 0.3

torch.manual_seed(5)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters())
dataset = torch.utils.data.TensorDataset(torch.randn(10 * STEPS, 8))
session = Session(model=model, optimizer=optimizer, seed=5)
parallel = session.parallel(model)
first = os.environ.get("RANK", "0") == "0"
loader = torch.utils.data.DataLoader(dataset, batch_size=10, sampler=session.sampler(dataset))
for _ in session.epochs(EPOCHS):
    for (x,) in session.batches(loader):
        optimizer.zero_grad()
        parallel(x).square().mean().backward()
        optimizer.step()
        if first:
            with Path(f"{sys.argv[2]}.steps").open("a", encoding="utf-8") as steps:
                steps.write(f"{session.step + 1}\n")
        if not Path(sys.argv[1]).exists():
            time.sleep(SLOW_S)
words = [float(value).hex() for each in model.parameters() for value in each.detach().flatten()]
if first:
    Path(sys.argv[2]).write_text(" ".join(words), encoding="utf-8")
