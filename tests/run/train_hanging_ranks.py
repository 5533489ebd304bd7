"""A training of two ranks that go on for long; each writes its pid when steps were reported."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch

from hpcext.training.torch import Session

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session = Session(model=model, optimizer=optimizer, checkpoint_every_s=None)
model = session.parallel(model)
data = torch.utils.data.TensorDataset(torch.randn(100_000, 4), torch.randn(100_000, 1))
batches = session.batch_sampler(data, global_batch=4)
for _ in session.epochs(1):
    for x, y in session.batches(torch.utils.data.DataLoader(data, batch_sampler=batches)):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        time.sleep(0.02)
        if session.step == 150:
            Path(f"pid-{session.rank}").write_text(str(os.getpid()))
