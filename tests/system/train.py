"""A training for the cluster: real, deterministic, with data-loader workers; waits at one step.

``train.py DIRECTORY``: at step 6 it makes ``DIRECTORY/where`` and waits for ``DIRECTORY/gate``.
What became of the weights goes into ``DIRECTORY/weights``.
"""

from __future__ import annotations

import hashlib
import signal
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

from hpcext.training.torch import Session

GATED = 6
directory = Path(sys.argv[1])
torch.manual_seed(1)
x = torch.randn(48, 8)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
session = Session(
    model=model, optimizer=optimizer, deterministic=True, seed=2, checkpoint_every_s=None
)
data = TensorDataset(x, x.sum(dim=1, keepdim=True))
net = session.parallel(model)
loader = DataLoader(
    data, batch_size=12 // session.world_size, sampler=session.sampler(data), num_workers=1
)
for _ in session.epochs(3):
    for inputs, targets in session.batches(loader):
        if session.step == GATED and not session.resumed:
            (directory / "where").write_text("at the gate")
            while not (directory / "gate").exists() and signal.SIGTSTP not in signal.sigpending():
                time.sleep(0.02)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(net(inputs), targets).backward()
        optimizer.step()
weights = torch.nn.utils.parameters_to_vector(model.parameters()).detach().numpy().tobytes()
if session.rank == 0:
    (directory / "weights").write_text(hashlib.sha256(weights).hexdigest())
    print("trained to step", session.step, "on", session.world_size)
