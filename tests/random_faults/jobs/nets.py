"""A PyTorch session: ``nets.py EPOCHS STEP_S SAVE_EVERY elastic|workers``.

``elastic`` under ``hpcext launch``, resized in place; ``workers`` under torchrun, with data-loader
workers. The weight is minus the sum of all samples trained until then, by the batch: it shows
whether each rank's gradients counted, and whether the state went on as it was.
"""

from __future__ import annotations

import sys
import time

import account
import torch
from torch.utils.data import DataLoader

from hpcext.training.torch import Session

EPOCHS, STEP_S, SAVE_EVERY = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
ELASTIC = sys.argv[4] == "elastic"

assert account.attempt is not None
directory = account.attempt.checkpoint_dir
account.note("begin", found=account.checkpoints(directory))
model = torch.nn.Linear(1, 1, bias=False, dtype=torch.float64)
torch.nn.init.zeros_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
session = Session(
    model=model,
    optimizer=optimizer,
    seed=5,
    checkpoint_every_s=None,
    checkpoint_every_steps=SAVE_EVERY,
    on_suspend=[lambda: account.note("suspended", step=session.step)],
)
net = session.parallel(model)
joins = session.training.resizing.joining
if not joins:
    account.note("resumed", step=session.step)
data = torch.arange(account.SAMPLES)
if ELASTIC:
    batches = session.batch_sampler(data, global_batch=account.BATCH)
    loader = DataLoader(data, batch_sampler=batches)
else:
    each = account.BATCH // session.world_size
    loader = DataLoader(data, batch_size=each, sampler=session.sampler(data), num_workers=1)
for epoch in session.epochs(EPOCHS):
    for rows in session.batches(loader):
        if session.rank == 0:
            account.look(directory)
        time.sleep(STEP_S)
        optimizer.zero_grad()
        net(rows.double().unsqueeze(1)).mean().backward()
        optimizer.step()
        facts = {"rows": rows.tolist(), "size": session.world_size}
        trained = -float(model.weight) * account.BATCH
        account.note("step", step=session.step + 1, epoch=epoch, sum=trained, **facts)
account.note("end", step=session.step, found=account.checkpoints(directory))
