"""Two ranks train a line and keep their own account: ``RANK STEP PID PARENT WEIGHT`` a step.

The first attempt waits at one step until something happens to it, however slow the machine is.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import torch

from hpcext.training.torch import Session

GATED = 45
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
session = Session(model=model, optimizer=optimizer, seed=3, checkpoint_every_steps=10)
wrapped = session.parallel(model)
log = open(sys.argv[1], "a", buffering=1)  # noqa: SIM115
for _ in session.epochs(1):
    for _ in session.batches([torch.ones(1, 1)] * 60):
        while session.step == GATED and not session.resumed:
            if signal.SIGTSTP in signal.sigpending() or os.path.exists(f"{sys.argv[1]}.go"):
                break
            time.sleep(0.02)
        optimizer.zero_grad()
        (wrapped(torch.ones(1, 1)) - 2.0).square().sum().backward()
        optimizer.step()
        time.sleep(0.02)
        weight = model.weight.item()
        log.write(f"{session.rank} {session.step + 1} {os.getpid()} {os.getppid()} {weight!r}\n")
