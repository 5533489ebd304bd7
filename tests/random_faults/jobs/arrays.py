"""A NumPy session: ``arrays.py EPOCHS STEP_S SAVE_EVERY STAGING``."""

from __future__ import annotations

import sys
import time

import account
import numpy as np

from hpcext.training.session import Session

EPOCHS, STEP_S, SAVE_EVERY = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
BALLAST = 200_000

assert account.attempt is not None
directory = account.attempt.checkpoint_dir
account.note("begin", found=account.checkpoints(directory))
state = {"sum": np.zeros(1, dtype=np.int64), "ballast": np.zeros(BALLAST, dtype=np.uint8)}
session = Session(
    state=state,
    seed=5,
    checkpoint_every_s=None,
    checkpoint_every_steps=SAVE_EVERY,
    staging=sys.argv[4] == "staging",
    on_suspend=[lambda: account.note("suspended", step=session.step)],
)
account.note("resumed", step=session.step)
batches = session.sampler(account.SAMPLES).batched(account.BATCH)
for epoch in session.epochs(EPOCHS):
    for rows in session.batches(batches):
        account.look(directory)
        time.sleep(STEP_S)
        state["sum"] += rows.sum()
        facts = {"rows": rows.tolist(), "size": 1, "sum": int(state["sum"][0])}
        account.note("step", step=session.step + 1, epoch=epoch, **facts)
account.note("end", step=session.step, found=account.checkpoints(directory))
